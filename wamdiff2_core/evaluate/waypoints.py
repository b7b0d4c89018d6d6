"""Displacement errors of plans against a reference, per waypoint (metres, ego frame)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_POINTS


@dataclass(frozen=True)
class WaypointErrors:
    """Mean L2 per waypoint (8,), ADE = mean over waypoints, FDE = last waypoint; `count` plans, all in metres."""

    per_waypoint_m: tuple[float, ...]
    ade_m: float
    fde_m: float
    count: int


def waypoint_errors(plans: np.ndarray, references: np.ndarray) -> WaypointErrors:
    """Errors of plans (N, 8, 2) against references (N, 8, 2). With no plan every error is NaN and count is 0.

    Raises DataError on other shapes or on values that are not finite: a failed plan has no points and is counted
    by its caller, never scored.
    """
    plans, references = np.asarray(plans, float), np.asarray(references, float)
    if len(plans) == 0 and len(references) == 0:
        return WaypointErrors((float("nan"),) * PLAN_POINTS, float("nan"), float("nan"), 0)
    expected = (len(plans), PLAN_POINTS, 2)
    if plans.shape != expected or references.shape != expected:
        raise DataError(f"plans and references: expected {expected}, got {plans.shape} and {references.shape}")
    if not (np.isfinite(plans).all() and np.isfinite(references).all()):
        raise DataError("plans and references must be finite")
    mean = np.linalg.norm(plans - references, axis=2).mean(axis=0)
    return WaypointErrors(tuple(float(v) for v in mean), float(mean.mean()), float(mean[-1]), len(plans))
