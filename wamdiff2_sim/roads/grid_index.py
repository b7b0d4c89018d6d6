"""A fixed-cell spatial index over labelled points: numpy only, built in milliseconds."""

from __future__ import annotations

import numpy as np

CELL_M = 10.0


class GridIndex:
    """Points (N, 2) with owner numbers (N,), bucketed in square cells."""

    def __init__(self, points: np.ndarray, owners: np.ndarray) -> None:
        cells = np.floor(points / CELL_M).astype(np.int64)
        order = np.lexsort((cells[:, 1], cells[:, 0]))
        self.points, self.owners = points[order], owners[order]
        unique, starts = np.unique(cells[order], axis=0, return_index=True)
        ends = np.append(starts[1:], len(points))
        self._ranges = {(int(c[0]), int(c[1])): (int(a), int(b)) for c, a, b in zip(unique, starts, ends, strict=True)}

    def _candidates(self, xy: np.ndarray, radius: float) -> np.ndarray:
        x0, y0 = (int(v) for v in np.floor((xy - radius) / CELL_M))
        x1, y1 = (int(v) for v in np.floor((xy + radius) / CELL_M))
        if (x1 - x0 + 1) * (y1 - y0 + 1) > len(self._ranges):
            return np.arange(len(self.points))
        keys = ((x, y) for x in range(x0, x1 + 1) for y in range(y0, y1 + 1))
        spans = [np.arange(*self._ranges[key]) for key in keys if key in self._ranges]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)

    def owners_within(self, xy: np.ndarray, radius: float) -> np.ndarray:
        """Owners (with repeats) of the points within `radius` of `xy` (2,)."""
        xy = np.asarray(xy, dtype=np.float64)[:2]
        rows = self._candidates(xy, radius)
        gaps = self.points[rows] - xy
        return self.owners[rows[(gaps * gaps).sum(axis=1) <= radius * radius]]

    def nearest_distance(self, xy: np.ndarray) -> float:
        """Distance from `xy` (2,) to the nearest point."""
        xy = np.asarray(xy, dtype=np.float64)[:2]
        radius = CELL_M
        while True:
            rows = self._candidates(xy, radius)
            if len(rows):
                nearest = float(np.hypot(*(self.points[rows] - xy).T).min())
                if nearest <= radius or len(rows) == len(self.points):
                    return nearest
            radius *= 2.0
