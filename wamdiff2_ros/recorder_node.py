"""Records topics into an MCAP bag that `ros2 bag play` accepts: every message as it came over the wire, undecoded."""

from __future__ import annotations

import importlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.bag_writer import BagWriter
from wamdiff2_ros.process import run_node

LOOK_PERIOD_S = 0.25
DEPTH = 100


class RecorderNode(Node):
    """Parameters: path (folder to make), prefixes (topics that begin so), exclude (topics left out)."""

    def __init__(self, **node_options: Any) -> None:
        super().__init__("recorder", **node_options)
        path = Path(str(self.declare_parameter("path", "").value))
        if not path.name:
            raise ConfigError("recorder: parameter path is needed: the folder that the bag goes to")
        self._prefixes = tuple(
            self.declare_parameter("prefixes", ["/world/", "/wamdiff2/", "/follower/", "/clock", "/diagnostics"]).value
        )
        self._exclude = frozenset(self.declare_parameter("exclude", [""]).value)
        self._subscribed: dict[str, Any] = {}
        self._unreadable: set[str] = set()
        self._bag = BagWriter(path)
        self._look()
        self.create_timer(LOOK_PERIOD_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def close(self) -> None:
        """Finish the bag; without this it has no metadata."""
        self._bag.close()
        # print, not the logger: on SIGINT the context is gone by now, and with it /rosout.
        print(f"recorder: {self._bag.count} messages on {len(self._subscribed)} topics in {self._bag.path}", flush=True)

    def _look(self) -> None:
        """Subscribe to topics that are new and wanted and have a publisher."""
        for topic, types in self.get_topic_names_and_types():
            if topic in self._subscribed or topic in self._unreadable or not self._wanted(topic):
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if publishers:
                self._subscribe(topic, types[0], publishers)

    def _wanted(self, topic: str) -> bool:
        return topic.startswith(self._prefixes) and topic not in self._exclude

    def _subscribe(self, topic: str, type_name: str, publishers: list[Any]) -> None:
        try:
            kind = _message_class(type_name)
            self._bag.add_topic(topic, type_name)
        except ConfigError as error:
            self._unreadable.add(topic)
            self.get_logger().warning(f"{topic} is not recorded: {error}")
            return
        qos = _matching_qos(publishers)
        write = partial(self._arrived, topic)
        self._subscribed[topic] = self.create_subscription(kind, topic, write, qos, raw=True)

    def _arrived(self, topic: str, data: bytes) -> None:
        self._bag.write(topic, time.time_ns(), data)


def _message_class(type_name: str) -> Any:
    """The class of a type like sensor_msgs/msg/Image. ConfigError if it is not installed here."""
    package, kind, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{type_name} is not installed: {error}") from error


def _matching_qos(publishers: list[Any]) -> QoSProfile:
    """Reliable and latched where every publisher of the topic is; such a subscription matches them all."""
    reliable = all(p.qos_profile.reliability == ReliabilityPolicy.RELIABLE for p in publishers)
    latched = all(p.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for p in publishers)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def main(args: list[str] | None = None) -> int:
    return run_node(RecorderNode, args)


if __name__ == "__main__":
    sys.exit(main())
