"""The last seconds of odometry: motion for the prompt, poses for a plan that is older than now."""

from __future__ import annotations

import bisect
import math
import threading
from dataclasses import dataclass

from wamdiff2_core.scene import EgoState

KEEP_S = 3.0
DIFFERENCE_S = 0.2  # acceleration is taken over this long: odometry carries none, and one step apart it is noise


@dataclass(frozen=True)
class OdometrySample:
    """Pose (m, rad) in the odometry frame, velocity (m/s) and yaw rate (rad/s) in base_link, at `stamp_s`."""

    stamp_s: float
    x: float
    y: float
    yaw: float
    velocity: tuple[float, float]
    yaw_rate: float


class OdometryHistory:
    """Samples of the last seconds by stamp. Safe between threads. A stamp going back forgets what was there."""

    def __init__(self) -> None:
        self._samples: list[OdometrySample] = []
        self._lock = threading.Lock()

    def add(self, sample: OdometrySample) -> None:
        with self._lock:
            if self._samples and sample.stamp_s < self._samples[-1].stamp_s:
                self._samples.clear()
            self._samples.append(sample)
            while self._samples[0].stamp_s < sample.stamp_s - KEEP_S:
                self._samples.pop(0)

    def clear(self) -> None:
        with self._lock:
            self._samples.clear()

    def newest(self) -> OdometrySample | None:
        with self._lock:
            return self._samples[-1] if self._samples else None

    def at(self, stamp_s: float) -> OdometrySample | None:
        """The sample at `stamp_s`, between two neighbours by interpolation; the nearest one outside; None if empty."""
        with self._lock:
            if not self._samples:
                return None
            k = bisect.bisect_left(self._samples, stamp_s, key=lambda s: s.stamp_s)
            if k == 0:
                return self._samples[0]
            if k == len(self._samples):
                return self._samples[-1]
            return _between(self._samples[k - 1], self._samples[k], stamp_s)

    def ego_state(self, stamp_s: float) -> EgoState | None:
        """Motion at `stamp_s`; None if empty.

        Forward acceleration is the change of speed over the 0.2 s before; sideways it is v * yaw rate.
        """
        now = self.at(stamp_s)
        before = self.at(stamp_s - DIFFERENCE_S)
        if now is None or before is None:
            return None
        dt = now.stamp_s - before.stamp_s
        forward = (now.velocity[0] - before.velocity[0]) / dt if dt > 0.01 else 0.0
        sideways = now.velocity[0] * now.yaw_rate
        return EgoState(velocity=now.velocity, acceleration=(forward, sideways), yaw_rate=now.yaw_rate)


def _between(a: OdometrySample, b: OdometrySample, stamp_s: float) -> OdometrySample:
    f = (stamp_s - a.stamp_s) / max(b.stamp_s - a.stamp_s, 1e-9)
    turn = math.remainder(b.yaw - a.yaw, 2.0 * math.pi)

    def mix(p: float, q: float) -> float:
        return p + f * (q - p)

    velocity = (mix(a.velocity[0], b.velocity[0]), mix(a.velocity[1], b.velocity[1]))
    return OdometrySample(
        stamp_s, mix(a.x, b.x), mix(a.y, b.y), a.yaw + f * turn, velocity, mix(a.yaw_rate, b.yaw_rate)
    )
