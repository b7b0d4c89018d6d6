"""Odometry, instruction and /clock as a process that can be told to fail: `python -m wamdiff2_ros.faults.ego`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builtin_interfaces.msg import Time
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMsg
from std_msgs.msg import String

from wamdiff2_ros.faults.camera import FLOOD_HZ, QOS, TURN_S, read_timeline
from wamdiff2_ros.faults.commands import listen
from wamdiff2_ros.faults.events import EventLog
from wamdiff2_ros.process import run_node
from wamdiff2_ros.qos import CLOCK_OUT, LATCHED

SPEED_MPS = 4.0
CLOCK_PERIOD_S = 0.02
ODOMETRY_PERIOD_S = 0.05
INSTRUCTION = "follow the road"


@dataclass(frozen=True)
class Mode:
    """How odometry and instruction behave. `odometry`: ok, nan, infinite, silent."""

    odometry: str = "ok"
    odometry_hz: float = 1.0 / ODOMETRY_PERIOD_S
    instruction: str = INSTRUCTION


class EgoNode(Node):
    """Parameters: prefix, log, begin_s, jumps; see Mode for the commands."""

    def __init__(self) -> None:
        super().__init__("ego")
        prefix = str(self.declare_parameter("prefix", "/vehicle").value)
        self._log = EventLog(Path(str(self.declare_parameter("log", "").value)))
        self._timeline = read_timeline(self)
        self._mode = Mode()
        self._epoch = self._timeline.epoch(time.monotonic())
        self._clock_message = self.create_publisher(ClockMsg, "/clock", CLOCK_OUT)
        self._odometry = self.create_publisher(Odometry, f"{prefix}/odometry", QOS)
        self._instruction = self.create_publisher(String, f"{prefix}/instruction", LATCHED)
        self._began_s = time.monotonic()
        self._next_clock_s = self._next_odometry_s = self._next_text_s = 0.0
        self.create_timer(TURN_S, self._turn, clock=Clock(clock_type=ClockType.STEADY_TIME))
        listen(self._obey)

    def _obey(self, command: Mapping[str, Any]) -> None:
        if "jump_by_s" in command:
            self._timeline.jump(command["jump_at_s"], command["jump_by_s"])
        else:
            self._mode = replace(Mode(), **command)
            self._next_text_s = 0.0

    def _turn(self) -> None:
        now_s, mode = time.monotonic(), self._mode
        if now_s >= self._next_clock_s:
            self._next_clock_s = now_s + CLOCK_PERIOD_S
            self._publish_clock(now_s)
        self._next_odometry_s = max(self._next_odometry_s, now_s - ODOMETRY_PERIOD_S)
        while now_s >= self._next_odometry_s:
            self._next_odometry_s += 1.0 / mode.odometry_hz
            if mode.odometry != "silent":
                self._publish_odometry(time.monotonic(), mode)
        if now_s >= self._next_text_s:
            self._next_text_s = now_s + 1.0
            self._instruction.publish(String(data=mode.instruction))

    def _publish_clock(self, now_s: float) -> None:
        epoch = self._timeline.epoch(now_s)
        self._clock_message.publish(ClockMsg(clock=_time(self._timeline.stamp_ns(now_s))))
        if epoch != self._epoch:
            self._epoch = epoch
            self._log.write("jump", epoch=epoch)

    def _publish_odometry(self, now_s: float, mode: Mode) -> None:
        stamp_ns = self._timeline.stamp_ns(now_s)
        message = Odometry()
        message.header.stamp, message.header.frame_id, message.child_frame_id = _time(stamp_ns), "map", "base_link"
        message.pose.pose.position.x = SPEED_MPS * (now_s - self._began_s)
        message.pose.pose.orientation.w = 1.0
        message.twist.twist.linear.x = {"nan": math.nan, "infinite": math.inf}.get(mode.odometry, SPEED_MPS)
        self._log.write("odometry", stamp_ns=stamp_ns, good=mode.odometry == "ok", flood=mode.odometry_hz > FLOOD_HZ)
        self._odometry.publish(message)


def _time(ns: int) -> Time:
    return Time(sec=ns // 10**9, nanosec=ns % 10**9)


if __name__ == "__main__":
    sys.exit(run_node(EgoNode))
