"""Converts CARLA's towns to road maps: `python -m wamdiff2_sim.roads.carla_export --town Town01 --out DIR`.

Runs offline in an environment of its own that has `carla`, `py123d` (its package data holds the OpenDRIVE files; it is
located, never imported), `shapely` and `numpy`. CARLA's left-handed y is negated, so maps are right-handed as in ROS.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_sim.roads.curves import resample
from wamdiff2_sim.roads.mapfile import link_predecessors
from wamdiff2_sim.roads.roadmap import MAPS_DIR, Lane, RoadMap
from wamdiff2_sim.roads.town_parts import (
    add_lights,
    crosswalks_on_roads,
    drop_broken_links,
    drop_slivers,
    join_ends,
    mark_curbs,
    name_turns,
    relax_turns,
    set_stop_lines,
)

Key = tuple[int, int, int]  # road, section, lane
STEP_M = 0.5
MAX_LIMIT_MPS = 60.0 / 3.6
DEFAULT_LIMIT_MPS = 40.0 / 3.6
LIGHT_TYPE, SIGN_TYPES = "1000001", ("205", "206")
UNITS = {"mph": 0.44704, "km/h": 1.0 / 3.6, "m/s": 1.0}


def read_xodr(town: str) -> str:
    """OpenDRIVE text of a town. Raises ConfigError when the data package is not installed or lacks the town."""
    spec = importlib.util.find_spec("py123d")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("py123d is not installed here: expected its package data with CARLA's OpenDRIVE files")
    path = Path(spec.submodule_search_locations[0]) / "parser/opendrive/carla_maps" / f"{town}.xodr.gz"
    if not path.is_file():
        towns = sorted(file.name.removesuffix(".xodr.gz") for file in path.parent.glob("*.gz"))
        raise ConfigError(f"no OpenDRIVE file of {town!r}: expected one of {towns}")
    with gzip.open(path, "rt") as file:
        return file.read()


def convert(town: str) -> RoadMap:
    """The RoadMap of one CARLA town."""
    import carla

    xodr = read_xodr(town)
    world = carla.Map(town, xodr)
    limits = _speed_limits(xodr)
    starts: dict[Key, Any] = {}
    links: dict[Key, set[Key]] = {}
    for start, following in world.get_topology():
        for waypoint in (start, following):
            if str(waypoint.lane_type) == "Driving":
                starts.setdefault(_key(waypoint), waypoint)
        links.setdefault(_key(start), set()).add(_key(following))
    numbers = {key: number for number, key in enumerate(sorted(starts))}
    lanes = {numbers[key]: _lane(key, starts, numbers, limits) for key in sorted(starts)}
    for key, following_keys in links.items():
        lanes[numbers[key]].successors = sorted(numbers[k] for k in following_keys if k in numbers and k != key)
    link_predecessors(lanes)
    stands_for = drop_slivers(lanes)
    numbers = {key: stands_for.get(number, number) for key, number in numbers.items()}
    broken = drop_broken_links(lanes)
    link_predecessors(lanes)
    gap = join_ends(lanes)
    relaxed = relax_turns(lanes)
    name_turns(lanes)
    road_map = RoadMap(town, lanes, _outlines(lanes), {}, _crosswalks(world))
    road_map.crosswalks = crosswalks_on_roads(road_map)
    mark_curbs(road_map)
    add_lights(road_map, _controlled(world, road_map, numbers, (LIGHT_TYPE,)))
    set_stop_lines(road_map, _controlled(world, road_map, numbers, SIGN_TYPES))
    print(
        f"{town}: {len(lanes)} lanes, {len(road_map.light_groups)} light groups; largest gap closed {gap:.2f} m, "
        f"{broken} broken links dropped, {relaxed} turns relaxed"
    )
    return road_map


def _key(waypoint: Any) -> Key:
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id


def _lane(key: Key, starts: dict[Key, Any], numbers: dict[Key, int], limits: dict[int, float]) -> Lane:
    """Lane of one OpenDRIVE lane section, its end completed by the begin of what follows."""
    start = starts[key]
    waypoints = [start, *(w for w in start.next_until_lane_end(STEP_M) if _key(w) == key)]
    line = np.array([_location(w.transform.location) for w in waypoints])
    begins = [starts[_key(w)] for w in waypoints[-1].next(STEP_M) if _key(w) != key and _key(w) in starts]
    if begins and begins[0].transform.location.distance(waypoints[-1].transform.location) < 2.0 * STEP_M:
        line = np.concatenate([line, [_location(begins[0].transform.location)]])
    line = line[np.concatenate(([True], np.hypot(*np.diff(line[:, :2], axis=0).T) > 0.02))]
    if len(line) < 2:
        forward = start.transform.get_forward_vector()
        line = np.array([line[0], line[0] + 0.1 * np.array([forward.x, -forward.y, forward.z])])
    middle = waypoints[len(waypoints) // 2]
    lane = Lane(numbers[key], resample(line), width=round(float(middle.lane_width), 2))
    lane.speed_limit_mps = limits.get(key[0], DEFAULT_LIMIT_MPS)
    lane.junction_id = middle.junction_id if middle.is_junction else -1
    if lane.junction_id < 0:
        lane.left_id = _neighbour(middle.get_left_lane(), middle, numbers)
        lane.right_id = _neighbour(middle.get_right_lane(), middle, numbers)
        lane.left_mark, lane.right_mark = _mark(middle.left_lane_marking), _mark(middle.right_lane_marking)
    lane.has_sidewalk_right = lane.right_id < 0 and _sidewalk_right(middle)
    return lane


def _location(location: Any) -> tuple[float, float, float]:
    return location.x, -location.y, location.z


def _neighbour(other: Any, lane: Any, numbers: dict[Key, int]) -> int:
    if other is None or str(other.lane_type) != "Driving" or other.lane_id * lane.lane_id < 0:
        return -1
    return numbers.get(_key(other), -1)


def _mark(marking: Any) -> str:
    kind, colour = str(marking.type), "yellow" if str(marking.color) == "Yellow" else "white"
    if kind.startswith("Solid"):
        return f"solid_{colour}"
    return f"broken_{colour}" if kind.startswith("Broken") else "none"


def _sidewalk_right(waypoint: Any) -> bool:
    other = waypoint.get_right_lane()
    for _ in range(6):
        if other is None or str(other.lane_type) == "Driving":
            return False
        if str(other.lane_type) == "Sidewalk":
            return True
        other = other.get_right_lane()
    return False


def _speed_limits(xodr: str) -> dict[int, float]:
    """Limit of each road in m/s from its OpenDRIVE type record, at most 60 km/h."""
    limits = {}
    for road in ElementTree.fromstring(xodr.encode()).iter("road"):
        speed = road.find("type/speed")
        if speed is not None and float(speed.get("max", "0")) > 0:
            value = float(speed.get("max", "0")) * UNITS.get(speed.get("unit", "m/s"), 1.0)
            limits[int(road.get("id", "-1"))] = min(MAX_LIMIT_MPS, value)
    return limits


def _outlines(lanes: dict[int, Lane]) -> dict[int, np.ndarray]:
    """Outline of each junction: the union of its lanes' surfaces, narrow gaps closed, counter-clockwise."""
    from shapely.geometry import LineString, Polygon
    from shapely.geometry.polygon import orient
    from shapely.ops import unary_union

    found = {}
    for junction in sorted({lane.junction_id for lane in lanes.values() if lane.junction_id >= 0}):
        inner = [lane for lane in lanes.values() if lane.junction_id == junction]
        strips = [LineString(lane.points[:, :2]).buffer(lane.width / 2.0, cap_style="flat") for lane in inner]
        surface = unary_union(strips).buffer(2.0, join_style="mitre").buffer(-2.0, join_style="mitre")
        parts = list(surface.geoms) if surface.geom_type == "MultiPolygon" else [surface]
        outline = Polygon(max(parts, key=lambda part: part.area).exterior).simplify(0.1)
        found[junction] = np.array(orient(outline).exterior.coords)[:-1]
    return found


def _crosswalks(world: Any) -> list[np.ndarray]:
    """(4, 3) rectangles around CARLA's closed crosswalk rings."""
    from shapely.geometry import Polygon

    rings: list[list[tuple[float, float, float]]] = [[]]
    for location in world.get_crosswalks():
        point = _location(location)
        rings[-1].append(point)
        if len(rings[-1]) > 2 and np.allclose(point, rings[-1][0], atol=1e-3):
            rings.append([])
    rectangles = []
    for ring in rings:
        if len(ring) >= 4:
            corners = np.array(Polygon([p[:2] for p in ring]).minimum_rotated_rectangle.exterior.coords)[:4]
            rectangles.append(np.column_stack([corners, np.full(4, np.mean([p[2] for p in ring]))]))
    return rectangles


def _controlled(world: Any, road_map: RoadMap, numbers: dict[Key, int], types: tuple[str, ...]) -> set[int]:
    """Lanes outside of junctions whose end is controlled by a landmark of one of these types."""
    found: set[int] = set()
    for landmark in world.get_all_landmarks():
        if landmark.type not in types:
            continue
        for low, high in landmark.get_lane_validities():
            for lane_number in (n for n in range(min(low, high), max(low, high) + 1) if n != 0):
                waypoint = world.get_waypoint_xodr(landmark.road_id, lane_number, max(0.01, landmark.s - 0.01))
                if waypoint is not None and _key(waypoint) in numbers:
                    found |= _entries(road_map, numbers[_key(waypoint)])
    return found


def _entries(road_map: RoadMap, number: int) -> set[int]:
    """Where traffic on a lane enters (or has entered) the junction: back out of it, or on towards it."""
    lane = road_map.lanes[number]
    if lane.junction_id >= 0:
        return {i for before in lane.predecessors for i in _entries_back(road_map, before, lane.junction_id)}
    for _ in range(4):
        following = [road_map.lanes[i] for i in lane.successors]
        if any(other.junction_id >= 0 for other in following):
            return {lane.id}
        if len(following) != 1:
            return set()
        lane = following[0]
    return set()


def _entries_back(road_map: RoadMap, number: int, junction: int) -> set[int]:
    lane = road_map.lanes[number]
    if lane.junction_id < 0:
        return {lane.id}
    if lane.junction_id != junction:
        return set()
    return {i for before in lane.predecessors for i in _entries_back(road_map, before, junction)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert CARLA towns to road maps (.npz)")
    parser.add_argument("--town", nargs="+", required=True, metavar="TOWN", help="for example Town01 Town10HD")
    parser.add_argument("--out", type=Path, default=MAPS_DIR, help="folder for the .npz files")
    arguments = parser.parse_args()
    for town in arguments.town:
        road_map = convert(town)
        if not road_map.lanes:
            raise DataError(f"{town}: the OpenDRIVE file has no driving lanes")
        road_map.save(arguments.out / f"{town}.npz")


if __name__ == "__main__":
    main()
