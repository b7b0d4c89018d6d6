"""The map around a moment as the polygons of NAVSIM: lanes, connectors, road, junctions, and which of them are red."""

from __future__ import annotations

import numpy as np

from wamdiff2_core.evaluate.navsim.vehicle import POSES
from wamdiff2_sim.lights import Lights
from wamdiff2_sim.roads.roadmap import Lane, RoadMap
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.types import LightState, WorldState

REACH_M = 80.0
ROUTE_BEHIND_M, ROUTE_AHEAD_M = 30, 130
KERB_M = 0.3  # how far a wheel may be beside a lane in the world's own scores
JOIN_M = 1.0  # road areas overlap where lanes follow each other
STOREY_M = 4.0
COLOURS = {LightState.RED: "red", LightState.YELLOW: "yellow", LightState.GREEN: "green"}


def map_of(road_map: RoadMap, route: Route, now: WorldState) -> tuple[list[dict], list[Lane]]:
    """Polygons around the ego, and the connectors of its route."""
    near = [road_map.lanes[i] for i in road_map.lanes_near(np.array([now.ego.x, now.ego.y]), REACH_M)]
    near = [lane for lane in near if _same_storey(lane, now)]
    ahead = _route_lanes(route, now.route_s)
    beside = {i for k in ahead for i in _neighbours(road_map, k)}
    polygons = []
    for lane in near:
        connector = lane.junction_id >= 0
        kind, on_route = ("LANE_CONNECTOR" if connector else "LANE"), lane.id in (ahead if connector else beside)
        polygons.append(_polygon(f"lane_{lane.id}", kind, on_route, _outline(lane, 0.0, 0.0)))
        polygons.append(_polygon(f"road_{lane.id}", "ROADBLOCK", on_route, _outline(lane, KERB_M, JOIN_M)))
    for number in sorted({lane.junction_id for lane in near if lane.junction_id >= 0}):
        outline = np.asarray(road_map.junctions[number], dtype=np.float64)[:, :2]
        polygons.append(_polygon(f"junction_{number}", "INTERSECTION", False, outline))
    return polygons, [lane for lane in near if lane.junction_id >= 0 and lane.id in ahead]


def lights_of(connectors: list[Lane], road_map: RoadMap, lights: Lights, time_s: float) -> list[dict]:
    """Colours of the lights that let traffic into these connectors, now and after each 0.1 s."""
    found = []
    for lane in connectors:
        groups = {road_map.lanes[i].light_group for i in lane.predecessors if i in road_map.lanes} - {-1}
        for group in sorted(groups)[:1]:
            states = [COLOURS[lights.state_of(group, time_s + 0.1 * k)] for k in range(POSES)]
            found.append({"lane_connector_id": f"lane_{lane.id}", "state": states})
    return found


def _route_lanes(route: Route, s: float) -> set[int]:
    low, high = (
        int(np.clip(np.searchsorted(route.s, s + d), 0, len(route.s))) for d in (-ROUTE_BEHIND_M, ROUTE_AHEAD_M)
    )
    return {int(i) for i in route.point_lanes[low:high]}


def _neighbours(road_map: RoadMap, lane_id: int) -> set[int]:
    """The lane and those beside it in the same direction."""
    found = {lane_id}
    for side in ("left_id", "right_id"):
        other = lane_id
        while other in road_map.lanes and (other := getattr(road_map.lanes[other], side)) >= 0 and other not in found:
            found.add(other)
    return found


def _same_storey(lane: Lane, now: WorldState) -> bool:
    gap = lane.points[:, :2] - (now.ego.x, now.ego.y)
    nearest = int((gap * gap).sum(axis=1).argmin())
    return abs(float(lane.points[nearest, 2]) - now.ego.z) < STOREY_M


def _outline(lane: Lane, wider_m: float, longer_m: float) -> np.ndarray:
    """Ring (2N, 2) around a lane: left border forwards, right border backwards."""
    left, right = lane.edge(1, -wider_m)[:, :2], lane.edge(-1, -wider_m)[:, :2]
    if longer_m:
        ends = [np.array([np.cos(h), np.sin(h)]) * longer_m for h in lane.headings[[0, -1]]]
        for border in (left, right):
            border[0] -= ends[0]
            border[-1] += ends[1]
    keep = np.unique(np.append(np.arange(0, len(left), 2), len(left) - 1))  # 2 m are fine enough
    return np.concatenate([left[keep], right[keep][::-1]])


def _polygon(name: str, kind: str, on_route: bool, ring: np.ndarray) -> dict:
    return {"id": name, "type": kind, "on_route": on_route, "exterior": ring.round(3).tolist()}
