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
    offset: np.ndarray, cos: np.ndarray, sin: np.ndarray, half_a: np.ndarray, half_b: np.ndarray
) -> np.ndarray:
    """Whether boxes a and b touch or overlap, by the separating axis theorem.

    offset (..., 2): centre of b in the frame of a; cos, sin (...) of the heading of b in that frame; half (..., 2):
    half length and half width. A box of no length is the line across it. NaN never touches.
    """
    length_a, width_a = half_a[..., 0], half_a[..., 1]
    length_b, width_b = half_b[..., 0], half_b[..., 1]
    x, y = offset[..., 0], offset[..., 1]
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


def along_path(points: np.ndarray, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Arc length of the nearest place on a path (V, 2) and distance to it, both (M,), of points (M, 2).

    Of places at equal distance the first counts.
    """
    step = np.diff(path, axis=0)
    squared = (step**2).sum(axis=1)
    before = np.concatenate([[0.0], np.cumsum(np.sqrt(squared))])[:-1]
    dx, dy = points[:, :1] - path[:-1, 0], points[:, 1:] - path[:-1, 1]
    share = np.clip((dx * step[:, 0] + dy * step[:, 1]) / np.where(squared > 0, squared, 1.0), 0.0, 1.0)
    away = (dx - share * step[:, 0]) ** 2 + (dy - share * step[:, 1]) ** 2
    nearest = away.argmin(axis=1)
    row = np.arange(len(points))
    return before[nearest] + share[row, nearest] * np.sqrt(squared[nearest]), np.sqrt(away[row, nearest])
