"""Routes: which lanes to follow, what to announce, where to stop.

`plan_route` follows successors only (no lane changes; loops allowed). `s` is arc length along the route in metres.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.builder import classify_turn
from wamdiff2_sim.roads.curves import resample
from wamdiff2_sim.roads.roadmap import RoadMap, polyline_headings, project_polyline

STEP_M = 1.0
ANNOUNCE_M = 50.0
DEFAULT_LIMIT_MPS = 30.0 / 3.6
BEHIND_HINT_M, AHEAD_HINT_M = 15.0, 40.0
STOP_LINE_REACH_M = 2.0
VISITED_WEIGHT = 0.25  # how much less likely a lane already driven is chosen again


class Manoeuvre(NamedTuple):
    """Crossing one junction: from `start_s` to `end_s` of the route."""

    start_s: float
    end_s: float
    command: Command
    junction_id: int


@dataclass(eq=False)
class Route:
    """A path on a map. `points` (N, 3) evenly spaced at about 1 m; `s`, `point_lanes`, `limits_mps` are (N,)."""

    points: np.ndarray
    point_lanes: np.ndarray
    limits_mps: np.ndarray
    manoeuvres: list[Manoeuvre] = field(default_factory=list)
    stop_lines: list[tuple[float, int]] = field(default_factory=list)
    lane_ids: list[int] = field(default_factory=list)

    @cached_property
    def s(self) -> np.ndarray:
        gaps = np.hypot(*np.diff(self.points[:, :2], axis=0).T)
        return np.concatenate(([0.0], np.cumsum(gaps)))

    @cached_property
    def headings(self) -> np.ndarray:
        """(N,) unwrapped tangent directions, radians."""
        return polyline_headings(self.points)

    @cached_property
    def curvature(self) -> np.ndarray:
        """(N,) signed curvature in 1/m, left positive, smoothed over about 4 m."""
        kernel = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
        raw = np.gradient(self.headings, self.s)
        return np.convolve(np.pad(raw, 2, mode="edge"), kernel, mode="valid")

    @property
    def length(self) -> float:
        return float(self.s[-1])

    def point_at(self, s: float) -> np.ndarray:
        """(3,) point at `s`, clamped to the route."""
        return np.array([np.interp(s, self.s, self.points[:, axis]) for axis in range(3)])

    def points_at(self, s: np.ndarray) -> np.ndarray:
        """(K, 3) points at the arc lengths `s` (K,), clamped to the route."""
        return np.stack([np.interp(s, self.s, self.points[:, axis]) for axis in range(3)], axis=1)

    def heading_at(self, s: float) -> float:
        return float(np.interp(s, self.s, self.headings))

    def curvature_at(self, s: float) -> float:
        return float(np.interp(s, self.s, self.curvature))

    def lane_at(self, s: float) -> int:
        """Id of the lane at `s`, -1 where the route follows none."""
        return int(self.point_lanes[self._index(s)])

    def speed_limit_at(self, s: float) -> float:
        """Speed limit at `s` in m/s."""
        return float(self.limits_mps[self._index(s)])

    def command_at(self, s: float) -> tuple[Command, float]:
        """(command, metres to the junction's entry): from 50 m before a junction until it is left; 0 m inside it.

        Elsewhere (FOLLOW, inf).
        """
        for manoeuvre in self.manoeuvres:
            if s < manoeuvre.end_s:
                distance = max(0.0, manoeuvre.start_s - s)
                return (manoeuvre.command, distance) if distance <= ANNOUNCE_M else (Command.FOLLOW, math.inf)
        return Command.FOLLOW, math.inf

    def next_stop(self, s: float) -> tuple[float, int] | None:
        """(s, light group) of the next signalised stop line at or after `s`."""
        return next((line for line in self.stop_lines if line[0] >= s), None)

    def project(self, xy: np.ndarray, s_hint: float | None = None) -> tuple[float, float]:
        """(s, lateral) of the nearest place on the route, lateral left positive.

        With `s_hint` only 15 m behind to 40 m ahead of it is searched, so that loops and crossings do not confuse.
        """
        first, last = 0, len(self.points)
        if s_hint is not None:
            first = max(0, self._index(s_hint - BEHIND_HINT_M) - 1)
            last = max(min(last, self._index(s_hint + AHEAD_HINT_M) + 2), first + 2)
            first = min(first, last - 2)
        s, lateral, _ = project_polyline(self.points[first:last, :2], self.s[first:last], xy)
        return s, lateral

    def _index(self, s: float) -> int:
        return int(np.clip(np.searchsorted(self.s, s, side="right") - 1, 0, len(self.s) - 1))

    @classmethod
    def from_points(cls, points: np.ndarray, road_map: RoadMap | None = None) -> Route:
        """A route along world points (N >= 2, 2 or 3). With a map: lanes, limits, turns and lights are looked up."""
        points = np.asarray(points, dtype=np.float64)
        if points.ndim != 2 or len(points) < 2 or points.shape[1] not in (2, 3):
            raise DataError(f"route points must be (N >= 2, 2 or 3), got {points.shape}")
        if points.shape[1] == 2:
            points = np.column_stack([points, np.zeros(len(points))])
        line = resample(points, STEP_M)
        if road_map is None:
            return cls(line, np.full(len(line), -1), np.full(len(line), DEFAULT_LIMIT_MPS))
        headings = polyline_headings(line)
        lanes = [
            road_map.nearest_lane(p[:2], heading=h, z=float(p[2])).lane_id for p, h in zip(line, headings, strict=True)
        ]
        return _annotated(road_map, line, np.array(lanes))


def _annotated(road_map: RoadMap, line: np.ndarray, point_lanes: np.ndarray) -> Route:
    """A route with limits, manoeuvres and stop lines from the lanes under its points."""
    lanes = [road_map.lanes[int(i)] for i in point_lanes]
    route = Route(line, point_lanes, np.array([lane.speed_limit_mps for lane in lanes]))
    route.lane_ids = [lane.id for k, lane in enumerate(lanes) if k == 0 or lanes[k - 1] is not lane]
    junctions = np.array([lane.junction_id for lane in lanes])
    edges = np.flatnonzero(np.diff(junctions)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(lanes)], strict=True):
        if junctions[begin] >= 0:
            last = min(end, len(lanes) - 1)
            command = classify_turn(route.headings[last] - route.headings[begin])
            if command is Command.STRAIGHT and begin > 0 and not _has_choice(road_map, lanes[begin - 1].id):
                continue  # a mere widening or merge: nothing to announce
            route.manoeuvres.append(
                Manoeuvre(float(route.s[begin]), float(route.s[last]), command, int(junctions[begin]))
            )
    route.stop_lines = _stop_lines(road_map, route)
    return route


def _stop_lines(road_map: RoadMap, route: Route) -> list[tuple[float, int]]:
    """Signalised stop lines that the route crosses, in order."""
    found: list[tuple[float, int]] = []
    for run in np.split(np.arange(len(route.points)), np.flatnonzero(np.diff(route.point_lanes)) + 1):
        lane = road_map.lanes[int(route.point_lanes[run[0]])]
        if lane.light_group < 0 or lane.stop_s < 0.0:
            continue
        window = slice(max(0, int(run[0]) - 2), int(run[-1]) + 3)
        stop = lane.point_at(lane.stop_s)[:2]
        s, _, distance = project_polyline(route.points[window, :2], route.s[window], stop)
        if distance < STOP_LINE_REACH_M:
            found.append((s, lane.light_group))
    return found


def _has_choice(road_map: RoadMap, lane_id: int) -> bool:
    """Whether traffic on this approach, in any of its lanes, can do something else than go straight on."""
    approach = [road_map.lanes[lane_id]]
    for step in ("left_id", "right_id"):
        lane = approach[0]
        while getattr(lane, step) >= 0 and len(approach) < 12:
            lane = road_map.lanes[getattr(lane, step)]
            approach.append(lane)
    return any(road_map.lanes[i].turn in (Command.LEFT, Command.RIGHT) for lane in approach for i in lane.successors)


def endless_lanes(road_map: RoadMap) -> set[int]:
    """Lanes from which one can drive on for ever by successors."""
    alive = set(road_map.lanes)
    while True:
        dead = {i for i in alive if not any(successor in alive for successor in road_map.lanes[i].successors)}
        if not dead:
            return alive
        alive -= dead


def plan_route(road_map: RoadMap, rng: np.random.Generator, min_length_m: float, max_length_m: float) -> Route:
    """A random route whose length lies between the two, starting outside of junctions.

    Raises DataError when the map offers no endless path.
    """
    alive = endless_lanes(road_map)
    starts = [i for i in sorted(alive) if road_map.lanes[i].junction_id < 0 and road_map.lanes[i].length > 8.0]
    if not starts or not 0.0 < min_length_m <= max_length_m:
        raise DataError(
            f"{road_map.name}: no route of {min_length_m}-{max_length_m} m, {len(starts)} lanes to start from"
        )
    lengths = np.array([road_map.lanes[i].length for i in starts])
    current = int(rng.choice(starts, p=lengths / lengths.sum()))
    begin = float(rng.uniform(0.0, road_map.lanes[current].length - 4.0))
    target = float(rng.uniform(min_length_m, max_length_m))
    chain, total, visits = [current], road_map.lanes[current].length - begin, {current: 1}
    while total < target + 2.0:
        choices = [i for i in road_map.lanes[chain[-1]].successors if i in alive]
        weights = np.array([VISITED_WEIGHT ** min(8, visits.get(_exit(road_map, i), 0)) for i in choices])
        current = int(rng.choice(choices, p=weights / weights.sum()))
        visits[current] = visits.get(current, 0) + 1
        chain.append(current)
        total += road_map.lanes[current].length
    return _along(road_map, chain, begin, target)


def _exit(road_map: RoadMap, lane_id: int) -> int:
    """The lane behind a junction lane, so that a road driven from either side counts as visited."""
    lane = road_map.lanes[lane_id]
    return lane.successors[0] if lane.junction_id >= 0 and lane.successors else lane_id


def _along(road_map: RoadMap, chain: list[int], begin: float, length: float) -> Route:
    """The route that starts `begin` metres into the first lane of `chain` and is `length` metres long."""
    lines = [road_map.lanes[i].points.astype(np.float64) for i in chain]
    line = np.concatenate([lines[0], *(one[1:] for one in lines[1:])])
    s = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(line[:, :2], axis=0).T))))
    targets = np.linspace(begin, begin + length, int(round(length / STEP_M)) + 1)
    points = np.stack([np.interp(targets, s, line[:, axis]) for axis in range(3)], axis=1)
    ends = np.cumsum([road_map.lanes[i].length for i in chain])
    owners = np.array(chain)[np.minimum(np.searchsorted(ends, targets, side="right"), len(chain) - 1)]
    return _annotated(road_map, points, owners)
