"""The expert: comes back to its lane, stops for lights, cars and people, yields, and is a pure function of what
can be seen.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wamdiff2_core.scene import Command
from wamdiff2_sim.expert import Expert
from wamdiff2_sim.longitudinal import follow_acceleration
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap
from wamdiff2_sim.roads.route import Manoeuvre, Route
from wamdiff2_sim.types import EGO_FRONT_M, ActorState, LightState, Pose, WorldState

LENGTH = 200
LIGHT_S = 120.0


def line(start: tuple[float, float], end: tuple[float, float]) -> np.ndarray:
    steps = int(math.hypot(end[0] - start[0], end[1] - start[1])) + 1
    return np.column_stack(
        [np.linspace(start[0], end[0], steps), np.linspace(start[1], end[1], steps), np.zeros(steps)]
    )


def arc(radius: float, angle: float) -> np.ndarray:
    """40 m straight on, then a bend to the left, then 60 m straight on."""
    turns = np.linspace(0.0, angle, max(3, int(radius * angle)))
    bend = np.column_stack([40.0 + radius * np.sin(turns), radius * (1.0 - np.cos(turns))])
    end = bend[-1] + np.outer(np.arange(1, 61), (math.cos(angle), math.sin(angle)))
    flat = np.vstack([line((0, 0), (39, 0))[:, :2], bend, end])
    return np.column_stack([flat, np.zeros(len(flat))])


@pytest.fixture
def straight() -> tuple[RoadMap, Route]:
    """A straight road with a light at 120 m; the next 20 m are a junction that a side road from the right crosses."""
    lanes = {
        1: Lane(1, line((0, 0), (121, 0)), speed_limit_mps=10.0, successors=[2], light_group=7, stop_s=LIGHT_S),
        2: Lane(
            2, line((121, 0), (141, 0)), speed_limit_mps=10.0, successors=[3], junction_id=5, turn=Command.STRAIGHT
        ),
        3: Lane(3, line((141, 0), (LENGTH, 0)), speed_limit_mps=10.0),
        4: Lane(4, line((130, -60), (130, -8)), speed_limit_mps=10.0, successors=[5]),
        5: Lane(
            5, line((130, -8), (130, 8)), speed_limit_mps=10.0, successors=[6], junction_id=5, turn=Command.STRAIGHT
        ),
        6: Lane(6, line((130, 8), (130, 60)), speed_limit_mps=10.0),
    }
    road_map = RoadMap("straight", lanes, light_groups={7: LightGroup(7, 5, 0)})
    points = line((0, 0), (LENGTH, 0))
    owners = np.where(points[:, 0] < 121, 1, np.where(points[:, 0] < 141, 2, 3))
    route = Route(
        points,
        owners,
        np.full(len(points), 10.0),
        [Manoeuvre(121.0, 141.0, Command.STRAIGHT, 5)],
        [(LIGHT_S, 7)],
        [1, 2, 3],
    )
    return road_map, route


def state(x: float, speed: float, light: LightState = LightState.GREEN, y: float = 0.0, yaw: float = 0.0,
          actors: tuple[ActorState, ...] = ()) -> WorldState:  # fmt: skip
    return WorldState(0.0, Pose(x, y, 0.0, yaw), speed, route_s=x, actors=actors, lights={7: light})


def car(
    x: float,
    y: float = 0.0,
    speed: float = 0.0,
    yaw: float = 0.0,
    lane: int = 1,
    s: float | None = None,
    accel: float = 0.0,
) -> ActorState:
    place = x if s is None else s
    return ActorState(3, "car", lane, place, x, y, 0.0, yaw, speed, accel, 4.5, 1.8, 1.5, (1.0, 0.0, 0.0))


def walker(x: float, y: float, speed: float, yaw: float) -> ActorState:
    return ActorState(9, "pedestrian", -1, 0.0, x, y, 0.0, yaw, speed, 0.0, 0.5, 0.5, 1.7, (0.0, 0.0, 1.0))


def drive(road_map: RoadMap, route: Route, now: WorldState, seconds: float) -> list[WorldState]:
    """Replan every 0.1 s and move exactly along the plans; everything else stands still."""
    expert, states = Expert(road_map), [now]
    for _ in range(round(seconds / 0.1)):
        plan = expert.plan(now, route, now.route_s)
        pose = Pose(plan.x[1], plan.y[1], 0.0, plan.yaw[1])
        s, _ = expert.profile(route).project(pose.x, pose.y, now.route_s)
        now = replace(now, ego=pose, speed=float(plan.speed[1]), route_s=s, time=now.time + 0.1)
        states.append(now)
    return states


def test_speeds_up_briskly_and_keeps_the_limit(straight):
    states = drive(*straight, state(0.0, 0.0), 10.0)
    speeds = np.array([now.speed for now in states])
    assert speeds[10] > 1.5
    assert 9.0 < speeds[-1] < 10.3


@pytest.mark.parametrize("light", [LightState.RED, LightState.YELLOW])
def test_stops_smoothly_one_to_two_metres_before_the_line(straight, light):
    states = drive(*straight, state(60.0, 10.0, light), 20.0)
    speeds = np.array([now.speed for now in states])
    assert speeds[-1] < 0.05
    assert 0.8 < LIGHT_S - (states[-1].ego.x + EGO_FRONT_M) < 2.3
    assert np.diff(speeds).min() / 0.1 > -3.0


def test_yellow_too_late_to_stop_is_driven_through(straight):
    plan = Expert(straight[0]).plan(state(LIGHT_S - EGO_FRONT_M - 8.0, 10.0, LightState.YELLOW), straight[1], 108.0)
    assert plan.points[-1, 0] > 30.0


def test_starts_at_green_and_stays_at_red(straight):
    expert = Expert(straight[0])
    x = LIGHT_S - EGO_FRONT_M - 1.5
    assert expert.plan(state(x, 0.0, LightState.GREEN), straight[1], x).points[-1, 0] > 10.0
    red = expert.plan(state(x, 0.0, LightState.RED), straight[1], x)
    assert red.points[-1, 0] < 0.3
    assert red.reason == "red light"


def test_a_red_light_behind_us_does_not_matter(straight):
    assert Expert(straight[0]).plan(state(LIGHT_S + 3.0, 6.0, LightState.RED), straight[1], 123.0).points[-1, 0] > 20.0


def test_stops_behind_a_standing_car_and_names_it(straight):
    states = drive(*straight, state(20.0, 10.0, actors=(car(90.0),)), 20.0)
    gap = 90.0 - 2.25 - (states[-1].ego.x + EGO_FRONT_M)
    assert 1.5 < gap < 5.0
    plan = Expert(straight[0]).plan(state(60.0, 8.0, actors=(car(85.0),)), straight[1], 60.0)
    assert (plan.reason, plan.actor_id) == ("car ahead", 3)


def test_follows_a_slower_car_at_its_speed(straight):
    plan = Expert(straight[0]).plan(state(20.0, 8.0, actors=(car(38.0, speed=5.0),)), straight[1], 20.0)
    assert 4.0 < plan.speed[-1] < 6.5


def test_a_car_on_another_road_or_behind_does_not_matter(straight):
    free = Expert(straight[0]).plan(state(20.0, 8.0), straight[1], 20.0)
    for other in (car(8.0, speed=8.0), car(60.0, 3.6, speed=8.0, yaw=math.pi, lane=6, s=0.0)):
        plan = Expert(straight[0]).plan(state(20.0, 8.0, actors=(other,)), straight[1], 20.0)
        assert np.allclose(plan.points, free.points)


def test_stops_for_somebody_who_steps_out_but_not_for_somebody_who_walks_beside(straight):
    expert = Expert(straight[0])
    crossing = expert.plan(state(20.0, 8.0, actors=(walker(45.0, -3.0, 1.3, math.pi / 2),)), straight[1], 20.0)
    assert crossing.reason == "pedestrian"
    assert crossing.points[-1, 0] < 45.0 - 20.0 - EGO_FRONT_M - 1.5
    beside = expert.plan(state(20.0, 8.0, actors=(walker(45.0, -3.2, 1.3, 0.0),)), straight[1], 20.0)
    assert beside.reason == "clear"


def test_lets_a_car_pass_that_is_already_in_the_junction(straight):
    other = car(130.0, -7.0, speed=4.0, yaw=math.pi / 2, lane=5, s=1.0)
    plan = Expert(straight[0]).plan(state(112.0, 6.0, actors=(other,)), straight[1], 112.0)
    assert plan.reason == "yield"
    assert plan.speed.min() < 2.0


def cyclist(x: float, y: float, speed: float) -> ActorState:
    return ActorState(8, "cyclist", 1, x, x, y, 0.0, 0.0, speed, 0.0, 1.8, 0.6, 1.7, (0.0, 1.0, 0.0))


def test_passes_a_cyclist_with_room_but_not_right_before_a_junction(straight):
    expert = Expert(straight[0])
    open_road = expert.plan(state(20.0, 8.0, actors=(cyclist(34.0, -1.6, 4.0),)), straight[1], 20.0)
    assert open_road.points[-1, 0] > 30.0
    assert open_road.y.max() > 0.3
    junction = expert.plan(state(92.0, 8.0, actors=(cyclist(106.0, -1.6, 4.0),)), straight[1], 92.0)
    assert junction.reason == "car ahead"
    assert junction.speed[-1] < 6.0


def test_slows_for_a_bend():
    points = arc(15.0, math.pi / 2)
    road_map = RoadMap("bend", {1: Lane(1, points, speed_limit_mps=14.0)})
    route = Route(points, np.ones(len(points), dtype=int), np.full(len(points), 14.0), lane_ids=[1])
    states = drive(road_map, route, replace(state(5.0, 10.0), lights={}), 9.0)
    turns = np.abs(np.diff([now.ego.yaw for now in states])) / 0.1 * np.array([now.speed for now in states[1:]])
    assert turns.max() < 3.0
    assert Expert(road_map).plan(replace(state(25.0, 9.0), lights={}), route, 25.0).reason == "curve"


def test_the_front_swings_out_of_a_tight_bend():
    """Somebody beside the line on the outer side of a tight bend is swept by the front corner."""
    points = arc(7.0, math.pi / 2)
    road_map = RoadMap("bend", {1: Lane(1, points, speed_limit_mps=8.0)})
    route = Route(points, np.ones(len(points), dtype=int), np.full(len(points), 8.0), lane_ids=[1])
    angle, radius = 0.7, 7.0 + 1.9
    outer = walker(40.0 + radius * math.sin(angle), 7.0 - radius * math.cos(angle), 0.0, 0.0)
    plan = Expert(road_map).plan(replace(state(30.0, 4.0, actors=(outer,)), lights={}), route, 30.0)
    assert plan.reason == "pedestrian"


@pytest.mark.parametrize("speed", [0.0, 4.0, 10.0])
@pytest.mark.parametrize(("lateral", "yaw"), [(1.5, 0.2), (-1.5, -0.2), (1.5, -0.2), (-1.0, 0.2)])
def test_comes_back_to_the_lane_without_overshoot(straight, lateral, yaw, speed):
    states = drive(*straight, state(5.0, speed, y=lateral, yaw=yaw), 8.0)
    lateral_now = np.array([now.ego.y for now in states])
    assert abs(lateral_now[-1]) < 0.12
    assert (np.sign(lateral) * lateral_now).min() > -0.25


def test_plans_are_drivable(straight):
    expert = Expert(straight[0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        now = state(float(rng.uniform(5, 150)), float(rng.uniform(0, 12)), LightState(int(rng.integers(3))),
                    float(rng.uniform(-1.6, 1.6)), float(rng.uniform(-0.25, 0.25)))  # fmt: skip
        plan = expert.plan(now, straight[1], now.ego.x)
        travel = np.hypot(np.diff(plan.x), np.diff(plan.y))
        turn = np.abs(np.diff(plan.yaw))
        assert np.isfinite(plan.points).all() and plan.points.shape == (8, 2)
        assert (turn <= travel * 0.26 + 1e-6).all()
        assert plan.acceleration.min() >= -6.001 and plan.acceleration.max() <= 2.0
        assert plan.speed.min() >= 0.0


def test_same_state_same_plan_whatever_came_before(straight):
    now = state(40.0, 7.0, LightState.RED, 0.8, -0.1, (car(70.0, speed=3.0), walker(60.0, -3.0, 1.2, 1.5)))
    expert = Expert(straight[0])
    first = expert.plan(now, straight[1], 40.0)
    drive(*straight, state(0.0, 3.0), 1.0)
    expert.plan(state(90.0, 2.0, LightState.GREEN), straight[1], 90.0)
    assert np.array_equal(first.points, expert.plan(now, straight[1], 40.0).points)


def test_what_stands_behind_is_not_seen(straight):
    behind = car(30.0, 0.5, speed=12.0)
    with_it = Expert(straight[0]).plan(state(45.0, 5.0, actors=(behind,)), straight[1], 45.0)
    without = Expert(straight[0]).plan(state(45.0, 5.0), straight[1], 45.0)
    assert np.array_equal(with_it.points, without.points)


def test_following_law_brakes_harder_the_closer():
    values = [follow_acceleration(gap, 10.0, 0.0, 0.4) for gap in (60.0, 30.0, 20.0, 10.0, 5.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(-6.0)


@pytest.mark.parametrize("beyond", [0.0, 30.0, 300.0])
def test_at_and_beyond_the_routes_end_there_is_still_a_plan(straight, beyond):
    road_map, route = straight
    end = route.length + beyond
    now = state(end, 5.0)
    plan = Expert(road_map).plan(replace(now, actors=(car(end + 20.0, 0.0, 5.0),)), route, end)
    assert np.isfinite(plan.points).all()
