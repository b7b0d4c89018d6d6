"""A slow driver under a fast camera is always given the newest frame, and what it never saw is counted. No clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from sensor_msgs.msg import CompressedImage  # noqa: E402

from wamdiff2_core.decode.config import DecodingConfig  # noqa: E402
from wamdiff2_core.scene import Plan, Scene  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.images import fill_compressed  # noqa: E402
from wamdiff2_ros.mailbox import Frame, FrameMailbox  # noqa: E402
from wamdiff2_ros.odometry import OdometrySample  # noqa: E402
from wamdiff2_ros.parameters import Settings  # noqa: E402
from wamdiff2_ros.worker import Inputs, Outcome, Worker  # noqa: E402

CAMERA = "cam_front"
PICTURE = fill_compressed(CompressedImage(), cv.header(1.0, CAMERA), np.zeros((8, 8, 3), np.uint8))


def frame(number: int, received_s: float) -> Frame:
    """Frame `number` of a camera with 30 pictures a second."""
    stamp_s = 100.0 + number / 30.0
    message = CompressedImage(header=cv.header(stamp_s, CAMERA), format="jpeg", data=PICTURE.data)
    return Frame(CAMERA, stamp_s, received_s, message)


class SlowDriver:
    """While it answers, `arriving` more frames come: seven, as at 30 Hz in 250 ms."""

    def __init__(self, mailbox: FrameMailbox, arriving: int, scenes: int, now_s: Any) -> None:
        self.decoding = DecodingConfig()
        self.mailbox, self.arriving, self.scenes, self.now_s = mailbox, arriving, scenes, now_s
        self.sent = 0
        self.used: list[int] = []
        self.done = threading.Event()

    def send(self) -> None:
        self.sent += 1
        self.mailbox.put(frame(self.sent, self.now_s()))

    def answer(self, scene: Scene, tasks: Sequence[str]) -> Mapping[str, Any]:
        self.used.append(round((scene.stamp_s - 100.0) * 30.0))
        if len(self.used) == self.scenes:
            self.done.set()
        else:
            for _ in range(self.arriving):
                self.send()
        ahead = np.column_stack([np.arange(1, 9) * 2.5, np.zeros(8)])
        return {"plan": Plan(ahead, np.ones(8))}


def test_the_newest_frame_is_used_and_the_others_are_counted() -> None:
    mailbox = FrameMailbox((CAMERA,))
    driver = SlowDriver(mailbox, arriving=7, scenes=20, now_s=time.monotonic)
    inputs = Inputs("follow the road")
    inputs.odometry.add(OdometrySample(100.0, 0.0, 0.0, 0.0, (5.0, 0.0), 0.0))
    inputs.odometry_received_s = time.monotonic()
    settings = Settings(cameras=(CAMERA,), tasks=("plan",), max_frame_age_s=10.0, odometry_max_age_s=10.0)
    outcomes: list[Outcome] = []
    worker = Worker(driver, mailbox, inputs, {CAMERA: "c", "odometry": "o"}, lambda: settings, outcomes.append)
    driver.send()
    worker.start()
    assert driver.done.wait(120.0)
    assert worker.stop(120.0)
    assert driver.used == [1 + 7 * k for k in range(20)]  # each time the last that had come
    assert mailbox.dropped == 19 * 6 and driver.sent == len(driver.used) + mailbox.dropped
    assert all(outcome.stages.busy_ms >= 0.0 for outcome in outcomes)
    assert [outcome.results["plan"].__class__ for outcome in outcomes] == [Plan] * len(outcomes)


def test_a_mailbox_holds_one_group_however_many_come() -> None:
    mailbox = FrameMailbox((CAMERA,))
    for number in range(1, 1801):  # a minute
        mailbox.put(frame(number, float(number)))
    assert mailbox.dropped == 1799
    group = mailbox.take(0.0)
    assert group is not None and group.stamp_s == pytest.approx(100.0 + 60.0)
    assert mailbox.take(0.0) is None
