"""Both controllers behind one call: the same as they are by themselves, old plans, steering units, names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wamdiff2_core.carla_frames import CARLA_WHEEL_DEG
from wamdiff2_core.control import Follower, FollowerConfig, Pose2D
from wamdiff2_core.controllers import CONTROLLERS, HeldPlan, make_controller, points_from_now
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.trajectory import smooth_trajectory
from wamdiff2_core.waypoint_pid import WaypointPid

LEFT = np.column_stack([np.arange(1, 9) * 3.0, 0.04 * (np.arange(1, 9) * 3.0) ** 2])
POSE = Pose2D(10.0, -5.0, 1.0)


def held(points: np.ndarray = LEFT, speed: float = 5.0) -> HeldPlan:
    return HeldPlan(points, POSE, 100.0, speed)


def test_the_follower_is_the_follower() -> None:
    made = make_controller("follower").control(held(), POSE, 100.0, 5.0)
    assert made == Follower().control(smooth_trajectory(LEFT, 5.0), POSE, POSE, 5.0)


def test_a_plan_is_smoothed_once_and_a_smooth_one_is_taken_as_it_is() -> None:
    controller = make_controller("follower")
    smooth = smooth_trajectory(LEFT, 5.0)
    given = HeldPlan(np.zeros((8, 2)), POSE, 100.0, 5.0, smooth)  # points that would mean: stand
    assert controller.control(given, POSE, 100.0, 5.0) == make_controller("follower").control(held(), POSE, 100.0, 5.0)


def test_the_pid_is_the_pid() -> None:
    made = make_controller("waypoint_pid", full_steer_rad=0.0).control(held(), POSE, 100.0, 5.0, (20.0, 5.0))
    assert made == WaypointPid().control(LEFT, 5.0, (20.0, 5.0))


def test_without_a_target_the_pid_gets_the_plans_end() -> None:
    made = make_controller("waypoint_pid", full_steer_rad=0.0).control(held(), POSE, 100.0, 5.0)
    assert made == WaypointPid().control(LEFT, 5.0, (float(LEFT[5, 0]), float(LEFT[5, 1])))


@pytest.mark.parametrize("full_steer_rad", [0.3, 0.6, 1.0])
def test_the_steering_unit_is_another_but_the_wheel_angle_the_same(full_steer_rad: float) -> None:
    slight = np.column_stack([np.arange(1, 9) * 3.0, 0.002 * (np.arange(1, 9) * 3.0) ** 2])
    angles = {
        "follower": FollowerConfig().max_steer_rad,
        "waypoint_pid": math.radians(CARLA_WHEEL_DEG),
    }
    for name, own in angles.items():
        usual = 0.0 if name == "waypoint_pid" else 0.6
        expected = make_controller(name, usual).control(held(slight), POSE, 100.0, 5.0).steer * own
        made = make_controller(name, full_steer_rad).control(held(slight), POSE, 100.0, 5.0).steer
        assert made * full_steer_rad == pytest.approx(expected) and 0.0 < made < 1.0


def test_an_old_plan_is_looked_at_from_where_the_car_is() -> None:
    straight = np.column_stack([np.arange(1, 9) * 3.0, np.zeros(8)])  # 6 m/s
    plan = HeldPlan(straight, POSE, 100.0, 6.0)
    driven = Pose2D(POSE.x + 1.5 * math.cos(1.0), POSE.y + 1.5 * math.sin(1.0), 1.0)
    points = points_from_now(plan, driven, 100.25)
    assert points[:, 0] == pytest.approx(np.arange(1, 7) * 3.0) and points[:, 1] == pytest.approx(np.zeros(6))
    turned = Pose2D(POSE.x, POSE.y, 1.0 + math.pi / 2.0)
    assert points_from_now(plan, turned, 100.0)[:, 1] == pytest.approx(-np.arange(1, 7) * 3.0)  # now on the right
    assert points_from_now(plan, POSE, 200.0)[0] == pytest.approx((24.0, 0.0))  # the plan's end
    assert np.array_equal(points_from_now(plan, POSE, 100.0), straight[:6])


@pytest.mark.parametrize("name", CONTROLLERS)
def test_standing_plans_stand_and_a_plan_from_standstill_starts(name: str) -> None:
    controller = make_controller(name)
    still = controller.control(HeldPlan(np.zeros((8, 2)), POSE, 0.0, 0.0), POSE, 0.0, 0.0)
    assert still.throttle == 0.0 and still.brake > 0.0
    ahead = np.column_stack([0.5 * np.arange(1, 9) ** 2 * 0.25 * 2.0, np.zeros(8)])  # 2 m/s^2 from standstill
    controller.reset()
    start = controller.control(HeldPlan(ahead, POSE, 0.0, 0.0), POSE, 0.0, 0.0)
    assert start.throttle > 0.1 and start.brake == 0.0


def test_the_follower_steers_for_the_curvature_before_there_is_an_error() -> None:
    radius, speed = 20.0, 6.0
    angles = speed / radius * 0.5 * np.arange(1, 9)
    circle = np.column_stack([radius * np.sin(angles), radius * (1.0 - np.cos(angles))])
    made = make_controller("follower").control(HeldPlan(circle, POSE, 0.0, speed), POSE, 0.0, speed)
    expected = math.atan(FollowerConfig().wheelbase_m / radius) / FollowerConfig().max_steer_rad
    assert made.steer == pytest.approx(expected, rel=0.1)


def test_the_followers_integral_does_not_wind_up_while_the_pedal_is_down() -> None:
    ahead = np.column_stack([6.0 * np.arange(1, 9), np.zeros(8)])  # 12 m/s
    plan = HeldPlan(ahead, POSE, 0.0, 12.0, smooth_trajectory(ahead, 12.0))
    patient, fresh = make_controller("follower"), make_controller("follower")
    for _ in range(400):  # 20 s against a hill: full throttle, and no faster
        assert patient.control(plan, POSE, 0.0, 2.0).throttle == 1.0
    now = (plan, POSE, 0.0, 12.0)
    assert patient.control(*now).throttle == pytest.approx(fresh.control(*now).throttle, abs=0.01)


def test_names_and_units_are_checked() -> None:
    with pytest.raises(ConfigError, match="follower, waypoint_pid"):
        make_controller("pid")
    with pytest.raises(ConfigError, match="full_steer_rad"):
        make_controller("follower", 0.0)
    with pytest.raises(ConfigError, match="full_steer_rad"):
        make_controller("waypoint_pid", math.nan)
