"""Speeds and curvatures that a path of poses asks for: the least squares fits in front of the tracker.

Source of the formulas: nuPlan's LQR tracker (motional/nuplan-devkit, `tracker_utils`) as NAVSIM runs it. Both fits have
a constant or tridiagonal normal matrix, so no system is solved per step:

- speeds: displacement i = dt (cos h_i, sin h_i) v_i. The unit vectors drop out of the normal matrix, so v is one
  constant matrix times the displacements along the headings.
- curvatures: heading difference i = dt v_i k_i, rates penalised. In k itself the matrix is tridiagonal; all paths are
  solved as one banded system with zeros between them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.linalg import solveh_banded

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim.vehicle import HEADING, STEP_S, STEPS, wrapped

ACCELERATION_PENALTY = 1e-4
CURVATURE_RATE_PENALTY = 1e-2
FIRST_CURVATURE_PENALTY = 1e-10
FEW = 4  # paths up to which floats are faster than a banded solver


def speeds_and_curvatures(poses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Profiles (N, 40) in m/s and 1/m of paths (N, 41, 3) at 0.1 s."""
    heading = poses[:, :-1, HEADING]
    moved = np.diff(poses[..., :2], axis=1)
    along = moved[..., 0] * np.cos(heading) + moved[..., 1] * np.sin(heading)
    speeds = along @ _speed_fit().T
    return speeds, _curvatures(speeds, wrapped(np.diff(poses[..., HEADING], axis=1)))


@cache
def _speed_fit() -> np.ndarray:
    """The matrix (40, 40) from displacements along the headings to fitted speeds.

    NAVSIM means to penalise differences of accelerations, but its matrix overwrites its own diagonal: what is penalised
    are the accelerations 0 ... 36 themselves and the last difference.
    """
    speed_of = np.tril(np.full((STEPS, STEPS), STEP_S))  # unknowns: first speed, then 39 accelerations
    speed_of[:, 0] = 1.0
    penalised = np.zeros((STEPS - 2, STEPS))
    penalised[np.arange(STEPS - 3), np.arange(1, STEPS - 2)] = 1.0
    penalised[-1, -2:] = -1.0, 1.0
    normal = STEP_S**2 * speed_of.T @ speed_of + ACCELERATION_PENALTY * penalised.T @ penalised
    return speed_of @ np.linalg.solve(normal, STEP_S * speed_of.T)


def _curvatures(speeds: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Curvatures (N, 40) from speeds and heading differences (N, 40)."""
    rate = CURVATURE_RATE_PENALTY / STEP_S**2
    diagonal = (STEP_S * speeds) ** 2
    diagonal[:, :-1] += rate
    diagonal[:, 1:] += rate
    diagonal[:, 0] += FIRST_CURVATURE_PENALTY
    wanted = STEP_S * speeds * turned
    if len(speeds) <= FEW:
        return np.array([_solved(*rows, rate) for rows in zip(diagonal.tolist(), wanted.tolist())])
    above = np.full(speeds.shape, -rate)
    above[:, 0] = 0.0  # paths do not touch each other
    band = np.stack([above.ravel(), diagonal.ravel()])
    try:
        return solveh_banded(band, wanted.ravel(), check_finite=False).reshape(speeds.shape)
    except np.linalg.LinAlgError as error:
        raise DataError(f"plan: no curvatures fit its speeds of up to {np.abs(speeds).max():g} m/s") from error


def _solved(diagonal: list[float], wanted: list[float], rate: float) -> list[float]:
    """x of a tridiagonal system with -rate beside its diagonal, by elimination in floats."""
    pivots, values = [diagonal[0]], [wanted[0]]
    for d, w in zip([*diagonal[1:], math.inf], [*wanted[1:], 0.0]):
        if not pivots[-1] > 0.0:
            raise DataError("plan: no curvatures fit its speeds")
        factor = rate / pivots[-1]
        pivots.append(d - rate * factor)
        values.append(w + factor * values[-1])
    x = 0.0
    solution = []
    for pivot, value in zip(reversed(pivots[:-1]), reversed(values[:-1])):
        x = (value + rate * x) / pivot
        solution.append(x)
    return solution[::-1]
