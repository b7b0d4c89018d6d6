"""The follower node: follows a fresh plan; brakes when there is none, an old or withdrawn one, or no odometry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

import rclpy  # noqa: E402
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2.msg import Trajectory, VehicleControl  # noqa: E402
from wamdiff2_core.errors import ConfigError  # noqa: E402
from wamdiff2_core.scene import Failure, FailureKind, Plan  # noqa: E402
from wamdiff2_core.trajectory import smooth_trajectory, stopping_trajectory  # noqa: E402
from wamdiff2_core.waypoint_pid import WaypointPid  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros import plan_messages  # noqa: E402
from wamdiff2_ros.follower_node import FollowerNode  # noqa: E402
from wamdiff2_ros.odometry import OdometrySample  # noqa: E402
from wamdiff2_ros.qos import CONTROL, OUTPUT  # noqa: E402

LIMIT_S = 120.0  # against hanging only


class Car:
    """Sends odometry and plans to a follower in this process, and hears its controls. Time is the messages' own."""

    def __init__(self, **parameters: object) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        values = {"max_plan_age_s": 1.0, "max_odometry_age_s": 1.0, **parameters}
        limits = [Parameter(name, value=value) for name, value in values.items()]
        self.node = FollowerNode(context=self.context, parameter_overrides=limits)
        self.probe = Node("probe", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.executor.add_node(self.probe)
        self.controls: list[VehicleControl] = []
        self.probe.create_subscription(VehicleControl, "/follower/output/control", self.controls.append, CONTROL)
        self.said: list[DiagnosticArray] = []
        self.probe.create_subscription(DiagnosticArray, "/diagnostics", self.said.append, OUTPUT)
        self.odometry = self.probe.create_publisher(Odometry, "/follower/input/odometry", OUTPUT)
        self.plans = self.probe.create_publisher(Trajectory, "/follower/input/trajectory", OUTPUT)
        self.stamp_s = 100.0
        self.spin_until(lambda: self.odometry.get_subscription_count() and self.plans.get_subscription_count())
        self.spin_until(lambda: self.controls)

    def spin_until(self, condition: Callable[[], object], do: Callable[[], object] = lambda: None) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s
            do()
            self.executor.spin_once(timeout_sec=0.02)

    def move(self, speed: float = 5.0) -> None:
        self.stamp_s += 0.02
        sample = OdometrySample(self.stamp_s, speed * (self.stamp_s - 100.0), 0.0, 0.0, (speed, 0.0), 0.0)
        self.odometry.publish(cv.odometry_message(sample))

    def plan(self, lateral_m: float = 0.0, speed: float = 8.0) -> None:
        points = np.column_stack([np.arange(1, 9) * 0.5 * speed, np.linspace(0.0, lateral_m, 8)])
        message = cv.trajectory_message(Plan(points, np.ones(8)), smooth_trajectory(points, 5.0), self.stamp_s, "")
        self.plans.publish(message)

    def drive(self, lateral_m: float = 0.0) -> None:
        self.move()
        self.plan(lateral_m)

    @property
    def last(self) -> VehicleControl:
        return self.controls[-1]

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.probe.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def car() -> Iterator[Car]:
    made = Car()
    yield made
    made.close()


@pytest.fixture
def make_car() -> Iterator[Callable[..., Car]]:
    made: list[Car] = []

    def make(**parameters: object) -> Car:
        made.append(Car(**parameters))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_it_brakes_until_there_is_a_plan_and_then_follows(car: Car) -> None:
    assert car.last.brake > 0.0 and car.last.throttle == 0.0
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    car.spin_until(lambda: car.last.steer > 0.02, lambda: car.drive(lateral_m=6.0))  # to the left
    car.spin_until(lambda: car.last.steer < -0.02, lambda: car.drive(lateral_m=-6.0))


def test_an_old_plan_is_not_followed(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    car.spin_until(lambda: car.last.brake >= 0.5, car.move)  # odometry goes on, plans do not


def test_a_withdrawn_plan_is_not_followed(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    failure = Failure(FailureKind.INPUT, "no frames")

    def withdraw() -> None:
        car.move()
        car.plans.publish(cv.failed_trajectory(failure, car.stamp_s, ""))

    car.spin_until(lambda: car.last.brake >= 0.5, withdraw)


def test_diagnostics_say_why_the_car_is_braked(car: Car) -> None:
    def status() -> DiagnosticStatus:
        return car.said[-1].status[0] if car.said else DiagnosticStatus()

    car.spin_until(lambda: status().message == "stopping: no fresh odometry")
    assert status().level == DiagnosticStatus.ERROR and status().name == "follower: control"
    car.spin_until(lambda: status().message == "following" and status().level == DiagnosticStatus.OK, car.drive)
    car.spin_until(lambda: status().message == "stopping: the plan is too old", car.move)


def test_a_stop_trajectory_is_braked_for_at_once(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    stopping = stopping_trajectory(5.0)

    def stop() -> None:
        car.move()
        car.plans.publish(plan_messages.stop_trajectory(stopping, car.stamp_s, "", "no young plan"))

    car.spin_until(lambda: car.last.brake >= 0.5, stop)
    stamp_s = car.stamp_s
    car.spin_until(lambda: car.stamp_s > stamp_s + 0.3, stop)
    assert car.last.brake >= 0.5 and car.last.throttle == 0.0


def test_a_trajectory_moved_on_to_now_is_as_old_as_its_images(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    points = np.column_stack([np.arange(1, 9) * 4.0, np.zeros(8)])

    def old_images() -> None:
        car.move()
        message = cv.trajectory_message(
            Plan(points, np.ones(8)), smooth_trajectory(points, 5.0), car.stamp_s - 1.5, "", (), 1.5
        )
        car.plans.publish(message)

    car.spin_until(lambda: car.last.brake >= 0.5, old_images)


def test_points_that_are_no_trajectory_are_not_followed(car: Car) -> None:
    points = np.column_stack([np.arange(1, 9) * 4.0, np.zeros(8)])
    message = cv.trajectory_message(Plan(points, np.ones(8)), smooth_trajectory(points, 5.0), 3.0, "")
    assert plan_messages.smooth_of(message) is not None
    for name, value in (("x_m", float("nan")), ("speed_mps", -1.0), ("time_from_start_s", 0.0)):
        broken = cv.trajectory_message(Plan(points, np.ones(8)), smooth_trajectory(points, 5.0), 3.0, "")
        setattr(broken.points[7], name, value)
        assert plan_messages.smooth_of(broken) is None
    message.points = message.points[:1]
    assert plan_messages.smooth_of(message) is None


def test_an_answer_that_is_no_plan_lets_the_plan_before_go_on_until_it_is_too_old(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    failure = Failure(FailureKind.RANGE, "too fast")
    stamp_s = car.stamp_s

    def fail() -> None:
        car.move()
        car.plans.publish(cv.failed_trajectory(failure, car.stamp_s, ""))

    car.spin_until(lambda: car.stamp_s > stamp_s + 0.3, fail)
    assert car.last.brake < 0.5
    car.spin_until(lambda: car.last.brake >= 0.5, fail)


def test_silent_odometry_stops_the_car(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    car.spin_until(lambda: car.last.brake >= 0.5, car.plan)


def test_time_going_back_withdraws_the_plan(car: Car) -> None:
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    car.stamp_s = 1.0
    car.spin_until(lambda: car.last.brake >= 0.5, car.move)
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)


def test_the_waypoint_pid_can_be_chosen(make_car: Callable[..., Car]) -> None:
    car = make_car(controller="waypoint_pid", full_steer_rad=0.0)
    points = np.column_stack([np.arange(1, 9) * 1.0, np.linspace(0.0, 6.0, 8)])
    expected = WaypointPid().control(points, 1.0, (float(points[5, 0]), float(points[5, 1])))

    def drive() -> None:
        car.move(1.0)
        car.plan(6.0, speed=2.0)

    car.spin_until(lambda: car.last.throttle > 0.0, drive)
    first = next(control for control in car.controls if control.throttle > 0.0)
    assert first.throttle == pytest.approx(expected.throttle) and first.steer == pytest.approx(expected.steer, abs=0.05)
    assert first.steer > 0.2


def test_a_simulator_that_waits_gets_a_control_for_every_odometry(make_car: Callable[..., Car]) -> None:
    car = make_car(on_odometry=True, rate_hz=0.2)
    car.spin_until(lambda: car.last.throttle > 0.0, car.drive)
    for _ in range(5):
        stamp_s = car.stamp_s + 0.02
        car.move()
        car.spin_until(lambda at_s=stamp_s: cv.stamp_seconds(car.last.header.stamp) == pytest.approx(at_s, abs=1e-6))
    assert car.last.throttle > 0.0


def test_a_controller_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="controller: expected one of follower, waypoint_pid"):
        Car(controller="none")
