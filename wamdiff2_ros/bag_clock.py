"""When a bag's messages happened: by their stamps, where these can be trusted, on one time line that never goes back.

A stamp of zero is replaced by the time of recording. Where stamps go back by more than a second (a bag that was looped
while it was recorded, a clock that was set), what follows is another drive: its times are moved behind the first one's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from wamdiff2_ros.bag_messages import Bag

BACK_NS = 1_000_000_000  # a step back by more than this is a new drive, not a late message
SAME_JUMP_NS = 2_000_000_000  # steps back of several topics this close together (time of recording) are one
BETWEEN_NS = 10_000_000_000  # between the end of a drive and the next one, on the common time line


@dataclass(frozen=True)
class Timeline:
    """Messages of a topic by time: their numbers in the bag and nanoseconds, ascending.

    `zero`: how many had no stamp. `same`: how many have the time of the one before. `back`: steps back of stamps.
    """

    rows: np.ndarray
    ns: np.ndarray
    zero: int = 0
    same: int = 0
    back: int = 0

    def gaps(self, start_ns: int, end_ns: int, breaks: Collection[int] = ()) -> tuple[float, int]:
        """(longest silence in s, when it began in ns) between `start_ns` and `end_ns`, both ends included.

        Silences across a moment in `breaks`, where another drive begins, are none.
        """
        if not len(self.ns):
            return (end_ns - start_ns) * 1e-9, start_ns
        times = np.concatenate([[start_ns], self.ns, [end_ns]])
        steps = np.diff(times)
        for at in breaks:
            steps[(times[:-1] < at) & (times[1:] >= at)] = 0
        k = int(steps.argmax())
        return float(steps[k]) * 1e-9, int(times[k])


class Clock:
    """The time line of a bag, from the stamps of its input topics."""

    def __init__(self, bag: Bag, inputs: Collection[str]) -> None:
        self._bag = bag
        stamped = [topic for topic in inputs if bag.begins_with_time(topic)]
        rows = bag.rows(stamped)
        self._good = rows[bag.stamp_ns[rows] > 0]
        self.jumps = self._find_jumps(stamped)  # row numbers at which another drive begins
        self._offsets = np.zeros(len(self.jumps) + 1, np.int64)
        self.breaks: list[int] = []  # the same moments on the time line, ns
        self._place_drives()

    def ns(self, rows: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Time of these messages. `stamps`: what they say; zero: the moment of recording, on the stamps' clock."""
        stamps = np.where(stamps > 0, stamps, self._recorded(rows))
        return stamps + self._offsets[np.searchsorted(self.jumps, rows, "right")]

    def timeline(self, topic: str) -> Timeline:
        """Messages of a topic by time."""
        bag = self._bag
        rows = bag.rows([topic])
        stamped = bag.begins_with_time(topic)
        stamps = bag.stamp_ns[rows] if stamped else np.zeros(len(rows), np.int64)
        ns = self.ns(rows, stamps)
        back = int((np.diff(stamps[stamps > 0]) < 0).sum())
        order = np.argsort(ns, kind="stable")
        same = int((np.diff(ns[order]) == 0).sum())
        return Timeline(rows[order], ns[order], int((stamps <= 0).sum()) if stamped else 0, same, back)

    def _recorded(self, rows: np.ndarray) -> np.ndarray:
        """The moment of recording, on the clock that stamped messages around it show."""
        bag = self._bag
        if not len(self._good):
            return bag.log_ns[rows]
        at = np.clip(np.searchsorted(self._good, rows), 0, len(self._good) - 1)
        near = self._good[at]
        return bag.stamp_ns[near] + np.where(np.abs(near - rows) > 0, bag.log_ns[rows] - bag.log_ns[near], 0)

    def _find_jumps(self, topics: Collection[str]) -> np.ndarray:
        bag, found = self._bag, []
        for topic in topics:
            rows = bag.rows([topic])
            rows = rows[bag.stamp_ns[rows] > 0]
            found += rows[1:][np.diff(bag.stamp_ns[rows]) < -BACK_NS].tolist()
        jumps: list[int] = []
        for row in sorted(found):
            if not jumps or bag.log_ns[row] - bag.log_ns[jumps[-1]] > SAME_JUMP_NS:
                jumps.append(row)
        return np.array(jumps, int)

    def _place_drives(self) -> None:
        """Each drive begins behind the end of the one before."""
        bag, end = self._bag, None
        part = np.searchsorted(self.jumps, self._good, "right")
        for k in range(len(self._offsets)):
            stamps = bag.stamp_ns[self._good[part == k]]
            if not len(stamps):
                continue
            if end is not None:
                self._offsets[k] = end + BETWEEN_NS - stamps.min()
                self.breaks.append(int(end + BETWEEN_NS))
            end = int(stamps.max() + self._offsets[k])
