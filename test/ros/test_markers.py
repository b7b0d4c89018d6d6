"""Markers: what is shown, where boxes stand, and that all of it survives the way over the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from visualization_msgs.msg import Marker, MarkerArray  # noqa: E402

from wamdiff2_core.overlay import project  # noqa: E402
from wamdiff2_core.scene import Box, Camera, Failure, FailureKind, Plan  # noqa: E402
from wamdiff2_core.trajectory import smooth_trajectory, stopping_trajectory  # noqa: E402
from wamdiff2_ros import markers  # noqa: E402

CAMERA = Camera("cam_front", 1600, 900, 70.0, (2.2, 0.3, 1.6), math.radians(12.0), math.radians(4.0))
POINTS = np.column_stack([np.arange(1, 9) * 3.0, np.arange(1, 9) ** 2 * 0.05])
PLAN = Plan(POINTS, np.full(8, 0.5))


def over_the_wire(message: MarkerArray) -> list[Marker]:
    received = deserialize_message(serialize_message(message), MarkerArray)
    assert all(m.header.frame_id == "base_link" and m.lifetime.sec + m.lifetime.nanosec > 0 for m in received.markers)
    return list(received.markers)


def test_a_plan_replaces_the_words_and_a_failure_the_plan() -> None:
    line, dots, words = over_the_wire(markers.plan_markers(7.0, PLAN, smooth_trajectory(POINTS, 6.0), 1.5))
    assert (line.action, len(line.points), len(dots.points)) == (Marker.ADD, 41, 8)
    assert dots.points[7].x == pytest.approx(24.0) and words.action == Marker.DELETE
    gone = over_the_wire(markers.plan_markers(7.0, Failure(FailureKind.PARSE, ""), None, 1.5))
    assert [m.action for m in gone] == [Marker.DELETE, Marker.DELETE, Marker.ADD] and gone[2].text == "no plan: parse"
    stop = over_the_wire(markers.stop_markers(7.0, stopping_trajectory(8.0), 1.5))
    assert {(m.ns, m.id) for m in stop} == {(m.ns, m.id) for m in gone}


def test_candidates_are_lines_of_their_own() -> None:
    lines = over_the_wire(markers.candidate_markers(7.0, [PLAN, Plan(POINTS * 0.5, np.full(8, 0.9))], 1.5))
    assert [m.id for m in lines] == [0, 1] and lines[0].color.a < lines[1].color.a and len(lines[0].points) == 9


@pytest.mark.parametrize("place", [(15.0, 2.0), (40.0, -5.0), (8.0, 3.0)])
def test_a_box_stands_where_its_foot_meets_the_ground(place: tuple[float, float]) -> None:
    (foot,), _ = project(np.array([[*place, 0.0]]), CAMERA)
    x1, x2, y2 = (foot[0] - 40) / 1.6, (foot[0] + 40) / 1.6, foot[1] / 0.9
    box = Box("car", (x1, y2 - 100.0, x2, y2), 0.8)  # type: ignore[arg-type]  # not rounded, to be exact
    corners, known = markers.box_in_space(box, CAMERA)
    assert known and corners[:2].mean(axis=0) == pytest.approx([*place, 0.0], abs=1e-6)
    pixels, ahead = project(corners, CAMERA)
    assert ahead.all() and pixels[0] == pytest.approx(foot - (40, 0)) and pixels[2] == pytest.approx(foot + (40, -90))


def test_boxes_without_a_place_are_words() -> None:
    light = Box("light", (500, 100, 520, 150), 0.7)
    frame, words = over_the_wire(markers.box_markers(7.0, [light], CAMERA, 1.5))
    assert len(frame.points) == 5 and words.text == "light 0.70 (distance unknown)"
    for boxes, camera in (([light], None), ([Box("car", (1, 2, 3, 4), 0.5, "cam_back")], CAMERA)):
        (only,) = over_the_wire(markers.box_markers(7.0, boxes, camera, 1.5))
        assert only.type == Marker.TEXT_VIEW_FACING and boxes[0].camera in only.text
