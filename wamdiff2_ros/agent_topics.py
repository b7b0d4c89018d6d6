"""The leaderboard agent's planner behind ROS topics: a driver node that runs anywhere answers our pictures.

Each question goes out as odometry, instruction and compressed pictures below `ros_prefix`, stamped with the wall clock,
and the node's trajectory for that very stamp is waited for. Start the node with
`wamdiff2 drive --prefix /bench2drive --no-follow`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import rclpy
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from wamdiff2.msg import Trajectory
from wamdiff2_core.agent.settings import AgentSettings
from wamdiff2_core.scene import Failure, FailureKind, Plan, Scene
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.odometry import DIFFERENCE_S, OdometrySample
from wamdiff2_ros.qos import LATCHED, OUTPUT, SENSOR_OUT

QUALITY = 95  # the pictures have been through the agent's JPEG already; this one is for the wire
SAME_S = 1e-3
AHEAD_S = 0.02  # motion goes ahead of the pictures: topics keep no order between them
SETTLE_S = 0.5  # between two ends knowing each other and a first sample that is not lost
KINDS = {
    Trajectory.STATUS_EMPTY: FailureKind.EMPTY,
    Trajectory.STATUS_TRUNCATED: FailureKind.TRUNCATED,
    Trajectory.STATUS_INVALID: FailureKind.INVALID,
    Trajectory.STATUS_PARSE: FailureKind.PARSE,
    Trajectory.STATUS_RANGE: FailureKind.RANGE,
    Trajectory.STATUS_CONTRADICTION: FailureKind.CONTRADICTION,
}


class TopicPlanner:
    """Planner for `Pilot`. `plan` blocks until the answer is there, at most `ros_wait_s`."""

    def __init__(self, settings: AgentSettings, topic: str = "/wamdiff2/output/trajectory") -> None:
        self._prefix, self._wait_s = settings.ros_prefix, settings.ros_wait_s
        self._context = Context()
        rclpy.init(context=self._context, signal_handler_options=rclpy.SignalHandlerOptions.NO)
        self._node = Node("bench2drive_agent", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._odometry = self._node.create_publisher(Odometry, f"{self._prefix}/odometry", SENSOR_OUT)
        self._instruction = self._node.create_publisher(String, f"{self._prefix}/instruction", LATCHED)
        self._images: dict[str, Any] = {}
        self._said = ""
        self._answers: list[Trajectory] = []
        self._node.create_subscription(Trajectory, topic, self._answers.append, OUTPUT)

    def plan(self, scene: Scene) -> Plan | Failure:
        """Ask and wait. A Failure of kind INPUT when nobody answers in time."""
        until = time.monotonic() + self._wait_s
        self._prepare(scene, until)
        stamp_s = self._node.get_clock().now().nanoseconds * 1e-9
        self._answers.clear()
        self._send(scene, stamp_s)
        while time.monotonic() < until:
            self._executor.spin_once(timeout_sec=0.05)
            for message in self._answers:
                if abs(cv.stamp_seconds(message.images_stamp) - stamp_s) < SAME_S:
                    return _read(message)
        return Failure(FailureKind.INPUT, f"no trajectory for our pictures within {self._wait_s:.0f} s")

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _prepare(self, scene: Scene, until: float) -> None:
        """Make publishers for the scene's cameras, and wait until somebody listens to all that we send."""
        new = [name for name in scene.images if name not in self._images]
        for name in new:
            topic = f"{self._prefix}/{name}/image/compressed"
            self._images[name] = self._node.create_publisher(CompressedImage, topic, SENSOR_OUT)
        senders = [*self._images.values(), self._odometry]
        while time.monotonic() < until and not all(one.get_subscription_count() for one in senders):
            self._executor.spin_once(timeout_sec=0.05)
        settled = min(until, time.monotonic() + SETTLE_S)
        while new and time.monotonic() < settled:  # we know them; they will know us in a moment
            self._executor.spin_once(timeout_sec=0.05)

    def _send(self, scene: Scene, stamp_s: float) -> None:
        if scene.instruction != self._said:
            self._said = scene.instruction
            self._instruction.publish(String(data=scene.instruction))
        for sample in _samples(scene, stamp_s):
            self._odometry.publish(cv.odometry_message(sample))
        self._executor.spin_once(timeout_sec=AHEAD_S)
        for name, picture in scene.images.items():
            header = cv.header(stamp_s, cv.optical_frame(name))
            self._images[name].publish(fill_compressed(CompressedImage(), header, picture, QUALITY))


def _samples(scene: Scene, stamp_s: float) -> list[OdometrySample]:
    """Motion now, and as it was so long before that the node sees the same acceleration: its clock is not the world's.

    A node whose history is younger forgets it, which is meant: the last question was another moment of the world.
    """
    (vx, vy), (ax, _) = scene.ego.velocity, scene.ego.acceleration
    before = OdometrySample(
        stamp_s - DIFFERENCE_S, -vx * DIFFERENCE_S, 0.0, 0.0, (vx - ax * DIFFERENCE_S, vy), scene.ego.yaw_rate
    )
    return [before, OdometrySample(stamp_s, 0.0, 0.0, 0.0, (vx, vy), scene.ego.yaw_rate)]


def _read(message: Trajectory) -> Plan | Failure:
    points = cv.raw_points(message)
    if message.status == Trajectory.STATUS_VALID and points is not None:
        return Plan(points, np.asarray(message.confidence, dtype=np.float64), message.text)
    return Failure(KINDS.get(message.status, FailureKind.INPUT), f"driver node: status {message.status}", message.text)
