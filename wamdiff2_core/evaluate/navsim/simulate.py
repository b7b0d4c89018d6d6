"""LQR tracking of a path and the kinematic bicycle that follows it, for many paths at once.

Source of the formulas: nuPlan's LQR tracker and kinematic bicycle (motional/nuplan-devkit) with NAVSIM's gains. The
lateral problem has one input, a steering rate held for the horizon, on linear dynamics with speeds v + a dt j. Summed
up over the horizon, the state after it is a polynomial in v and a; its coefficients are moments of the curvatures
ahead, made for all steps beforehand, so that a step is a few dozen operations, on vectors of N paths or on floats.
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


class _Arrays:
    """What a step needs besides arithmetic, on arrays."""

    sin, cos, tan, where, wrapped = np.sin, np.cos, np.tan, np.where, staticmethod(car.wrapped)
    clip = staticmethod(np.clip)


class _Floats:
    """The same on floats."""

    sin, cos, tan = math.sin, math.cos, math.tan

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no

    @staticmethod
    def wrapped(angle: float) -> float:
        return math.remainder(angle, math.tau)

    @staticmethod
    def clip(value: float, low: float, high: float) -> float:
        return low if value < low else high if value > high else value


def simulate(poses: np.ndarray, start: np.ndarray) -> np.ndarray:
    """States (N, 41, 11), columns as in `vehicle.COLUMNS`, of cars that track paths (N, 41, 3) from states (N, 11)."""
    speeds, curvatures = speeds_and_curvatures(poses)
    target = np.concatenate([speeds[:, HORIZON:], np.repeat(speeds[:, -1:], HORIZON, axis=1)], axis=1)
    ahead = np.concatenate([curvatures, np.repeat(curvatures[:, -1:], HORIZON - 1, axis=1)], axis=1)
    moments = np.lib.stride_tricks.sliding_window_view(ahead, HORIZON, axis=1) @ _MOMENTS  # (N, 40, 5)
    heading = poses[:, :-1, car.HEADING, None]
    wanted = np.concatenate([poses[:, :-1], np.sin(heading), np.cos(heading), target[..., None], moments], axis=2)
    if len(poses) <= FEW:
        return np.array([_track(_Floats, list(first), rows) for first, rows in zip(start.tolist(), wanted.tolist())])
    by_step = np.ascontiguousarray(wanted.transpose(1, 2, 0))
    return np.array(_track(_Arrays, list(start.T.copy()), by_step)).transpose(2, 0, 1)


def _track(ops: Any, state: list, wanted: Iterable) -> list:
    """States of one drive in floats, or of many in arrays (N,), that follow rows of what is wanted at each step: pose,
    sine and cosine of its heading, target speed, moments of the curvatures ahead.
    """
    states = [state]
    for row in wanted:
        acceleration, steering_rate = _commands(ops, state, row)
        state = _advance(ops, state, acceleration, steering_rate)
        states.append(state)
    return states


def _commands(ops: Any, state: list, wanted: Any) -> tuple[Any, Any]:
    """Acceleration in m/s^2 and steering rate in rad/s."""
    path_x, path_y, path_heading, sin, cos, target, k0, k1, k2, k3, k4 = wanted
    x, y, heading, v = state[: car.SPEED_X + 1]
    steer = state[car.STEER]
    stopping = (target <= STOP_SPEED_MPS) & (v <= STOP_SPEED_MPS)
    acceleration = ops.where(stopping, STOP_GAIN, _SPEED_GAIN) * (target - v)
    b = acceleration * _DT  # speed at step j of the horizon: v + b j
    vv, vb, bb = v * v, v * b, b * b
    lateral = (y - path_y) * cos - (x - path_x) * sin
    turned = ops.wrapped(heading - path_heading)
    travelled = HORIZON * v + _J1 * b
    # Where no steering rate leads to, and what one unit of it adds.
    lateral_end = (
        lateral + _DT * (travelled * turned)
        + (_DT * _PER_BASE) * steer * (_J1 * vv + (_T1 + _J2) * vb + _JT * bb)
        - (_DT * _DT) * (vv * k2 + vb * k3 + bb * k4)
    )  # fmt: skip
    turned_end = ops.wrapped(turned + _PER_BASE * steer * travelled - _DT * (v * k0 + b * k1))
    lateral_gain = (_DT * _DT * _PER_BASE) * (_T1 * vv + _QJT * vb + _JQ * bb)
    turned_gain = (_DT * _PER_BASE) * (_J1 * v + _J2 * b)
    towards = Q_LATERAL * lateral_gain * lateral_end + Q_HEADING * turned_gain * turned_end
    cost = R_STEERING_RATE + Q_LATERAL * lateral_gain * lateral_gain + Q_HEADING * turned_gain * turned_gain
    return acceleration, ops.where(stopping, 0.0 * v, -towards / cost)


def _advance(ops: Any, state: list, acceleration: Any, steering_rate: Any) -> list:
    """One step of the bicycle: pose by the old speed, lags on both inputs, steering clipped."""
    x, y, heading, speed, _, accelerated, _, steer, _, yaw_rate, _ = state
    step = _DT * speed
    accelerated = accelerated + _ACCELERATION_SHARE * (acceleration - accelerated)
    steering_rate = _STEERING_SHARE * steering_rate
    new_speed = speed + _DT * accelerated
    new_steer = ops.clip(steer + _DT * steering_rate, -STEERING_LIMIT_RAD, STEERING_LIMIT_RAD)
    new_yaw_rate = new_speed * ops.tan(new_steer) / car.WHEEL_BASE_M
    return [
        x + step * ops.cos(heading), y + step * ops.sin(heading), heading + step * ops.tan(steer) / car.WHEEL_BASE_M,
        new_speed, 0.0 * speed, accelerated, 0.0 * speed, new_steer, steering_rate,
        new_yaw_rate, (new_yaw_rate - yaw_rate) / _DT,
    ]  # fmt: skip
