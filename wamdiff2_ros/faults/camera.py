"""One camera as a process that can be told to fail; run with `python -m wamdiff2_ros.faults.camera`.

Every message is written down before it is published, with what is wrong with it, so that the check knows which frames
may be planned from even if this process is killed the moment after.
"""

from __future__ import annotations

import array
import math
import random
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from wamdiff2_ros.faults import pictures
from wamdiff2_ros.faults.commands import listen
from wamdiff2_ros.faults.events import EventLog
from wamdiff2_ros.faults.timeline import Timeline
from wamdiff2_ros.process import run_node

PERIOD_S = 0.1
TURN_S = 0.01
FLOOD_HZ = 100.0  # what is faster counts as a flood
BROKEN_JPEG = ("random", "truncated", "empty")
CLAIMED = (480, 1920)  # height and width that a frame of the wrong size claims to have
QOS = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=200, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True)
class Mode:
    """How the camera behaves. `content`: ok, random, truncated, empty, wrong_size. Times in seconds.

    skew_s: added to the stamp. late_s: from capture to publication. zero_stamp: no stamp at all.
    """

    content: str = "ok"
    silent: bool = False
    rate_hz: float = 1.0 / PERIOD_S
    late_s: float = 0.0
    skew_s: float = 0.0
    zero_stamp: bool = False

    @property
    def good(self) -> bool:
        """Whether a frame in this mode may be planned from, as far as the frame itself can tell."""
        return self.content == "ok" and not self.zero_stamp


@dataclass(frozen=True)
class _Shot:
    """A frame that was taken and waits for its publication (`due_s`, steady time)."""

    taken_s: float
    due_s: float
    number: int
    mode: Mode


class CameraNode(Node):
    """Parameters: camera, topic, pictures, log, begin_s, jumps, life (starts before this one). Commands: see Mode."""

    def __init__(self) -> None:
        super().__init__("camera")
        read = {name: self.declare_parameter(name, "").value for name in ("camera", "topic", "pictures", "log")}
        self._name = str(read["camera"])
        self._pictures = pictures.load(Path(read["pictures"]), self._name)
        self._log = EventLog(Path(read["log"]))
        self._timeline = read_timeline(self)
        self._mode = Mode()
        self._rng = random.Random(self._name)
        self._life = int(self.declare_parameter("life", 0).value)
        self._raw = str(read["topic"]).endswith("/image")
        self._publisher = self.create_publisher(Image if self._raw else CompressedImage, str(read["topic"]), QOS)
        self._waiting: deque[_Shot] = deque()
        self._next_s = 0.0
        self._count = 0
        self.create_timer(TURN_S, self._turn, clock=Clock(clock_type=ClockType.STEADY_TIME))
        listen(self._obey)

    def _obey(self, command: Mapping[str, Any]) -> None:
        if "jump_by_s" in command:
            self._timeline.jump(command["jump_at_s"], command["jump_by_s"])
        else:
            self._mode, self._next_s = replace(Mode(), **command), time.monotonic()

    def _turn(self) -> None:
        """Take the pictures that are due, and publish those that have waited long enough. A flood comes in threes."""
        now_s, mode = time.monotonic(), self._mode
        period_s = 1.0 / mode.rate_hz
        first_s = max(self._next_s, now_s - PERIOD_S)  # what was missed for longer is not made up for
        moment = math.ceil(first_s / period_s - 1e-6)  # the same moments in all cameras
        while moment * period_s <= now_s:
            if not mode.silent:
                taken_s = moment * period_s
                self._waiting.append(_Shot(taken_s, taken_s + mode.late_s, self._count, mode))
                self._count += 1
            moment += 1
        self._next_s = moment * period_s
        while self._waiting and self._waiting[0].due_s <= now_s:
            self._publish(self._waiting.popleft())

    def _publish(self, shot: _Shot) -> None:
        mode = shot.mode
        stamp_ns = 0 if mode.zero_stamp else self._timeline.stamp_ns(shot.taken_s) + round(mode.skew_s * 1e6) * 1000
        header = Header(stamp=Time(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9), frame_id=self._name)
        jpeg = self._pictures[shot.number % len(self._pictures)]
        message = self._raw_message(header, jpeg, mode) if self._raw else self._jpeg_message(header, jpeg, mode)
        small = mode.content == "wrong_size" and not self._raw  # another size, but a whole picture
        self._log.write(
            "frame",
            camera=self._name,
            life=self._life,
            stamp_ns=stamp_ns,
            taken_s=shot.taken_s,
            good=mode.good or small,
            content=mode.content,
            flood=mode.rate_hz > FLOOD_HZ,
        )
        self._publisher.publish(message)

    def _jpeg_message(self, header: Header, jpeg: bytes, mode: Mode) -> CompressedImage:
        if mode.content in BROKEN_JPEG:
            jpeg = pictures.broken(mode.content, jpeg, self._rng)
        elif mode.content == "wrong_size":  # a whole picture of half the size, so it may be planned from
            picture = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))
            done, small = cv2.imencode(".jpg", picture[::2, ::2])
            jpeg = small.tobytes() if done else b""
        return CompressedImage(header=header, format="jpeg", data=array.array("B", jpeg))

    def _raw_message(self, header: Header, jpeg: bytes, mode: Mode) -> Image:
        picture = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))
        height, width = CLAIMED if mode.content == "wrong_size" else picture.shape[:2]
        data = {"random": b"", "empty": b"", "truncated": picture.tobytes()[: picture.size // 2]}.get(mode.content)
        message = Image(header=header, height=height, width=width, encoding="bgr8", step=width * 3)
        message.data = array.array("B", picture.tobytes() if data is None else data)
        if mode.content == "random":
            message.encoding = "".join(self._rng.choices("abcdefgh", k=6))
        return message


def read_timeline(node: Node) -> Timeline:
    """The timeline as it stands when the process starts: parameters begin_s, and jumps as [at, by, at, by, ...]."""
    timeline = Timeline(float(node.declare_parameter("begin_s", 0.0).value))
    jumps = list(node.declare_parameter("jumps", [0.0]).value)
    for at_s, by_s in zip(jumps[1::2], jumps[2::2]):  # the first is a placeholder: a list may not be empty
        timeline.jump(at_s, by_s)
    return timeline


if __name__ == "__main__":
    sys.exit(run_node(CameraNode))
