"""Scores of hand-made drives: every event counted once, none invented."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wamdiff2_sim.geometry import Surface, boxes_touch, in_polygon
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap
from wamdiff2_sim.scores import DriveScore, StopLines
from wamdiff2_sim.types import ActorState, LightState, Pose, WorldState, box_corners

DT = 0.05


def street() -> RoadMap:
    """A two-way street along x, 200 m, lanes 3.5 m wide, a light at x = 100 for eastbound traffic."""
    x = np.arange(0.0, 201.0)
    east = np.stack([x, np.full_like(x, -1.75), np.zeros_like(x)], axis=1).astype(np.float32)
    west = np.stack([x[::-1], np.full_like(x, 1.75), np.zeros_like(x)], axis=1).astype(np.float32)
    lanes = {1: Lane(1, east, light_group=7, stop_s=100.0), 2: Lane(2, west)}
    return RoadMap("street", lanes, {}, {7: LightGroup(7, 0, 0, [(110.0, -5.0, 5.0, math.pi)])})


ROAD = street()
SURFACE, LINES = Surface(ROAD), StopLines(ROAD)


def person(actor_id: int, x: float, y: float, kind: str = "pedestrian") -> ActorState:
    return ActorState(actor_id, kind, -1, 0.0, x, y, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 1.7, (0.5, 0.5, 0.5))


def drive(xs, y=-1.75, yaw=0.0, light=LightState.GREEN, actors=(), speed=None, accel=0.0, length=190.0) -> DriveScore:
    """The score of base_link moving through `xs`."""
    score = DriveScore(length)
    ys, yaws = np.broadcast_to(y, len(xs)), np.broadcast_to(yaw, len(xs))
    for k, x in enumerate(xs):
        v = speed if speed is not None else (abs(xs[k] - xs[k - 1]) / DT if k else 0.0)
        state = WorldState(
            k * DT,
            Pose(float(x), float(ys[k]), 0.0, float(yaws[k])),
            v,
            accel,
            0.0,
            0.0,
            float(x),
            tuple(actors),
            {7: light},
        )
        score.update(state, SURFACE, LINES, DT)
    return score


def test_a_clean_drive_of_half_the_route():
    score = drive(np.arange(5.0, 95.0, 0.5))
    assert score.route_completion == pytest.approx(94.5 / 190.0)
    assert (score.collisions, score.red_lights, score.off_road_s, score.wrong_lane_s) == (0, 0, 0.0, 0.0)
    assert score.time == pytest.approx(180 * DT)
    assert score.distance == pytest.approx(89.5)
    assert score.comfort == 1.0
    assert score.summary()["route_completion"] == pytest.approx(0.4974)


def test_route_completion_never_falls():
    score = drive(np.concatenate([np.arange(5.0, 60.0, 0.5), np.arange(60.0, 20.0, -0.5)]))
    assert score.route_completion == pytest.approx(60.0 / 190.0)


def test_a_red_light_counts_once_also_when_shuttling_over_the_line():
    forth = np.arange(90.0, 99.0, 0.3)
    assert drive(forth, light=LightState.RED).red_lights == 1
    assert drive(np.concatenate([forth, forth[::-1], forth]), light=LightState.RED).red_lights == 1
    score = drive(forth, light=LightState.RED)
    assert [(event.what, event.subject) for event in score.events] == [("red_light", 7)]


@pytest.mark.parametrize("light", [LightState.GREEN, LightState.YELLOW])
def test_green_and_yellow_may_be_passed(light):
    assert drive(np.arange(90.0, 130.0, 0.3), light=light).red_lights == 0


def test_a_red_light_counts_at_the_front_bumper_and_for_our_direction_only():
    assert drive(np.arange(80.0, 96.0, 0.3), light=LightState.RED).red_lights == 0  # front bumper at 99.8
    assert drive(np.arange(120.0, 80.0, -0.3), y=1.75, yaw=math.pi, light=LightState.RED).red_lights == 0
    parked = drive(np.arange(98.0, 99.0, 0.1), light=LightState.RED)  # stood beyond the line from the start
    assert parked.red_lights == 0


def test_a_collision_counts_once_per_contact_and_by_kind():
    actors = [person(3, 40.0, -1.75), person(9, 60.0, -1.0, "car")]
    score = drive(np.arange(5.0, 90.0, 0.2), actors=actors)
    assert score.collisions == 2
    assert score.summary()["collisions_by_kind"] == {"pedestrian": 1, "car": 1}


def test_touching_again_after_a_while_counts_again():
    xs = np.concatenate([np.full(20, 37.0), np.full(100, 20.0), np.full(20, 37.0)])
    assert drive(xs, actors=[person(3, 40.0, -1.75)], speed=0.0).collisions == 2


def test_passing_beside_or_under_is_no_contact():
    beside = person(3, 40.0, -1.75 - 0.95 - 0.3)
    below = ActorState(4, "car", 1, 0.0, 40.0, -1.75, -6.0, 0.0, 0.0, 0.0, 4.5, 1.8, 1.5, (1.0, 0.0, 0.0))
    assert drive(np.arange(5.0, 90.0, 0.2), actors=[beside, below]).collisions == 0


def test_off_road_and_wrong_lane_seconds():
    n = 40
    assert drive(np.full(n, 50.0), y=-3.6).off_road_s == pytest.approx(n * DT)
    assert drive(np.full(n, 50.0), y=-1.75).off_road_s == 0.0
    oncoming = drive(np.full(n, 50.0), y=1.75)
    assert oncoming.wrong_lane_s == pytest.approx(n * DT)
    assert oncoming.off_road_s == 0.0
    assert drive(np.full(n, 50.0), y=1.75, yaw=math.pi).wrong_lane_s == 0.0


def test_comfort_is_the_share_of_seconds_within_limits():
    assert drive(np.full(100, 50.0), speed=5.0, accel=-5.0).comfort == 0.0
    assert drive(np.full(100, 50.0), speed=5.0, accel=-3.0).comfort == 1.0


def test_standing_is_stuck_after_a_minute_unless_a_light_holds_us():
    free, held = DriveScore(100.0), DriveScore(100.0)
    for k in range(1240):
        state = WorldState(k * DT, Pose(50.0, -1.75), 0.0)
        free.update(state, SURFACE, LINES, DT)
        held.update(state, SURFACE, LINES, DT, held=k < 600)
    assert free.stuck
    assert not held.stuck


def test_boxes_touch_only_where_they_overlap():
    a = box_corners(0.0, 0.0, 0.0, 4.0, 2.0)
    assert boxes_touch(a, box_corners(3.9, 0.0, 0.0, 4.0, 2.0))
    assert not boxes_touch(a, box_corners(4.1, 0.0, 0.0, 4.0, 2.0))
    assert not boxes_touch(a, box_corners(2.9, 1.9, math.pi / 4, 2.0, 2.0))  # axis-aligned bounds overlap
    assert boxes_touch(a, box_corners(0.0, 0.0, 1.0, 0.5, 0.5))


def test_points_in_polygons():
    shape = np.array([[0, 0], [4, 0], [4, 4], [2, 1], [0, 4]], dtype=float)
    inside = in_polygon(np.array([[1.0, 1.0], [2.0, 3.0], [3.5, 3.0], [5.0, 1.0]]), shape)
    assert inside.tolist() == [True, False, True, False]
