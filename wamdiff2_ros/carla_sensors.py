"""What CARLA's sensors deliver, put together by frame. Written by the client's threads, read by the bridge's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

KEPT_FRAMES = 20  # of each sensor, when nobody collects


class SensorInbox:
    """Measurements by sensor name and frame. `periods`: simulated seconds between two of a sensor, 0: every tick."""

    def __init__(self, periods: dict[str, float], step_s: float) -> None:
        self._ticks = {name: max(1, round(period / step_s)) for name, period in periods.items()}
        self._seen: dict[str, int] = {}
        self._arrived = threading.Condition()
        self._waiting: dict[str, dict[int, Any]] = {name: {} for name in periods}
        self.missed: Counter[str] = Counter()  # frames that were due and did not come in time
        self.late: Counter[str] = Counter()  # frames that came when their tick was over

    def put(self, name: str, measurement: Any) -> None:
        """Take a measurement; the oldest of a sensor goes where nobody collects them."""
        with self._arrived:
            frames = self._waiting[name]
            frames[int(measurement.frame)] = measurement
            while len(frames) > KEPT_FRAMES:
                del frames[min(frames)]
                self.late[name] += 1
            self._arrived.notify_all()

    def collect(self, frame: int, limit_s: float) -> dict[str, Any]:
        """The measurements of `frame`, after at most `limit_s` seconds of waiting for those that are due.

        Older ones are dropped and counted as late. A sensor whose rhythm is not known yet is not waited for.
        """
        with self._arrived:
            until_s = time.monotonic() + limit_s
            due = {name for name, frames in self._waiting.items() if frame in frames or self._due(name, frame)}
            while not self._all_here(due, frame):
                left_s = until_s - time.monotonic()
                if left_s <= 0.0 or not self._arrived.wait(left_s):
                    break
            found = {name: frames[frame] for name, frames in self._waiting.items() if frame in frames}
            for name in due - found.keys():
                self.missed[name] += 1
                self._seen[name] = frame  # its rhythm goes on
            for name in found:
                self._seen[name] = frame
            self._drop_until(frame)
            return found

    def newest(self) -> dict[str, Any]:
        """The newest measurement of every sensor that has one; nothing is waited for, and the rest is dropped."""
        with self._arrived:
            found = {name: frames[max(frames)] for name, frames in self._waiting.items() if frames}
            for frames in self._waiting.values():
                frames.clear()
            return found

    def _due(self, name: str, frame: int) -> bool:
        last = self._seen.get(name)
        return last is not None and frame >= last + self._ticks[name]

    def _all_here(self, names: Iterable[str], frame: int) -> bool:
        return all(frame in self._waiting[name] for name in names)

    def _drop_until(self, frame: int) -> None:
        for name, frames in self._waiting.items():
            for old in [number for number in frames if number <= frame]:
                if old < frame:
                    self.late[name] += 1
                del frames[old]
