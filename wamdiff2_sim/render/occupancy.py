"""Rasters of a town: which ground is taken by lanes or things, and how high the ground is."""

from __future__ import annotations

import numpy as np

from wamdiff2_sim.roads.roadmap import RoadMap

CELL_M = 0.5


class Occupancy:
    """Half-metre cells that are taken. Points outside the raster count as free."""

    def __init__(self, low: tuple[float, float], high: tuple[float, float]) -> None:
        self._low = np.floor(np.asarray(low, np.float64))
        size = np.ceil((np.asarray(high) - self._low) / CELL_M).astype(int) + 1
        self._taken = np.zeros(size, bool)

    def _cells(self, points: np.ndarray) -> np.ndarray:
        return np.floor((np.asarray(points, np.float64)[:, :2] - self._low) / CELL_M).astype(np.int64)

    def stamp(self, points: np.ndarray, radius: float) -> None:
        """Take all cells within `radius` of points (N, 2 or 3)."""
        reach = int(np.ceil(radius / CELL_M))
        grid = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
        disc = grid[np.hypot(*grid.T) * CELL_M <= radius]
        cells = np.unique(self._cells(points), axis=0)
        for start in range(0, len(cells), 4096):
            spread = (cells[start : start + 4096, None] + disc).reshape(-1, 2)
            inside = ((spread >= 0) & (spread < self._taken.shape)).all(axis=1)
            self._taken[tuple(spread[inside].T)] = True

    def grown(self, margin: float) -> Occupancy:
        """A copy in which everything within `margin` of a taken cell is taken too."""
        reach = int(round(margin / CELL_M))
        wide = [self._taken]  # wide[w]: grown by w cells along the second axis
        for w in range(1, reach + 1):
            wide.append(wide[-1] | _shifted(self._taken, w, 1) | _shifted(self._taken, -w, 1))
        grown = Occupancy.__new__(Occupancy)
        grown._low, grown._taken = self._low, wide[reach].copy()
        for d in range(1, reach + 1):
            row = wide[int(np.sqrt(reach**2 - d**2))]
            grown._taken |= _shifted(row, d, 0) | _shifted(row, -d, 0)
        return grown

    def taken(self, points: np.ndarray) -> np.ndarray:
        """(N,) bool for points (N, 2 or 3)."""
        cells = self._cells(points)
        inside = ((cells >= 0) & (cells < self._taken.shape)).all(axis=1)
        clipped = np.clip(cells, 0, np.array(self._taken.shape) - 1)
        return self._taken[tuple(clipped.T)] & inside

    def any_taken(self, centre: np.ndarray, yaw: float, length: float, width: float) -> bool:
        """Does the rectangle around `centre` touch a taken cell? It is sampled every metre."""
        points = rectangle_points(centre, yaw, length, width, 1.0)
        return bool(self.taken(points).any())

    def take(self, centre: np.ndarray, yaw: float, length: float, width: float) -> None:
        """Take the rectangle around `centre`."""
        cells = self._cells(rectangle_points(centre, yaw, length, width, CELL_M))
        inside = ((cells >= 0) & (cells < self._taken.shape)).all(axis=1)
        self._taken[tuple(cells[inside].T)] = True


def _shifted(cells: np.ndarray, by: int, axis: int) -> np.ndarray:
    """Moved by `by` cells along `axis`; what comes in is free."""
    moved = np.zeros_like(cells)
    to, source = [slice(None)] * 2, [slice(None)] * 2
    to[axis], source[axis] = (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
    moved[tuple(to)] = cells[tuple(source)]
    return moved


def rectangle_points(centre: np.ndarray, yaw: float, length: float, width: float, step: float) -> np.ndarray:
    """(N, 2) points that cover the rectangle, edges included."""
    along = np.linspace(-length / 2, length / 2, max(2, int(np.ceil(length / step)) + 1))
    across = np.linspace(-width / 2, width / 2, max(2, int(np.ceil(width / step)) + 1))
    a, b = (grid.ravel() for grid in np.meshgrid(along, across))
    c, s = np.cos(yaw), np.sin(yaw)
    return np.stack([centre[0] + a * c - b * s, centre[1] + a * s + b * c], 1)


def lane_occupancy(town: RoadMap, inset: float = 0.3, border: float = 60.0) -> Occupancy:
    """Cells on a lane, at least `inset` inside its borders."""
    x0, y0, x1, y1 = town.bounds
    occupancy = Occupancy((x0 - border, y0 - border), (x1 + border, y1 + border))
    by_width: dict[float, list[np.ndarray]] = {}
    for lane in town.lanes.values():
        by_width.setdefault(round(lane.width, 1), []).append(lane.points)
    for width, points in by_width.items():
        occupancy.stamp(np.concatenate(points), max(width / 2.0 - inset, CELL_M))
    return occupancy


class Terrain:
    """Ground height everywhere: that of the lowest lanes, smoothly filled in between and outside."""

    def __init__(self, town: RoadMap, cell: float = 8.0, border: float = 160.0) -> None:
        x0, y0, x1, y1 = town.bounds
        self.cell = cell
        self.low = np.array([x0 - border, y0 - border])
        size = np.ceil((np.array([x1, y1]) + border - self.low) / cell).astype(int) + 2
        total, weight = np.zeros(size), np.zeros(size)
        points = np.concatenate([lane.points for lane in town.lanes.values()]).astype(np.float64)
        cells = np.round((points[:, :2] - self.low) / cell).astype(int)
        lowest = np.full(size, np.inf)
        np.minimum.at(lowest, tuple(cells.T), points[:, 2])
        near = points[:, 2] - lowest[tuple(cells.T)] < 2.5  # bridges do not lift the ground
        np.add.at(total, tuple(cells[near].T), points[near, 2])
        np.add.at(weight, tuple(cells[near].T), 1.0)
        known = weight > 0
        self.z = _fill(np.where(known, total / np.maximum(weight, 1.0), 0.0), known.astype(np.float64))
        self._press_down(town)

    def _press_down(self, town: RoadMap) -> None:
        """Lower the corners around lanes until the ground covers none of them."""
        lines = [lane.edge(side, inset) for lane in town.lanes.values() for side in (1, -1) for inset in (-0.5, 1.7)]
        points = np.concatenate(lines)
        cells = ((points[:, :2] - self.low) / self.cell).astype(int)
        for _ in range(3):
            excess = np.maximum(self.height(points) - points[:, 2], 0.0)
            over = np.flatnonzero(excess > 0.02)
            lowered = self.z.copy()
            for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
                corner = (cells[over, 0] + i, cells[over, 1] + j)
                np.minimum.at(lowered, corner, self.z[corner] - excess[over])
            self.z = lowered

    def height(self, points: np.ndarray) -> np.ndarray:
        """(N,) ground height at points (N, 2 or 3), bilinear."""
        at = np.clip((np.asarray(points, np.float64)[:, :2] - self.low) / self.cell, 0, np.array(self.z.shape) - 1.001)
        i, j = at.astype(int).T
        u, v = (at - at.astype(int)).T
        z = self.z
        return (z[i, j] * (1 - u) + z[i + 1, j] * u) * (1 - v) + (z[i, j + 1] * (1 - u) + z[i + 1, j + 1] * u) * v


def _fill(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Push-pull: unknown cells (weight 0) take a smooth blend of their surroundings."""
    if min(value.shape) <= 1 or weight.min() > 0:
        return value
    padded = tuple((0, n % 2) for n in value.shape)
    w = np.pad(weight, padded)
    vw = np.pad(value * weight, padded)
    small = (w.shape[0] // 2, 2, w.shape[1] // 2, 2)
    w2, vw2 = w.reshape(small).sum(axis=(1, 3)), vw.reshape(small).sum(axis=(1, 3))
    coarse = _fill(vw2 / np.maximum(w2, 1e-9), np.minimum(w2, 1.0))
    wide = np.pad(np.repeat(np.repeat(coarse, 2, 0), 2, 1), 1, mode="edge")
    rows, columns = value.shape
    shifts = [(i, j) for i in range(3) for j in range(3)]
    smooth = np.mean([wide[i : i + 2 * coarse.shape[0], j : j + 2 * coarse.shape[1]] for i, j in shifts], axis=0)
    return np.where(weight > 0, value, smooth[:rows, :columns])
