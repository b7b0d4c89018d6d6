"""Second half of a town's conversion, free of CARLA: joins lanes exactly, names turns, finds outlines and lights."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.builder import classify_turn
from wamdiff2_sim.roads.curves import fillet, resample, tangent_corner, unit, wrap
from wamdiff2_sim.roads.roadmap import Lane, LightGroup, RoadMap, polyline_headings, project_polyline

BLEND_M = 10.0
SLIVER_M = 2.0
WANTED_CURVATURE = 0.2  # 1/m; the car's limit is about 0.24
MAX_MOVE_M = 1.2
STOP_BEFORE_END_M = 1.0
STOP_BEFORE_CROSSWALK_M = 1.0
NEAR_HEAD_Z, FAR_HEAD_Z = 3.2, 4.6
Approach = list[Lane]


def drop_slivers(lanes: dict[int, Lane]) -> dict[int, int]:
    """Take out lanes shorter than 2 m and link around them. Returns removed id -> a lane before it.

    Such slivers of OpenDRIVE lane sections carry no information, and their direction is mostly rounding.
    """
    stands_for: dict[int, int] = {}
    for sliver in [lane for lane in lanes.values() if lane.length < SLIVER_M]:
        if not sliver.predecessors or not sliver.successors or sliver.id in sliver.successors:
            continue
        for i in sliver.predecessors:
            before = lanes[i]
            before.successors = sorted({*before.successors, *sliver.successors} - {sliver.id})
        for i in sliver.successors:
            behind = lanes[i]
            behind.predecessors = sorted({*behind.predecessors, *sliver.predecessors} - {sliver.id})
        stands_for[sliver.id] = sliver.predecessors[0]
        del lanes[sliver.id]
    for lane in lanes.values():
        lane.left_id = lane.left_id if lane.left_id in lanes else -1
        lane.right_id = lane.right_id if lane.right_id in lanes else -1
    return {i: _resolve(i, stands_for) for i in stands_for}


def _resolve(number: int, stands_for: dict[int, int]) -> int:
    while number in stands_for:
        number = stands_for[number]
    return number


def drop_broken_links(lanes: dict[int, Lane]) -> int:
    """Remove links between lanes that do not meet (3 m) or not in the same direction (0.5 rad). Returns how many."""
    dropped = 0
    for lane in lanes.values():
        good = [i for i in lane.successors if _meets(lane, lanes[i])]
        dropped += len(lane.successors) - len(good)
        lane.successors = good
    return dropped


def _meets(lane: Lane, following: Lane) -> bool:
    gap = float(np.hypot(*(lane.points[-1] - following.points[0])[:2]))
    return gap < 3.0 and abs(wrap(float(lane.headings[-1] - following.headings[0]))) < 0.5


def relax_turns(lanes: dict[int, Lane]) -> int:
    """Widen junction lanes that are tighter than a car can steer: lines and one arc of the wanted radius, where that
    moves the lane by at most 1.2 m. Returns how many were changed.
    """
    relaxed = 0
    for lane in lanes.values():
        if lane.junction_id < 0 or len(lane.points) < 5 or _tightest(lane.points) <= WANTED_CURVATURE:
            continue
        old = lane.points.astype(np.float64)
        start, end = float(lane.headings[0]), float(lane.headings[-1])
        corner = tangent_corner(old[0, :2], start, old[-1, :2], end)
        if corner is None:
            continue
        line = resample(fillet(np.array([old[0, :2], corner, old[-1, :2]]), [1.0 / WANTED_CURVATURE])[:, :2])
        moved = max(project_polyline(old[:, :2], lane.s, point)[2] for point in line)
        if moved < MAX_MOVE_M and _tightest(line) < _tightest(old):
            z = np.interp(np.linspace(0.0, 1.0, len(line)), lane.s / lane.length, old[:, 2])
            lane.points = np.column_stack([line, z]).astype(np.float32)
            forget(lane)
            relaxed += 1
    return relaxed


def _tightest(points: np.ndarray) -> float:
    steps = np.hypot(*np.diff(points[:, :2].astype(np.float64), axis=0).T)
    return float((np.abs(np.diff(polyline_headings(points))) / steps).max())


def forget(lane: Lane) -> None:
    """Drop what was derived from the lane's old points."""
    lane.__dict__.pop("s", None)
    lane.__dict__.pop("headings", None)


def join_ends(lanes: dict[int, Lane]) -> float:
    """Move lane ends that are linked onto their common mean, fading out over 10 m. Returns the largest gap closed."""
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(key: tuple[int, int]) -> tuple[int, int]:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for lane in lanes.values():
        for successor in lane.successors:
            parent[root((lane.id, 1))] = root((successor, 0))
    clusters = defaultdict(list)
    for key in list(parent):
        clusters[root(key)].append(key)
    shifts: dict[tuple[int, int], np.ndarray] = {}
    for keys in clusters.values():
        ends = np.array([lanes[i].points[-end].astype(np.float64) for i, end in keys])
        shifts |= {key: ends.mean(axis=0) - point for key, point in zip(keys, ends, strict=True)}
    for lane in lanes.values():
        lane.points = _shifted(lane, shifts.get((lane.id, 0)), shifts.get((lane.id, 1)))
        forget(lane)
    return 2.0 * max((float(np.hypot(*shift[:2])) for shift in shifts.values()), default=0.0)


def _shifted(lane: Lane, start: np.ndarray | None, end: np.ndarray | None) -> np.ndarray:
    reach = min(BLEND_M, lane.length)
    moved = lane.points.astype(np.float64)
    for shift, distance in ((start, lane.s), (end, lane.length - lane.s)):
        if shift is not None:
            fade = np.clip(1.0 - distance / reach, 0.0, 1.0)
            moved += (fade * fade * (3.0 - 2.0 * fade))[:, None] * shift
    return resample(moved).astype(np.float32)


def name_turns(lanes: dict[int, Lane]) -> None:
    """Set `turn` of junction lanes from the heading change over the junction's whole crossing."""
    for lane in lanes.values():
        if lane.junction_id < 0:
            continue
        first, last = lane, lane
        for _ in range(8):
            first = next((lanes[i] for i in first.predecessors if lanes[i].junction_id == lane.junction_id), first)
            last = next((lanes[i] for i in last.successors if lanes[i].junction_id == lane.junction_id), last)
        lane.turn = classify_turn(wrap(float(last.headings[-1] - first.headings[0])))


def mark_curbs(road_map: RoadMap) -> None:
    """Sidewalks along junction lanes: no other lane on their right, and a sidewalk on the way in or out."""
    for lane in road_map.lanes.values():
        if lane.junction_id < 0:
            continue
        around = [road_map.lanes[i] for i in (*lane.predecessors, *lane.successors)]
        lane.has_sidewalk_right = any(other.has_sidewalk_right for other in around) and _is_curbside(road_map, lane)


def _is_curbside(road_map: RoadMap, lane: Lane) -> bool:
    beside = lane.edge(-1, inset=-1.0)
    for point in beside[[len(beside) // 4, len(beside) // 2, (3 * len(beside)) // 4]]:
        for number in road_map.lanes_near(point[:2], 6.0):
            other = road_map.lanes[number]
            if number != lane.id and other.project(point[:2])[2] < other.width / 2.0:
                return False
    return True


def crosswalks_on_roads(road_map: RoadMap) -> list[np.ndarray]:
    """The crosswalks that touch a lane (towns also hold some far off any road)."""
    centres = [rectangle[:, :2].mean(axis=0) for rectangle in road_map.crosswalks]
    keep = [road_map.nearest_lane(centre).distance < 8.0 for centre in centres]
    return [rectangle for rectangle, kept in zip(road_map.crosswalks, keep, strict=True) if kept]


def approaches(road_map: RoadMap) -> dict[int, list[Approach]]:
    """Lanes that enter each junction, grouped by approach (neighbouring lanes, left to right)."""
    found: dict[int, list[Approach]] = defaultdict(list)
    entering = {
        lane.id: road_map.lanes[lane.successors[0]].junction_id
        for lane in road_map.lanes.values()
        if lane.junction_id < 0 and any(road_map.lanes[i].junction_id >= 0 for i in lane.successors)
    }
    entering = {i: j for i, j in entering.items() if j >= 0}
    for number, junction in entering.items():
        lane = road_map.lanes[number]
        if entering.get(lane.left_id) == junction:
            continue
        group = [lane]
        while entering.get(group[-1].right_id) == junction:
            group.append(road_map.lanes[group[-1].right_id])
        found[junction].append(group)
    return dict(found)


def add_lights(road_map: RoadMap, signalised: set[int]) -> None:
    """One light group per approach that contains a lane of `signalised`; opposing approaches share a phase."""
    for junction, groups in approaches(road_map).items():
        lit = [group for group in groups if any(lane.id in signalised for lane in group)]
        phases: list[float] = []
        for group in lit:
            heading = float(group[0].headings[-1])
            phase = next((k for k, other in enumerate(phases) if np.cos(heading - other) < -0.75), len(phases))
            if phase == len(phases):
                phases.append(heading)
            number = len(road_map.light_groups)
            road_map.light_groups[number] = LightGroup(number, junction, phase, _poles(road_map, group))
            for lane in group:
                lane.light_group = number


def _poles(road_map: RoadMap, group: Approach) -> list[tuple[float, float, float, float]]:
    """A head at the near right corner and one across the junction, both facing the approach."""
    right = group[-1]
    heading = float(right.headings[-1])
    side = unit(heading - np.pi / 2.0)
    end = right.points[-1].astype(np.float64)
    near = end[:2] + (right.width / 2.0 + 1.0) * side
    ahead = _crossing_depth(road_map, group, heading)
    far = near + ahead * unit(heading)
    lane = _straight_exit(road_map, group)
    if lane is not None:
        exit_heading = float(lane.headings[0])
        far = lane.points[0, :2] + (lane.width / 2.0 + 1.0) * unit(exit_heading - np.pi / 2.0)
    facing = wrap(heading + np.pi)
    return [
        (float(near[0]), float(near[1]), float(end[2]) + NEAR_HEAD_Z, facing),
        (float(far[0]), float(far[1]), float(end[2]) + FAR_HEAD_Z, facing),
    ]


def _straight_exit(road_map: RoadMap, group: Approach) -> Lane | None:
    """The outermost lane behind the junction that is reached by going straight on, if there is one."""
    for lane in reversed(group):
        for inner in (road_map.lanes[i] for i in lane.successors):
            if inner.turn is Command.STRAIGHT:
                while inner.junction_id >= 0 and inner.successors:
                    inner = road_map.lanes[inner.successors[0]]
                while inner.right_id >= 0:
                    inner = road_map.lanes[inner.right_id]
                return inner
    return None


def _crossing_depth(road_map: RoadMap, group: Approach, heading: float) -> float:
    """How far the junction's outline reaches ahead of an approach, plus a metre of curb."""
    ahead = unit(heading)
    right = np.array([ahead[1], -ahead[0]])
    outline = road_map.junctions[road_map.lanes[group[-1].successors[0]].junction_id]
    dense = resample(np.concatenate([outline, outline[:1]]).astype(np.float64))
    relative = dense - group[-1].points[-1, :2]
    band = np.abs(relative @ right) < 6.0
    return float((relative @ ahead)[band].max(initial=10.0)) + 1.0


def set_stop_lines(road_map: RoadMap, must_stop: set[int]) -> None:
    """Stop lines where a light or a sign (`must_stop`) asks for it, before a crosswalk at the lane's end."""
    for lane in road_map.lanes.values():
        if lane.light_group < 0 and lane.id not in must_stop:
            continue
        stop = lane.length - STOP_BEFORE_END_M
        for s in lane.s[lane.s > lane.length - 12.0]:
            if any(_inside(lane.point_at(float(s))[:2], rectangle[:, :2]) for rectangle in road_map.crosswalks):
                stop = min(stop, float(s) - STOP_BEFORE_CROSSWALK_M)
                break
        lane.stop_s = max(0.0, stop)


def _inside(point: np.ndarray, polygon: np.ndarray) -> bool:
    """Whether a point lies in a convex polygon."""
    edges = np.roll(polygon, -1, axis=0) - polygon
    relative = point - polygon
    sides = edges[:, 0] * relative[:, 1] - edges[:, 1] * relative[:, 0]
    return bool((sides >= 0.0).all() or (sides <= 0.0).all())
