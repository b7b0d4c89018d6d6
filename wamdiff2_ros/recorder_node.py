"""Records topics into an MCAP bag that `ros2 bag play` accepts: every message as it came over the wire, undecoded."""

from __future__ import annotations

import importlib
import sys
import time
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.bag_thread import FAILED, BagThread
from wamdiff2_ros.bag_writer import MIB, BagWriter, free_bytes
from wamdiff2_ros.process import NodeFailed, run_node
from wamdiff2_ros.qos import OUTPUT
from wamdiff2_ros.recorder_gaps import Gaps
from wamdiff2_ros.recorder_health import status
from wamdiff2_ros.recorder_qos import DEPTH, latched, matches, matching, offered
from wamdiff2_ros.recorder_settings import RecorderSettings, folder, read_settings

LOOK_PERIOD_S = 0.25
LOOKS_PER_QOS = 8  # of known topics only every so often: senders with other QoS are rare
DIAGNOSTICS_PERIOD_S = 1.0
NOT_REPEATED = "/rosout"  # latched by ROS 2, but a log, not a state


class RecorderNode(Node):
    """Parameters: see RecorderSettings and docs/bags.md. `unreadable`: topics not recorded, and why."""

    def __init__(self, **node_options: Any) -> None:
        super().__init__("recorder", **node_options)
        self._settings: RecorderSettings = read_settings(self)
        self._subscribed: dict[str, Any] = {}
        self._gaps = Gaps()
        self._looks = 0
        self.unreadable: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        bag = BagWriter(folder(self._settings), self._settings.limits())
        self._bag, self._path = bag, bag.path
        full = self._settings.on_full == "end"
        self.thread = BagThread(bag, int(self._settings.queue_mb * MIB), end_when_full=full)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", OUTPUT)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._look()
        self.create_timer(LOOK_PERIOD_S, self._look, clock=steady)
        self.create_timer(DIAGNOSTICS_PERIOD_S, self._report, clock=steady)

    def close(self) -> None:
        """Finish the bag; without this it has no metadata."""
        state = self.thread.stop()
        # print, not the logger: on SIGINT the context is gone by now, and with it /rosout.
        print(f"recorder: {state.written} messages on {len(self._subscribed)} topics in {self._path}", flush=True)
        for (reason, topic), count in sorted(state.dropped.items()):
            print(f"recorder: {count} messages of {topic} not recorded: {reason}", file=sys.stderr, flush=True)
        if state.name == FAILED:
            print(f"recorder: {state.reason}", file=sys.stderr, flush=True)

    def _look(self) -> None:
        """Subscribe to topics that are new and wanted and have a publisher; follow changes of their QoS."""
        self._looks += 1
        every = self._looks % LOOKS_PER_QOS == 0
        for topic, types in self.get_topic_names_and_types():
            if topic in self.unreadable or not self._settings.wanted(topic):
                continue
            if topic in self._subscribed and not every:
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if publishers and topic not in self._subscribed:
                self._add(topic, types, publishers)
            elif publishers and not matches(self._subscribed[topic].qos_profile, publishers):
                self._notes[topic] = "senders with other QoS joined; subscribed anew"
                self._take_what_waits(topic)
                self.destroy_subscription(self._subscribed[topic])
                self._subscribe(topic, types[0], publishers)

    def _add(self, topic: str, types: list[str], publishers: list[Any]) -> None:
        type_name, type_hash = types[0], _hash(publishers[0])
        try:
            found = self._bag.topic(topic, type_name, offered(publishers), type_hash)
            self._subscribe(topic, type_name, publishers)
        except ConfigError as error:
            self.unreadable[topic] = str(error)
            self.get_logger().warning(f"{topic} is not recorded: {error}")
            return
        if len(types) > 1:
            self._notes[topic] = f"several types are published: {', '.join(types)}; only {type_name} is recorded"
        elif type_hash and type_hash != found.type_hash:
            self._notes[topic] = f"the sender's definition of {type_name} ({type_hash}) is not known here"
        repeat = latched(publishers) and topic != NOT_REPEATED
        self.thread.do(partial(self._bag.add, found, repeat))

    def _subscribe(self, topic: str, type_name: str, publishers: list[Any]) -> None:
        kind = _message_class(type_name)
        qos = matching(publishers)
        lost = SubscriptionEventCallbacks(message_lost=partial(self._lost, topic))
        take = partial(self._arrived, topic)
        self._subscribed[topic] = self.create_subscription(kind, topic, take, qos, raw=True, event_callbacks=lost)

    def _take_what_waits(self, topic: str) -> None:
        """Messages that are here, but whose callback has not had its turn: they would go with the subscription."""
        old = self._subscribed[topic]
        with old.handle:
            for _ in range(DEPTH):
                waiting = old.handle.take_message(old.msg_type, old.raw)
                if waiting is None:
                    break
                self._arrived(topic, *waiting)

    def _arrived(self, topic: str, data: bytes, info: dict[str, Any]) -> None:
        publisher = bytes(info["publisher_gid"]["data"])
        missing = self._gaps.before(topic, publisher, info)
        if missing:
            self.thread.count_lost(topic, missing)
        self.thread.put(topic, time.time_ns(), data, max(0, int(info["source_timestamp"])), publisher)

    def _lost(self, topic: str, event: Any) -> None:
        if not self._gaps.known:  # otherwise the gaps tell, also of what a sender's full history has lost
            self.thread.count_lost(topic, int(event.total_count_change))

    def _report(self) -> None:
        """Once a second to /diagnostics; ends the process if the bag cannot be written."""
        state = self.thread.state()
        free_mb = free_bytes(self._path) / MIB if self._path.is_dir() else 0.0
        said = status(self.get_name(), state, self._bag.facts(), free_mb, self.unreadable, self._notes)
        message = DiagnosticArray(status=[said])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)
        if state.name == FAILED:
            raise NodeFailed(state.reason)


def _hash(publisher: Any) -> str:
    """RIHS01 hash of the type as the sender knows it; empty where the middleware does not tell."""
    text = str(publisher.topic_type_hash)
    return text if text.startswith("RIHS01_") else ""


def _message_class(type_name: str) -> Any:
    """The class of a type like sensor_msgs/msg/Image. ConfigError if it is not installed here."""
    package, kind, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{type_name} is not installed: {error}") from error


def main(args: list[str] | None = None) -> int:
    return run_node(RecorderNode, args)


if __name__ == "__main__":
    sys.exit(main())
