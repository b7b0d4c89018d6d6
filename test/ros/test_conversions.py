"""Messages to values and back; field checks of rclpy are on (conftest)."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from nav_msgs.msg import Odometry  # noqa: E402
from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402

from wamdiff2.msg import Answer as AnswerMsg  # noqa: E402
from wamdiff2.msg import Boxes, Stats, Trajectory  # noqa: E402
from wamdiff2_core.errors import DataError  # noqa: E402
from wamdiff2_core.scene import Answer, Box, Cost, Detections, Failure, FailureKind, Plan  # noqa: E402
from wamdiff2_core.trajectory import smooth_trajectory  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.odometry import OdometrySample  # noqa: E402

POINTS = np.column_stack([np.arange(1, 9) * 2.5, np.linspace(0.0, 1.0, 8)]).astype(np.float32)
PLAN = Plan(POINTS, np.linspace(0.9, 0.5, 8, dtype=np.float32), text="02.50+00.00")


def over_the_wire(message: object) -> object:
    return deserialize_message(serialize_message(message), type(message))


@pytest.mark.parametrize("stamp_s", [0.0, 1.05, 12345.678901234, 1.8e9])
def test_time(stamp_s: float) -> None:
    message = cv.time_message(stamp_s)
    assert 0 <= message.nanosec < 1_000_000_000
    assert cv.stamp_seconds(message) == pytest.approx(stamp_s, abs=1e-6)


def test_negative_time_is_refused() -> None:
    with pytest.raises(DataError):
        cv.time_message(-0.1)


@pytest.mark.parametrize("yaw", [0.0, 1.0, -3.0, math.pi])
def test_odometry_there_and_back(yaw: float) -> None:
    sample = OdometrySample(2.5, 1.0, -2.0, yaw, (3.0, 0.1), -0.2)
    back = cv.odometry_sample(over_the_wire(cv.odometry_message(sample)))
    assert (back.stamp_s, back.x, back.y, back.velocity, back.yaw_rate) == (2.5, 1.0, -2.0, (3.0, 0.1), -0.2)
    assert math.remainder(back.yaw - yaw, 2 * math.pi) == pytest.approx(0.0)


def test_broken_odometry_is_refused() -> None:
    nan = Odometry()
    nan.pose.pose.orientation.w = 1.0
    nan.twist.twist.linear.x = float("nan")
    zero = Odometry()
    zero.pose.pose.orientation.w = 0.0
    for message in (nan, zero):
        with pytest.raises(DataError):
            cv.odometry_sample(message)


def test_a_plan_becomes_trajectory_and_path() -> None:
    smooth = smooth_trajectory(POINTS, 5.0)
    message = over_the_wire(cv.trajectory_message(PLAN, smooth, 3.0, "follow the road"))
    assert isinstance(message, Trajectory) and message.status == Trajectory.STATUS_VALID
    assert (message.header.frame_id, cv.stamp_seconds(message.header.stamp)) == ("base_link", 3.0)
    assert len(message.points) == len(smooth.time_s) and message.points[10].time_from_start_s == pytest.approx(1.0)
    np.testing.assert_allclose(cv.raw_points(message), POINTS)
    np.testing.assert_allclose(message.confidence, PLAN.confidence, rtol=1e-6)
    path = cv.path_message(PLAN.points, 3.0)
    assert len(path.poses) == 9 and cv.stamp_seconds(path.poses[8].header.stamp) == pytest.approx(7.0)
    assert path.poses[8].pose.position.x == pytest.approx(20.0)


@pytest.mark.parametrize("kind", FailureKind)
def test_a_failed_plan_holds_nothing_to_drive(kind: FailureKind) -> None:
    message = over_the_wire(cv.failed_trajectory(Failure(kind, "why", text="x" * 9000), 3.0, "turn left now"))
    assert isinstance(message, Trajectory)
    assert message.status == cv.PLAN_STATUS[kind] != Trajectory.STATUS_VALID
    assert not message.points and cv.raw_points(message) is None and len(message.text) == cv.TEXT_LIMIT


def test_every_failure_has_a_status_of_its_own_and_a_counter() -> None:
    assert len(set(cv.PLAN_STATUS.values())) == len(FailureKind) == len(cv.PLAN_STATUS)
    message = cv.fill_failures(Stats(), {kind: k for k, kind in enumerate(FailureKind)})
    assert [getattr(message, f"failures_{kind.value}") for kind in FailureKind] == list(range(len(FailureKind)))


def test_boxes_tell_nothing_there_from_unknown() -> None:
    box = Box("car", (100, 200, 300, 500), confidence=np.float32(0.5))
    found = over_the_wire(cv.boxes_message(Detections((box,)), 1.0, "cam_front", 640, 384))
    nothing = cv.boxes_message(Detections(()), 1.0, "cam_front", 640, 384)
    unknown = cv.boxes_message(Failure(FailureKind.PARSE, "why"), 1.0, "cam_front", 640, 384)
    assert isinstance(found, Boxes) and found.header.frame_id == "cam_front_optical_frame"
    assert [m.status for m in (found, nothing, unknown)] == [
        Boxes.STATUS_FOUND, Boxes.STATUS_NOTHING_THERE, Boxes.STATUS_UNKNOWN,
    ]  # fmt: skip
    assert (found.boxes[0].x1_px, found.boxes[0].y2_px) == (64.0, 192.0)
    assert cv.boxes_of(found) == (box,)


def test_answers() -> None:
    given = cv.answer_message(Answer("what is ahead?", "a car.", np.float32(0.7)), "what is ahead?", 1.0)
    failed = cv.answer_message(Failure(FailureKind.EMPTY, "no answer"), "what is ahead?", 1.0)
    assert (given.status, given.text) == (AnswerMsg.STATUS_VALID, "a car.")
    assert (failed.status, failed.question) == (AnswerMsg.STATUS_UNKNOWN, "what is ahead?")


def test_cost_of_a_batch_is_counted_once() -> None:
    costs = [Cost(7, (3, 4), 96, 1.0, 2.0, 30.0), Cost(7, (3, 4), 16, 1.0, 2.0, 30.0)]
    message = cv.fill_cost(Stats(), costs)
    assert (message.forwards, message.tokens, message.decode_ms) == (7, 112, 30.0)
