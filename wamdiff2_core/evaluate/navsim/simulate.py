"""LQR tracking of a path and the kinematic bicycle that follows it, for many paths at once.

Source of the formulas: nuPlan's LQR tracker and kinematic bicycle (motional/nuplan-devkit) with NAVSIM's gains. The
lateral problem has one input, a steering rate held for the horizon, on linear dynamics with speeds v + a dt j. Summed
up over the horizon, the state after it is a polynomial in v and a; its coefficients are moments of the curvatures
ahead, made for all steps beforehand, so that a step is a few dozen operations: on vectors of N paths, or on plain
floats for a few, which is faster then. Both are equal to the golden scenes, and to each other (tests).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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


FEW = 10  # drives up to which plain floats are faster than arrays


def simulate(poses: np.ndarray, start: np.ndarray) -> np.ndarray:
    """States (N, 41, 11), columns as in `vehicle.COLUMNS`, of cars that track paths (N, 41, 3) from states (N, 11)."""
    speeds, curvatures = speeds_and_curvatures(poses)
    target = np.concatenate([speeds[:, HORIZON:], np.repeat(speeds[:, -1:], HORIZON, axis=1)], axis=1)
    ahead = np.concatenate([curvatures, np.repeat(curvatures[:, -1:], HORIZON - 1, axis=1)], axis=1)
    moments = np.lib.stride_tricks.sliding_window_view(ahead, HORIZON, axis=1) @ _MOMENTS  # (N, 40, 5)
    heading = poses[:, :-1, car.HEADING, None]
    wanted = np.concatenate([poses[:, :-1], np.sin(heading), np.cos(heading), target[..., None], moments], axis=2)
    if len(poses) <= FEW:
        return np.array([_track_one(first, rows) for first, rows in zip(start.tolist(), wanted.tolist())])
    by_step = np.ascontiguousarray(wanted.transpose(1, 2, 0))
    return np.array(_track_many(list(start.T.copy()), by_step)).transpose(2, 0, 1)


def _track_many(state: list, wanted: Iterable) -> list:
    """States (41 lists of arrays (N,)) of cars that follow rows of what is wanted at each step: pose, sine and cosine
    of its heading, target speed, moments of the curvatures ahead.
    """
    states = [state]
    for row in wanted:
        acceleration, steering_rate = _commands(state, row)
        state = _advance(state, acceleration, steering_rate)
        states.append(state)
    return states


def _commands(state: list, wanted: Any) -> tuple[Any, Any]:
    """Acceleration in m/s^2 and steering rate in rad/s."""
    path_x, path_y, path_heading, sin, cos, target, k0, k1, k2, k3, k4 = wanted
    x, y, heading, v = state[: car.SPEED_X + 1]
    steer = state[car.STEER]
    stopping = (target <= STOP_SPEED_MPS) & (v <= STOP_SPEED_MPS)
    acceleration = np.where(stopping, STOP_GAIN, _SPEED_GAIN) * (target - v)
    b = acceleration * _DT  # speed at step j of the horizon: v + b j
    vv, vb, bb = v * v, v * b, b * b
    lateral = (y - path_y) * cos - (x - path_x) * sin
    turned = car.wrapped(heading - path_heading)
    travelled = HORIZON * v + _J1 * b
    # Where no steering rate leads to, and what one unit of it adds.
    lateral_end = (
        lateral + _DT * (travelled * turned)
        + (_DT * _PER_BASE) * steer * (_J1 * vv + (_T1 + _J2) * vb + _JT * bb)
        - (_DT * _DT) * (vv * k2 + vb * k3 + bb * k4)
    )  # fmt: skip
    turned_end = car.wrapped(turned + _PER_BASE * steer * travelled - _DT * (v * k0 + b * k1))
    lateral_gain = (_DT * _DT * _PER_BASE) * (_T1 * vv + _QJT * vb + _JQ * bb)
    turned_gain = (_DT * _PER_BASE) * (_J1 * v + _J2 * b)
    towards = Q_LATERAL * lateral_gain * lateral_end + Q_HEADING * turned_gain * turned_end
    cost = R_STEERING_RATE + Q_LATERAL * lateral_gain * lateral_gain + Q_HEADING * turned_gain * turned_gain
    return acceleration, np.where(stopping, 0.0, -towards / cost)


def _advance(state: list, acceleration: Any, steering_rate: Any) -> list:
    """One step of the bicycle: pose by the old speed, lags on both inputs, steering clipped."""
    x, y, heading, speed, _, accelerated, _, steer, _, yaw_rate, _ = state
    step = _DT * speed
    accelerated = accelerated + _ACCELERATION_SHARE * (acceleration - accelerated)
    steering_rate = _STEERING_SHARE * steering_rate
    new_speed = speed + _DT * accelerated
    new_steer = np.clip(steer + _DT * steering_rate, -STEERING_LIMIT_RAD, STEERING_LIMIT_RAD)
    new_yaw_rate = new_speed * np.tan(new_steer) / car.WHEEL_BASE_M
    return [
        x + step * np.cos(heading), y + step * np.sin(heading), heading + step * np.tan(steer) / car.WHEEL_BASE_M,
        new_speed, 0.0 * speed, accelerated, 0.0 * speed, new_steer, steering_rate,
        new_yaw_rate, (new_yaw_rate - yaw_rate) / _DT,
    ]  # fmt: skip


def _track_one(state: list[float], wanted: Iterable) -> list[list[float]]:
    """The same for one car in plain floats: `_commands` and `_advance` in one loop, as calls would cost as much."""
    sin, cos, tan, remainder = math.sin, math.cos, math.tan, math.remainder
    x, y, heading, v, _, accelerated, _, steer, _, yaw_rate, _ = state
    states, tangent = [state], tan(steer)
    a1, a2, a3 = _DT * _PER_BASE * _J1, _DT * _PER_BASE * (_T1 + _J2), _DT * _PER_BASE * _JT
    g = _DT * _DT * _PER_BASE
    g1, g2, g3, t1, t2 = g * _T1, g * _QJT, g * _JQ, _DT * _PER_BASE * _J1, _DT * _PER_BASE * _J2
    for path_x, path_y, path_heading, path_sin, path_cos, target, k0, k1, k2, k3, k4 in wanted:
        steering_rate = 0.0
        if target <= STOP_SPEED_MPS and v <= STOP_SPEED_MPS:
            acceleration = STOP_GAIN * (target - v)
        else:
            acceleration = _SPEED_GAIN * (target - v)
            b = acceleration * _DT
            vv, vb, bb = v * v, v * b, b * b
            turned = remainder(heading - path_heading, math.tau)
            travelled = HORIZON * v + _J1 * b
            lateral_end = (
                (y - path_y) * path_cos - (x - path_x) * path_sin + _DT * travelled * turned
                + steer * (a1 * vv + a2 * vb + a3 * bb) - _DT * _DT * (vv * k2 + vb * k3 + bb * k4)
            )  # fmt: skip
            turned_end = remainder(turned + _PER_BASE * steer * travelled - _DT * (v * k0 + b * k1), math.tau)
            lateral_gain, turned_gain = g1 * vv + g2 * vb + g3 * bb, t1 * v + t2 * b
            towards = Q_LATERAL * lateral_gain * lateral_end + Q_HEADING * turned_gain * turned_end
            cost = R_STEERING_RATE + Q_LATERAL * lateral_gain * lateral_gain + Q_HEADING * turned_gain * turned_gain
            steering_rate = -_STEERING_SHARE * towards / cost
        step = _DT * v
        x, y, heading = x + step * cos(heading), y + step * sin(heading), heading + step * tangent / car.WHEEL_BASE_M
        accelerated += _ACCELERATION_SHARE * (acceleration - accelerated)
        v += _DT * accelerated
        steer = min(max(steer + _DT * steering_rate, -STEERING_LIMIT_RAD), STEERING_LIMIT_RAD)
        tangent = tan(steer)
        before, yaw_rate = yaw_rate, v * tangent / car.WHEEL_BASE_M
        states.append(
            [x, y, heading, v, 0.0, accelerated, 0.0, steer, steering_rate, yaw_rate, (yaw_rate - before) / _DT]
        )
    return states
