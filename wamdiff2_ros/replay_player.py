"""Plays a bag's inputs to a driver node, a moment at a time, and hears what it answers. Nothing else listens.

All topics, /clock too, are below /replay, and the driver is called wamdiff2_replay: a vehicle that runs on the same
network neither hears this nor is heard.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock as ClockMessage

from wamdiff2.msg import Answer, Boxes, Stats, Trajectory
from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_ros.bag_heard import STATUS_INPUT, STATUS_STOP, Heard, plan_stamp_ns
from wamdiff2_ros.bag_messages import stamp_ns
from wamdiff2_ros.bag_scenes import Footage, Moment
from wamdiff2_ros.qos import OUTPUT

PREFIX = "/replay"
NODE = "wamdiff2_replay"
START_LIMIT_S = 120.0  # until the node listens: it loads a checkpoint
ANSWER_LIMIT_S = 20.0
AGAIN_S = 5.0  # pictures are sent again after so long without a plan: on a busy machine they may overtake the motion
REST_LIMIT_S = 8.0  # from the plan to boxes and answers
MEET_S = 0.5  # from the driver's outputs being seen to the first pictures
SETTLE_S = 0.02  # motion and texts are let through before the pictures that they belong to
KINDS = {"trajectory": Trajectory, "stats": Stats, "boxes": Boxes, "answer": Answer}
RELIABLE = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=200, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class NoAnswer(Wamdiff2Error):
    """The driver node does not listen or has never answered."""


class Player:
    """Use as a context manager. `heard`: what the driver said, by the stamp of the pictures."""

    def __init__(self, footage: Footage, transport: str) -> None:
        self._footage, self._bag = footage, footage.bag
        self.heard = Heard()
        self._context = Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node("wamdiff2_player", context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._publishers = self._advertise(transport)
        self._clock = self._node.create_publisher(ClockMessage, f"{PREFIX}/clock", RELIABLE)
        for part, kind in KINDS.items():
            self._node.create_subscription(kind, f"/{NODE}/output/{part}", self._keeper(part), OUTPUT)
        self._time_ns = 0
        self._sent_row = -1

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._executor.shutdown(timeout_sec=1.0)
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def wait_for_driver(self, alive: Callable[[], object]) -> None:
        """Until the driver listens to all inputs and its outputs are there. `alive` raises if its process has ended.

        What it said before the two have met would be lost, and no picture is answered twice. NoAnswer if it never
        listens or has no outputs.
        """
        inputs = [self._clock, *self._publishers.values()]
        if not self._until(lambda: all(p.get_subscription_count() for p in inputs), START_LIMIT_S, alive):
            raise NoAnswer(f"the driver node does not listen after {START_LIMIT_S:.0f} s; see its log")
        outputs = [f"/{NODE}/output/{part}" for part in KINDS]
        if not self._until(lambda: all(map(self._node.count_publishers, outputs)), START_LIMIT_S, alive):
            raise NoAnswer(f"the driver node listens, but has no outputs after {START_LIMIT_S:.0f} s; see its log")
        self._until(lambda: False, MEET_S, alive)  # we know of it by now; it may hear of us a little later

    def play(self, moment: Moment, tasks: Sequence[str], alive: Callable[[], object], first: bool) -> bool:
        """Send what was recorded up to this moment, then its pictures; wait for the answer. False if none came.

        The first moment is sent again each second (the node listens before it is active), others after AGAIN_S.
        """
        latest = self._send_before(moment)
        stamp = self.stamp(moment)
        wanted = self._wanted(tasks, moment)
        main = ["trajectory", "stats"] if "plan" in tasks else wanted[:1]
        until_s = time.monotonic() + (START_LIMIT_S if first else ANSWER_LIMIT_S)
        while time.monotonic() < until_s:
            self._send(moment.rows, moment.ns)
            left_s = until_s - time.monotonic()
            if self._until(lambda: self._answered(stamp, main), 1.0 if first else min(AGAIN_S, left_s), alive):
                # The node may leave out the others, by its own schedule: what is not there is told as not answered.
                return self._until(lambda: self._answered(stamp, wanted), REST_LIMIT_S, alive)
            self._send(latest, moment.ns)  # what came before it was active, the node has not heard
            self._until(lambda: False, SETTLE_S, lambda: None)
        return False

    def stamp(self, moment: Moment) -> int:
        """What the driver calls this moment: the newest stamp in its pictures."""
        return int(max(self._bag.stamp_ns[row] for row in moment.rows.values()))

    def _wanted(self, tasks: Sequence[str], moment: Moment) -> list[str]:
        kept = {"plan": ["trajectory", "stats"], "detect": ["boxes"], "ask": ["answer"]}
        asked = [task for task in tasks if task != "ask" or self._footage.question(moment)]
        return [part for task in asked for part in kept[task]]

    def _answered(self, stamp: int, wanted: Sequence[str]) -> bool:
        return all(stamp in getattr(self.heard, part) for part in wanted)

    def _advertise(self, transport: str) -> dict[str, Any]:
        publishers = {}
        for part, topic in self._footage.parts.topics.items():
            camera = part in self._footage.cameras
            if not camera and part not in ("odometry", "instruction", "question"):
                continue
            end = "/image/compressed" if transport == "compressed" else "/image"
            package, _, name = self._bag.topics()[topic].split("/")
            kind = getattr(importlib.import_module(f"{package}.msg"), name)
            qos = RELIABLE if camera or part == "odometry" else LATCHED
            publishers[part] = self._node.create_publisher(kind, f"{PREFIX}/{part}{end if camera else ''}", qos)
        return publishers

    def _keeper(self, part: str) -> Callable[[Any], None]:
        kept = getattr(self.heard, part)

        def keep(message: Any) -> None:
            if part == "trajectory" and message.status in (STATUS_INPUT, STATUS_STOP):
                self.heard.notes.append(message.text)
                self.heard.stops += 1
                return
            stamp = plan_stamp_ns(message) if part == "trajectory" else stamp_ns(message)
            if not (part == "stats" and stamp in kept and "plan" not in message.tasks):
                kept[stamp] = message

        return keep

    def _send_before(self, moment: Moment) -> dict[str, int]:
        """Motion and texts recorded since the moment before; the last row of each."""
        topics = [
            self._footage.parts.topics[p] for p in ("odometry", "instruction", "question") if p in self._publishers
        ]
        self._tick(moment.ns)
        rows = self._bag.rows(topics)
        rows = rows[(rows > self._sent_row) & (rows <= moment.last_row)]
        latest: dict[str, int] = {}
        for row in rows.tolist():
            part = self._footage.parts.of(self._bag.names[self._bag.topic[row]])
            self._publish(part, row)
            latest[part] = row
        self._sent_row = moment.last_row
        self._until(lambda: False, SETTLE_S, lambda: None)
        return latest

    def _send(self, rows: dict[str, int], ns: int) -> None:
        self._tick(ns)
        for part, row in rows.items():
            self._publish(part, row)

    def _publish(self, part: str, row: int) -> None:
        try:
            self._publishers[part].publish(self._bag.raw(row))
        except DataError as error:
            self.heard.notes.append(str(error))

    def _tick(self, ns: int) -> None:
        """/clock, which only goes forward; said again with each moment, as the driver may have come later."""
        self._time_ns = max(self._time_ns, ns)
        message = ClockMessage()
        message.clock.sec, message.clock.nanosec = divmod(self._time_ns, 1_000_000_000)
        self._clock.publish(message)

    def _until(self, done: Callable[[], bool], limit_s: float, alive: Callable[[], object]) -> bool:
        until_s = time.monotonic() + limit_s
        while not done():
            alive()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._executor.spin_once(timeout_sec=min(left_s, 0.1))
        return True
