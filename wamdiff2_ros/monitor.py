"""Listens to a running drive, for a progress line: newest stats and status, in a context of its own."""

from __future__ import annotations

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from wamdiff2.msg import DriveStatus, Stats
from wamdiff2_ros.qos import OUTPUT

LOOK_S = 1.0


class Monitor:
    """Use as a context manager. `turn` takes in what has come; `stats` and `status`: the newest, or None."""

    def __init__(self) -> None:
        self.stats: Stats | None = None
        self.status: DriveStatus | None = None

    def __enter__(self) -> Monitor:
        self._context = Context()
        rclpy.init(context=self._context, signal_handler_options=rclpy.SignalHandlerOptions.NO)
        self._node = Node("wamdiff2_monitor", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._node.create_subscription(Stats, "/wamdiff2/output/stats", self._take_stats, OUTPUT)
        self._node.create_subscription(DriveStatus, "/world/status", self._take_status, OUTPUT)
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def turn(self, seconds: float) -> None:
        """Handle at most one message, waiting for it so long."""
        self._executor.spin_once(timeout_sec=seconds)

    def others(self, names: set[str], seconds: float = LOOK_S) -> set[str]:
        """Which of these node names are there already, after looking for so long."""
        until = self._node.get_clock().now().nanoseconds + int(seconds * 1e9)
        while self._node.get_clock().now().nanoseconds < until:
            self.turn(0.1)
        return names & set(self._node.get_node_names())

    def _take_stats(self, message: Stats) -> None:
        if self.stats is None or "plan" in message.tasks:  # the line shows what a plan takes
            self.stats = message

    def _take_status(self, message: DriveStatus) -> None:
        self.status = message
