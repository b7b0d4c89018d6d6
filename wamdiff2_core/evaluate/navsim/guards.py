"""Signs that a plan plays to the score: it drives backwards, or its last waypoint does not belong to the drive.

Progress is measured at the end of the plan and the tracker smooths what is in between, so both can pay. They are
reported beside the scores and change none of them.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.evaluate.navsim.vehicle import PLAN_STEP_S

REVERSE_M = 0.1  # against the heading within one leg
REVERSE_IN_ALL_M = 0.4  # the same over all legs: a plan that creeps backwards
LAST_LEG_MPS2 = 6.0  # change of speed into the last leg that no drive on a road needs


def reverses(plan: np.ndarray) -> bool:
    """Whether a plan (8, 3) in the frame of the ego moves against its own heading."""
    knots = np.concatenate([np.zeros((1, 3)), plan])
    step = np.diff(knots[:, :2], axis=0)
    heading = knots[:-1, 2]
    back = -np.minimum(step[:, 0] * np.cos(heading) + step[:, 1] * np.sin(heading), 0.0)
    return bool(back.max() > REVERSE_M or back.sum() > REVERSE_IN_ALL_M)


def last_is_clipped(plan: np.ndarray) -> bool:
    """Whether a plan's (8, 3) last leg is far shorter or longer than the one before it, which is like its own
    predecessor: a waypoint cut off or moved, not a car that brakes.
    """
    legs = np.linalg.norm(np.diff(plan[:, :2], axis=0), axis=1)
    changes = np.diff(legs)[-2:] / PLAN_STEP_S**2
    return bool(abs(changes[1]) > LAST_LEG_MPS2 and abs(changes[0]) <= LAST_LEG_MPS2)


def l2_to_human(plan: np.ndarray, human: np.ndarray) -> list[float]:
    """Distances (8) in metres between the waypoints of two plans (8, 3)."""
    return [float(value) for value in np.linalg.norm(plan[:, :2] - human[:, :2], axis=1)]
