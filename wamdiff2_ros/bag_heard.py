"""What a driver and a world said during a drive: their messages by the time of the pictures that they are about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wamdiff2_ros.bag_clock import Clock
from wamdiff2_ros.bag_messages import Bag, stamp_ns
from wamdiff2_ros.bag_topics import OUTPUTS, WORLD, Parts

STATUS_INPUT, STATUS_STOP = 6, 7  # of Trajectory: nothing was asked; nothing is young enough
# Without one of these fields a message says nothing that could be compared.
NEEDED = {
    "trajectory": {"Trajectory.header", "Trajectory.status", "Trajectory.raw_x_m", "Trajectory.raw_y_m"},
    "stats": {"Stats.header"},
    "boxes": {"Boxes.header", "Boxes.status", "Boxes.boxes", "Boxes.image_width", "Boxes.image_height"},
    "answer": {"Answer.header", "Answer.question", "Answer.text", "Answer.status"},
    "route": {"Path.poses"},
}
NEEDED["boxes"] |= {f"Box2D.{name}" for name in ("label", "camera", "x1_px", "y1_px", "x2_px", "y2_px", "confidence")}
NEEDED["true_boxes"] = NEEDED["boxes"]
_STATUS = ("header", "x_m", "y_m", "speed_mps", "route_completion", "collisions", "red_lights", "off_road_s", "comfort")
NEEDED["status"] = {f"DriveStatus.{name}" for name in (*_STATUS, "done", "seed", "expert_x_m", "expert_y_m")}


@dataclass
class Heard:
    """Messages by time in nanoseconds. `said_after_ns`: time of recording minus the plan's stamp, by plan."""

    trajectory: dict[int, Any] = field(default_factory=dict)
    stats: dict[int, Any] = field(default_factory=dict)
    boxes: dict[int, Any] = field(default_factory=dict)
    true_boxes: dict[int, Any] = field(default_factory=dict)
    answer: dict[int, Any] = field(default_factory=dict)
    status: dict[int, Any] = field(default_factory=dict)
    route: dict[int, Any] = field(default_factory=dict)
    said_after_ns: dict[int, int] = field(default_factory=dict)
    stops: int = 0  # trajectories that brake because no plan was young enough
    notes: list[str] = field(default_factory=list)

    def asked(self) -> list[int]:
        """Times of the plans that the model was asked for, ascending."""
        return sorted(ns for ns, plan in self.trajectory.items() if plan.status != STATUS_INPUT)


def hear(bag: Bag, parts: Parts, clock: Clock) -> Heard:
    """All that was said, as far as it can be read."""
    heard = Heard()
    topics = {topic: part for part, topic in parts.topics.items() if part in (*OUTPUTS, *WORLD)}
    for topic, part in list(topics.items()):
        lacking = sorted(bag.missing_fields(topic) & NEEDED[part])
        if lacking:
            heard.notes.append(f"{topic} was recorded without {', '.join(lacking)}: it is not compared")
            del topics[topic]
    unstamped: Counter[str] = Counter()
    for row in bag.rows(topics):
        message = bag.message(row)
        if message is None:
            continue
        topic = bag.names[bag.topic[row]]
        stamp = plan_stamp_ns(message) if topics[topic] == "trajectory" else stamp_ns(message)
        unstamped[topic] += stamp <= 0
        ns = int(clock.ns(np.array([row]), np.array([stamp]))[0])
        _keep(heard, topics[topic], ns, message, int(bag.log_ns[row]) - stamp)
    heard.notes += [f"{topic}: {n} messages have no stamp: the time of recording is used" for topic, n in
                    unstamped.items() if n]  # fmt: skip
    return heard


def plan_stamp_ns(plan: Any) -> int:
    """Time of the pictures that a trajectory was planned from: where its raw points start."""
    taken = getattr(plan, "images_stamp", None)
    if taken is not None and taken.sec is not None and (taken.sec or taken.nanosec):
        return int(taken.sec) * 1_000_000_000 + int(taken.nanosec)
    return stamp_ns(plan)


def _keep(heard: Heard, part: str, ns: int, message: Any, after_ns: int) -> None:
    if part == "trajectory":
        if message.status == STATUS_STOP:
            heard.stops += 1
            return
        heard.said_after_ns.setdefault(ns, after_ns)
    kept = getattr(heard, part)
    # Plan and boxes of one moment are decoded one after the other: what the plan took is the plan's figure.
    if part == "stats" and ns in kept and "plan" not in (message.tasks or ()):
        return
    kept[ns] = message
