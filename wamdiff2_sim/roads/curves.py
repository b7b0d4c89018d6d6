"""Planar curves of straight lines and arcs, as dense pose arrays (M, 3): x, y, heading (unwrapped, exact tangent)."""

from __future__ import annotations

import numpy as np

ARC_STEP_RAD = 0.03
MAX_ARC_STEP_M = 0.5
LARGE_RADIUS = 1e4


def unit(heading: float) -> np.ndarray:
    """(2,) unit vector of a heading."""
    return np.array([np.cos(heading), np.sin(heading)])


def wrap(angle: float) -> float:
    """Angle in (-pi, pi]."""
    return float(np.pi - (np.pi - angle) % (2.0 * np.pi))


def fillet(controls: np.ndarray, radii: list[float]) -> np.ndarray:
    """Polyline `controls` (K, 2) with its K - 2 corners rounded by arcs of at most these radii.

    An arc takes at most half of an inner segment and all of an end segment, so neighbouring arcs never overlap.
    """
    steps = np.diff(controls, axis=0)
    lengths = np.hypot(steps[:, 0], steps[:, 1])
    headings = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
    shares = lengths / 2.0
    shares[0], shares[-1] = lengths[0], lengths[-1]
    pieces = [np.array([[*controls[0], headings[0]]])]
    for corner, radius in enumerate(radii):
        turn = headings[corner + 1] - headings[corner]
        half = np.tan(abs(turn) / 2.0)
        tangent = min(radius * half, shares[corner], shares[corner + 1])
        if abs(turn) < 1e-6 or tangent < 1e-6:
            continue
        start = controls[corner + 1] - tangent * unit(headings[corner])
        pieces.append(arc(start, headings[corner], turn, tangent / half))
    pieces.append(np.array([[*controls[-1], headings[-1]]]))
    poses = np.concatenate(pieces)
    gaps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
    return poses[np.concatenate(([True], gaps > 1e-6))]


def arc(start: np.ndarray, heading: float, turn: float, radius: float) -> np.ndarray:
    """Poses (M, 3) along an arc from `start`, turning by `turn` radians (left positive)."""
    count = max(2, int(np.ceil(abs(turn) / min(ARC_STEP_RAD, MAX_ARC_STEP_M / radius))) + 1)
    angles = np.linspace(0.0, turn, count)
    signed = np.copysign(radius, turn)
    x = start[0] + signed * (np.sin(heading + angles) - np.sin(heading))
    y = start[1] - signed * (np.cos(heading + angles) - np.cos(heading))
    return np.stack([x, y, heading + angles], axis=1)


def tangent_corner(p0: np.ndarray, h0: float, p1: np.ndarray, h1: float) -> np.ndarray | None:
    """(2,) where the tangent ahead of (p0, h0) meets the one behind (p1, h1); None for slight turns or no meeting."""
    u0, u1, gap = unit(h0), unit(h1), p1 - p0
    cross = u0[0] * u1[1] - u0[1] * u1[0]
    if abs(wrap(h1 - h0)) < 0.35 or abs(cross) < 0.1:
        return None
    ahead = (gap[0] * u1[1] - gap[1] * u1[0]) / cross
    behind = (u0[0] * gap[1] - u0[1] * gap[0]) / cross
    return p0 + ahead * u0 if ahead > 0.3 and behind > 0.3 else None


def connect(p0: np.ndarray, h0: float, p1: np.ndarray, h1: float) -> np.ndarray:
    """Smooth poses from pose (p0, h0) to (p1, h1): the widest single arc if the tangents cross, else an S-bend."""
    p0, p1 = np.asarray(p0, dtype=np.float64)[:2], np.asarray(p1, dtype=np.float64)[:2]
    corner = tangent_corner(p0, h0, p1, h1)
    if corner is not None:
        return fillet(np.array([p0, corner, p1]), [LARGE_RADIUS])
    u0, u1, third = unit(h0), unit(h1), float(np.hypot(*(p1 - p0))) / 3.0
    return fillet(np.array([p0, p0 + third * u0, p1 - third * u1, p1]), [LARGE_RADIUS, LARGE_RADIUS])


def offset(poses: np.ndarray, lateral: float) -> np.ndarray:
    """Poses moved `lateral` metres to the left of their heading."""
    moved = poses.copy()
    moved[:, 0] -= lateral * np.sin(poses[:, 2])
    moved[:, 1] += lateral * np.cos(poses[:, 2])
    return moved


def reverse(poses: np.ndarray) -> np.ndarray:
    """The same curve driven the other way."""
    back = poses[::-1].copy()
    back[:, 2] += np.pi
    return back


def resample(points: np.ndarray, step: float = 1.0) -> np.ndarray:
    """(N, D) points spaced evenly by about `step` metres (planar) along `points` (M, D); both ends stay exact."""
    gaps = np.hypot(*np.diff(points[:, :2], axis=0).T)
    s = np.concatenate(([0.0], np.cumsum(gaps)))
    targets = np.linspace(0.0, s[-1], max(2, int(round(s[-1] / step)) + 1))
    return np.stack([np.interp(targets, s, points[:, axis]) for axis in range(points.shape[1])], axis=1)
