"""Routes: smooth, of the wanted length, with the right commands and stop lines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.roadmap import Lane, RoadMap, load_map
from wamdiff2_sim.roads.route import Route, plan_route

TOWNS = ("Town01", "Town02", "Town03", "Town04", "Town05", "Town06", "Town07", "Town10HD")


@pytest.mark.parametrize("name", [*(f"procedural:{seed}" for seed in range(6)), *TOWNS])
def test_twenty_routes_of_300_to_800_metres(name: str) -> None:
    road_map = load_map(name)
    for seed in range(20):
        route = plan_route(road_map, np.random.default_rng(seed), 300.0, 800.0)
        assert 299.0 < route.length < 801.0
        steps = np.hypot(*np.diff(route.points[:, :2], axis=0).T)
        assert steps.max() < 1.5
        assert np.abs(np.diff(route.headings)).max() < 0.4
        for a, b in zip(route.lane_ids, route.lane_ids[1:], strict=False):
            assert b in road_map.lanes[a].successors
        assert len(route.points) == len(route.point_lanes) == len(route.limits_mps) == len(route.curvature)


def test_routes_are_deterministic_and_differ() -> None:
    road_map = load_map("Town02")
    one, same, other = (plan_route(road_map, np.random.default_rng(s), 300, 400) for s in (3, 3, 4))
    np.testing.assert_array_equal(one.points, same.points)
    assert one.points.shape != other.points.shape or not np.allclose(one.points, other.points)


def test_project_round_trips_along_and_across() -> None:
    road_map = load_map("procedural:1")
    route = plan_route(road_map, np.random.default_rng(0), 500, 700)
    for s in np.linspace(5.0, route.length - 5.0, 40):
        heading = route.heading_at(s)
        xy = route.point_at(s)[:2] + 0.8 * np.array([-np.sin(heading), np.cos(heading)])
        found, lateral = route.project(xy, s_hint=s - 3.0)
        assert abs(found - s) < 1.0
        assert lateral == pytest.approx(0.8, abs=0.1)


def test_hint_tells_two_laps_apart() -> None:
    angles = np.linspace(0.0, 4.0 * np.pi, 800)
    route = Route.from_points(np.column_stack([30.0 * np.cos(angles), 30.0 * np.sin(angles)]))
    lap = 2.0 * np.pi * 30.0
    for s in (20.0, 20.0 + lap):
        assert route.project(route.point_at(s)[:2], s_hint=s)[0] == pytest.approx(s, abs=0.5)
    assert route.curvature_at(100.0) == pytest.approx(1.0 / 30.0, rel=0.05)


def test_commands_are_announced_from_50_m_until_the_junction_is_left() -> None:
    road_map = load_map("Town01")
    for seed in range(10):
        route = plan_route(road_map, np.random.default_rng(seed), 400, 600)
        for manoeuvre in route.manoeuvres:
            earlier = [m.end_s for m in route.manoeuvres if m.end_s <= manoeuvre.start_s]
            if manoeuvre.start_s - max(earlier, default=0.0) < 60.0:
                continue
            assert route.command_at(manoeuvre.start_s - 55.0) == (Command.FOLLOW, math.inf)
            assert route.command_at(manoeuvre.start_s - 20.0) == (manoeuvre.command, pytest.approx(20.0))
            assert route.command_at((manoeuvre.start_s + manoeuvre.end_s) / 2.0) == (manoeuvre.command, 0.0)
            assert route.command_at(manoeuvre.end_s + 0.1)[1] != 0.0


def test_left_and_right_commands_turn_that_way() -> None:
    seen = set()
    for name in ("procedural:2", "Town02", "Town05"):
        road_map = load_map(name)
        for seed in range(10):
            route = plan_route(road_map, np.random.default_rng(seed), 400, 600)
            for m in route.manoeuvres:
                change = route.heading_at(m.end_s) - route.heading_at(m.start_s)
                expected = {
                    Command.LEFT: change > 0.5,
                    Command.RIGHT: change < -0.5,
                    Command.STRAIGHT: abs(change) < 0.7,
                }
                assert expected[m.command]
                seen.add(m.command)
    assert seen == {Command.LEFT, Command.RIGHT, Command.STRAIGHT}


def test_stop_lines_lie_before_signalised_junctions() -> None:
    road_map = load_map("Town01")
    route = plan_route(road_map, np.random.default_rng(1), 600, 800)
    assert route.stop_lines == sorted(route.stop_lines)
    assert route.stop_lines
    for s, group in route.stop_lines:
        lane = road_map.lanes[route.lane_at(s - 0.5)]
        assert lane.light_group == group
        np.testing.assert_allclose(route.point_at(s)[:2], lane.point_at(lane.stop_s)[:2], atol=0.6)
    assert route.next_stop(0.0) == route.stop_lines[0]
    assert route.next_stop(route.length) is None


def test_from_points_finds_lanes_commands_and_lights_again() -> None:
    road_map = load_map("Town02")
    route = plan_route(road_map, np.random.default_rng(5), 300, 400)
    again = Route.from_points(route.points[::3], road_map)
    assert [m.command for m in again.manoeuvres] == [m.command for m in route.manoeuvres]
    assert [g for _, g in again.stop_lines] == [g for _, g in route.stop_lines]
    assert again.speed_limit_at(50.0) == pytest.approx(route.speed_limit_at(50.0))


def test_speed_limits_come_from_the_lanes() -> None:
    road_map = load_map("procedural:3")
    route = plan_route(road_map, np.random.default_rng(0), 300, 400)
    for s in (0.5, 100.0, 250.0):
        assert route.speed_limit_at(s) == pytest.approx(road_map.lanes[route.lane_at(s)].speed_limit_mps)


def test_a_map_without_endless_roads_is_refused() -> None:
    points = np.column_stack([np.arange(50.0), np.zeros(50), np.zeros(50)])
    with pytest.raises(DataError):
        plan_route(RoadMap("stub", {0: Lane(0, points)}), np.random.default_rng(0), 20.0, 40.0)
    with pytest.raises(DataError):
        Route.from_points(np.zeros((1, 2)))
