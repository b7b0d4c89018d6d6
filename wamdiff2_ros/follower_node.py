"""Trajectory follower: turns the driver's newest plan into steering, throttle and brake, 20 times a second.

No fresh plan, no fresh odometry, or a message that the input is missing: the car is braked to a stop and held.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from wamdiff2.msg import Trajectory as TrajectoryMsg
from wamdiff2.msg import VehicleControl as VehicleControlMsg
from wamdiff2_core.control import FollowerConfig, VehicleControl
from wamdiff2_core.controllers import FOLLOWER, WAYPOINT_PID, HeldPlan, make_controller
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.trajectory import Trajectory
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.odometry import OdometryHistory, OdometrySample
from wamdiff2_ros.plan_messages import smooth_of
from wamdiff2_ros.process import run_node
from wamdiff2_ros.qos import CONTROL, EVERY_ODOMETRY_IN, ODOMETRY_IN, OUTPUT

STOP = VehicleControl(brake=0.5)
DIAGNOSTICS_S = 1.0


class PlanInUse:
    """The newest valid plan with the pose at its start, the stamp of its images, and when it came."""

    def __init__(self, held: HeldPlan, stamp_s: float) -> None:
        self.held = held
        self.stamp_s = stamp_s
        self.received_s = time.monotonic()


class FollowerNode(Node):
    """Parameters: rate_hz, max_plan_age_s (from the plan's stamp), max_odometry_age_s (since it arrived).

    controller: "follower" (ours) or "waypoint_pid". full_steer_rad: the wheel angle that the control's steer 1 means; 0
    (waypoint PID only): the vehicle's own full lock. on_odometry: a control for every odometry message instead of
    rate_hz of them, for a simulator that waits for it and whose odometry is reliable.
    """

    def __init__(self, **node_options: Any) -> None:
        super().__init__("follower", **node_options)
        self._rate_hz = float(self.declare_parameter("rate_hz", 20.0).value)
        self._max_plan_age_s = float(self.declare_parameter("max_plan_age_s", 1.0).value)
        self._max_odometry_age_s = float(self.declare_parameter("max_odometry_age_s", 0.5).value)
        for name in ("rate_hz", "max_plan_age_s", "max_odometry_age_s"):
            value = self.get_parameter(name).value
            if not 0.0 < value < math.inf:
                raise ConfigError(f"{name}: expected a number > 0, got {value}")
        self._on_odometry = bool(self.declare_parameter("on_odometry", False).value)
        controller = str(self.declare_parameter("controller", FOLLOWER).value)
        full_steer_rad = float(self.declare_parameter("full_steer_rad", FollowerConfig().max_steer_rad).value)
        self._controller = make_controller(controller, full_steer_rad)
        self._wants_raw = controller == WAYPOINT_PID
        self._driven_s = -1e9
        odometry_in = EVERY_ODOMETRY_IN if self._on_odometry else ODOMETRY_IN
        self._history = OdometryHistory()
        self._odometry_received_s = -1e9
        self._plan: PlanInUse | None = None
        self._why_stopped = ""
        self._control = self.create_publisher(VehicleControlMsg, "~/output/control", CONTROL)
        self.create_subscription(TrajectoryMsg, "~/input/trajectory", self._trajectory_arrived, OUTPUT)
        self.create_subscription(Odometry, "~/input/odometry", self._odometry_arrived, odometry_in)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / self._rate_hz, self._timer_ticked, clock=steady)
        self.create_timer(DIAGNOSTICS_S, self._report, clock=steady)

    def _odometry_arrived(self, message: Odometry) -> None:
        try:
            sample = cv.odometry_sample(message)
        except DataError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)
            return
        newest = self._history.newest()
        if newest is not None and sample.stamp_s < newest.stamp_s:  # time went back: the plan is of another drive
            self._plan = None
            self._controller.reset()
        self._history.add(sample)
        self._odometry_received_s = time.monotonic()
        if self._on_odometry:
            self._tick()

    def _trajectory_arrived(self, message: TrajectoryMsg) -> None:
        """Keep the plan with the pose at its stamp.

        Missing input withdraws the plan before: nobody sees where we drive. So does a stop trajectory; we brake by
        ourselves then. An answer of the model that is no plan does not: the one before goes on until it is too old,
        about as long as the next answers take.
        """
        smooth = smooth_of(message)
        stamp_s = cv.stamp_seconds(message.header.stamp)
        pose = self._history.at(stamp_s)
        if message.status in (TrajectoryMsg.STATUS_INPUT, TrajectoryMsg.STATUS_STOP):
            self._plan = None
        if smooth is None or pose is None:
            return
        images_s = cv.stamp_seconds(message.images_stamp)  # a trajectory moved on to now is no younger for that
        held = self._raw_plan(message, images_s or stamp_s) if self._wants_raw else _smooth_plan(smooth, pose)
        if held is not None:
            self._plan = PlanInUse(held, min(images_s or stamp_s, stamp_s))

    def _raw_plan(self, message: TrajectoryMsg, images_s: float) -> HeldPlan | None:
        """The model's own points, which are in base_link as it stood at `images_s`."""
        points, pose = cv.raw_points(message), self._history.at(images_s)
        return None if points is None or pose is None else HeldPlan(points, pose, images_s, pose.velocity[0])

    def _timer_ticked(self) -> None:
        """With on_odometry the timer speaks only while there is none: the car is braked then."""
        if not self._on_odometry or self._reason_to_stop(self._history.newest()):
            self._tick()

    def _tick(self) -> None:
        now = self._history.newest()
        reason = self._reason_to_stop(now)
        if reason != self._why_stopped:
            self.get_logger().info(f"stopping: {reason}" if reason else "following")
            self._why_stopped = reason
        if reason or now is None or self._plan is None:
            self._controller.reset()
            control = STOP
        else:
            since_s = now.stamp_s - self._driven_s
            dt = since_s if self._on_odometry and 0.0 < since_s < 1.0 else 1.0 / self._rate_hz
            control = self._controller.control(self._plan.held, now, now.stamp_s, now.velocity[0], dt=dt)
            self._driven_s = now.stamp_s
        self._control.publish(cv.control_message(control, now.stamp_s if now else 0.0))

    def _report(self) -> None:
        """Once a second to /diagnostics: following, or why the car is braked."""
        why = self._reason_to_stop(self._history.newest())
        level, text = (DiagnosticStatus.ERROR, f"stopping: {why}") if why else (DiagnosticStatus.OK, "following")
        name = f"{self.get_name()}: control"
        message = DiagnosticArray(
            status=[DiagnosticStatus(level=level, name=name, message=text, hardware_id="wamdiff2")]
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _reason_to_stop(self, now: OdometrySample | None) -> str:
        if now is None or time.monotonic() - self._odometry_received_s > self._max_odometry_age_s:
            return "no fresh odometry"
        if self._plan is None:
            return "no plan"
        since_received_s = time.monotonic() - self._plan.received_s
        if max(now.stamp_s - self._plan.stamp_s, since_received_s) > self._max_plan_age_s:
            return "the plan is too old"
        return ""


def _smooth_plan(smooth: Trajectory, pose: OdometrySample) -> HeldPlan:
    """A trajectory that starts at `pose`, at its time."""
    return HeldPlan(smooth.points[5::5], pose, pose.stamp_s, pose.velocity[0], smooth)


def main(args: list[str] | None = None) -> int:
    return run_node(FollowerNode, args)


if __name__ == "__main__":
    sys.exit(main())
