"""The car that NAVSIM drives (nuPlan's "pacifica"), the steps it is simulated on and the columns of its states.

A state is a row of `COLUMNS`: rear axle pose in metres and radians, speeds and accelerations in the car's frame.
"""

from __future__ import annotations

import numpy as np

LENGTH_M = 5.176
WIDTH_M = 2.297
WHEEL_BASE_M = 3.089
REAR_AXLE_TO_CENTRE_M = 1.461
HALF_SIZE_M = np.array([LENGTH_M / 2, WIDTH_M / 2])

STEP_S = 0.1
STEPS = 40  # of 0.1 s; states and poses have one more, the start
POSES = STEPS + 1
PLAN_POSES = 8
PLAN_STEP_S = 0.5

COLUMNS = (
    "x", "y", "heading", "velocity_x", "velocity_y", "acceleration_x", "acceleration_y", "steering_angle",
    "steering_rate", "angular_velocity", "angular_acceleration",
)  # fmt: skip
X, Y, HEADING, SPEED_X, SPEED_Y, ACCEL_X, ACCEL_Y, STEER, STEER_RATE, YAW_RATE, YAW_ACCEL = range(len(COLUMNS))


def centres(states: np.ndarray) -> np.ndarray:
    """Centres (..., 2) of the car's box at rear axle poses or states (..., >= 3)."""
    heading = states[..., HEADING]
    forward = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
    return states[..., :2] + REAR_AXLE_TO_CENTRE_M * forward


def corners(states: np.ndarray) -> np.ndarray:
    """Corners (..., 4, 2) of the car's box: front left, rear left, rear right, front right."""
    heading = states[..., HEADING]
    cos, sin = np.cos(heading), np.sin(heading)
    forward = np.stack([cos, sin], axis=-1)[..., None, :] * HALF_SIZE_M[0]
    left = np.stack([-sin, cos], axis=-1)[..., None, :] * HALF_SIZE_M[1]
    along, across = np.array([1.0, -1.0, -1.0, 1.0])[:, None], np.array([1.0, 1.0, -1.0, -1.0])[:, None]
    return centres(states)[..., None, :] + along * forward + across * left


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Angles in (-pi, pi]; half a turn keeps the sign of arctan2."""
    return np.arctan2(np.sin(angle), np.cos(angle))
