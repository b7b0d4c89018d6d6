"""Scenes that cannot be scored end in a DataError that names the field."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.navsim.scene import read_scene
from wamdiff2_core.evaluate.navsim.scoring import score_plans

GOLDEN = Path(__file__).parents[1] / "golden" / "navsim" / "scenes.json.gz"


@pytest.fixture(scope="module")
def whole() -> dict:
    """A scene with everything: agents, static objects, lights, a plan before."""
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        return next(scene for scene in json.load(file)["scenes"] if scene["id"] == "random_1")


REQUIRED = ("id", "ego", "ego_past", "map", "route_centerline", "traffic_lights", "agents", "static_objects")


@pytest.mark.parametrize("key", [*REQUIRED, "reference", "plan"])
def test_a_missing_key_is_named(whole, key):
    scene = {name: value for name, value in whole.items() if name != key}
    with pytest.raises(DataError, match=f"'{key}' is missing"):
        navsim.score(scene)


def _set(path: str, value: object) -> Callable[[dict], None]:
    def change(scene: dict) -> None:
        *places, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split(".")]
        for place in places:
            scene = scene[place]
        scene[last] = value

    return change


def _append_copy(path: str) -> Callable[[dict], None]:
    def change(scene: dict) -> None:
        for place in path.split("."):
            scene = scene[place]
        scene.append(copy.deepcopy(scene[0]))

    return change


BROKEN = {
    "nan in the plan": (_set("plan.3.1", float("nan")), r"plan: expected finite"),
    "infinity in the reference": (_set("reference.0.0", float("inf")), r"reference: expected finite"),
    "a plan of seven": (lambda scene: scene["plan"].pop(), r"plan: expected shape \(8, 3\), got \(7, 3\)"),
    "a ragged plan": (lambda scene: scene["plan"][2].pop(), r"plan: expected numbers"),
    "a text in the plan": (_set("plan.0.0", "1.0"), r"plan: expected numbers"),
    "no number at all": (_set("plan", None), r"plan: expected numbers"),
    "40 reference poses": (lambda scene: scene["reference"].pop(), r"reference: expected shape \(41, 3\)"),
    "a track of 50": (lambda scene: scene["agents"][0]["track"].pop(), r"track: expected 51 entries, got 50"),
    "a track of nothing": (_set("agents.0.track", [None] * 51), r"track: expected shape"),
    "nan in a track": (_set("agents.0.track.4", [float("nan")] * 4), r"agents\[0\].track: expected finite"),
    "a flat agent": (_set("agents.0.width", 0.0), r"width: expected more than 0"),
    "an unknown agent": (_set("agents.0.type", "tram"), r"type: expected one of .*'tram'"),
    "an unknown static object": (_set("static_objects.0.type", "vehicle"), r"static_objects\[0\].type"),
    "an unknown area": (_set("map.polygons.0.type", "LAKE"), r"polygons\[0\].*'LAKE'"),
    "a polygon of two points": (_set("map.polygons.0.exterior", [[0.0, 0.0], [1.0, 0.0]]), r"three points or more"),
    "a path of one point": (_set("route_centerline", [[0.0, 0.0, 0.0]]), r"two points or more"),
    "agents twice": (_append_copy("agents"), r"objects: '.*' is there twice"),
    "polygons twice": (_append_copy("map.polygons"), r"polygons: '.*' is there twice"),
    "lights twice": (_append_copy("traffic_lights"), r"traffic_lights: '.*' is there twice"),
    "a light on no connector": (_set("traffic_lights.0.lane_connector_id", "nowhere"), r"no polygon has the id"),
    "a light of three steps": (_set("traffic_lights.0.state", ["red"] * 3), r"a list of 41"),
    "a blue light": (_set("traffic_lights.0.state", "blue"), r"state: expected one of"),
    "a past that ends early": (lambda scene: scene["ego_past"].pop(), r"ego_past: expected .* that end at 0"),
    "a past out of order": (lambda scene: scene["ego_past"].reverse(), r"ego_past: expected"),
    "a velocity of three": (_set("ego.velocity", [1.0, 0.0, 0.0]), r"ego.velocity: expected shape \(2,\)"),
    "a plan before of 0.9 s ago": (_set("previous.dt", 0.9), r"previous.dt: expected 0.1 to 0.5"),
    "a plan before of now": (_set("previous.dt", 0.04), r"previous.dt: expected 0.1 to 0.5"),
    "a past of years": (_set("ego_past.0.t", -9e7), r"ego_past: expected"),
    "a plan before without ego": (lambda scene: scene["previous"].pop("ego"), r"previous: 'ego' is missing"),
    "a human of four waypoints": (_set("human", [[0.0, 0.0, 0.0]] * 4), r"human: expected shape"),
    "a list of agents that is none": (_set("agents", {"a": 1}), r"agents: expected a list"),
    "an agent that is none": (_set("agents.0", 7), r"agents\[0\]: expected an object"),
    "beyond every map": (_set("ego.pose", [1e12, 0.0, 0.0]), r"ego.pose: expected finite numbers below"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(whole, name):
    change, message = BROKEN[name]
    scene = copy.deepcopy(whole)
    change(scene)
    with pytest.raises(DataError, match=message):
        navsim.score(scene)


@pytest.mark.parametrize("scene", [None, [], "scene", 3, {}])
def test_what_is_no_scene(scene):
    with pytest.raises(DataError, match="scene"):
        navsim.score(scene)


@pytest.mark.parametrize("shape", [(8, 3), (0, 8, 3), (2, 8, 2), (2, 7, 3)])
def test_plans_of_another_shape(whole, shape):
    with pytest.raises(DataError, match=r"expected finite plans \(N, 8, 3\)"):
        score_plans(read_scene(whole), np.zeros(shape))


def test_a_plan_that_no_car_can_follow_has_scores_or_an_error(whole):
    for size in (1e3, 1e5, 9e7):
        plan = np.tile([size, -size, 3.0], (8, 1)) * np.linspace(0.1, 1, 8)[:, None]
        table = navsim.score({**whole, "plan": plan.tolist()})["v2"]
        assert all(0.0 <= value <= 1.0 for value in table.values())


ODD = (
    None,
    "x",
    "",
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None],
    [1, 2],
    1e9,
    9e7,
    -9e7,
    -1,
    0,
    0.05,
    True,
    10**400,
)


def test_any_odd_value_anywhere_gives_scores_or_a_data_error(whole):
    random, ends = np.random.default_rng(0), {"scores": 0, "errors": 0}
    for _ in range(300):
        scene = copy.deepcopy({key: value for key, value in whole.items() if key != "expected"})
        node: list | dict = scene
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = keys[random.integers(len(keys))]
            if not isinstance(node[key], (dict, list)) or not node[key] or random.random() < 0.25:
                break
            node = node[key]
        node[key] = ODD[random.integers(len(ODD))]
        try:
            tables = navsim.score(scene)
        except DataError:
            ends["errors"] += 1
            continue
        ends["scores"] += 1
        values = [value for table in tables.values() for value in table.values() if value is not None]
        assert all(0.0 <= value <= 1.0 for value in values), key
    assert min(ends.values()) > 30
