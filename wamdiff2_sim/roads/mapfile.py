"""RoadMap <-> .npz without pickle: flat arrays, points as second differences of millimetres (zips small)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.roadmap import MARKS, Lane, LightGroup, RoadMap

FORMAT = 1
TURNS = (Command.FOLLOW, Command.LEFT, Command.RIGHT, Command.STRAIGHT)
_INTS = ("id", "junction_id", "left_id", "right_id", "light_group")
_FLOATS = ("width", "speed_limit_mps", "stop_s")


def write(road_map: RoadMap, path: Path) -> None:
    """Write atomically; `path` should end in .npz."""
    lanes = list(road_map.lanes.values())
    arrays: dict[str, np.ndarray] = {"format": np.array(FORMAT), "name": np.array(road_map.name)}
    arrays["lane_ints"] = np.array([[getattr(lane, k) for k in _INTS] for lane in lanes], dtype=np.int32)
    arrays["lane_floats"] = np.array([[getattr(lane, k) for k in _FLOATS] for lane in lanes], dtype=np.float32)
    arrays["lane_codes"] = np.array([_codes(lane) for lane in lanes], dtype=np.uint8)
    arrays["lane_sizes"], arrays["lane_points"] = _pack([lane.points for lane in lanes], 3)
    arrays["succ_sizes"] = np.array([len(lane.successors) for lane in lanes], dtype=np.int32)
    arrays["succ"] = np.array([i for lane in lanes for i in lane.successors], dtype=np.int32)
    arrays["junction_ids"] = np.array(list(road_map.junctions), dtype=np.int32)
    arrays["junction_sizes"], arrays["junction_points"] = _pack(list(road_map.junctions.values()), 2)
    groups = list(road_map.light_groups.values())
    rows = [(g.id, g.junction_id, g.phase, len(g.poles)) for g in groups]
    arrays["lights"] = np.array(rows, dtype=np.int32).reshape(-1, 4)
    arrays["poles"] = np.array([p for g in groups for p in g.poles], dtype=np.float32).reshape(-1, 4)
    arrays["crosswalks"] = np.array(road_map.crosswalks, dtype=np.float32).reshape(-1, 4, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
    np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def read(path: Path) -> RoadMap:
    """Read a map; raises DataError when the file is not one of ours."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a road map: {error}") from error
    if int(arrays.get("format", -1)) != FORMAT:
        raise DataError(f"{path}: expected road map format {FORMAT}, got {arrays.get('format', 'none')}")
    polygons = _unpack(arrays["junction_sizes"], arrays["junction_points"])
    junctions = {int(i): polygon for i, polygon in zip(arrays["junction_ids"], polygons, strict=True)}
    crosswalks = [rectangle.astype(np.float64) for rectangle in arrays["crosswalks"]]
    return RoadMap(str(arrays["name"]), _read_lanes(arrays), junctions, _read_lights(arrays), crosswalks)


def _codes(lane: Lane) -> tuple[int, int, int, int]:
    return (
        TURNS.index(lane.turn),
        MARKS.index(lane.left_mark),
        MARKS.index(lane.right_mark),
        int(lane.has_sidewalk_right),
    )


def _read_lanes(arrays: dict[str, np.ndarray]) -> dict[int, Lane]:
    lines = _unpack(arrays["lane_sizes"], arrays["lane_points"])
    links = np.split(arrays["succ"], np.cumsum(arrays["succ_sizes"])[:-1])
    lanes: dict[int, Lane] = {}
    for row, points in enumerate(lines):
        values: dict[str, int | float] = {k: int(v) for k, v in zip(_INTS, arrays["lane_ints"][row], strict=True)}
        values |= {k: float(v) for k, v in zip(_FLOATS, arrays["lane_floats"][row], strict=True)}
        turn, left, right, sidewalk = (int(v) for v in arrays["lane_codes"][row])
        lane = Lane(points=points, **values)  # type: ignore[arg-type]
        lane.turn, lane.left_mark, lane.right_mark = TURNS[turn], MARKS[left], MARKS[right]
        lane.has_sidewalk_right = bool(sidewalk)
        lane.successors = [int(i) for i in links[row]]
        lanes[lane.id] = lane
    link_predecessors(lanes)
    return lanes


def link_predecessors(lanes: dict[int, Lane]) -> None:
    """Set every lane's predecessors from the successor lists."""
    for lane in lanes.values():
        lane.predecessors = []
    for lane in lanes.values():
        for successor in lane.successors:
            lanes[successor].predecessors.append(lane.id)


def _read_lights(arrays: dict[str, np.ndarray]) -> dict[int, LightGroup]:
    groups, first = {}, 0
    for number, junction, phase, count in arrays["lights"].tolist():
        poles = [tuple(pole) for pole in arrays["poles"][first : first + count].tolist()]
        groups[number] = LightGroup(number, junction, phase, poles)  # type: ignore[arg-type]
        first += count
    return groups


def _pack(lines: list[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes (L,) and (width, N) second differences in mm of the stacked lines."""
    sizes = np.array([len(line) for line in lines], dtype=np.int32)
    if not lines:
        return sizes, np.empty((width, 0), dtype=np.int32)
    whole = np.round(np.concatenate(lines).astype(np.float64) * 1000.0).astype(np.int64).T
    twice = np.diff(np.diff(whole, prepend=0, axis=1), prepend=0, axis=1)
    return sizes, twice.astype(np.int32)


def _unpack(sizes: np.ndarray, packed: np.ndarray) -> list[np.ndarray]:
    if not len(sizes):
        return []
    whole = np.cumsum(np.cumsum(packed.astype(np.int64), axis=1), axis=1).T
    points = (whole / 1000.0).astype(np.float32)
    return np.split(points, np.cumsum(sizes)[:-1])
