"""Trajectories keep their limits, and the follower keeps its lane: in a small closed loop with old and noisy plans."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wamdiff2_core.control import Follower, FollowerConfig, Pose2D, VehicleControl, relative_pose
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.trajectory import Trajectory, TrajectoryLimits, smooth_trajectory

TIMES = np.arange(1, 9) * 0.5
DT = 0.05
LIMITS = TrajectoryLimits()


def arc(speed: float, radius: float) -> np.ndarray:
    angle = speed * TIMES / radius
    return np.stack([radius * np.sin(angle), radius * (1.0 - np.cos(angle))], axis=1)


def check_limits(trajectory: Trajectory) -> None:
    v, a, k = trajectory.speed_mps, trajectory.acceleration_mps2, trajectory.curvature_1pm
    assert trajectory.points.shape == (41, 2) and trajectory.time_s[-1] == pytest.approx(4.0)
    assert all(np.isfinite(row).all() for row in vars(trajectory).values())
    assert v.min() >= 0.0 and v.max() <= LIMITS.max_speed_mps + 1e-6
    assert a.max() <= LIMITS.max_acceleration_mps2 + 1e-6 and a.min() >= -LIMITS.max_deceleration_mps2 - 1e-6
    assert np.diff(v).max() <= LIMITS.max_acceleration_mps2 * 0.1 + 1e-6
    assert np.abs(k).max() <= LIMITS.max_curvature_1pm + 1e-9
    assert np.abs(v * v * k).max() <= LIMITS.max_lateral_acceleration_mps2 + 1e-6
    turned = np.abs(np.diff(trajectory.heading_rad))
    assert (turned <= LIMITS.max_curvature_1pm * np.maximum(v[1:], v[:-1]) * 0.1 + 0.02).all()


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (8, 2), elements=st.floats(-99.99, 99.99)), st.floats(0.0, 40.0))
def test_any_plan_gives_a_trajectory_within_limits(points: np.ndarray, speed: float) -> None:
    check_limits(smooth_trajectory(points, speed))


@pytest.mark.parametrize(
    ("points", "speed"),
    [
        (arc(8.0, 1e6), 8.0),
        (arc(5.0, 15.0), 5.0),
        (arc(5.0, -15.0), 5.0),
        (arc(3.0, 6.0), 3.0),
        (np.stack([0.75 * TIMES**2, 0 * TIMES], 1), 0.0),
    ],
)
def test_clean_plans_are_kept(points: np.ndarray, speed: float) -> None:
    trajectory = smooth_trajectory(points, speed)
    check_limits(trajectory)
    assert np.linalg.norm(trajectory.points[5::5] - points, axis=1).max() < 0.12
    assert trajectory.speed_mps[0] == pytest.approx(speed) and trajectory.x_m[0] == trajectory.y_m[0] == 0.0


@pytest.mark.parametrize("index", range(7))
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("off", [-1.0, 1.0])
def test_one_wrong_digit_does_not_bend_the_trajectory(index: int, axis: int, off: float) -> None:
    points = arc(6.0, 30.0)
    points[index, axis] += off
    error = np.linalg.norm(smooth_trajectory(points, 6.0).points[5::5] - arc(6.0, 30.0), axis=1)
    assert error[:4].max() < 0.35 and error.max() < 0.6


def test_zero_path_holds_still() -> None:
    assert smooth_trajectory(np.zeros((8, 2)), 0.0).holds
    wrong = np.zeros((8, 2))
    wrong[4, 0] = 1.0
    assert smooth_trajectory(wrong, 0.0).holds
    braking = smooth_trajectory(np.zeros((8, 2)), 6.0)
    check_limits(braking)
    assert braking.speed_mps[-1] == 0.0 and not braking.y_m.any()


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="shape"):
        smooth_trajectory(np.zeros((7, 2)), 0.0)
    with pytest.raises(DataError, match="finite"):
        smooth_trajectory(np.full((8, 2), np.nan), 0.0)
    with pytest.raises(DataError, match="speed"):
        smooth_trajectory(np.zeros((8, 2)), float("nan"))
    with pytest.raises(ConfigError, match="hold_m"):
        TrajectoryLimits(hold_m=-1.0)
    with pytest.raises(ConfigError, match="wheelbase_m"):
        FollowerConfig(wheelbase_m=0.0)


def test_relative_pose() -> None:
    there = relative_pose(Pose2D(1.0, 2.0, math.pi / 2), Pose2D(1.0, 5.0, -math.pi))
    assert (there.x, there.y, there.yaw) == pytest.approx((3.0, 0.0, math.pi / 2))


class Bicycle:
    """Kinematic bicycle at the rear axle with the lags of a car's actuators."""

    def __init__(self, speed: float = 0.0) -> None:
        self.x = self.y = self.yaw = self.steer = self.throttle = self.brake = 0.0
        self.speed = speed

    @property
    def pose(self) -> Pose2D:
        return Pose2D(self.x, self.y, self.yaw)

    def step(self, control: VehicleControl) -> None:
        self.steer += float(np.clip((control.steer * 0.6 - self.steer) * 0.5, -0.9 * DT, 0.9 * DT))
        self.throttle += (control.throttle - self.throttle) * 0.3
        self.brake += (control.brake - self.brake) * 0.4
        drive = self.throttle * 3.5 * (1.0 - self.speed / 45.0)
        speed = max(0.0, self.speed + (drive - self.brake * 8.0 - 0.12 - 0.0006 * self.speed**2) * DT)
        mean, self.speed = 0.5 * (speed + self.speed), speed
        turn = mean * math.tan(self.steer) / 2.85 * DT
        self.x += mean * math.cos(self.yaw + turn / 2) * DT
        self.y += mean * math.sin(self.yaw + turn / 2) * DT
        self.yaw += turn


class Road:
    """A centre line by arc length."""

    def __init__(self, curvature: Callable[[np.ndarray], np.ndarray]) -> None:
        self.s = np.arange(0.0, 300.0, 0.05)
        self.heading = np.cumsum(curvature(self.s)) * 0.05
        self.xy = np.stack([np.cumsum(np.cos(self.heading)), np.cumsum(np.sin(self.heading))], 1) * 0.05

    def project(self, pose: Pose2D, near: float) -> tuple[float, float]:
        candidates = np.flatnonzero(np.abs(self.s - near) < 6.0)
        offset = np.array([pose.x, pose.y]) - self.xy[candidates]
        best = int(np.argmin((offset**2).sum(1)))
        heading = self.heading[candidates[best]]
        return float(self.s[candidates[best]]), float(
            offset[best, 1] * np.cos(heading) - offset[best, 0] * np.sin(heading)
        )

    def plan(self, car: Bicycle, s: float, wanted: Callable[[float], float]) -> np.ndarray:
        """Waypoints (8, 2) in the ego frame: along the centre line, towards the wanted speed."""
        speed, places = car.speed, []
        for index in range(80):
            speed = max(0.0, speed + float(np.clip(wanted(s) - speed, -3.0, 1.5)) * DT)
            s += speed * DT
            if index % 10 == 9:
                places.append(s)
        xy = np.stack([np.interp(places, self.s, self.xy[:, axis]) for axis in (0, 1)], 1) - (car.x, car.y)
        c, sn = math.cos(car.yaw), math.sin(car.yaw)
        return xy @ np.array([[c, -sn], [sn, c]])


def drive(
    curvature: Callable[[np.ndarray], np.ndarray],
    wanted: Callable[[float], float],
    speed: float,
    age_s: float = 0.3,
    noise_m: float = 0.1,
    wrong_digits: bool = False,
    seconds: float = 20.0,
) -> tuple[np.ndarray, np.ndarray, float, VehicleControl]:
    """Lateral errors and speeds per step, last place and control; a plan every 0.25 s, in effect `age_s` later."""
    rng, road, car, follower = np.random.default_rng(1), Road(curvature), Bicycle(speed), Follower()
    waiting, current, s = [], (smooth_trajectory(road.plan(car, 0.0, wanted), speed), car.pose), 0.0
    lateral, speeds, control = [], [], VehicleControl()
    for step in range(round(seconds / DT)):
        if step % 5 == 0:
            points = road.plan(car, s, wanted) + rng.normal(0.0, noise_m, (8, 2))
            if wrong_digits and rng.random() < 0.3:
                points[rng.integers(8), rng.integers(2)] += rng.choice([-1.0, 1.0])
            waiting.append((step + round(age_s / DT), smooth_trajectory(points, car.speed), car.pose))
        while waiting and waiting[0][0] <= step:
            current = waiting.pop(0)[1:]
        control = follower.control(current[0], current[1], car.pose, car.speed, DT)
        car.step(control)
        s, error = road.project(car.pose, s)
        lateral.append(abs(error))
        speeds.append(car.speed)
    return np.array(lateral), np.array(speeds), s, control


ROADS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "straight at 8 m/s": (lambda s: 0.0 * s, 8.0),
    "circle of 15 m at 5 m/s": (lambda s: 0.0 * s + 1 / 15, 5.0),
    "S-curve at 8 m/s": (lambda s: np.sin(s / 12.0) / 25.0, 8.0),
    "crossing, 8 m radius at 4 m/s": (lambda s: np.where((s > 20) & (s < 20 + 4 * np.pi), 1 / 8, 0.0), 4.0),
}


@pytest.mark.parametrize("age_s", [0.05, 0.3, 0.4])
@pytest.mark.parametrize("name", ROADS)
def test_the_lane_is_kept(name: str, age_s: float) -> None:
    curvature, speed = ROADS[name]
    lateral, speeds, _, _ = drive(curvature, lambda s: speed, speed, age_s, wrong_digits=True)
    assert lateral.max() < 0.35
    assert np.abs(speeds - speed).max() < 0.15 * speed


def test_starts_from_standstill_and_reaches_its_speed() -> None:
    lateral, speeds, s, _ = drive(lambda s: 0.0 * s, lambda s: 8.0, 0.0)
    assert lateral.max() < 0.35 and speeds[-1] == pytest.approx(8.0, abs=0.5) and s > 80.0
    assert speeds[20] > 0.3  # it is under way after a second


def test_stops_where_the_plan_stops_and_stays() -> None:
    def wanted(s: float) -> float:
        return min(8.0, math.sqrt(max(0.0, 3.0 * (39.5 - s))))

    _, speeds, s, control = drive(lambda s: 0.0 * s, wanted, 8.0)
    assert speeds[-20:].max() == 0.0 and 38.0 < s < 41.0
    assert control.brake > 0.0 and control.throttle == 0.0


def test_holds_on_a_zero_plan_and_brakes_for_it() -> None:
    follower = Follower()
    assert follower.control(np.zeros((8, 2)), Pose2D(), Pose2D(), 0.0) == VehicleControl(brake=0.4)
    assert follower.control(np.zeros((8, 2)), Pose2D(), Pose2D(), 8.0).brake > 0.3


def test_past_the_end_of_a_plan_the_vehicle_stops() -> None:
    control = Follower().control(smooth_trajectory(arc(5.0, 1e6), 5.0), Pose2D(), Pose2D(25.0, 0.0, 0.0), 5.0)
    assert control.throttle == 0.0 and control.brake > 0.3
