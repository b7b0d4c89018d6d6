"""The witness: a process that writes down what the nodes say. `python -m wamdiff2_ros.faults.watcher`.

It is never disturbed, holds no opinion and shares no code with the driver; the check reads what it wrote.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path as FilePath
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

from wamdiff2.msg import Stats, Trajectory, VehicleControl
from wamdiff2_ros.faults.events import EventLog
from wamdiff2_ros.process import run_node

QOS = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=200, reliability=ReliabilityPolicy.RELIABLE)
STATS_FIELDS = ("block_size", "steps", "total_ms", "frame_age_ms", "frames_dropped", "plans", "plan_hz")


class WatcherNode(Node):
    """Parameters: log, prefix. Times are those of publication: this process may be kept waiting as any other."""

    def __init__(self, **node_options: Any) -> None:
        super().__init__("watcher", **node_options)
        self._log = EventLog(FilePath(str(self.declare_parameter("log", "").value)))
        prefix = str(self.declare_parameter("prefix", "/vehicle").value)
        self.create_subscription(Trajectory, "/wamdiff2/output/trajectory", self._trajectory, QOS)
        self.create_subscription(Stats, "/wamdiff2/output/stats", self._stats, QOS)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._diagnostics, QOS)
        self.create_subscription(VehicleControl, f"{prefix}/control", self._control, QOS)

    def _trajectory(self, message: Trajectory, info: dict[str, Any]) -> None:
        starts_ns = _ns(message.header.stamp)
        self._log.write(
            "trajectory", at_s=sent_s(info), stamp_ns=_ns(message.images_stamp) or starts_ns, starts_ns=starts_ns,
            status=int(message.status), points=len(message.points), finite=_finite(message),
            text=message.text[:300] if message.status else "", instruction=message.instruction[:200],
        )  # fmt: skip

    def _stats(self, message: Stats, info: dict[str, Any]) -> None:
        values = {name: float(getattr(message, name)) for name in STATS_FIELDS}
        failures = {
            name.removeprefix("failures_"): int(getattr(message, name))
            for name in message.get_fields_and_field_types()
            if name.startswith("failures_")
        }
        self._log.write(
            "stats", at_s=sent_s(info), stamp_ns=_ns(message.header.stamp), tasks=list(message.tasks),
            failures=failures, **values,
        )  # fmt: skip

    def _diagnostics(self, message: DiagnosticArray, info: dict[str, Any]) -> None:
        at_s = sent_s(info)
        for status in message.status:
            values = {pair.key: pair.value for pair in status.values}
            level = int.from_bytes(status.level, "little")
            self._log.write("status", at_s=at_s, name=status.name, level=level, message=status.message, values=values)

    def _control(self, message: VehicleControl, info: dict[str, Any]) -> None:
        self._log.write("control", at_s=sent_s(info), brake=float(message.brake), throttle=float(message.throttle))


def sent_s(info: dict[str, Any]) -> float:
    """Steady time at which a message was published; that of now where the middleware does not tell."""
    sent_ns, now_ns = int(info["source_timestamp"]), time.time_ns()
    return time.monotonic() - (max(0, now_ns - sent_ns) * 1e-9 if sent_ns > 0 else 0.0)


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)


def _finite(message: Trajectory) -> bool:
    """Whether all numbers of a trajectory's points are."""
    numbers = [*message.raw_x_m, *message.raw_y_m]
    for point in message.points:
        numbers += [point.x_m, point.y_m, point.heading_rad, point.speed_mps]
    return all(math.isfinite(number) for number in numbers)


if __name__ == "__main__":
    sys.exit(run_node(WatcherNode))
