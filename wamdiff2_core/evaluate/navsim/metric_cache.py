"""NAVSIM's own metric caches and logs as scenes of ours, where navsim and nuplan are installed.

`python -m wamdiff2_core.evaluate.navsim.metric_cache CACHE --out DIR [--logs LOGS --blobs BLOBS]`

Both are pickles. Only classes of navsim and nuplan, arrays, polygons and the standard library's containers are loaded
from them; anything else is refused. A cache of v2 knows 4 s of traffic: v1's time to collision looks no further then.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.evaluate.navsim.devkit import CAMERAS, COMMANDS, SAID_M
from wamdiff2_core.evaluate.navsim.scene import AGENTS, DRIVABLE, LANES, STATIC, TRACK_POSES
from wamdiff2_core.evaluate.navsim.vehicle import POSES, STEP_S
from wamdiff2_core.tasks.navigation import navigation_text

OWNERS = ("navsim", "nuplan")  # their classes, no functions
FUNCTIONS = {
    "builtins": ("set", "frozenset"),
    "collections": ("OrderedDict", "defaultdict", "deque"),
    "pathlib": ("Path", "PosixPath", "PurePath", "PurePosixPath"),
    "numpy": ("ndarray", "dtype"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.numeric": ("_frombuffer",),
    "shapely.io": ("from_wkb",),
    "shapely": ("from_wkb",),
    "shapely.wkb": ("loads",),
    "shapely.geometry.polygon": ("Polygon",),
    "shapely.geometry.multipolygon": ("MultiPolygon",),
}
CACHE = "metric_cache.pkl"
RED = "red_light_"


class _Unpickler(pickle.Unpickler):
    """Loads nothing but what a cache or a log is made of."""

    def find_class(self, module: str, name: str) -> Any:
        owner = module.split(".")[0]
        if owner not in OWNERS and name not in FUNCTIONS.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a NAVSIM file")
        found = super().find_class(module, name)
        if owner in OWNERS and not isinstance(found, type):
            raise pickle.UnpicklingError(f"{module}.{name} is no class")
        return found


def load(path: Path) -> Any:
    """A pickle, plain or lzma. DataError if it is cut, holds what it may not, or needs a package that is missing."""
    try:
        with lzma.open(path, "rb") if path.name == CACHE else path.open("rb") as file:
            return _Unpickler(file).load()
    except ImportError as error:
        raise DataError(f"{path}: needs the NAVSIM devkit and nuplan installed: {error}") from error
    except (OSError, EOFError, lzma.LZMAError, pickle.UnpicklingError, AttributeError, ValueError, TypeError) as error:
        raise DataError(f"{path}: expected a NAVSIM pickle: {type(error).__name__}: {error}") from error


def caches(folder: Path) -> list[Path]:
    """All caches below a folder: LOG/TYPE/TOKEN/metric_cache.pkl. DataError if there are none."""
    found = sorted(folder.rglob(CACHE))
    if not found:
        raise DataError(f"{folder}: expected {CACHE} files in folders named by token")
    return found


def scene_of(cache: Any, token: str) -> dict[str, Any]:
    """A MetricCache in the plain form of scene files, without a plan. DataError if it lacks something."""
    try:
        tracks = cache.observation.detections_tracks
        human = None if cache.human_trajectory is None else np.asarray(cache.human_trajectory.poses, dtype=float)
        record: dict[str, Any] = {
            "id": token,
            "map": {"polygons": _polygons(cache.drivable_area_map, {str(one) for one in cache.route_lane_ids})},
            "route_centerline": [_se2(one) for one in cache.centerline.discrete_path],
            "traffic_lights": _lights(cache.observation),
            "ego": _ego(cache.ego_state),
            "ego_past": _past(cache.past_human_trajectory.get_sampled_trajectory(), cache.ego_state),
            "reference": _reference(cache.trajectory.get_sampled_trajectory()),
            **_objects(tracks),
        }
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise DataError(f"{token}: expected a MetricCache of NAVSIM v2: {type(error).__name__}: {error}") from error
    if human is not None:
        record["human"] = human.tolist()
    return record


def sensors_of(frames: Sequence[Mapping[str, Any]], index: int, blobs: Path) -> dict[str, Any]:
    """What an agent is shown of frame `index` of a log: newest pictures by our camera names, and the instruction.

    DataError if the frame lacks something.
    """
    try:
        frame = frames[index]
        command = np.asarray(frame["driving_command"], dtype=int).tolist()
        if sorted(command) != [0] * (len(COMMANDS) - 1) + [1]:
            raise DataError(f"{frame['token']}: expected a one-hot driving command, got {command}")
        pictures = {
            name: frame["cams"].get(theirs.upper(), frame["cams"].get(theirs)) for name, theirs in CAMERAS.items()
        }
        images = {name: str(blobs / one["data_path"]) for name, one in pictures.items() if one is not None}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"log frame {index}: expected a frame of NAVSIM: {type(error).__name__}: {error}") from error
    return {"images": images, "instruction": navigation_text(COMMANDS[command.index(1)], SAID_M)}


def read_log(path: Path, blobs: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(token, sensors) of every frame of a log file. DataError if it is none."""
    frames = load(path)
    if not isinstance(frames, list) or not all(isinstance(one, dict) and "token" in one for one in frames):
        raise DataError(f"{path}: expected a list of frames with tokens")
    for index, frame in enumerate(frames):
        yield str(frame["token"]), sensors_of(frames, index, blobs)


def _se2(pose: Any) -> list[float]:
    return [float(pose.x), float(pose.y), float(pose.heading)]


def _polygons(area_map: Any, route: set[str]) -> list[dict[str, Any]]:
    polygons = []
    for number, (token, layer, shape) in enumerate(zip(area_map.tokens, area_map.map_types, area_map._geometries)):
        kind = layer.name
        if kind not in LANES + DRIVABLE:
            continue
        ring = np.asarray(shape.exterior.coords, dtype=float)[:, :2]
        on_route = kind in LANES and str(token) in route
        name = str(token) if kind in LANES else f"{kind}_{token}_{number}"
        polygons.append({"id": name, "type": kind, "on_route": on_route, "exterior": ring.tolist()})
    return list({one["id"]: one for one in polygons}.values())  # a lane can be in two road blocks' lists


def _lights(observation: Any) -> list[dict[str, Any]]:
    """Connectors of the route that are red at some step; the cache tells no other colour."""
    steps = [{str(token).removeprefix(RED) for token in tokens} for tokens, _ in observation._occupancy_maps_tl or ()]
    steps = steps[:POSES] + [set()] * (POSES - len(steps))
    red = sorted(set().union(*steps))
    return [{"lane_connector_id": one, "state": ["red" if one in step else "unknown" for step in steps]} for one in red]


def _ego(state: Any) -> dict[str, Any]:
    car = state.dynamic_car_state
    velocity, acceleration = car.rear_axle_velocity_2d, car.rear_axle_acceleration_2d
    return {
        "pose": _se2(state.rear_axle),
        "velocity": [float(velocity.x), float(velocity.y)],
        "acceleration": [float(acceleration.x), float(acceleration.y)],
        "steering": float(state.tire_steering_angle),
    }


def _past(states: Sequence[Any], now: Any) -> list[dict[str, Any]]:
    zero = float(now.time_point.time_s)
    rows = [{"t": round(float(state.time_point.time_s) - zero, 6), **_ego(state)} for state in states]
    rows = [row for row in rows if row["t"] < -1e-6]
    return [*rows, {"t": 0.0, **_ego(now)}]


def _reference(states: Sequence[Any]) -> list[list[float]]:
    """The first 4 s of PDM-Closed at 0.1 s."""
    times = np.array([float(state.time_point.time_s) for state in states])
    poses = np.array([_se2(state.rear_axle) for state in states])
    poses[:, 2] = np.unwrap(poses[:, 2])
    at = times[0] + np.arange(POSES) * STEP_S
    return np.stack([np.interp(at, times, column) for column in poses.T], axis=1).tolist()


def _objects(tracks: Sequence[Any]) -> dict[str, list]:
    """Agents and static objects with tracks of 51 entries, None behind what the cache knows."""
    found: dict[str, dict[str, Any]] = {}
    for step, detections in enumerate(tracks[:TRACK_POSES]):
        for one in detections.tracked_objects:
            kind, box = one.tracked_object_type.name.lower(), one.box
            if kind not in AGENTS + STATIC:
                continue  # what nuplan knows as the ego, or as nothing
            token = str(one.track_token)
            size = {"length": float(box.length), "width": float(box.width)}
            row = found.setdefault(token, {"token": token, "type": kind, **size, "track": [None] * TRACK_POSES})
            speed = math.hypot(one.velocity.x, one.velocity.y) if kind in AGENTS else 0.0
            row["track"][step] = [*_se2(box.center), speed]
    return {
        "agents": [row for row in found.values() if row["type"] in AGENTS],
        "static_objects": [row for row in found.values() if row["type"] in STATIC],
    }


def export(folder: Path, out: Path, logs: Path | None, blobs: Path | None) -> tuple[int, list[str]]:
    """A scene file for each cache, with sensors where a log has the token: (files written, what could not be read)."""
    shown: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for path in sorted(logs.glob("*.pkl")) if logs else ():
        try:
            shown.update(read_log(path, blobs or Path()))
        except DataError as error:
            problems.append(str(error))
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    for path in caches(folder):
        token = path.parent.name
        try:
            record = scene_of(load(path), token)
        except DataError as error:
            problems.append(str(error))
            continue
        if token in shown:
            record["sensors"] = shown[token]
        text = json.dumps(record, separators=(",", ":"))
        (out / f"{token}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        written += 1
    return written, problems


def main(argv: Sequence[str] | None = None) -> int:
    """0: every file was read; 1: some were not, or none was there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--logs", type=Path, help="folder of log pickles: adds pictures and instructions")
    parser.add_argument("--blobs", type=Path, help="folder of sensor blobs")
    got = parser.parse_args(argv)
    try:
        written, problems = export(got.cache, got.out, got.logs, got.blobs)
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in problems:
        print(f"not read: {line}", file=sys.stderr)
    print(f"{written} scenes in {got.out}, {len(problems)} files not read")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
