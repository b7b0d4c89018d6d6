"""NAVSIM's metric caches and logs, from pickles of classes that stand in for the devkit's: same names, same layout."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import sys
import types
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.navsim import metric_cache

GOLDEN = Path(__file__).parents[1] / "golden" / "navsim" / "scenes.json.gz"
NAME = "human_ddc"
MODULE = "navsim.planning.metric_caching.metric_cache"


class Thing:
    """Any object of the devkit: attributes only."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


class Layer(Enum):
    LANE = 0
    LANE_CONNECTOR = 1
    ROADBLOCK = 2
    INTERSECTION = 3
    CARPARK_AREA = 4
    DRIVABLE_AREA = 5
    STOP_LINE = 6


class Kind(Enum):
    VEHICLE = 0
    PEDESTRIAN = 1
    BICYCLE = 2
    TRAFFIC_CONE = 3
    BARRIER = 4
    CZONE_SIGN = 5
    GENERIC_OBJECT = 6
    EGO = 7


class Sampled(Thing):
    def get_sampled_trajectory(self) -> list:
        return self.states  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def devkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with the stand-ins, so that pickles name them as the devkit's own."""
    for end in range(1, len(MODULE.split("."))):
        name = ".".join(MODULE.split(".")[:end])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType(MODULE)
    for one in (Thing, Layer, Kind, Sampled):
        monkeypatch.setattr(one, "__module__", MODULE)
        setattr(module, one.__name__, one)
    monkeypatch.setitem(sys.modules, MODULE, module)


def golden() -> dict:
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        return next(one for one in json.load(file)["scenes"] if one["id"] == NAME)


def pose(values: list[float]) -> Thing:
    return Thing(x=values[0], y=values[1], heading=values[2])


def pair(values: list[float]) -> Thing:
    return Thing(x=values[0], y=values[1])


def ego(state: dict, time_s: float) -> Thing:
    car = Thing(rear_axle_velocity_2d=pair(state["velocity"]), rear_axle_acceleration_2d=pair(state["acceleration"]))
    steer = state.get("steering", 0.0)
    return Thing(
        rear_axle=pose(state["pose"]), dynamic_car_state=car, tire_steering_angle=steer,
        time_point=Thing(time_s=100.0 + time_s),
    )  # fmt: skip


def tracked(scene: dict, step: int) -> Thing:
    found = [Thing(track_token="ego", tracked_object_type=Kind.EGO, box=None, velocity=None)]
    for one in scene["agents"]:
        row = one["track"][step]
        if row is not None:
            box = Thing(center=pose(row), length=one["length"], width=one["width"])
            speed = pair([row[3] * np.cos(row[2]), row[3] * np.sin(row[2])])
            kind = Kind[one["type"].upper()]
            found.append(Thing(track_token=one["token"], tracked_object_type=kind, box=box, velocity=speed))
    for one in scene["static_objects"]:
        box = Thing(center=pose([one["x"], one["y"], one["heading"]]), length=one["length"], width=one["width"])
        found.append(Thing(track_token=one["token"], tracked_object_type=Kind[one["type"].upper()], box=box))
    return Thing(tracked_objects=found)


def lights(scene: dict) -> list:
    steps = []
    for step in range(41):
        on = [one for one in scene["traffic_lights"] if one["state"] == "red" or one["state"][step] == "red"]
        steps.append(([f"red_light_{one['lane_connector_id']}" for one in on], []))
    return steps


def cache_of(scene: dict) -> Thing:
    """The golden scene as the devkit would have cached it."""
    polygons = scene["map"]["polygons"]
    layers = [Layer[one["type"]] for one in polygons] + [Layer.STOP_LINE]
    shapes = [
        Thing(exterior=Thing(coords=[*map(tuple, one["exterior"]), tuple(one["exterior"][0])])) for one in polygons
    ]
    reference = [Thing(rear_axle=pose(row), time_point=Thing(time_s=7.0 + 0.1 * k))
                 for k, row in enumerate(scene["reference"])]  # fmt: skip
    return Thing(
        drivable_area_map=Thing(tokens=[one["id"] for one in polygons] + ["x"], map_types=layers,
                                _geometries=[*shapes, shapes[0]]),
        route_lane_ids=[one["id"] for one in polygons if one["on_route"] and one["type"].startswith("LANE")],
        centerline=Thing(discrete_path=[pose(row) for row in scene["route_centerline"]]),
        observation=Thing(_occupancy_maps_tl=lights(scene), detections_tracks=[tracked(scene, k) for k in range(41)]),
        ego_state=ego(scene["ego"], 0.0),
        past_human_trajectory=Sampled(states=[ego(one, one["t"]) for one in scene["ego_past"]]),
        trajectory=Sampled(states=reference),
        human_trajectory=Thing(poses=np.array(scene["human"])),
    )  # fmt: skip


def write(folder: Path, content: object, token: str = NAME) -> Path:
    path = folder / "log" / "unknown" / token / metric_cache.CACHE
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(pickle.dumps(content), preset=0))
    return path


def test_a_cache_scores_as_the_golden_scene_it_was_made_of(tmp_path: Path) -> None:
    scene = golden()
    path = write(tmp_path, cache_of(scene))
    record = metric_cache.scene_of(metric_cache.load(path), NAME)
    result = navsim.score({**record, "plan": scene["plan"], "previous": scene["previous"]})  # a frame of its own
    for version in ("v2", "v2_human_filtered"):
        for name, value in scene["expected"][version].items():
            if name != "detail":
                assert result[version][name] == (None if value is None else pytest.approx(value, abs=1e-5)), name


def test_folders_are_exported_with_what_a_log_shows_and_bad_files_are_named(tmp_path: Path, capsys) -> None:
    scene = golden()
    write(tmp_path / "caches", cache_of(scene))
    write(tmp_path / "caches", Thing(observation=None), "broken")
    cut = write(tmp_path / "caches", cache_of(scene), "cut")
    cut.write_bytes(cut.read_bytes()[:500])
    (tmp_path / "logs").mkdir()
    frame = {"token": NAME, "driving_command": np.array([1, 0, 0, 0]), "cams": {"CAM_F0": {"data_path": "a/f.jpg"}}}
    (tmp_path / "logs" / "a.pkl").write_bytes(pickle.dumps([frame]))
    (tmp_path / "logs" / "b.pkl").write_bytes(pickle.dumps([{**frame, "driving_command": [1, 1, 0, 0]}]))
    arguments = [tmp_path / "caches", "--out", tmp_path / "out", "--logs", tmp_path / "logs", "--blobs", "/blobs"]
    assert metric_cache.main([str(one) for one in arguments]) == 1
    told = capsys.readouterr()
    assert "1 scenes in" in told.out and told.err.count("not read") == 3 and "one-hot" in told.err
    with gzip.open(tmp_path / "out" / f"{NAME}.json.gz", "rt") as file:
        record = json.load(file)
    assert record["sensors"] == {"images": {"cam_front": "/blobs/a/f.jpg"}, "instruction": "turn left in 20 m"}


class Evil:
    def __reduce__(self) -> tuple:
        return os.system, ("true",)


@pytest.mark.parametrize("content", [Evil(), {"a": json.loads}, np.load])
def test_nothing_else_is_loaded_from_a_pickle(tmp_path: Path, content: object) -> None:
    path = tmp_path / "log.pkl"
    path.write_bytes(pickle.dumps([content]))
    with pytest.raises(DataError, match="has no place in a NAVSIM file"):
        metric_cache.load(path)


def test_a_missing_devkit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, cache_of(golden()))
    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DataError, match="devkit and nuplan installed"):
        metric_cache.load(path)
