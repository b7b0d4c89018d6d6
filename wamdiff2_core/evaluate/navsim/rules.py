"""The remaining sub-scores on simulated states: drivable area, driving direction, lights, progress, lane keeping.

Source of the rules: nuPlan's and Hydra-MDP++'s metrics as NAVSIM scores them. All results are (N,), one per plan.
"""

from __future__ import annotations

import numpy as np

from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.areas import Where
from wamdiff2_core.evaluate.navsim.geometry import along_path, box_touches_polygon, farther_than

DIRECTION_WINDOW = 11  # steps: one second and the step itself
DIRECTION_OK_M, DIRECTION_HALF_M = 2.0, 6.0
LANE_DISTANCE_M, LANE_STEPS = 0.5, 20
PROGRESS_THRESHOLD_M = 5.0
RedLights = tuple[tuple[np.ndarray, np.ndarray], ...]  # edges of a connector, (41,) whether it is red


def drivable_area(where: Where) -> np.ndarray:
    """1 if no corner ever leaves the drivable area, else 0."""
    return 1.0 - np.logical_or.reduce(where.off_road, axis=1)


def driving_direction(where: Where, outside_intersections: bool) -> np.ndarray:
    """1, 0.5 or 0 by the longest way off the lanes of the route within one second.

    Despite the name nothing is oncoming: any place off the route's lanes counts; v2 leaves out intersections.
    """
    counted = where.off_route & ~where.centre_in_intersection if outside_intersections else where.off_route
    if not counted.any():
        return np.ones(len(counted))
    step = np.diff(where.centre, axis=1)
    moved = np.zeros((len(counted), DIRECTION_WINDOW + counted.shape[1]))
    moved[:, DIRECTION_WINDOW + 1 :] = np.hypot(step[..., 0], step[..., 1]) * counted[:, 1:]
    total = np.cumsum(moved, axis=1)
    worst = (total[:, DIRECTION_WINDOW:] - total[:, :-DIRECTION_WINDOW]).max(axis=1)
    return np.where(worst < DIRECTION_OK_M, 1.0, np.where(worst < DIRECTION_HALF_M, 0.5, 0.0))


def traffic_lights(states: np.ndarray, centre: np.ndarray, red: RedLights) -> np.ndarray:
    """0 if the car's box ever touches a connector of the route while it is red, else 1."""
    score = np.ones(len(states))
    for edges, is_red in red:
        at, heading = centre[:, is_red], states[:, is_red, car.HEADING]
        touched = box_touches_polygon(at.reshape(-1, 2), heading.ravel(), car.HALF_SIZE_M, edges)
        score[touched.reshape(heading.shape).any(axis=1)] = 0.0
    return score


def progress(centre: np.ndarray, centreline: np.ndarray) -> np.ndarray:
    """Metres along the centreline from the first to the last box centre, never below 0."""
    ends = centre[:, [0, -1]]
    at = along_path(ends.reshape(-1, 2), centreline).reshape(-1, 2)
    return np.maximum(at[:, 1] - at[:, 0], 0.0)


def lane_keeping(where: Where, centreline: np.ndarray, count: int) -> np.ndarray:
    """Of the first `count` drives: 0 if the centre is off the centreline for two seconds in a row, else 1.

    Steps inside an intersection are left out: they neither count nor end the row.
    """
    if not count:
        return np.ones(0)
    centre, counted = where.centre[:count], ~where.centre_in_intersection[:count]
    off = farther_than(centre.reshape(-1, 2), centreline, LANE_DISTANCE_M).reshape(counted.shape)
    so_far = np.cumsum(off & counted, axis=1)
    at_last_return = np.maximum.accumulate(np.where(counted & ~off, so_far, 0), axis=1)
    return ((so_far - at_last_return).max(axis=1) < LANE_STEPS).astype(float)


def progress_v1(masked: np.ndarray, product: np.ndarray, reference: float) -> np.ndarray:
    """Ego progress of v1: plans' progress times their product over the larger of that and the reference's."""
    most = np.maximum(masked, reference)
    short = most <= PROGRESS_THRESHOLD_M
    return np.where(short, (product > 0).astype(float), masked / np.where(short, 1.0, most))


def progress_v2(progress_m: np.ndarray, product: np.ndarray, reference: float) -> np.ndarray:
    """Ego progress of v2: plans' own progress, not masked, over the larger of the masked ones, at most 1."""
    most = np.maximum(progress_m * product, reference)
    short = most <= PROGRESS_THRESHOLD_M
    return np.where(short, 1.0, np.minimum(progress_m / np.where(short, 1.0, most), 1.0))
