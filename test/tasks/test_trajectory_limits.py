"""Whatever the plan and the limits: acceleration, jerk and curvature of the smooth trajectory keep to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.trajectory import (
    NO_ACCELERATION_MPS2,
    PERIOD_S,
    STANDS_MPS,
    Trajectory,
    TrajectoryLimits,
    smooth_trajectory,
    stopping_trajectory,
)

TIMES = np.arange(1, 9) * 0.5
SPEEDS = st.floats(0.0, 30.0)
LIMITS = st.builds(
    TrajectoryLimits,
    max_acceleration_mps2=st.floats(0.3, 5.0),
    max_deceleration_mps2=st.floats(0.5, 9.0),
    max_jerk_mps3=st.floats(0.3, 20.0),
    max_curvature_1pm=st.floats(0.01, 0.3),
)


def check(trajectory: Trajectory, speed: float, limits: TrajectoryLimits) -> None:
    v, a, k = trajectory.speed_mps, trajectory.acceleration_mps2, trajectory.curvature_1pm
    assert all(np.isfinite(row).all() for row in vars(trajectory).values())
    assert v[0] == pytest.approx(speed, abs=1e-4) and v.min() >= 0.0
    # As stated, and as driven, where a speed that is next to nothing counts as standing.
    for acceleration, near in ((a, 1e-6), (np.diff(v) / PERIOD_S, 2.0 * STANDS_MPS / PERIOD_S)):
        assert acceleration.max() <= limits.max_acceleration_mps2 + near
        assert acceleration.min() >= -limits.max_deceleration_mps2 - near
    assert np.abs(np.diff(a)).max() <= limits.max_jerk_mps3 * PERIOD_S + 1e-5
    assert np.abs(k).max() <= limits.max_curvature_1pm + 1e-9
    turn = np.abs(np.diff(trajectory.heading_rad))
    assert (turn <= limits.max_curvature_1pm * np.maximum(v[1:], v[:-1]) * PERIOD_S + 1e-3).all()


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (8, 2), elements=st.floats(-99.99, 99.99)), SPEEDS, LIMITS)
def test_any_points_at_any_limits(points: np.ndarray, speed: float, limits: TrajectoryLimits) -> None:
    check(smooth_trajectory(points, speed, limits), speed, limits)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, 8, elements=st.floats(-9.0, 5.0)), st.floats(-0.02, 0.02), SPEEDS, LIMITS)
def test_plans_that_brake_and_start_hard(a: np.ndarray, bend: float, speed: float, limits: TrajectoryLimits) -> None:
    way = np.cumsum(np.maximum(speed + np.cumsum(a * 0.5), 0.0) * 0.5)
    check(smooth_trajectory(np.column_stack([way, bend * way**2]), speed, limits), speed, limits)


@settings(max_examples=60, deadline=None)
@given(SPEEDS, st.floats(-0.5, 0.5), st.floats(0.5, 8.0), LIMITS)
def test_stopping(speed: float, curvature: float, braking: float, limits: TrajectoryLimits) -> None:
    trajectory = stopping_trajectory(speed, curvature, braking, limits)
    check(trajectory, speed, limits)
    assert trajectory.acceleration_mps2.max() <= NO_ACCELERATION_MPS2 + 1e-6
    assert trajectory.speed_mps.max() <= speed + 1e-3  # never faster


def test_a_tight_jerk_limit_changes_a_plan_that_a_loose_one_keeps() -> None:
    speeds = 6.0 + 2.0 * np.minimum(TIMES, 2.0) - 3.0 * np.maximum(TIMES - 2.0, 0.0)
    points = np.column_stack([np.cumsum(speeds * 0.5), np.zeros(8)])
    loose = smooth_trajectory(points, 6.0)
    tight = smooth_trajectory(points, 6.0, TrajectoryLimits(max_jerk_mps3=0.5))
    assert np.abs(loose.points[5::5] - points).max() < 0.5
    assert np.abs(np.diff(tight.acceleration_mps2)).max() <= 0.05 + 1e-6
    assert np.abs(np.diff(loose.acceleration_mps2)).max() > 0.1


def test_it_stops_where_it_can_and_stays() -> None:
    trajectory = stopping_trajectory(8.0, 0.02, 4.0)
    assert trajectory.speed_mps[25:].max() == 0.0 and trajectory.acceleration_mps2[-1] == 0.0
    assert 8.0 < np.hypot(*trajectory.points[-1]) < 10.0  # v^2 / 2a = 8 m, and the ramps
    assert trajectory.y_m[-1] > 0.5  # along the curve
    assert stopping_trajectory(0.0).holds
    with pytest.raises(DataError, match="finite"):
        stopping_trajectory(float("nan"))
    with pytest.raises(ConfigError, match="max_jerk"):
        TrajectoryLimits(max_jerk_mps3=0.0)
