"""A bridge on the stand-in server and a probe, in one process and context; everything waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
from carla_stand_in import StandInActor, StandInServer, stand_in
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter

from wamdiff2.msg import VehicleControl
from wamdiff2_ros.carla_bridge_node import CarlaBridgeNode
from wamdiff2_ros.qos import CONTROL, OUTPUT, SENSOR_IN

LIMIT_S = 120.0  # against hanging only
RIG = """
name: small
ego: {base_link_x_m: -1.4}
cameras:
  - {name: cam_front, width: 64, height: 32, fov_deg: 70.0, position: [2.2, 0.0, 1.6]}
  - {name: cam_left, width: 64, height: 32, fov_deg: 70.0, position: [1.67, 0.55, 1.6], yaw_deg: 55.0, pitch_deg: 10.0}
"""


class Bridge:
    """`heard[topic]`: messages under /carla/hero; `answer`: called with each odometry to send a control."""

    def __init__(self, server: StandInServer, folder: Path, **parameters: Any) -> None:
        self.server = server
        rig = folder / "rig.yaml"
        rig.write_text(RIG)
        values: dict[str, Any] = {"rig": str(rig), "reconnect_s": 0.05, "control_wait_s": 5.0, "timeout_s": 1.0}
        values |= {"real_time": False, **parameters}
        self.context = Context()
        rclpy.init(context=self.context)
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self.node = CarlaBridgeNode(stand_in(server), context=self.context, parameter_overrides=overrides)
        self.probe = Node("probe", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.executor.add_node(self.probe)
        self.heard: dict[str, list[Any]] = {}
        self.control = self.probe.create_publisher(VehicleControl, "/carla/hero/control", CONTROL)
        self.answer: Callable[[Odometry], VehicleControl | None] = lambda odometry: None
        self.listen("odometry", Odometry, then=self._answer)
        self.listen("/diagnostics", DiagnosticArray)

    def listen(self, topic: str, kind: Any, qos: Any = SENSOR_IN, then: Callable[[Any], None] | None = None) -> None:
        """Collect what is said on a topic (below /carla/hero unless it begins with a slash)."""
        self.heard[topic] = said = []
        full = topic if topic.startswith("/") else f"/carla/hero/{topic}"

        def take(message: Any) -> None:
            said.append(message)
            if then is not None:
                then(message)

        self.probe.create_subscription(kind, full, take, OUTPUT if topic == "/diagnostics" else qos)

    def spin_until(self, condition: Callable[[], Any], what: str = "") -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s, f"{what or condition} did not happen within {LIMIT_S} s"
            self.executor.spin_once(timeout_sec=0.01)

    @property
    def ego(self) -> StandInActor:
        (actor,) = self.server.named("hero")
        return actor

    def status(self, what: str) -> DiagnosticStatus:
        """Newest status of the bridge about `what`."""
        for array in reversed(self.heard["/diagnostics"]):
            for status in array.status:
                if status.name == f"carla_bridge: {what}":
                    return status
        return DiagnosticStatus()

    def close(self) -> None:
        self.node.close()
        self.executor.shutdown()
        self.node.destroy_node()
        self.probe.destroy_node()
        rclpy.shutdown(context=self.context)

    def _answer(self, odometry: Odometry) -> None:
        made = self.answer(odometry)
        if made is not None:
            made.header.stamp = odometry.header.stamp
            self.control.publish(made)


def drive(throttle: float = 0.5, steer: float = 0.0, reverse: bool = False) -> Callable[[Odometry], VehicleControl]:
    """Answers every odometry with this control."""
    return lambda odometry: VehicleControl(throttle=throttle, steer=steer, reverse=reverse)
