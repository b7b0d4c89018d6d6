"""The ego vehicle: a kinematic bicycle at the rear axle with actuator lags and limits.

Steer is LEFT positive; full steer turns the wheels by 0.6 rad. Numbers are those of a compact car.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wamdiff2_sim.types import EGO_WHEELBASE_M, Pose, VehicleControl

MAX_STEER_RAD = 0.6
STEER_RATE_RADPS = 0.9
STEER_LAG_S = 0.08
THROTTLE_LAG_S = 0.15
BRAKE_LAG_S = 0.10
MAX_ACCEL_MPS2 = 3.5
MAX_BRAKE_MPS2 = 8.0
TOP_SPEED_MPS = 45.0
MAX_REVERSE_MPS = 5.0
ROLLING_DRAG_MPS2 = 0.12
AIR_DRAG_PER_M = 0.0006
MAX_LATERAL_MPS2 = 8.0  # tyres slide beyond: the path turns no tighter than this allows


@dataclass(frozen=True)
class VehicleState:
    """Pose of base_link, signed speed (m/s, negative in reverse), what the actuators do now, and last step's motion."""

    pose: Pose
    speed: float = 0.0
    steer_rad: float = 0.0
    throttle: float = 0.0
    brake: float = 0.0
    acceleration: float = 0.0
    yaw_rate: float = 0.0


def step_vehicle(state: VehicleState, control: VehicleControl, dt: float) -> VehicleState:
    """The state `dt` seconds later. Controls outside their range are clipped; NaN counts as zero throttle, zero steer,
    full brake."""
    steer = _follow_steer(state.steer_rad, _clean(control.steer, -1.0, 1.0, 0.0) * MAX_STEER_RAD, dt)
    throttle = _lag(state.throttle, _clean(control.throttle, 0.0, 1.0, 0.0), dt, THROTTLE_LAG_S)
    wanted_brake = 1.0 if control.hand_brake else _clean(control.brake, 0.0, 1.0, 1.0)
    brake = _lag(state.brake, wanted_brake, dt, BRAKE_LAG_S)
    speed = _next_speed(state.speed, throttle, brake, control.reverse, dt)
    mean_speed = 0.5 * (state.speed + speed)
    yaw_rate = _yaw_rate(mean_speed, 0.5 * (state.steer_rad + steer))
    mid_yaw = state.pose.yaw + 0.5 * yaw_rate * dt
    pose = Pose(
        state.pose.x + mean_speed * math.cos(mid_yaw) * dt,
        state.pose.y + mean_speed * math.sin(mid_yaw) * dt,
        state.pose.z,
        math.remainder(state.pose.yaw + yaw_rate * dt, math.tau),
    )
    return VehicleState(pose, speed, steer, throttle, brake, (speed - state.speed) / dt, yaw_rate)


def at_height(state: VehicleState, z: float) -> VehicleState:
    """The same state with base_link at ground height `z`."""
    return replace(state, pose=replace(state.pose, z=z))


def _clean(value: float, low: float, high: float, if_nan: float) -> float:
    return float(np.clip(value, low, high)) if math.isfinite(value) else if_nan


def _lag(now: float, wanted: float, dt: float, tau: float) -> float:
    """First-order lag, exact for a constant input."""
    return now + (wanted - now) * (1.0 - math.exp(-dt / tau))


def _follow_steer(now: float, wanted: float, dt: float) -> float:
    change = _lag(now, wanted, dt, STEER_LAG_S) - now
    return now + float(np.clip(change, -STEER_RATE_RADPS * dt, STEER_RATE_RADPS * dt))


def _next_speed(speed: float, throttle: float, brake: float, reverse: bool, dt: float) -> float:
    direction = -1.0 if reverse else 1.0
    top = MAX_REVERSE_MPS if reverse else TOP_SPEED_MPS
    drive = direction * throttle * MAX_ACCEL_MPS2 * max(0.0, 1.0 - max(direction * speed, 0.0) / top)
    speed += drive * dt
    resist = (brake * MAX_BRAKE_MPS2 + ROLLING_DRAG_MPS2 + AIR_DRAG_PER_M * speed * speed) * dt
    return math.copysign(max(abs(speed) - resist, 0.0), speed)  # brakes stop a car, they never turn its motion round


def _yaw_rate(speed: float, steer_rad: float) -> float:
    rate = speed * math.tan(steer_rad) / EGO_WHEELBASE_M
    limit = MAX_LATERAL_MPS2 / max(abs(speed), 0.1)
    return float(np.clip(rate, -limit, limit))
