"""Which control goes to the car: the newest one while it is young, else the brake. Knows neither rclpy nor carla."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass

from wamdiff2_core.control import VehicleControl

STANDING_MPS = 0.3  # below this the hand brake holds as well
AHEAD_S = 1.0  # a stamp this far ahead of the simulation is of another clock


@dataclass(frozen=True)
class Decision:
    """What is applied, and why the car is braked (empty: it is driven)."""

    control: VehicleControl
    why_braked: str = ""


class ControlGate:
    """The newest control, with its stamp in simulated seconds. Safe between threads."""

    def __init__(self, max_age_s: float, real_seconds_count: bool) -> None:
        """max_age_s: of simulated time. real_seconds_count: an age in real seconds since receipt counts as well."""
        self._max_age_s, self._real = max_age_s, real_seconds_count
        self._arrived = threading.Condition()
        self._control: VehicleControl | None = None
        self._stamp_s = self._received_s = -1e9
        self._now_s = 0.0
        self._over = False
        self.counts: Counter[str] = Counter()

    def end(self) -> None:
        """Nothing is waited for any more."""
        with self._arrived:
            self._over = True
            self._arrived.notify_all()

    def restart(self) -> None:
        """Another simulation begins: what was said before is of no use."""
        with self._arrived:
            self._control, self._stamp_s, self._now_s = None, -1e9, 0.0

    def put(self, control: VehicleControl, stamp_s: float) -> None:
        """Take a control; stamp 0: of now. One of another clock is refused and counted."""
        with self._arrived:
            stamp_s = stamp_s if stamp_s > 0.0 else self._now_s
            if stamp_s > self._now_s + AHEAD_S:
                self.counts["refused: stamp ahead of the simulation"] += 1
                return
            self.counts["received"] += 1
            self._control, self._stamp_s, self._received_s = control, stamp_s, time.monotonic()
            self._arrived.notify_all()

    def refuse(self, why: str) -> None:
        """Count a control that could not be read."""
        with self._arrived:
            self.counts[f"refused: {why}"] += 1

    def advance(self, now_s: float) -> None:
        """Simulated time goes on."""
        with self._arrived:
            self._now_s = now_s

    def wait(self, limit_s: float, silent_limit_s: float) -> bool:
        """Wait for a control made of the newest tick's odometry; False, counted as late, if none comes in time.

        silent_limit_s: the limit while the car is braked for want of a control; short, so that the world goes on, but
        not zero, or the world would run away from a controller that comes back.
        """
        with self._arrived:
            until_s = time.monotonic() + (silent_limit_s if self._why() else limit_s)
            while self._stamp_s < self._now_s - 1e-6:
                left_s = until_s - time.monotonic()
                if self._over or left_s <= 0.0 or not self._arrived.wait(left_s):
                    self.counts["late"] += not self._over
                    return False
            return True

    def decide(self, speed_mps: float) -> Decision:
        """The control for now: the newest, or full brakes (steering as it was, hand brake at a standstill)."""
        with self._arrived:
            why = self._why()
            if not why and self._control is not None:
                self.counts["applied"] += 1
                return Decision(self._control)
            self.counts["braked"] += 1
            steer = self._control.steer if self._control is not None else 0.0
            standing = abs(speed_mps) < STANDING_MPS
            return Decision(VehicleControl(steer=steer, brake=1.0, hand_brake=standing), why)

    def _why(self) -> str:
        if self._control is None:
            return "no control yet"
        age_s = self._now_s - self._stamp_s
        if self._real:
            age_s = max(age_s, time.monotonic() - self._received_s)
        if age_s > self._max_age_s:
            return f"the newest control is older than {self._max_age_s:g} s"
        return ""
