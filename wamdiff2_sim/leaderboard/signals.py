"""Traffic lights and stop signs as actors: our light groups, and the stop signs that the real map names."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import carla

from wamdiff2_sim.leaderboard.actors import StopSign, TrafficLight, transform_of
from wamdiff2_sim.roads.roadmap import Lane, RoadMap
from wamdiff2_sim.types import Pose

FIRST_LIGHT, FIRST_STOP = 10_000, 20_000
BEFORE_LINE_M = 1.0
STOP_TYPE = "206"
SAME_SIGN_M = 3.0
BACK_M, BACK_STEPS = 0.5, 80
STOP_HALF_M = 1.6  # half of the square in which one has to stop; the criterion takes it along the map's axes


def traffic_lights(road_map: RoadMap, world: Any) -> list[TrafficLight]:
    """One light per group and approach, its trigger box across the lanes just before their end."""
    made: list[TrafficLight] = []
    for group in sorted(road_map.light_groups):
        for lanes in _approaches(road_map, group):
            made.append(_light(FIRST_LIGHT + len(made), group, lanes, world))
    return made


def _approaches(road_map: RoadMap, group: int) -> list[list[Lane]]:
    """Lanes that a group controls, those of one direction together (they lie side by side)."""
    found: dict[int, list[Lane]] = defaultdict(list)
    for lane in road_map.lanes.values():
        if lane.light_group == group:
            heading = round(math.remainder(lane.heading_at(lane.length), math.tau) / 0.5)
            found[heading].append(lane)
    return [found[key] for key in sorted(found)]


def _light(number: int, group: int, lanes: list[Lane], world: Any) -> TrafficLight:
    ends = [lane.point_at(max(lane.length - BEFORE_LINE_M, 0.0)) for lane in lanes]
    x, y, z = (float(sum(end[axis] for end in ends) / len(ends)) for axis in range(3))
    yaw = lanes[0].heading_at(lanes[0].length)
    reach = max(math.hypot(end[0] - x, end[1] - y) for end in ends) + lanes[0].width / 2.0
    across = Pose(x, y, z, yaw - math.pi / 2.0)  # the box's x axis lies across the road
    return TrafficLight(number, transform_of(across), reach, group, world)


def stop_signs(town: carla.Map) -> list[StopSign]:
    """The stop signs of the real map, each with its square on the lane that it is for."""
    made: list[StopSign] = []
    for mark in town.get_all_landmarks_of_type(STOP_TYPE):
        for low, high in mark.get_lane_validities():
            for lane in (number for number in range(min(low, high), max(low, high) + 1) if number != 0):
                place = town.get_waypoint_xodr(mark.road_id, lane, max(0.01, mark.s - 0.01))
                if place is None or str(place.lane_type) != "Driving":
                    continue
                place = _before_junction(place)
                if not any(_same_sign(place.transform, known.get_transform()) for known in made):
                    half = (STOP_HALF_M, STOP_HALF_M, 2.0)
                    made.append(StopSign(FIRST_STOP + len(made), place.transform, half))
    return made


def _before_junction(place: Any) -> Any:
    """Signs are often noted on the ways through a junction; one stops where those begin."""
    for _ in range(BACK_STEPS):
        before = place.previous(BACK_M)
        if not place.is_junction or not before:
            break
        place = before[0]
    return place


def _same_sign(a: carla.Transform, b: carla.Transform) -> bool:
    """The file repeats a sign for every way through its junction."""
    turn = math.radians(a.rotation.yaw - b.rotation.yaw)
    return a.location.distance(b.location) < SAME_SIGN_M and math.cos(turn) > 0.8
