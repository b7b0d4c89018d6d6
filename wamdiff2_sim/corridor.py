"""What is in a vehicle's way: every vehicle looks along its own path and finds the nearest body in the strip it will
sweep.

One geometric rule serves for leaders across lane boundaries, the ego wherever it stands, people on the road and cars
that come out of a side road.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLE_M = np.concatenate([np.arange(0.0, 18.0, 2.0), np.arange(18.0, 48.0, 5.0), np.arange(48.0, 97.0, 8.0)])
MARGIN_M = 0.3
NO_GAP = 1.0e3
STOREY_M = 3.0


@dataclass
class Bodies:
    """Oriented boxes on the ground, one per row: pose (x, y, z, yaw), speed, half length, half width; all (M,)
    float64."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    yaw: np.ndarray
    speed: np.ndarray
    half_length: np.ndarray
    half_width: np.ndarray

    @staticmethod
    def join(parts: list[Bodies]) -> Bodies:
        """All rows of `parts`, in order."""
        names = ("x", "y", "z", "yaw", "speed", "half_length", "half_width")
        return Bodies(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass
class Leaders:
    """Per vehicle (N,): free metres ahead (bumper to body), speed of that body along the path, its row in Bodies (-1
    none)."""

    gap: np.ndarray
    speed: np.ndarray
    row: np.ndarray


def find_leaders(
    paths: np.ndarray, yaws: np.ndarray, bodies: Bodies, reach: np.ndarray, margin: np.ndarray, active: np.ndarray
) -> Leaders:
    """Nearest body in the way of the first N bodies.

    `paths` (N, S, 2) and `yaws` (N, S): own future places at SAMPLE_M metres; `reach` (N,) how far each looks;
    `margin` (N,) side clearance. Body i < N is vehicle i itself.
    """
    n = len(paths)
    result = Leaders(np.full(n, NO_GAP), np.zeros(n), np.full(n, -1))
    own, other = _near_pairs(bodies, n, reach, active)
    if len(own) == 0:
        return result
    along, lateral, tangent = _project(paths, yaws, own, bodies.x[other], bodies.y[other])
    turn = bodies.yaw[other] - tangent
    c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    half_l, half_w = bodies.half_length[other], bodies.half_width[other]
    clear = np.abs(lateral) - (half_l * s + half_w * c) - bodies.half_width[own] - margin[own]
    hit = (clear < 0.0) & (along > 0.0) & (along < reach[own])
    own, other, along = own[hit], other[hit], along[hit]
    gap = along - bodies.half_length[own] - (half_l * c + half_w * s)[hit]
    order = np.lexsort((other, -gap))  # the smallest gap of each vehicle is written last
    own, other, gap = own[order], other[order], gap[order]
    result.gap[own], result.row[own] = gap, other
    result.speed[own] = (bodies.speed[other]) * np.cos(turn[hit][order])
    return result


def _near_pairs(bodies: Bodies, n: int, reach: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (vehicle, body) with the body in reach and not behind."""
    dx = bodies.x[None, :] - bodies.x[:n, None]
    dy = bodies.y[None, :] - bodies.y[:n, None]
    ahead = dx * np.cos(bodies.yaw[:n, None]) + dy * np.sin(bodies.yaw[:n, None])
    near = (dx * dx + dy * dy < (reach * reach)[:, None]) & (ahead > -3.0) & active[:, None]
    near &= np.abs(bodies.z[None, :] - bodies.z[:n, None]) < STOREY_M + 0.08 * np.abs(ahead)
    near[np.arange(n), np.arange(n)] = False
    own, other = np.nonzero(near)
    return own, other


def _project(
    paths: np.ndarray, yaws: np.ndarray, own: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(along, lateral, tangent yaw) of places (K,) on the paths of vehicles `own` (K,)."""
    gap_x, gap_y = x[:, None] - paths[own, :, 0], y[:, None] - paths[own, :, 1]
    best = np.argmin(gap_x * gap_x + gap_y * gap_y, axis=1)
    rows = np.arange(len(own))
    gap_x, gap_y, tangent = gap_x[rows, best], gap_y[rows, best], yaws[own, best]
    c, s = np.cos(tangent), np.sin(tangent)
    return SAMPLE_M[best] + gap_x * c + gap_y * s, gap_y * c - gap_x * s, tangent
