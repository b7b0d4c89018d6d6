"""When the next frames are due: a slow worker that would take old ones a moment before should wait for them instead."""

from __future__ import annotations

import statistics
from collections import deque

LEAST = 3  # periods that must be known
KEPT = 8
LATE = 0.2  # of a period that frames may be late by, as they usually come; then those at hand are taken


class Pace:
    """Learns the period of groups of frames from their stamps. Times in seconds; not for several threads."""

    def __init__(self) -> None:
        self._periods_s: deque[float] = deque(maxlen=KEPT)
        self._last_stamp_s: float | None = None
        self._arrived_s = 0.0

    def add(self, stamp_s: float, arrived_s: float) -> None:
        """A group came. `arrived_s`: steady time."""
        if self._last_stamp_s is not None:
            self._periods_s.append(stamp_s - self._last_stamp_s)
        self._last_stamp_s, self._arrived_s = stamp_s, arrived_s

    def clear(self) -> None:
        """Stamps go on from anywhere."""
        self._periods_s.clear()
        self._last_stamp_s = None

    def wait_s(self, now_s: float, soon_s: float) -> float:
        """For how long to wait for the next group at most, because it is due within `soon_s`; 0: not at all.

        With `soon_s` as long as all the work on a frame but the inference, no frame that is used is older at the end
        than one period and one inference. Longer than half a period is never waited: frames would be lost by it.
        """
        if len(self._periods_s) < LEAST:
            return 0.0
        period_s = statistics.median(self._periods_s)
        left_s = self._arrived_s + period_s - now_s
        if not -LATE * period_s < left_s <= min(soon_s, period_s / 2.0):
            return 0.0
        return left_s + LATE * period_s
