"""CARLA as ROS 2 topics: cameras, odometry, IMU, GNSS, speed, route and /clock out, control in.

Parameters: carla_settings.BridgeSettings. Topics: docs/carla.md. CARLA is talked to by a thread (carla_loop), the node
only listens and reports.
"""

from __future__ import annotations

import sys
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from wamdiff2.msg import VehicleControl as VehicleControlMsg
from wamdiff2_core.carla_frames import ros_to_carla_vector
from wamdiff2_core.errors import DataError
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.carla_client import load_carla
from wamdiff2_ros.carla_control import ControlGate
from wamdiff2_ros.carla_loop import BridgeLoop
from wamdiff2_ros.carla_messages import carla_control_of, carla_messages, control_of
from wamdiff2_ros.carla_outputs import Outputs
from wamdiff2_ros.carla_rig import load_ego
from wamdiff2_ros.carla_settings import declared
from wamdiff2_ros.process import NodeFailed, run_node
from wamdiff2_ros.qos import CONTROL, OUTPUT

REPORT_S = 1.0
WATCH_S = 0.1


class CarlaBridgeNode(Node):
    """`carla`: the client module; another object with its surface in tests."""

    def __init__(self, carla: Any = None, **node_options: Any) -> None:
        super().__init__("carla_bridge", **node_options)
        self.settings = settings = declared(self)
        rig = load_ego(settings.rig)
        self.outputs = Outputs(self, settings, rig)
        gate = ControlGate(settings.max_control_age_s, real_seconds_count=not settings.owns_tick)
        module = load_carla() if carla is None else carla
        self.loop = BridgeLoop(module, settings, rig, self.outputs, gate, self.get_logger().info)
        prefix = f"/carla/{settings.role_name}"
        self._read_control, kind, topic = control_of, VehicleControlMsg, f"{prefix}/control"
        if settings.control_messages == "carla_msgs":
            kind, topic = carla_messages().CarlaEgoVehicleControl, f"{prefix}/vehicle_control_cmd"
            self._read_control = carla_control_of
        self.create_subscription(kind, topic, self._control_arrived, CONTROL)
        self.create_subscription(PoseStamped, f"{prefix}/goal_pose", self._goal_arrived, OUTPUT)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(WATCH_S, self._watch, clock=steady)
        self.create_timer(REPORT_S, self._report, clock=steady)
        self.busy = False
        self.loop.start()

    def close(self) -> None:
        """Take what was spawned out of the simulation."""
        self.busy = not self.loop.stop()

    def _control_arrived(self, message: Any) -> None:
        try:
            self.loop.gate.put(self._read_control(message), cv.stamp_seconds(message.header.stamp))
        except DataError as error:
            self.loop.gate.refuse(str(error))

    def _goal_arrived(self, message: PoseStamped) -> None:
        place = message.pose.position
        x, y, _ = ros_to_carla_vector(place.x, place.y, place.z)
        self.loop.set_goal(x, y)

    def _watch(self) -> None:
        if self.loop.error is not None:
            raise NodeFailed(str(self.loop.error)) from self.loop.error

    def _report(self) -> None:
        loop = self.loop
        server = (DiagnosticStatus.OK if loop.connected else DiagnosticStatus.ERROR, loop.state)
        driven = not loop.why_braked
        control = (DiagnosticStatus.OK, "driving") if driven else (DiagnosticStatus.WARN, f"braking: {loop.why_braked}")
        missing = loop.inbox.missed + loop.inbox.late
        trouble = dict(self.outputs.refused) | {f"{name}: missing or late": count for name, count in missing.items()}
        sensors = (DiagnosticStatus.WARN, "; ".join(trouble)) if trouble else (DiagnosticStatus.OK, "complete")
        counts: dict[str, object] = {"connections": loop.connections, "connections lost": loop.lost}
        counts |= {"actors of earlier runs removed": loop.removed, "ticks": loop.ticks}
        array = DiagnosticArray()
        array.header.stamp = self.get_clock().now().to_msg()
        array.status = [
            self._status("server", *server, counts),
            self._status("control", *control, dict(loop.gate.counts)),
            self._status("sensors", *sensors, {**self.outputs.published, **trouble}),
        ]
        self._diagnostics.publish(array)

    def _status(self, what: str, level: bytes, text: str, values: dict[str, Any]) -> DiagnosticStatus:
        pairs = [KeyValue(key=str(key), value=str(value)) for key, value in values.items()]
        name = f"{self.get_name()}: {what}"
        return DiagnosticStatus(level=level, name=name, message=text[:500], hardware_id="carla", values=pairs)


def main(args: list[str] | None = None) -> int:
    return run_node(CarlaBridgeNode, args)


if __name__ == "__main__":
    sys.exit(main())
