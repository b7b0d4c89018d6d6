"""Twins in other stacks' messages, with stand-ins that have the public field lists of those packages.

A field that a stand-in does not have cannot be set.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration  # noqa: E402
from geometry_msgs.msg import Pose, PoseWithCovariance  # noqa: E402
from std_msgs.msg import Header  # noqa: E402

from wamdiff2_core.errors import ConfigError  # noqa: E402
from wamdiff2_core.scene import Box, Detections, Failure, FailureKind, Plan  # noqa: E402
from wamdiff2_core.trajectory import smooth_trajectory, stopping_trajectory  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros import plan_messages, twins  # noqa: E402
from wamdiff2_ros.parameters import Settings  # noqa: E402


def stand_in(name: str, **fields: Any) -> type:
    """A message class with exactly these fields; a callable value makes the default anew each time."""

    def init(self: Any) -> None:
        for field, value in fields.items():
            setattr(self, field, value() if callable(value) else value)

    return type(name, (), {"__slots__": tuple(fields), "__init__": init})


Point2D = stand_in("Point2D", x=0.0, y=0.0)
Pose2D = stand_in("Pose2D", position=Point2D, theta=0.0)
BoundingBox2D = stand_in("BoundingBox2D", center=Pose2D, size_x=0.0, size_y=0.0)
ObjectHypothesis = stand_in("ObjectHypothesis", class_id="", score=0.0)
VISION = {
    "ObjectHypothesisWithPose": stand_in(
        "ObjectHypothesisWithPose", hypothesis=ObjectHypothesis, pose=PoseWithCovariance
    ),
    "Detection2D": stand_in("Detection2D", header=Header, results=list, bbox=BoundingBox2D, id=""),
    "Detection2DArray": stand_in("Detection2DArray", header=Header, detections=list),
}
AUTOWARE = {
    "TrajectoryPoint": stand_in(
        "TrajectoryPoint",
        time_from_start=Duration,
        pose=Pose,
        longitudinal_velocity_mps=0.0,
        lateral_velocity_mps=0.0,
        acceleration_mps2=0.0,
        heading_rate_rps=0.0,
        front_wheel_angle_rad=0.0,
        rear_wheel_angle_rad=0.0,
    ),
    "Trajectory": stand_in("Trajectory", header=Header, points=list),
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, classes in (("vision_msgs", VISION), ("autoware_planning_msgs", AUTOWARE)):
        module = ModuleType(f"{package}.msg")
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        monkeypatch.setitem(sys.modules, f"{package}.msg", module)


class FakeNode:
    """Makes publishers that remember what they were given."""

    def __init__(self) -> None:
        self.said: dict[str, list[Any]] = {}
        self.kinds: dict[str, type] = {}

    def create_lifecycle_publisher(self, kind: type, topic: str, qos: Any) -> Any:
        self.said[topic], self.kinds[topic] = [], kind
        publisher = ModuleType("publisher")
        publisher.publish = self.said[topic].append  # type: ignore[attr-defined]
        return publisher


POINTS = np.column_stack([np.arange(1, 9) * 3.0, np.arange(1, 9) ** 2 * 0.05])
BOXES = cv.boxes_message(Detections((Box("car", (100, 200, 300, 500), 0.5),)), 7.0, "cam_front", 1600, 900)


def test_missing_packages_are_named_with_their_parameter() -> None:
    for name, package in twins.PACKAGES.items():
        with pytest.raises(ConfigError, match=f"{name}.*{package}"):
            twins.packages(Settings(**{name: True}))  # type: ignore[arg-type]
    assert twins.packages(Settings()) == {}


@pytest.mark.usefixtures("installed")
def test_boxes_as_detections() -> None:
    node = FakeNode()
    both = twins.Twins(node, Settings(twin_vision_msgs=True), "~/output", 1)
    both.boxes(BOXES)
    both.trajectory(cv.failed_trajectory(Failure(FailureKind.PARSE, ""), 7.0, ""))  # not asked for: not said
    assert (
        list(node.said) == ["~/output/detections"] and node.kinds["~/output/detections"] is VISION["Detection2DArray"]
    )
    (message,) = node.said["~/output/detections"]
    (found,) = message.detections
    assert message.header == found.header == BOXES.header
    assert (found.bbox.center.position.x, found.bbox.center.position.y) == pytest.approx((320.0, 315.0))
    assert (found.bbox.size_x, found.bbox.size_y) == pytest.approx((320.0, 270.0))
    assert (found.results[0].hypothesis.class_id, found.results[0].hypothesis.score) == ("car", 0.5)
    both.boxes(cv.boxes_message(Failure(FailureKind.PARSE, ""), 8.0, "cam_front", 1600, 900))
    assert node.said["~/output/detections"][-1].detections == []


@pytest.mark.usefixtures("installed")
def test_plans_for_autoware() -> None:
    node = FakeNode()
    twin = twins.Twins(node, Settings(twin_autoware=True), "~/debug", 1)
    smooth = smooth_trajectory(POINTS, 6.0)
    ours = cv.trajectory_message(Plan(POINTS, np.ones(8)), smooth, 7.25, "follow the road")
    twin.trajectory(ours)
    (message,) = node.said["~/debug/autoware_trajectory"]
    assert message.header == ours.header and len(message.points) == 41
    point = message.points[13]
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (1, pytest.approx(300_000_000, abs=200))
    assert (point.pose.position.x, point.pose.position.y) == pytest.approx((smooth.x_m[13], smooth.y_m[13]))
    assert cv.yaw_of(point.pose.orientation) == pytest.approx(smooth.heading_rad[13], abs=1e-6)
    assert point.longitudinal_velocity_mps == pytest.approx(smooth.speed_mps[13], abs=1e-5)
    assert point.heading_rate_rps == pytest.approx(smooth.speed_mps[13] * smooth.curvature_1pm[13], abs=1e-5)
    twin.trajectory(cv.failed_trajectory(Failure(FailureKind.RANGE, ""), 8.0, ""))
    assert node.said["~/debug/autoware_trajectory"][-1].points == []
    twin.trajectory(plan_messages.stop_trajectory(stopping_trajectory(5.0), 9.0, "", "why"))
    stopping = node.said["~/debug/autoware_trajectory"][-1].points
    assert stopping[0].longitudinal_velocity_mps == 5.0 and stopping[-1].longitudinal_velocity_mps == 0.0
