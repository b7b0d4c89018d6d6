"""Scenes out of a bag: the same pictures, motion and instruction that a driver had, for planning once more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Scene
from wamdiff2_ros.bag_messages import Bag, stamp_ns
from wamdiff2_ros.images import message_to_rgb
from wamdiff2_ros.odometry import OdometryHistory, OdometrySample

KEPT_GROUPS = 50  # moments whose pictures are not complete yet


@dataclass
class _Stream:
    """What has been heard so far, in the order of recording."""

    instruction: str = "follow the road"
    question: str | None = None
    odometry: OdometryHistory = field(default_factory=OdometryHistory)
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)


def scenes(
    folder: Path,
    cameras: Sequence[str],
    prefix: str = "/world",
    stamps: Collection[int] | None = None,
    period_s: float = 0.5,
) -> Iterator[tuple[int, Scene]]:
    """(stamp in ns, scene) in the order of recording, at these `stamps`; None: one each `period_s` seconds.

    DataError if the bag lacks the pictures of a camera or the odometry.
    """
    bag = Bag(folder)
    topics = _topics(bag, cameras, prefix)
    stream, last = _Stream(), -math.inf
    for topic, message in bag.messages(topics):
        kind = topics[topic]
        if kind not in cameras:
            _hear(stream, kind, message)
            continue
        ns = stamp_ns(message)
        group = stream.groups.setdefault(ns, {})
        group[kind] = message
        if len(group) < len(cameras):
            _forget(stream)
            continue
        del stream.groups[ns]
        if ns in stamps if stamps is not None else ns * 1e-9 >= last + period_s:
            last = ns * 1e-9
            scene = _scene(stream, ns, group, cameras)
            if scene is not None:
                yield ns, scene


def _topics(bag: Bag, cameras: Sequence[str], prefix: str) -> dict[str, str]:
    """What each topic of interest carries: the name of a camera, or odometry, instruction, question."""
    present = bag.topics()
    topics = {f"{prefix}/{name}": name for name in ("odometry", "instruction", "question")}
    for camera in cameras:
        both = [f"{prefix}/{camera}/image{end}" for end in ("/compressed", "")]
        names = [name for name in both if name in present]
        if not names:
            pictures = ", ".join(sorted(name for name in present if "/image" in name)) or "no pictures"
            raise DataError(f"{bag.path}: expected pictures on {both[1]}[/compressed]; it holds: {pictures}")
        topics[names[0]] = camera
    if f"{prefix}/odometry" not in present:
        raise DataError(f"{bag.path}: expected odometry on {prefix}/odometry, and there is none")
    return topics


def _hear(stream: _Stream, kind: str, message: Any) -> None:
    if kind == "odometry":
        stream.odometry.add(_sample(message))
    elif kind == "instruction":
        stream.instruction = message.data
    else:
        stream.question = message.data or None


def _sample(message: Any) -> OdometrySample:
    """nav_msgs/Odometry as rosbags reads it. (`conversions` wants the message classes of a ROS installation.)"""
    pose, twist = message.pose.pose, message.twist.twist
    q = pose.orientation
    yaw = math.atan2(2.0 * (q.w * q.z + q.x * q.y), 1.0 - 2.0 * (q.y * q.y + q.z * q.z))
    velocity = (float(twist.linear.x), float(twist.linear.y))
    return OdometrySample(stamp_ns(message) * 1e-9, pose.position.x, pose.position.y, yaw, velocity, twist.angular.z)


def _scene(stream: _Stream, ns: int, group: Mapping[str, Any], cameras: Sequence[str]) -> Scene | None:
    """None before the first odometry."""
    ego = stream.odometry.ego_state(ns * 1e-9)
    if ego is None:
        return None
    images: dict[str, np.ndarray] = {name: message_to_rgb(group[name]) for name in cameras}
    return Scene(images, stream.instruction, ego, stream.question, ns * 1e-9)


def _forget(stream: _Stream) -> None:
    while len(stream.groups) > KEPT_GROUPS:
        del stream.groups[min(stream.groups)]
