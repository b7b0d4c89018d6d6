"""A road map as flat arrays, so that many vehicles can be placed on lanes in one numpy call.

Lanes are numbered 0..L-1 here ("index"); `ids` gives the map's lane ids. Lane points are evenly spaced, thus a place
(lane, s) is an interpolation between two rows.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_sim.roads.roadmap import Lane, RoadMap

LATERAL_COMFORT_MPS2 = 2.2  # of other traffic, in bends
BRAKE_COMFORT_MPS2 = 1.6
CONFLICT_M = 2.6  # centre lines closer than this cannot be used by two cars at once
GRADE_SEPARATION_M = 3.0
MIN_BEND_SPEED_MPS = 3.0


class LaneGraph:
    """Flat arrays of all lanes: points, headings, bend speeds, successors, stop lines; junction conflicts on demand."""

    def __init__(self, road_map: RoadMap, light_index: dict[int, int]) -> None:
        lanes = list(road_map.lanes.values())
        self.ids = np.array([lane.id for lane in lanes], dtype=np.int64)
        self.index = {lane.id: i for i, lane in enumerate(lanes)}
        counts = np.array([len(lane.points) for lane in lanes])
        self.start = np.concatenate([[0], np.cumsum(counts)])[:-1]
        self.last = counts - 1
        self.points = np.concatenate([lane.points for lane in lanes]).astype(np.float64)
        self.heading = np.concatenate([lane.headings for lane in lanes])
        self.length = np.array([lane.length for lane in lanes])
        self.spacing = self.length / np.maximum(self.last, 1)
        self.width = np.array([lane.width for lane in lanes])
        self.junction = np.array([lane.junction_id for lane in lanes], dtype=np.int64)
        self.light = np.array([light_index.get(lane.light_group, -1) for lane in lanes], dtype=np.int64)
        self.stop_s = np.array([_stop_line(lane) for lane in lanes])
        self.sidewalk = np.array([lane.has_sidewalk_right for lane in lanes])
        self.rightmost = np.array([lane.right_id == -1 for lane in lanes])
        self.turn_sign = np.array([_turn_sign(lane) for lane in lanes], dtype=np.int8)
        self.successors = [[self.index[i] for i in lane.successors if i in self.index] for lane in lanes]
        self.cap = np.concatenate([_bend_speeds(lane) for lane in lanes])
        self.entry_cap = self.cap[self.start]
        self._conflicts: dict[tuple[int, int], tuple[float, float, float, float] | None] = {}

    def rows(self, lane: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row of `points` at or before (lane, s), and the fraction towards the next row; s is clamped to the lane."""
        at = np.clip(s / self.spacing[lane], 0.0, self.last[lane] - 1e-6)
        whole = at.astype(np.int64)
        return self.start[lane] + whole, at - whole

    def xyz(self, lane: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Centre line places (..., 3)."""
        row, part = self.rows(lane, s)
        return self.points[row] + (self.points[row + 1] - self.points[row]) * part[..., None]

    def yaw(self, lane: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Driving directions, not wrapped."""
        row, part = self.rows(lane, s)
        return self.heading[row] + (self.heading[row + 1] - self.heading[row]) * part

    def speed_cap(self, lane: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Speed (m/s) that the limit and the bends up to the lane's end allow."""
        row, part = self.rows(lane, s)
        return self.cap[row] + (self.cap[row + 1] - self.cap[row]) * part

    def begin_together(self, a: int, b: int) -> bool:
        """Whether two lanes have one first point: they branch off one lane."""
        gap = self.points[self.start[a]] - self.points[self.start[b]]
        return bool(np.hypot(gap[0], gap[1]) < 1.0 and abs(gap[2]) < 1.0)

    def conflict(self, a: int, b: int) -> tuple[float, float, float, float] | None:
        """Where lanes `a` and `b` of one junction get too close: (a from, a to, b from, b to), or None if they never
        do.

        Lanes that begin together (one drives behind the other) are not in conflict.
        """
        if a == b:
            return None
        key = (a, b) if a < b else (b, a)
        if key not in self._conflicts:
            self._conflicts[key] = self._find_conflict(*key)
        found = self._conflicts[key]
        return found if found is None or a < b else (found[2], found[3], found[0], found[1])

    def _find_conflict(self, a: int, b: int) -> tuple[float, float, float, float] | None:
        line_a, line_b = self._line(a), self._line(b)
        gap = line_a[:, None, :] - line_b[None, :, :]
        close = (np.hypot(gap[..., 0], gap[..., 1]) < CONFLICT_M) & (np.abs(gap[..., 2]) < GRADE_SEPARATION_M)
        if not close.any() or self.begin_together(a, b):
            return None
        on_a, on_b = np.flatnonzero(close.any(axis=1)), np.flatnonzero(close.any(axis=0))
        step_a, step_b = self.spacing[a], self.spacing[b]
        return float(on_a[0] * step_a), float(on_a[-1] * step_a), float(on_b[0] * step_b), float(on_b[-1] * step_b)

    def _line(self, lane: int) -> np.ndarray:
        return self.points[self.start[lane] : self.start[lane] + self.last[lane] + 1]


def _stop_line(lane: Lane) -> float:
    """Arc length where vehicles stop before the junction: the painted line, else one metre before the lane's end."""
    return lane.stop_s if lane.stop_s >= 0.0 else max(lane.length - 1.0, 0.0)


def _turn_sign(lane: Lane) -> int:
    return {"left": 1, "right": -1}.get(lane.turn.value, 0)


def _bend_speeds(lane: Lane) -> np.ndarray:
    """(N,) speed allowed at each point, braking for bends further along this lane included."""
    step = lane.length / (len(lane.points) - 1)
    bend = np.abs(np.gradient(lane.headings)) / max(step, 1e-3)
    bend = np.convolve(np.pad(bend, 2, mode="edge"), np.full(5, 0.2), mode="valid")  # centre lines have kinks at seams
    cap = np.sqrt(LATERAL_COMFORT_MPS2 / np.maximum(bend, 1e-4))
    cap = np.clip(cap, min(MIN_BEND_SPEED_MPS, lane.speed_limit_mps), lane.speed_limit_mps)
    for i in range(len(cap) - 2, -1, -1):
        cap[i] = min(cap[i], float(np.sqrt(cap[i + 1] ** 2 + 2.0 * BRAKE_COMFORT_MPS2 * step)))
    return cap
