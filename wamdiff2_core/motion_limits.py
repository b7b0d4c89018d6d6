"""The nearest motion within a vehicle's limits: a small quadratic programme, solved exactly.

Speed is a uniform quadratic B-spline, so acceleration is linear and jerk constant between knots: bounds on the first
and second differences of the coefficients bound acceleration and jerk everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.optimize import nnls


class MotionLimits(Protocol):
    """Of TrajectoryLimits, what is needed here (m/s, m/s^2, m/s^3, 1/m)."""

    def __hash__(self) -> int: ...

    @property
    def max_speed_mps(self) -> float: ...

    @property
    def max_acceleration_mps2(self) -> float: ...

    @property
    def max_deceleration_mps2(self) -> float: ...

    @property
    def max_jerk_mps3(self) -> float: ...

    @property
    def max_curvature_1pm(self) -> float: ...


@lru_cache(maxsize=16)
def bounds(count: int, step_s: float, limits: MotionLimits) -> tuple[np.ndarray, np.ndarray]:
    """Rows G (R, 2 * count) and h (R,): coefficients theta (speeds, then curvatures) are within limits if G theta >= h.

    `step_s`: between knots. Not to be written to.
    """
    eye = np.eye(count)
    rises, bends = np.diff(eye, axis=0), np.diff(eye, n=2, axis=0)
    most_bend = limits.max_jerk_mps3 * step_s**2
    none = np.zeros(count)
    speeds = [
        (eye[1:], np.zeros(count - 1)),
        (-eye[1:], np.full(count - 1, -limits.max_speed_mps)),
        (rises, np.full(count - 1, -limits.max_deceleration_mps2 * step_s)),
        (-rises, np.full(count - 1, -limits.max_acceleration_mps2 * step_s)),
        (bends, np.full(count - 2, -most_bend)),
        (-bends, np.full(count - 2, -most_bend)),
    ]
    rows = [np.hstack([g, np.zeros_like(g)]) for g, _ in speeds]
    rows += [np.hstack([np.zeros_like(eye), sign * eye]) for sign in (1.0, -1.0)]
    least = [h for _, h in speeds] + [none - limits.max_curvature_1pm] * 2
    return np.vstack(rows), np.concatenate(least)


@lru_cache(maxsize=4)
def tied(count: int) -> np.ndarray:
    """Matrix T (2 * count, 2 * count - 1): theta = T free + (2 * speed, 0, ...), whatever the free coefficients are."""
    matrix = np.eye(2 * count)[:, 1:].copy()
    matrix[0, 0] = -1.0
    return matrix


def nearest_within(
    wanted: np.ndarray, normal: np.ndarray, step_s: float, speed: float, limits: MotionLimits
) -> np.ndarray:
    """Coefficients within the limits that are nearest to `wanted` (2C,) in the metric `normal` (2C, 2C).

    Keeping the speed as it is, straight on, is always within the limits, so there is always an answer.
    """
    count = len(wanted) // 2
    rows, least = bounds(count, step_s, limits)
    matrix = tied(count)
    offset = np.zeros(2 * count)
    offset[0] = 2.0 * speed
    metric = matrix.T @ normal @ matrix
    aim = np.linalg.solve(metric, matrix.T @ normal @ (wanted - offset))
    root = np.linalg.cholesky(metric)  # metric = root @ root.T
    # Least distance programming: z = root.T (free - aim), minimise |z| with G z >= h (Lawson and Hanson, chapter 23).
    g = np.linalg.solve(root, (rows @ matrix).T)
    h = least - rows @ (matrix @ aim + offset)
    if (h <= 1e-9).all():
        return matrix @ aim + offset
    scale = float(np.abs(h).max())
    target = np.zeros(len(g) + 1)
    target[-1] = 1.0
    dual, _ = nnls(np.vstack([g, h / scale]), target, maxiter=20 * len(h))
    rest = np.vstack([g, h / scale]) @ dual - target
    free = aim + np.linalg.solve(root.T, -rest[:-1] / rest[-1] * scale)
    return _inside(matrix @ free + offset, speed, rows, least)


def _inside(theta: np.ndarray, speed: float, rows: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Take away what rounding leaves outside: drawn towards constant speed straight on, which is within all limits."""
    count = len(theta) // 2
    safe = np.concatenate([np.full(count, speed), np.zeros(count)])
    slack, violation = rows @ safe - least, least - rows @ theta
    outside = violation > 0.0
    if not outside.any():
        return theta
    share = float((violation[outside] / np.maximum(slack + violation, 1e-12)[outside]).max())
    return theta + min(share, 1.0) * (safe - theta)
