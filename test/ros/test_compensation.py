"""A trajectory moved on to the moment of publication is the same path over the ground at the same times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wamdiff2_core.control import Pose2D
from wamdiff2_core.trajectory import Trajectory, smooth_trajectory
from wamdiff2_ros.compensation import MOST_AHEAD_S, moved_on, pose_at
from wamdiff2_ros.odometry import OdometrySample

TIMES = np.arange(1, 9) * 0.5


def on_the_ground(trajectory: Trajectory, start: Pose2D) -> np.ndarray:
    """Positions (N, 2) in the fixed frame that `start` is given in."""
    c, s = math.cos(start.yaw), math.sin(start.yaw)
    x, y = trajectory.x_m, trajectory.y_m
    return np.column_stack([start.x + c * x - s * y, start.y + s * x + c * y])


def arc(speed: float, bend: float) -> Trajectory:
    """Constant speed on a circle, exactly."""
    t = np.arange(41) * 0.1
    angle = speed * bend * t
    one = np.ones(41)
    return Trajectory(t, np.sin(angle) / bend, (1 - np.cos(angle)) / bend, angle, speed * one, 0.0 * one, bend * one)


def test_the_exact_case_a_quarter_circle() -> None:
    """20 m to the left at 10 m/s. After 1 s the car is where the plan wanted it: the rest begins at 0 and ahead."""
    plan = arc(10.0, 0.05)
    then = Pose2D(100.0, -50.0, 2.0)
    x, y = on_the_ground(plan, then)[10]
    now = Pose2D(float(x), float(y), 2.0 + 0.5)
    rest = moved_on(plan, then, now, 1.0)
    assert rest is not None and len(rest.time_s) == 31 and rest.time_s[0] == 0.0
    first = arc(10.0, 0.05)
    for name in ("x_m", "y_m", "heading_rad"):
        assert getattr(rest, name) == pytest.approx(getattr(first, name)[:31], abs=1e-9), name


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 3.0),
    st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.floats(-3, 3)),
    st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(-1, 1)),
    st.floats(-0.1, 0.1),
)
def test_any_move_keeps_path_and_times(
    seconds: float, then: tuple[float, float, float], move: tuple[float, float, float], bend: float
) -> None:
    plan = arc(8.0, bend if abs(bend) > 1e-3 else 1e-3)
    start, now = Pose2D(*then), Pose2D(*(a + b for a, b in zip(then, move, strict=True)))
    rest = moved_on(plan, start, now, seconds)
    assert rest is not None
    curvature = plan.curvature_1pm[0]
    angle = 8.0 * curvature * (rest.time_s + seconds)
    due = np.column_stack([np.sin(angle), 1.0 - np.cos(angle)]) / curvature
    c, s = math.cos(start.yaw), math.sin(start.yaw)
    expected = np.column_stack([start.x + c * due[:, 0] - s * due[:, 1], start.y + s * due[:, 0] + c * due[:, 1]])
    assert on_the_ground(rest, now) == pytest.approx(expected, abs=1e-5)
    assert rest.heading_rad + now.yaw == pytest.approx(angle + start.yaw, abs=1e-9)


def test_nothing_is_left_or_nothing_has_passed() -> None:
    plan = smooth_trajectory(np.column_stack([6.0 * TIMES, 0.0 * TIMES]), 6.0)
    here = Pose2D()
    assert moved_on(plan, here, here, 3.95) is None and moved_on(plan, here, here, -0.1) is None
    same = moved_on(plan, here, here, 0.0)
    assert same is not None and same.points == pytest.approx(plan.points)


def sample(yaw_rate: float, velocity: tuple[float, float] = (10.0, 0.0)) -> OdometrySample:
    return OdometrySample(50.0, 1.0, 2.0, math.pi / 2, velocity, yaw_rate)


def test_the_newest_pose_is_carried_on_by_its_own_motion() -> None:
    straight = pose_at(sample(0.0), 50.1)
    assert straight == pytest.approx((1.0, 3.0, math.pi / 2))
    bend = pose_at(sample(1.0), 50.15)  # radius 10 m to the left, facing +y: the centre is at (-9, 2)
    assert bend == pytest.approx((-9.0 + 10.0 * math.cos(0.15), 2.0 + 10.0 * math.sin(0.15), math.pi / 2 + 0.15))
    sideways = pose_at(sample(0.0, (0.0, 1.0)), 50.1)
    assert sideways == pytest.approx((0.9, 2.0, math.pi / 2))
    assert pose_at(sample(1.0), 50.0 + MOST_AHEAD_S + 0.01) is None and pose_at(sample(1.0), 49.9) is None
