"""LQR tracking of a path and the kinematic bicycle that follows it, for many paths at once.

Source of the formulas: nuPlan's LQR tracker and kinematic bicycle (motional/nuplan-devkit) with NAVSIM's gains. The
lateral problem has one input, a steering rate held for the horizon, on linear dynamics with speeds v + a dt j. Summed
up over the horizon, the state after it is a polynomial in v and a; its coefficients are moments of the curvatures
ahead, made for all steps beforehand, so that a step is a few dozen operations on vectors of N paths.
"""

from __future__ import annotations

import math

import numpy as np

from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.profiles import speeds_and_curvatures

HORIZON = 10
Q_SPEED, R_ACCELERATION = 10.0, 1.0
Q_LATERAL, Q_HEADING, R_STEERING_RATE = 1.0, 10.0, 1.0
STOP_GAIN, STOP_SPEED_MPS = 0.5, 0.2
ACCELERATION_LAG_S, STEERING_LAG_S = 0.2, 0.05
STEERING_LIMIT_RAD = math.pi / 3

_DT = car.STEP_S
_PER_BASE = _DT / car.WHEEL_BASE_M
_SPEED_GAIN = Q_SPEED * HORIZON * _DT / (Q_SPEED * (HORIZON * _DT) ** 2 + R_ACCELERATION)
_ACCELERATION_SHARE = _DT / (_DT + ACCELERATION_LAG_S)
_STEERING_SHARE = _DT / (_DT + STEERING_LAG_S)

# Sums over the horizon j = 0 ... 9, with T = j (j - 1) / 2 and Q = sum of i^2 below j.
_J = np.arange(HORIZON, dtype=float)
_T = _J * (_J - 1) / 2
_Q = (_J - 1) * _J * (2 * _J - 1) / 6
_J1, _J2, _T1, _JT = float(_J.sum()), float((_J**2).sum()), float(_T.sum()), float((_J * _T).sum())
_QJT, _JQ = float((_Q + _J * _T).sum()), float((_J * _Q).sum())
_REST = _J1 - _J * (_J + 1) / 2  # sum of the indices after j
_MOMENTS = np.stack(
    [np.ones(HORIZON), _J, HORIZON - 1 - _J, _REST + _J * (HORIZON - 1 - _J), _J * _REST], axis=1
)  # (10, 5): weights of the curvatures ahead


def simulate(poses: np.ndarray, start: np.ndarray) -> np.ndarray:
    """States (N, 41, 11), columns as in `vehicle.COLUMNS`, of cars that track paths (N, 41, 3) from states (N, 11)."""
    speeds, curvatures = speeds_and_curvatures(poses)
    target = np.concatenate([speeds[:, HORIZON:], np.repeat(speeds[:, -1:], HORIZON, axis=1)], axis=1)
    ahead = np.concatenate([curvatures, np.repeat(curvatures[:, -1:], HORIZON - 1, axis=1)], axis=1)
    moments = np.lib.stride_tricks.sliding_window_view(ahead, HORIZON, axis=1) @ _MOMENTS  # (N, 40, 5)
    # Time first: a step reads and writes whole rows.
    by_step = np.ascontiguousarray(moments.transpose(1, 2, 0))
    target = np.ascontiguousarray(target.T)
    path = np.ascontiguousarray(poses.transpose(1, 2, 0))
    sin, cos = np.sin(path[:, 2]), np.cos(path[:, 2])
    states = np.empty((car.POSES, len(car.COLUMNS), len(poses)))
    states[0] = start.T
    for step in range(car.STEPS):
        state = states[step]
        error = state[:3] - path[step]
        lateral = error[1] * cos[step] - error[0] * sin[step]
        command = _commands(state, lateral, error[2], target[step], by_step[step])
        _advance(state, *command, states[step + 1])
    return states.transpose(2, 0, 1)


def _commands(
    state: np.ndarray, lateral: np.ndarray, turned: np.ndarray, target: np.ndarray, moments: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Acceleration in m/s^2 and steering rate in rad/s (N,) from errors to the path, target speed, moments (5, N)."""
    speed, steer = state[car.SPEED_X], state[car.STEER]
    stopping = (target <= STOP_SPEED_MPS) & (speed <= STOP_SPEED_MPS)
    acceleration = np.where(stopping, STOP_GAIN, _SPEED_GAIN) * (target - speed)
    v, b = speed, acceleration * _DT  # speed at step j of the horizon: v + b j
    vv, vb, bb = v * v, v * b, b * b
    heading = car.wrapped(turned)
    travelled = HORIZON * v + _J1 * b
    # Where no steering rate leads to, and what one unit of it adds.
    lateral_end = (
        lateral + _DT * (travelled * heading)
        + (_DT * _PER_BASE) * steer * (_J1 * vv + (_T1 + _J2) * vb + _JT * bb)
        - (_DT * _DT) * (vv * moments[2] + vb * moments[3] + bb * moments[4])
    )  # fmt: skip
    heading_end = car.wrapped(heading + _PER_BASE * steer * travelled - _DT * (v * moments[0] + b * moments[1]))
    lateral_gain = (_DT * _DT * _PER_BASE) * (_T1 * vv + _QJT * vb + _JQ * bb)
    heading_gain = (_DT * _PER_BASE) * (_J1 * v + _J2 * b)
    wanted = Q_LATERAL * lateral_gain * lateral_end + Q_HEADING * heading_gain * heading_end
    cost = R_STEERING_RATE + Q_LATERAL * lateral_gain * lateral_gain + Q_HEADING * heading_gain * heading_gain
    return acceleration, np.where(stopping, 0.0, -wanted / cost)


def _advance(state: np.ndarray, acceleration: np.ndarray, steering_rate: np.ndarray, after: np.ndarray) -> None:
    """One step of the bicycle into `after` (11, N): pose by the old speed, lags on both inputs, steering clipped."""
    speed, heading, steer = state[car.SPEED_X], state[car.HEADING], state[car.STEER]
    step = _DT * speed
    after[car.X] = state[car.X] + step * np.cos(heading)
    after[car.Y] = state[car.Y] + step * np.sin(heading)
    after[car.HEADING] = heading + step * np.tan(steer) / car.WHEEL_BASE_M
    after[car.ACCEL_X] = state[car.ACCEL_X] + _ACCELERATION_SHARE * (acceleration - state[car.ACCEL_X])
    after[car.SPEED_X] = speed + _DT * after[car.ACCEL_X]
    after[car.STEER_RATE] = _STEERING_SHARE * steering_rate
    after[car.STEER] = np.clip(steer + _DT * after[car.STEER_RATE], -STEERING_LIMIT_RAD, STEERING_LIMIT_RAD)
    after[car.YAW_RATE] = after[car.SPEED_X] * np.tan(after[car.STEER]) / car.WHEEL_BASE_M
    after[car.YAW_ACCEL] = (after[car.YAW_RATE] - state[car.YAW_RATE]) / _DT
    after[car.SPEED_Y] = 0.0
    after[car.ACCEL_Y] = 0.0
