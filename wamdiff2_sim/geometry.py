"""Small planar geometry for scores: do boxes touch, is a point on a surface."""

from __future__ import annotations

import numpy as np


def boxes_touch(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two rectangles (4, 2), corners in order, overlap (separating axes)."""
    for one, other in ((a, b), (b, a)):
        for axis in (one[1] - one[0], one[2] - one[1]):
            mine, theirs = one @ axis, other @ axis
            if mine.max() < theirs.min() or theirs.max() < mine.min():
                return False
    return True


def in_polygon(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """(K,) bool: points (K, 2) inside the polygon (N, 2), by the even-odd rule."""
    x, y = points[:, 0:1], points[:, 1:2]
    x0, y0 = polygon[:, 0], polygon[:, 1]
    x1, y1 = np.roll(x0, -1), np.roll(y0, -1)
    spans = (y0 > y) != (y1 > y)
    rise = np.where(y1 == y0, 1e-12, y1 - y0)
    return (np.count_nonzero(spans & (x < (x1 - x0) * (y - y0) / rise + x0), axis=1) % 2).astype(bool)


class Surface:
    """The drivable ground of a map: lanes and junction areas, looked up through a grid of lane points."""

    CELL_M = 12.0
    REACH_M = 8.0  # half an ego diagonal plus half the widest lane
    SLACK_M = 0.3  # kerbs and rounding of centre lines

    def __init__(self, road_map) -> None:
        lanes = list(road_map.lanes.values())
        self._points = np.concatenate([lane.points for lane in lanes]).astype(np.float64)
        self._headings = np.concatenate([lane.headings for lane in lanes])
        self._cos, self._sin = np.cos(self._headings), np.sin(self._headings)
        self._half = np.concatenate([np.full(len(lane.points), lane.width / 2.0) for lane in lanes])
        self._in_junction = np.concatenate([np.full(len(lane.points), lane.junction_id >= 0) for lane in lanes])
        self._junctions = [
            (
                np.asarray(p)[:, :2].min(axis=0),
                np.asarray(p)[:, :2].max(axis=0),
                np.asarray(p)[:, :2].astype(np.float64),
            )
            for p in road_map.junctions.values()
        ]
        self._low = np.array([low for low, _, _ in self._junctions]).reshape(-1, 2)
        self._high = np.array([high for _, high, _ in self._junctions]).reshape(-1, 2)
        cells = np.floor(self._points[:, :2] / self.CELL_M).astype(np.int64)
        order = np.lexsort((cells[:, 1], cells[:, 0]))
        keys, first = np.unique(cells[order], axis=0, return_index=True)
        groups = np.split(order, first[1:])
        self._cells = {(int(k[0]), int(k[1])): group for k, group in zip(keys, groups, strict=True)}

    def _near(self, x: float, y: float) -> np.ndarray:
        """Rows of the lane points in the cells around (x, y)."""
        i, j = int(np.floor(x / self.CELL_M)), int(np.floor(y / self.CELL_M))
        found = [self._cells[k] for a in (-1, 0, 1) for b in (-1, 0, 1) if (k := (i + a, j + b)) in self._cells]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _in_any_junction(self, points: np.ndarray) -> np.ndarray:
        """(K,) bool."""
        inside = np.zeros(len(points), dtype=bool)
        middle = points.mean(axis=0)
        close = ((middle >= self._low - 8.0) & (middle <= self._high + 8.0)).all(axis=1)
        for k in np.flatnonzero(close):
            inside |= in_polygon(points, self._junctions[k][2])
        return inside

    def look(self, corners: np.ndarray, z: float, yaw: float) -> tuple[bool, bool]:
        """(off road, wrong lane) of a vehicle with these corners (4, 2): a corner off all surfaces; middle on oncoming
        lanes only."""
        middle = corners.mean(axis=0)
        rows = self._near(float(middle[0]), float(middle[1]))
        offset = np.abs(self._points[rows] - (*middle.tolist(), z))
        rows = rows[(offset < (self.REACH_M, self.REACH_M, 3.0)).all(axis=1)]
        in_junction = self._in_any_junction(np.vstack([corners, middle]))
        if len(rows) == 0:
            return not bool(in_junction.all()), False
        gaps = np.vstack([corners, middle])[:, None, :] - self._points[rows, :2]
        c, s = self._cos[rows], self._sin[rows]
        side, along = np.abs(gaps[..., 1] * c - gaps[..., 0] * s), np.abs(gaps[..., 0] * c + gaps[..., 1] * s)
        on = (side < self._half[rows] + self.SLACK_M) & (along < 1.0)
        off = not bool((on[:4].any(axis=1) | in_junction[:4]).all())
        mine = on[4] & (side[4] < self._half[rows])
        with_us = np.cos(self._headings[rows] - yaw) > -0.3
        wrong = bool(mine.any()) and not bool((mine & (with_us | self._in_junction[rows])).any()) and not in_junction[4]
        return off, wrong
