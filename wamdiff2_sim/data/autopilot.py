"""Pedals and steering that make the world's own vehicle drive an expert plan. For data and checks; models use the
core's follower.
"""

from __future__ import annotations

import math

import numpy as np

from wamdiff2_sim.expert import ExpertPlan
from wamdiff2_sim.longitudinal import DT_S
from wamdiff2_sim.types import EGO_WHEELBASE_M, VehicleControl
from wamdiff2_sim.vehicle import (
    AIR_DRAG_PER_M,
    MAX_ACCEL_MPS2,
    MAX_BRAKE_MPS2,
    MAX_STEER_RAD,
    ROLLING_DRAG_MPS2,
    TOP_SPEED_MPS,
)

AHEAD_STEPS = 2  # the wheels answer late


def control_for(plan: ExpertPlan, speed: float, step: int = 0) -> VehicleControl:
    """Control for row `step` of `plan` (0: it was made just now), from the vehicle's present speed (m/s)."""
    row = step + AHEAD_STEPS
    travel = float(np.hypot(plan.x[row + 1] - plan.x[row], plan.y[row + 1] - plan.y[row]))
    turn = float(plan.yaw[row + 1] - plan.yaw[row])
    curvature = turn / travel if travel > 0.02 else 0.0
    steer = math.atan(curvature * EGO_WHEELBASE_M) / MAX_STEER_RAD
    wanted = float(plan.acceleration[step])
    if plan.speed[step + int(0.5 / DT_S)] < 0.05 and speed < 0.4:
        return VehicleControl(steer, 0.0, 0.4)  # hold
    wanted += (ROLLING_DRAG_MPS2 + AIR_DRAG_PER_M * speed * speed) * (speed > 0.1)
    if wanted >= 0.0:
        return VehicleControl(steer, min(wanted / (MAX_ACCEL_MPS2 * (1.0 - speed / TOP_SPEED_MPS)), 1.0), 0.0)
    return VehicleControl(steer, 0.0, min(-wanted / MAX_BRAKE_MPS2, 1.0))
