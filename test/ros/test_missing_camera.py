"""The driver node with a camera that is silent or sends broken pictures, in each stated mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from rclpy.lifecycle import TransitionCallbackReturn  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402

from wamdiff2.msg import Trajectory  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.images import fill_compressed  # noqa: E402

LEFT = "/wamdiff2/input/cam_left/image/compressed"


def send_front(h: Any) -> None:
    """All but the left camera."""
    h.send_odometry()
    h.send_frames(["cam_front"])


def send_broken_left(h: Any) -> None:
    send_front(h)
    h.images["cam_left"].publish(CompressedImage(header=cv.header(h.now_s(), "x"), format="jpeg", data=b"\xff\xd8\xff"))


def test_hold_goes_on_with_the_last_frame_and_then_stops(make_harness: Any) -> None:
    h = make_harness(missing_camera="hold", camera_late_s=0.1, max_frame_age_s=1.5)
    h.wait_connected()
    bright = np.full((48, 64, 3), 250, np.uint8)
    left_s: list[float] = []

    def send_bright_left() -> None:
        send_front(h)
        left_s.append(h.now_s())
        h.images["cam_left"].publish(fill_compressed(CompressedImage(), cv.header(left_s[-1], "x"), bright))

    h.spin_until(h.valid_plans, "a plan", send_bright_left)
    h.spin_until(lambda: any(m.degraded for m in h.outputs["stats"]), "a held camera", lambda: send_front(h))
    assert LEFT in next(m for m in h.outputs["stats"] if m.degraded).degraded[0]
    assert h.driver.scenes[-1].images["cam_left"].min() > 240 and len(h.driver.scenes[-1].images) == 2
    withdrawn = Trajectory.STATUS_INPUT
    h.spin_until(lambda: h.outputs["trajectory"][-1].status == withdrawn, "the end of holding", lambda: send_front(h))
    assert LEFT in h.outputs["trajectory"][-1].text
    assert cv.stamp_seconds(h.valid_plans()[-1].header.stamp) < left_s[-1] + 1.6
    h.spin_until(lambda: h.diagnosis(LEFT).startswith("last frame came"), "its name", lambda: send_front(h))


def test_drop_goes_on_without_a_camera_that_the_checkpoint_can_miss(make_harness: Any) -> None:
    h = make_harness(missing_camera="drop", camera_late_s=0.1, max_frame_age_s=5.0)
    h.driver.optional_cameras = ("cam_left",)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan without the camera", lambda: send_front(h))
    assert list(h.driver.scenes[-1].images) == ["cam_front"]
    h.spin_until(lambda: "planning" in h.diagnosis(": plans") and LEFT in h.diagnosis(": plans"), "it is said",
                 lambda: send_front(h))  # fmt: skip
    assert h.diagnosis(LEFT) and "arriving" not in h.diagnosis(LEFT)
    before = len(h.valid_plans())
    h.spin_until(lambda: len(h.valid_plans()) > before + 2, "further plans", lambda: send_front(h))
    h.spin_until(lambda: len(h.driver.scenes[-1].images) == 2, "the camera in use again", h.send_all)
    h.spin_until(
        lambda: any("JPEG" in text for text in h.outputs["stats"][-1].degraded), "why", lambda: send_broken_left(h)
    )
    assert list(h.driver.scenes[-1].images) == ["cam_front"] and h.outputs["stats"][-1].inputs_refused > 0


def test_drop_is_refused_where_the_checkpoint_needs_every_camera(make_harness: Any) -> None:
    h = make_harness(autostart=False, missing_camera="drop")
    for optional in ((), ("cam_elsewhere",)):
        h.driver.optional_cameras = optional
        assert h.node.trigger_configure() == TransitionCallbackReturn.FAILURE
    h.driver.optional_cameras = ("cam_left",)
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    refused = h.node.set_parameters([Parameter("missing_camera", value="hold")])[0]
    assert not refused.successful and "fixed after configure" in refused.reason


def test_hold_uses_the_picture_before_a_broken_one(make_harness: Any) -> None:
    h = make_harness(missing_camera="hold", max_frame_age_s=5.0)
    h.wait_connected()
    h.spin_until(h.valid_plans, "a plan", h.send_all)
    seen = len(h.driver.scenes)
    h.spin_until(lambda: len(h.driver.scenes) > seen + 3, "scenes", lambda: send_broken_left(h))
    assert abs(int(h.driver.scenes[-1].images["cam_left"].mean()) - 90) < 3
    h.spin_until(lambda: "the picture before is used" in h.diagnosis(": plans"), "said", lambda: send_broken_left(h))
    assert any("the picture before" in text for stats in h.outputs["stats"] for text in stats.degraded)


def test_a_late_camera_is_named_while_plans_go_on(make_harness: Any) -> None:
    h = make_harness(camera_late_s=0.1, max_frame_age_s=2.0)
    h.wait_connected()
    stamps: list[float] = []

    def send() -> None:
        """The left camera's frame of a moment comes eight rounds after the front camera's."""
        stamps.append(h.now_s())
        h.send_odometry()
        for name, sent in (("cam_front", stamps[-1]), ("cam_left", stamps[-min(8, len(stamps))])):
            picture = np.full((48, 64, 3), 90, np.uint8)
            h.images[name].publish(fill_compressed(CompressedImage(), cv.header(sent, "x"), picture))

    h.spin_until(lambda: "behind the newest" in h.diagnosis(LEFT), "the late camera's name", send)
    assert "behind" not in h.diagnosis("cam_front/image/compressed")
