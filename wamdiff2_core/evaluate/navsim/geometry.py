"""Plane geometry on arrays: points in polygons, boxes that touch, distances to a path. Metres and radians."""

from __future__ import annotations

import numpy as np


def edges_of(ring: np.ndarray) -> np.ndarray:
    """Edges (4, V, 1) of an open ring (V, 2): x and y of their starts, x and y of their ends."""
    return np.concatenate([ring, np.concatenate([ring[1:], ring[:1]])], axis=1).T[..., None].copy()


def inside_polygon(x: np.ndarray, y: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Whether points (M,) are strictly in a polygon of edges (4, V, 1), by the even-odd rule; edges are outside."""
    ax, ay, bx, by = edges
    side = (bx - ax) * (y - ay) - (x - ax) * (by - ay)  # (V, M), > 0: left of the edge
    spans = (ay <= y) != (by <= y)
    spans &= (side > 0) == (by > ay)
    inside = np.logical_xor.reduce(spans, axis=0)
    on_line = side == 0
    if on_line.any():
        within = (np.minimum(ax, bx) <= x) & (x <= np.maximum(ax, bx))
        within &= (np.minimum(ay, by) <= y) & (y <= np.maximum(ay, by))
        inside &= ~np.logical_or.reduce(on_line & within, axis=0)
    return inside


def boxes_touch(
    x: np.ndarray, y: np.ndarray, cos: np.ndarray, sin: np.ndarray, half_a: np.ndarray, half_b: np.ndarray
) -> np.ndarray:
    """Whether boxes a and b touch or overlap, by the separating axis theorem.

    x, y (M,): centre of b in the frame of a; cos, sin (M,) of the heading of b in that frame; half (2,) or (M, 2): half
    length and half width. A box of no length is the line across it. NaN never touches.
    """
    length_a, width_a = half_a[..., 0], half_a[..., 1]
    length_b, width_b = half_b[..., 0], half_b[..., 1]
    across, along = np.abs(cos), np.abs(sin)
    touch = np.abs(x) <= length_a + length_b * across + width_b * along
    touch &= np.abs(y) <= width_a + length_b * along + width_b * across
    touch &= np.abs(x * cos + y * sin) <= length_b + length_a * across + width_a * along
    touch &= np.abs(y * cos - x * sin) <= width_b + length_a * along + width_a * across
    return touch


def box_touches_polygon(centre: np.ndarray, heading: np.ndarray, half: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Whether boxes (M, 2), (M,) of one half size (2,) touch the area of a polygon of edges (4, V, 1)."""
    cos, sin = np.cos(heading), np.sin(heading)
    dx, dy = edges[0] - centre[:, 0], edges[1] - centre[:, 1]
    ax, ay = dx * cos + dy * sin, dy * cos - dx * sin  # the ring in the frame of each box (V, M)
    bx, by = np.roll(ax, -1, axis=0), np.roll(ay, -1, axis=0)
    touch = (np.minimum(ax, bx) <= half[0]) & (np.maximum(ax, bx) >= -half[0])
    touch &= (np.minimum(ay, by) <= half[1]) & (np.maximum(ay, by) >= -half[1])
    touch &= np.abs(ax * by - ay * bx) <= half[0] * np.abs(by - ay) + half[1] * np.abs(bx - ax)
    return np.logical_or.reduce(touch, axis=0) | inside_polygon(centre[:, 0], centre[:, 1], edges)


def along_path(points: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Arc length (M,) of the place on a path (V, 2) that is nearest to points (M, 2); of equal ones the first."""
    squared, share, length = _on_segments(points, path)
    nearest = squared.argmin(axis=0)
    return length.cumsum()[nearest] - (1.0 - share[nearest, np.arange(len(points))]) * length[nearest]


def farther_than(points: np.ndarray, path: np.ndarray, distance: float) -> np.ndarray:
    """Whether points (M, 2) are farther from a path (V, 2) than a distance. Segments out of reach are not looked at."""
    low, high = points.min(axis=0) - distance, points.max(axis=0) + distance
    start, end = path[:-1], path[1:]
    near = ((np.minimum(start, end) <= high) & (np.maximum(start, end) >= low)).all(axis=1)
    kept = np.flatnonzero(near)
    if not len(kept):
        return np.ones(len(points), dtype=bool)
    squared, _, _ = _on_segments(points, path[kept[0] : kept[-1] + 2])
    return np.asarray(np.sqrt(squared.min(axis=0)) > distance)


def _on_segments(points: np.ndarray, path: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Squared distances (S, M) of points to the segments of a path, the share of each segment (S, M) where its nearest
    place is, and the lengths (S,).
    """
    step = np.diff(path, axis=0)
    squared = (step**2).sum(axis=1)
    unit = step / np.where(squared > 0, squared, 1.0)[:, None]
    dx, dy = points[:, 0] - path[:-1, :1], points[:, 1] - path[:-1, 1:]
    share = dx * unit[:, :1] + dy * unit[:, 1:]
    np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
    dx -= share * step[:, :1]
    dy -= share * step[:, 1:]
    dx *= dx
    dy *= dy
    dx += dy
    return dx, share, np.sqrt(squared)
