"""Time as the sensors have it: runs with the steady clock, and jumps at moments that all processes are told before.

Every jump begins a new epoch. Its number is put into the last three digits of each stamp's nanoseconds, so no stamp is
ever used twice, and a stamp says which epoch it comes from.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

START_S = 1000.0  # sensor time at the first moment: enough to jump back from
EPOCHS = 1000
_US = 1000


@dataclass
class Timeline:
    """`begin_s`: steady time of the first moment, the same in all processes."""

    begin_s: float
    _jumps_s: list[float] = field(default_factory=list)  # steady times
    _offsets_s: list[float] = field(default_factory=list)  # sensor time minus steady time from then on

    def __post_init__(self) -> None:
        if not self._jumps_s:
            self._jumps_s, self._offsets_s = [self.begin_s], [START_S - self.begin_s]

    def jump(self, at_s: float, by_s: float) -> None:
        """Let sensor time jump by `by_s` at steady time `at_s`, which is after all jumps before."""
        if at_s <= self._jumps_s[-1] or len(self._jumps_s) >= EPOCHS:
            raise ValueError(f"a jump at {at_s} after {len(self._jumps_s)} ones, the last at {self._jumps_s[-1]}")
        self._jumps_s.append(at_s)
        self._offsets_s.append(self._offsets_s[-1] + by_s)

    def epoch(self, steady_s: float) -> int:
        return max(0, bisect.bisect_right(self._jumps_s, steady_s) - 1)

    def stamp_ns(self, steady_s: float) -> int:
        """Sensor time at a steady time, in nanoseconds; the last three digits are the epoch."""
        epoch = self.epoch(steady_s)
        return round((steady_s + self._offsets_s[epoch]) * 1e6) * _US + epoch


def epoch_of(stamp_ns: int) -> int:
    """The epoch that a stamp was made in."""
    return stamp_ns % EPOCHS
