"""Lines for directed actors: along the ego's route, along lanes, across the road."""

from __future__ import annotations

import math

import numpy as np

from wamdiff2_sim.roads.roadmap import Lane, RoadMap
from wamdiff2_sim.roads.route import Manoeuvre, Route
from wamdiff2_sim.types import Pose

JOINED_M = 4.0
CONFLICT_M = 3.0
ACROSS, ONCOMING = -0.5, -0.8  # cosines between directions


def along(route: Route, start_s: float, length_m: float) -> np.ndarray:
    """(N, 3) points of the route from arc length `start_s` on; beyond its ends straight on."""
    s = np.arange(start_s, start_s + length_m + 1.0, 1.0)
    points = route.points_at(s)
    for beyond, end in ((s < 0.0, 0.0), (s > route.length, route.length)):
        yaw, extra = route.heading_at(end), s[beyond] - end
        points[beyond, 0] += extra * math.cos(yaw)
        points[beyond, 1] += extra * math.sin(yaw)
    return points


def across(route: Route, s: float, reach_m: float) -> np.ndarray:
    """(2, 3) points from `reach_m` right of the route to `reach_m` left of it, at arc length `s`."""
    (x, y, z), yaw = route.point_at(s), route.heading_at(s)
    side = np.array([-math.sin(yaw), math.cos(yaw), 0.0])
    return np.array([np.array([x, y, z]) - reach_m * side, np.array([x, y, z]) + reach_m * side])


def pose_on(route: Route, s: float) -> Pose:
    """The route's place and direction at arc length `s`."""
    x, y, z = route.point_at(s).tolist()
    return Pose(x, y, z, route.heading_at(s))


def through(road_map: RoadMap, lane_id: int, back_m: float, ahead_m: float) -> np.ndarray:
    """(N, 3) centre line of a lane, continued over straight neighbours by about so many metres behind and ahead."""
    lines = [road_map.lanes[lane_id].points.astype(np.float64)]
    current, length = road_map.lanes[lane_id], 0.0
    while length < back_m and current.predecessors:
        current = _straightest(road_map, current, current.predecessors, before=True)
        lines.insert(0, current.points.astype(np.float64)[:-1])
        length += current.length
    current, length = road_map.lanes[lane_id], 0.0
    while length < ahead_m and current.successors:
        current = _straightest(road_map, current, current.successors, before=False)
        lines.append(current.points.astype(np.float64)[1:])
        length += current.length
    return np.concatenate(lines)


def _straightest(road_map: RoadMap, lane: Lane, others: list[int], before: bool) -> Lane:
    heading = lane.heading_at(0.0 if before else lane.length)

    def turn(number: int) -> float:
        other = road_map.lanes[number]
        far = other.heading_at(0.0 if before else other.length)
        return abs(math.remainder(far - heading, math.tau))

    return road_map.lanes[min(others, key=turn)]


def next_junction(route: Route, s: float) -> Manoeuvre | None:
    """The first junction of the route that ends behind arc length `s`."""
    return next((one for one in route.manoeuvres if one.end_s > s), None)


def crossing_lanes(road_map: RoadMap, route: Route, junction: Manoeuvre) -> list[tuple[int, float]]:
    """Lanes of the junction that come near the ego's way from another approach: (lane, cosine between the ways in)."""
    inside = (route.s >= junction.start_s - 1.0) & (route.s <= junction.end_s + 1.0)
    ours = route.points[inside, :2]
    heading = route.heading_at(junction.start_s)
    found = []
    for lane in road_map.lanes.values():
        if lane.junction_id != junction.junction_id:
            continue
        gap = np.hypot(*(ours[:, None] - lane.points[None, :, :2]).transpose(2, 0, 1))
        starts_with_us = float(np.hypot(*(lane.points[0, :2] - route.point_at(junction.start_s)[:2]))) < JOINED_M
        if gap.min() < CONFLICT_M and not starts_with_us:
            found.append((lane.id, math.cos(lane.heading_at(0.0) - heading)))
    return found


def start_of(points: np.ndarray, place: np.ndarray, back_m: float) -> float:
    """Arc length (m) of a line `back_m` before its point nearest to `place` (2,)."""
    s = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points[:, :2], axis=0).T))])
    nearest = int(np.argmin(np.hypot(*(points[:, :2] - place).T)))
    return max(float(s[nearest]) - back_m, 0.0)
