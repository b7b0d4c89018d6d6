"""From eight noisy waypoints to a trajectory that a vehicle can follow.

The answer is the motion of a kinematic bicycle (rear axle = base_link) whose speed and curvature are smooth in time and
stay within limits; among those, the one closest to the waypoints. A waypoint that fits none of them (one wrong digit)
loses its weight. Speed and curvature are uniform quadratic B-splines with a knot at every waypoint time, so that bounds
on their coefficients and on the differences of them bound speed, curvature, acceleration and jerk everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.motion_limits import nearest_within
from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S

HORIZON_S = PLAN_POINTS * PLAN_STEP_S
PERIOD_S = 0.1
FINE_S = 0.05  # step of the integration
STANDS_MPS = 1e-4  # below this is rounding
NO_ACCELERATION_MPS2 = 1e-3  # for stopping: not zero, so that constant speed lies well within the limits
COEFFICIENTS = PLAN_POINTS + 2
ROUGH_SCALES = (12.0, 6.0, 3.0, 2.0, 2.0, 2.0)  # a loose start, so that a bad first guess rejects nothing
EXACT_ITERATIONS = 2  # then, within all limits; those before only keep roughly to them
SETTLED = 0.02  # a step that changes no coefficient (m/s, 1/m) by more is the last: millimetres on the ground
_WAYPOINT_ROWS = np.arange(1, PLAN_POINTS + 1) * round(PLAN_STEP_S / FINE_S)


@dataclass(frozen=True)
class TrajectoryLimits:
    """What the vehicle may do, and how noisy the waypoints are taken to be."""

    max_speed_mps: float = 40.0
    max_acceleration_mps2: float = 3.5
    max_deceleration_mps2: float = 8.0
    max_jerk_mps3: float = 12.0  # along the heading
    max_curvature_1pm: float = 0.24  # 0.6 rad of steering at a wheelbase of 2.85 m
    max_lateral_acceleration_mps2: float = 5.0
    hold_m: float = 0.3  # a plan that stays this close to where we are means: stand still
    noise_m: float = 0.1  # of the first waypoint; grows with time
    noise_growth_m: float = 0.02
    jerk_mps3: float = 2.0  # typical, as is the next: more than this is costly, not forbidden
    curvature_rate_1pms: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value > 0.0):
                raise ConfigError(f"trajectory limit {name}: expected a number > 0, got {value!r}")


@dataclass(frozen=True)
class Trajectory:
    """Arrays (41,) at 10 Hz from now to 4 s; frame: base_link at the time of the plan. Curvature is left positive."""

    time_s: np.ndarray
    x_m: np.ndarray
    y_m: np.ndarray
    heading_rad: np.ndarray
    speed_mps: np.ndarray
    acceleration_mps2: np.ndarray
    curvature_1pm: np.ndarray

    @property
    def points(self) -> np.ndarray:
        """Positions (41, 2)."""
        return np.stack([self.x_m, self.y_m], axis=1)

    @property
    def holds(self) -> bool:
        """Nothing but standing still."""
        return not self.speed_mps.any()


def smooth_trajectory(points: np.ndarray, speed_mps: float, limits: TrajectoryLimits | None = None) -> Trajectory:
    """Trajectory through plan points (8, 2), starting at the origin with the current speed (m/s, >= 0).

    Raises DataError for points that are not finite or of another shape.
    """
    limits = limits or TrajectoryLimits()
    points = np.asarray(points, dtype=np.float64)
    if points.shape != (PLAN_POINTS, 2) or not np.isfinite(points).all():
        raise DataError(f"expected finite points of shape ({PLAN_POINTS}, 2), got shape {points.shape}")
    if not np.isfinite(speed_mps):
        raise DataError(f"expected a finite speed, got {speed_mps!r}")
    speed_mps = min(max(float(speed_mps), 0.0), limits.max_speed_mps)
    if np.sort(np.linalg.norm(points, axis=1))[-2] < limits.hold_m:  # one waypoint may be wrong
        return stopping_trajectory(speed_mps, limits=limits)
    return _sampled(_fit(points, speed_mps, limits), limits)


def _fit(points: np.ndarray, speed: float, limits: TrajectoryLimits) -> np.ndarray:
    """Gauss-Newton over the 20 coefficients (speeds, then curvatures), with weights that follow the residuals."""
    regular = _regulariser(points, limits)
    theta = _bounded(_first_guess(points), speed, limits)
    for scale in ROUGH_SCALES:
        wanted, _, farthest = _step(theta, points, speed, limits, regular, scale)
        before, theta = theta, _bounded(wanted, speed, limits)
        if min(farthest, scale) <= ROUGH_SCALES[-1] and np.abs(theta - before).max() < SETTLED:
            break
    for _ in range(EXACT_ITERATIONS):
        wanted, normal, _ = _step(theta, points, speed, limits, regular, ROUGH_SCALES[-1])
        before, theta = theta, nearest_within(wanted, normal, PLAN_STEP_S, speed, limits)
        if np.abs(theta - before).max() < SETTLED:
            break
    return theta


def _step(
    theta: np.ndarray, points: np.ndarray, speed: float, limits: TrajectoryLimits, regular: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The next coefficients, limits aside; the normal matrix (20, 20); how far off the worst waypoint was.

    That, and `scale`, in standard deviations of the waypoint; one that is off by `scale` weighs half.
    """
    sigma = limits.noise_m + limits.noise_growth_m * np.arange(PLAN_POINTS)
    error = _positions(theta[None], speed)[0] - points  # (8, 2)
    distance = np.linalg.norm(error, axis=1) / sigma
    root_weight = np.repeat(1.0 / (sigma * np.sqrt(1.0 + (distance / scale) ** 2)), 2)
    rows = np.vstack([_jacobian(theta, speed) * root_weight[:, None], regular])
    residual = np.concatenate([error.ravel() * root_weight, regular @ theta])
    normal = rows.T @ rows + 1e-6 * np.eye(theta.size)
    return theta - np.linalg.solve(normal, rows.T @ residual), normal, float(distance.max())


def _first_guess(points: np.ndarray) -> np.ndarray:
    """Median speed between waypoints, and the arc that leads to the farthest waypoint."""
    steps = np.linalg.norm(np.diff(np.vstack([[0.0, 0.0], points]), axis=0), axis=1) / PLAN_STEP_S
    far = points[np.argmax(np.linalg.norm(points, axis=1))]
    arc = 2.0 * far[1] / max(float(far @ far), 1.0)
    return np.concatenate([np.full(COEFFICIENTS, np.median(steps)), np.full(COEFFICIENTS, arc)])


def _regulariser(points: np.ndarray, limits: TrajectoryLimits) -> np.ndarray:
    """Rows that make jerk, lateral jerk and steering speed costly, (R, 20)."""
    typical = np.linalg.norm(points[-1]) / HORIZON_S
    second = np.diff(np.eye(COEFFICIENTS), n=2, axis=0) / PLAN_STEP_S**2 / limits.jerk_mps3
    first = np.diff(np.eye(COEFFICIENTS), axis=0) / PLAN_STEP_S
    steer = first * np.hypot(1.0 / limits.curvature_rate_1pms, typical**2 / limits.jerk_mps3)
    small = np.eye(COEFFICIENTS) * 0.1 / limits.max_curvature_1pm
    zero = np.zeros
    return np.vstack(
        [
            np.hstack([second, zero((len(second), COEFFICIENTS))]),
            np.hstack([zero((len(steer), COEFFICIENTS)), steer]),
            np.hstack([zero((len(small), COEFFICIENTS)), small]),
        ]
    )


def _bounded(theta: np.ndarray, speed: float, limits: TrajectoryLimits) -> np.ndarray:
    """Coefficients moved into the limits; the first speed coefficient follows from the current speed."""
    speeds = np.clip(theta[:COEFFICIENTS], 0.0, limits.max_speed_mps).tolist()
    up, down = limits.max_acceleration_mps2 * PLAN_STEP_S, limits.max_deceleration_mps2 * PLAN_STEP_S
    speeds[1] = min(max(speeds[1], 0.0, speed - down / 2), speed + up / 2)
    for index in range(2, COEFFICIENTS):
        speeds[index] = min(max(speeds[index], speeds[index - 1] - down), speeds[index - 1] + up)
    speeds[0] = 2.0 * speed - speeds[1]  # the spline starts in the middle of its first two coefficients
    curvatures = np.clip(theta[COEFFICIENTS:], -limits.max_curvature_1pm, limits.max_curvature_1pm)
    return np.concatenate([speeds, curvatures])


def _jacobian(theta: np.ndarray, speed: float) -> np.ndarray:
    """Derivatives (16, 20) of the waypoint positions, by forward differences of all coefficients at once."""
    step = 1e-4
    moved = np.vstack([theta, theta + step * np.eye(theta.size)])
    # the first two speed coefficients are tied to the current speed
    moved[1, 0] = theta[0]
    moved[2, 0] -= step
    positions = _positions(moved, speed)
    return ((positions[1:] - positions[0]) / step).reshape(theta.size, -1).T


def _positions(thetas: np.ndarray, speed: float) -> np.ndarray:
    """Waypoint positions (K, 8, 2) of coefficient rows (K, 20)."""
    value, _ = _basis()
    v, k = thetas[:, :COEFFICIENTS] @ value.T, thetas[:, COEFFICIENTS:] @ value.T
    x, y, _ = _integrated(np.maximum(v, 0.0), k)
    return np.stack([x[:, _WAYPOINT_ROWS], y[:, _WAYPOINT_ROWS]], axis=-1)


def _integrated(v: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, heading (K, T) of speeds and curvatures (K, T) at FINE_S, by the middle of each step."""
    ds = 0.5 * (v[:, 1:] + v[:, :-1]) * FINE_S
    turn = 0.5 * (curvature[:, 1:] + curvature[:, :-1]) * ds
    heading = _from_zero(turn)
    middle = heading[:, :-1] + 0.5 * turn
    return _from_zero(ds * np.cos(middle)), _from_zero(ds * np.sin(middle)), heading


def _from_zero(steps: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros((len(steps), 1)), np.cumsum(steps, axis=1)], axis=1)


@lru_cache(maxsize=1)
def _basis() -> tuple[np.ndarray, np.ndarray]:
    """Quadratic B-spline basis and its time derivative at the fine times, each (81, 10)."""
    times = np.arange(round(HORIZON_S / FINE_S) + 1) * FINE_S / PLAN_STEP_S
    span = np.minimum(times.astype(int), PLAN_POINTS - 1)
    u = times - span
    value, slope = np.zeros((2, len(times), COEFFICIENTS))
    rows = np.arange(len(times))
    for offset, (b, db) in enumerate([((1 - u) ** 2 / 2, u - 1), (0.5 + u - u**2, 1 - 2 * u), (u**2 / 2, u)]):
        value[rows, span + offset] = b
        slope[rows, span + offset] = db / PLAN_STEP_S
    return value, slope


def _sampled(theta: np.ndarray, limits: TrajectoryLimits) -> Trajectory:
    value, slope = _basis()
    speeds = theta[:COEFFICIENTS]
    v, a = np.maximum(value @ speeds, 0.0), slope @ speeds
    v[v < STANDS_MPS] = 0.0
    most = limits.max_lateral_acceleration_mps2 / np.maximum(v, 0.1) ** 2
    a = np.where((v > 0.0) | (a > STANDS_MPS), a, 0.0)  # standing still, unless it is the moment of starting
    return _trajectory(v, a, np.clip(value @ theta[COEFFICIENTS:], -most, most))


def stopping_trajectory(
    speed_mps: float,
    curvature_1pm: float = 0.0,
    deceleration_mps2: float | None = None,
    limits: TrajectoryLimits | None = None,
) -> Trajectory:
    """Braking to a stand within the limits, along the curvature (1/m, left positive) that the vehicle has now.

    `deceleration_mps2`: 60% of the limit unless told. Raises DataError for numbers that are not finite.
    """
    limits = limits or TrajectoryLimits()
    limits = replace(limits, max_acceleration_mps2=min(limits.max_acceleration_mps2, NO_ACCELERATION_MPS2))
    braking = 0.6 * limits.max_deceleration_mps2 if deceleration_mps2 is None else deceleration_mps2
    if not np.isfinite([speed_mps, curvature_1pm, braking]).all():
        raise DataError(f"expected finite numbers, got {speed_mps} m/s, {curvature_1pm} 1/m, {braking} m/s^2")
    speed = min(max(float(speed_mps), 0.0), limits.max_speed_mps)
    curvature_1pm = min(max(float(curvature_1pm), -limits.max_curvature_1pm), limits.max_curvature_1pm)
    knots = (np.arange(COEFFICIENTS) - 0.5) * PLAN_STEP_S
    theta = np.concatenate([np.maximum(speed - braking * knots, 0.0), np.full(COEFFICIENTS, curvature_1pm)])
    theta[0] = 2.0 * speed - theta[1]
    return _sampled(nearest_within(theta, np.eye(theta.size), PLAN_STEP_S, speed, limits), limits)


def _trajectory(v: np.ndarray, a: np.ndarray, curvature: np.ndarray) -> Trajectory:
    x, y, heading = (row[0] for row in _integrated(v[None], curvature[None]))
    every = round(PERIOD_S / FINE_S)
    times = np.arange(len(v)) * FINE_S
    return Trajectory(*(row[::every].copy() for row in (times, x, y, heading, v, a, curvature)))
