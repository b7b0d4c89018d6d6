"""What to do next: the leaderboard's route nodes as an instruction and a target point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_core.tasks.navigation import navigation_text

LEFT, RIGHT, STRAIGHT = 1, 2, 3  # RoadOption; -1 void, 4 follow, 5 and 6 lane changes
TURNS = {LEFT: Command.LEFT, RIGHT: Command.RIGHT, STRAIGHT: Command.STRAIGHT}
LANE_CHANGES = (5, 6)
NEAREST_TARGET_M = 4.0
WINDOW_M = (10.0, 40.0)  # of the route around the last place, in which the next one is looked for


@dataclass(frozen=True)
class Turn:
    """A junction on the route, from arc length `start` to `end` (m)."""

    start: float
    end: float
    command: Command


class Guide:
    """Keeps the progress on the route. Nodes are some 50 m apart, nearer at junctions and lane changes."""

    def __init__(self, points: np.ndarray, options: Sequence[int]) -> None:
        """points: (N >= 2, 2) m in the ROS map frame; options: RoadOption number of each. DataError otherwise."""
        self.points = np.asarray(points, dtype=np.float64)
        if self.points.ndim != 2 or self.points.shape[1] != 2 or len(self.points) < 2:
            raise DataError(f"route: expected nodes (N >= 2, 2), got {self.points.shape}")
        if len(options) != len(self.points):
            raise DataError(f"route: {len(self.points)} nodes but {len(options)} options")
        gaps = np.hypot(*np.diff(self.points, axis=0).T)
        self.s = np.concatenate([[0.0], np.cumsum(gaps)])
        self.turns = _turns(self.s, options)
        self.lane_changes = sum(option in LANE_CHANGES for option in options)  # our instructions have no word for them
        self.progress = 0.0

    def update(self, x: float, y: float) -> None:
        """Take in where base_link is (m, ROS map frame). Progress may fall a little but never jumps."""
        low, high = self.progress - WINDOW_M[0], self.progress + WINDOW_M[1]
        best, found = math.inf, self.progress
        for i in range(len(self.points) - 1):
            if self.s[i + 1] < low or self.s[i] > high:
                continue
            step = self.points[i + 1] - self.points[i]
            length = max(float(self.s[i + 1] - self.s[i]), 1e-6)
            along = float(np.clip(((x, y) - self.points[i]) @ step / length, 0.0, length))
            along = float(np.clip(self.s[i] + along, low, high)) - float(self.s[i])
            gap = float(np.hypot(*((x, y) - self.points[i] - step * (along / length))))
            if gap < best:
                best, found = gap, float(self.s[i]) + along
        self.progress = max(found, 0.0)

    def command(self) -> tuple[Command, float]:
        """What to do and in how many metres (0: we are in the junction); FOLLOW and inf where nothing is near."""
        for turn in self.turns:
            if self.progress < turn.end:
                return turn.command, max(0.0, turn.start - self.progress)
        return Command.FOLLOW, math.inf

    @property
    def instruction(self) -> str:
        """The command in the words that the model knows."""
        return navigation_text(*self.command())

    def target(self) -> tuple[float, float]:
        """The next node at least 4 m further on (m, ROS map frame); the last one at the route's end."""
        i = int(np.searchsorted(self.s, self.progress + NEAREST_TARGET_M))
        x, y = self.points[min(i, len(self.points) - 1)]
        return float(x), float(y)


def _turns(s: np.ndarray, options: Sequence[int]) -> list[Turn]:
    """Runs of nodes with one turning option; a turn ends at the next node with another option."""
    found: list[Turn] = []
    i = 0
    while i < len(options):
        j = i + 1
        while j < len(options) and options[j] == options[i]:
            j += 1
        if options[i] in TURNS:
            found.append(Turn(float(s[i]), float(s[min(j, len(s) - 1)]), TURNS[options[i]]))
        i = j
    return found
