"""Comfort of simulated states: of a plan (v1), with the past in front (v2), of two plans in a row (extended comfort).

Source of the limits and filters: nuPlan's comfort metrics and NAVSIM's extended comfort. A Savitzky-Golay filter is
linear, so each one is a matrix made once per number of steps; results are rounded to 8 decimals as the official code
does. The official yaw signals always use a window of 5, whatever window is asked for.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.signal import savgol_filter

from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.scene import unwrapped

LIMITS = {
    "lon_accel": (-4.05, 2.40),
    "lat_accel": (-4.89, 4.89),
    "mag_jerk": (-8.37, 8.37),
    "lon_jerk": (-4.13, 4.13),
    "yaw_accel": (-1.93, 1.93),
    "yaw_rate": (-0.95, 0.95),
}
CHANGE_LIMITS = {"acceleration": 0.7, "jerk": 0.5, "yaw_rate": 0.1, "yaw_accel": 0.1}
ACCELERATION_WINDOW, JERK_WINDOW, YAW_WINDOW = 8, 15, 5


def plan_signals(states: np.ndarray) -> dict[str, np.ndarray]:
    """The six signals (N, T) of v1 at the rear axle: accelerations and jerks over a window of the whole horizon."""
    count = states.shape[1]
    along, across = states[..., car.ACCEL_X], states[..., car.ACCEL_Y]
    return {
        "lon_accel": _filtered(along, count, 2),
        "lat_accel": _filtered(across, count, 2),
        "mag_jerk": _filtered(_filtered(np.hypot(along, across), ACCELERATION_WINDOW, 2), count, 2, 1),
        "lon_jerk": _filtered(_filtered(along, ACCELERATION_WINDOW, 2), count, 2, 1),
        **_yaw(states, 3),
    }


def history_signals(states: np.ndarray, past: np.ndarray) -> dict[str, np.ndarray]:
    """The six signals (N, P + T) of v2: past states (P, 11) put in front, accelerations of the box centre."""
    states = np.concatenate([np.broadcast_to(past, (len(states), *past.shape)), states], axis=1)
    turning = states[..., car.YAW_RATE] ** 2 + states[..., car.YAW_ACCEL]
    along, across = states[..., car.ACCEL_X] + car.REAR_AXLE_TO_CENTRE_M * turning, states[..., car.ACCEL_Y]
    along = _filtered(along, ACCELERATION_WINDOW, 2)
    return {
        "lon_accel": along,
        "lat_accel": _filtered(across, ACCELERATION_WINDOW, 2),
        "mag_jerk": _jerk(_magnitude(states)),
        "lon_jerk": _jerk(along),
        **_yaw(states, 3),
    }


def within_limits(signals: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whether each signal stays strictly within its limits, (N,) each."""
    values = np.stack(list(signals.values()))  # (6, N, T)
    low, high = np.array([LIMITS[name] for name in signals]).T[..., None]
    fine = (np.minimum.reduce(values, axis=2) > low) & (np.maximum.reduce(values, axis=2) < high)
    return dict(zip(signals, fine))


def changes(states: np.ndarray, before: np.ndarray, steps: int) -> dict[str, np.ndarray]:
    """Root mean square difference (N,) of each signal between plans (N, T, 11) and the plan before (T, 11), which
    started `steps` earlier, where both overlap.
    """
    now, then = _change_signals(states[:, :-steps]), _change_signals(before[None, steps:])
    return {name: np.sqrt(((now[name] - then[name]) ** 2).mean(axis=-1)) for name in CHANGE_LIMITS}


def extended_comfort(rms: dict[str, np.ndarray]) -> np.ndarray:
    """1 where every change is within its limit, else 0: (N,)."""
    return np.logical_and.reduce([rms[name] <= limit for name, limit in CHANGE_LIMITS.items()]).astype(float)


def _change_signals(states: np.ndarray) -> dict[str, np.ndarray]:
    magnitude = _magnitude(states)
    return {"acceleration": magnitude, "jerk": _jerk(magnitude), **_yaw(states, 2)}


def _magnitude(states: np.ndarray) -> np.ndarray:
    """Filtered magnitude of acceleration at the rear axle."""
    return _filtered(np.hypot(states[..., car.ACCEL_X], states[..., car.ACCEL_Y]), ACCELERATION_WINDOW, 2)


def _jerk(acceleration: np.ndarray) -> np.ndarray:
    return _filtered(acceleration, JERK_WINDOW, 2, 1)


def _yaw(states: np.ndarray, acceleration_order: int) -> dict[str, np.ndarray]:
    heading = unwrapped(states[..., car.HEADING])
    return {
        "yaw_accel": _filtered(heading, YAW_WINDOW, acceleration_order, 2),
        "yaw_rate": _filtered(heading, YAW_WINDOW, 2, 1),
    }


def _filtered(values: np.ndarray, window: int, order: int, derivative: int = 0) -> np.ndarray:
    """Values (N, T) through a Savitzky-Golay filter, to 8 decimals; a derivative is per second."""
    return np.round(values @ _filter(values.shape[1], window, order, derivative), 8)


@cache
def _filter(count: int, window: int, order: int, derivative: int) -> np.ndarray:
    """The filter of `count` values as a matrix to be multiplied from the right."""
    return savgol_filter(np.eye(count), min(window, count), order, deriv=derivative, delta=car.STEP_S, axis=0).T
