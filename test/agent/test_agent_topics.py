"""The agent's planner behind ROS topics, against a node that answers as the driver does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from wamdiff2_core.agent.settings import AgentSettings
from wamdiff2_core.scene import EgoState, Failure, FailureKind, Plan, Scene

pytestmark = pytest.mark.ros
SCENE = Scene(
    {"cam_front": np.full((24, 32, 3), 90, np.uint8)}, "turn left in 20 m", EgoState((6.0, 0.0), (-1.5, 0.2), 0.1)
)


class Answering:
    """Stands for the driver node: keeps what it heard, answers each picture with a straight plan (or a failure)."""

    def __init__(self, failure: Failure | None = None, silent: bool = False) -> None:
        import rclpy
        from nav_msgs.msg import Odometry
        from rclpy.context import Context
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.node import Node
        from sensor_msgs.msg import CompressedImage
        from std_msgs.msg import String

        from wamdiff2.msg import Trajectory
        from wamdiff2_ros.odometry import OdometryHistory
        from wamdiff2_ros.qos import LATCHED, ODOMETRY_IN, OUTPUT, SENSOR_IN

        self.failure, self.silent = failure, silent
        self.instruction, self.history, self.heard = "", OdometryHistory(), 0
        self._context = Context()
        rclpy.init(context=self._context)
        self._node = Node("answering", context=self._context)
        self._out = self._node.create_publisher(Trajectory, "/wamdiff2/output/trajectory", OUTPUT)
        self._node.create_subscription(CompressedImage, "/b2d/cam_front/image/compressed", self._picture, SENSOR_IN)
        self._node.create_subscription(Odometry, "/b2d/odometry", self._moved, ODOMETRY_IN)
        self._node.create_subscription(String, "/b2d/instruction", self._told, LATCHED)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._executor.spin)
        self._thread.start()

    def _told(self, message) -> None:  # type: ignore[no-untyped-def]
        self.instruction = message.data

    def _moved(self, message) -> None:  # type: ignore[no-untyped-def]
        from wamdiff2_ros.conversions import odometry_sample

        self.history.add(odometry_sample(message))

    def _picture(self, message) -> None:  # type: ignore[no-untyped-def]
        from wamdiff2_core.trajectory import smooth_trajectory
        from wamdiff2_ros import conversions as cv

        self.heard += 1
        if self.silent:
            return
        stamp = message.header.stamp
        if self.failure is not None:
            self._out.publish(cv.failed_trajectory(self.failure, stamp, ""))
            return
        points = np.column_stack([3.0 * np.arange(1, 9), np.zeros(8)])
        plan = Plan(points, np.full(8, 0.5))
        self._out.publish(cv.trajectory_message(plan, smooth_trajectory(points, 6.0), stamp, ""))

    def motion(self) -> EgoState | None:
        """Once all that was sent has arrived: the newest sample is the one of the scene."""
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            newest = self.history.newest()
            if newest is not None and newest.velocity[0] == SCENE.ego.velocity[0]:
                return self.history.ego_state(newest.stamp_s)
            time.sleep(0.01)
        return None

    def close(self) -> None:
        import rclpy

        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)


@pytest.fixture
def planner() -> Iterator:
    from wamdiff2_ros.agent_topics import TopicPlanner

    made = TopicPlanner(replace(AgentSettings(), mode="ros", ros_prefix="/b2d", ros_wait_s=60.0))
    yield made
    made.close()


def test_a_plan_comes_back_with_instruction_and_motion_told(planner) -> None:  # type: ignore[no-untyped-def]
    node = Answering()
    try:
        first, second = planner.plan(SCENE), planner.plan(replace(SCENE, instruction="follow the road"))
        ego = node.motion()
    finally:
        node.close()
    for answer in (first, second):
        assert isinstance(answer, Plan)
        assert answer.points[-1] == pytest.approx((24.0, 0.0)) and answer.confidence[0] == 0.5
    assert node.instruction == "follow the road" and node.heard == 2
    assert ego is not None and ego.velocity == pytest.approx((6.0, 0.0))
    assert ego.acceleration[0] == pytest.approx(-1.5, abs=1e-4) and ego.yaw_rate == pytest.approx(0.1)


def test_a_failure_of_the_node_is_ours(planner) -> None:  # type: ignore[no-untyped-def]
    node = Answering(Failure(FailureKind.PARSE, "words"))
    try:
        answer = planner.plan(SCENE)
    finally:
        node.close()
    assert isinstance(answer, Failure) and answer.kind is FailureKind.PARSE


def test_silence_is_a_failure_after_the_wait() -> None:
    from wamdiff2_ros.agent_topics import TopicPlanner

    made = TopicPlanner(replace(AgentSettings(), mode="ros", ros_prefix="/b2d", ros_wait_s=0.5))
    try:
        answer = made.plan(SCENE)
    finally:
        made.close()
    assert isinstance(answer, Failure) and answer.kind is FailureKind.INPUT and "within" in answer.message
