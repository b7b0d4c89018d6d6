"""A route on CARLA's own map: to a goal, lane changes allowed, or at random. Takes a carla.Map, imports no carla."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from wamdiff2_core.carla_frames import carla_to_ros_points
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.builder import classify_turn
from wamdiff2_sim.roads.route import Manoeuvre, Route

STEP_M = 2.0
BIN_M = 1.0  # places of a lane this near to each other count as one; below STEP_M, or a step could end where it began
REACHED_M = 6.0
LANE_CHANGE_COST_M = 20.0
FURTHEST_M = 20_000.0  # no route is longer
MOST_PLACES = 400_000

Key = tuple[int, int, int, int]


def route_to(world_map: Any, start: Any, goal: Any) -> Route:
    """The shortest way along lanes from one carla.Location to another, lane changes where marks allow them.

    DataError if there is none.
    """
    first, last = _on_lane(world_map, start), _on_lane(world_map, goal)
    target = last.transform.location
    order = itertools.count()  # waypoints cannot be compared
    heap = [(first.transform.location.distance(target), next(order), 0.0, first)]
    came: dict[Key, tuple[Any, Any]] = {_key(first): (first, None)}
    done: set[Key] = set()
    while heap and len(done) < MOST_PLACES:
        _, _, driven, here = heapq.heappop(heap)
        key = _key(here)
        if key in done:
            continue
        done.add(key)
        if _same_lane(here, last) and here.transform.location.distance(target) < REACHED_M:
            return _route(_way_back(came, here))
        if driven > FURTHEST_M:
            break
        for there, cost in _next(here):
            if _key(there) not in came:
                came[_key(there)] = (there, here)
                rest = there.transform.location.distance(target)
                heapq.heappush(heap, (driven + cost + rest, next(order), driven + cost, there))
    raise DataError(f"there is no way from {_said(first)} to {_said(last)} on this map")


def random_route(world_map: Any, start: Any, length_m: float, seed: int) -> Route:
    """A route along lanes from a carla.Location, forks drawn from the seed; shorter where the road ends."""
    rng = np.random.default_rng(seed)
    way = [_on_lane(world_map, start)]
    while len(way) * STEP_M < length_m:
        ahead = sorted(way[-1].next(STEP_M), key=_key)
        if not ahead:
            break
        way.append(ahead[int(rng.integers(len(ahead)))])
    if len(way) < 2:
        raise DataError(f"the road ends at {_said(way[0])}: no route begins there")
    return _route(way)


def _next(waypoint: Any) -> Iterator[tuple[Any, float]]:
    """Places reached from here, with what they cost in metres."""
    for there in waypoint.next(STEP_M):
        yield there, STEP_M
    change = str(waypoint.lane_change)
    for side, beside in (("Left", waypoint.get_left_lane), ("Right", waypoint.get_right_lane)):
        if waypoint.is_junction or change not in (side, "Both"):
            continue
        lane = beside()
        if lane is not None and str(lane.lane_type) == "Driving" and lane.lane_id * waypoint.lane_id > 0:
            yield from ((there, LANE_CHANGE_COST_M) for there in lane.next(4.0 * STEP_M))


def _route(way: list[Any]) -> Route:
    """Waypoints as a route in the ROS map frame, with its junctions' commands."""
    places = [waypoint.transform.location for waypoint in way]
    points = carla_to_ros_points(np.array([(place.x, place.y, place.z) for place in places]))
    keep = np.concatenate(([True], np.hypot(*np.diff(points[:, :2], axis=0).T) > 0.05))
    line = points[keep]
    if len(line) < 2:
        raise DataError("the route is only one place long")
    route = Route.from_points(line)
    s = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(line[:, :2], axis=0).T))))
    waypoints = [waypoint for waypoint, kept in zip(way, keep) if kept]
    junctions = [int(w.junction_id) if w.is_junction else -1 for w in waypoints]
    route.manoeuvres = list(_manoeuvres(route, s, junctions, waypoints))
    return route


def _manoeuvres(route: Route, s: np.ndarray, junctions: list[int], waypoints: list[Any]) -> Iterator[Manoeuvre]:
    edges = [k for k in range(1, len(junctions)) if junctions[k] != junctions[k - 1]]
    for begin, end in zip([0, *edges], [*edges, len(junctions)]):
        if junctions[begin] < 0:
            continue
        start_s, end_s = float(s[max(begin - 1, 0)]), float(s[min(end, len(s) - 1)])
        command = classify_turn(route.heading_at(end_s) - route.heading_at(start_s))
        if command is Command.STRAIGHT and begin > 0 and not _forks(waypoints[begin - 1]):
            continue  # nothing else can be done there: nothing to announce
        yield Manoeuvre(start_s, end_s, command, junctions[begin])


def _forks(before: Any) -> bool:
    """Whether traffic in the lane before the junction can go more than one way."""
    return len({_key(there)[:3] for there in before.next(2.0 * STEP_M)}) > 1


def _on_lane(world_map: Any, place: Any) -> Any:
    waypoint = world_map.get_waypoint(place)
    if waypoint is None:
        raise DataError(f"there is no lane at ({place.x:.1f}, {place.y:.1f})")
    return waypoint


def _way_back(came: dict[Key, tuple[Any, Any]], last: Any) -> list[Any]:
    way: list[Any] = []
    here: Any = last
    while here is not None:
        way.append(here)
        here = came[_key(here)][1]
    return way[::-1]


def _key(waypoint: Any) -> Key:
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id, math.floor(waypoint.s / BIN_M)


def _same_lane(a: Any, b: Any) -> bool:
    return (a.road_id, a.lane_id) == (b.road_id, b.lane_id)


def _said(waypoint: Any) -> str:
    place = waypoint.transform.location
    return f"({place.x:.1f}, {place.y:.1f})"
