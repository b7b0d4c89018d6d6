"""Every golden scene, scored by the official code, must come out of our scorer."""

from __future__ import annotations

import copy
import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.navsim import comfort
from wamdiff2_core.evaluate.navsim.scene import read_scene
from wamdiff2_core.evaluate.navsim.scoring import drive, score_plans

GOLDEN = Path(__file__).parents[1] / "golden" / "navsim" / "scenes.json.gz"
DISCRETE = ("nc", "dac", "ddc", "ddc_not_in_score", "tlc", "ttc", "lk", "hc", "ec", "comfort", "multiplicative_product")


@cache
def golden() -> dict:
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        return json.load(file)


SCENES = {scene["id"]: scene for scene in golden()["scenes"]}


def test_all_scenes_are_there():
    assert len(SCENES) == 84
    assert sum("human" in scene for scene in SCENES.values()) == 5


@pytest.mark.parametrize("name", SCENES)
def test_scores_equal_the_official_ones(name):
    expected = {key: value for key, value in SCENES[name]["expected"].items() if key.startswith("v")}
    result = navsim.score(SCENES[name])
    assert set(result) == set(expected)
    for version, table in expected.items():
        del_detail = {key: value for key, value in table.items() if key != "detail"}
        assert set(result[version]) == set(del_detail)
        for key, value in del_detail.items():
            if key in DISCRETE or value is None:
                assert result[version][key] == value, (version, key)
            else:
                assert result[version][key] == pytest.approx(value, abs=1e-5), (version, key)


@pytest.mark.parametrize("name", SCENES)
def test_simulated_states_and_steps_equal_the_official_ones(name):
    scene, expected = read_scene(SCENES[name]), SCENES[name]["expected"]
    driven, before = drive(scene, scene.plan[None])
    pairs = [(driven.states[0], "simulated_plan"), (driven.states[-1], "simulated_reference")]
    if before is not None:
        pairs.append((before, "simulated_previous"))
    for states, key in pairs:
        difference = states - np.array(expected[key])
        difference[:, :2] += scene.origin
        difference[:, 2] = np.angle(np.exp(1j * difference[:, 2]))
        assert np.abs(difference).max() < 2e-5, key
    for version in ("v11", "v2"):
        detail = expected[version]["detail"]
        progress = detail["progress_raw_m"]
        assert driven.progress_m[[0, -1]] == pytest.approx([progress["plan"], progress["reference"]], abs=1e-4)
        for key, flags in (
            ("multiple_lanes", driven.where.several_lanes),
            ("non_drivable", driven.where.off_road),
            ("off_route_lane", driven.where.off_route),
        ):
            assert "".join("01"[int(flag)] for flag in flags[0]) == detail[key], key


@pytest.mark.parametrize("name", SCENES)
def test_first_steps_that_count_equal_the_official_ones(name):
    scene = read_scene(SCENES[name])
    driven, _ = drive(scene, scene.plan[None])
    for version, ignored in (("v11", np.zeros_like(driven.at_start)), ("v2", driven.at_start)):
        detail = SCENES[name]["expected"][version]["detail"]
        for key, events in (("first_at_fault_collision_step", driven.faults), ("first_ttc_step", driven.meets)):
            steps = np.flatnonzero(events[0][:, ~ignored].any(axis=1))
            if version == "v2" and key == "first_ttc_step":
                steps = steps[steps <= 31]
            assert (steps[0] if len(steps) else None) == detail[key], (version, key)


@pytest.mark.parametrize("name", SCENES)
def test_comfort_signals_equal_the_official_ones(name):
    scene = read_scene(SCENES[name])
    driven, before = drive(scene, scene.plan[None])
    details = {version: SCENES[name]["expected"][version]["detail"] for version in ("v11", "v2")}
    for flags, extremes, signals in (
        (
            details["v11"]["comfort_flags"],
            details["v11"]["comfort_signal_min_max"],
            comfort.plan_signals(driven.states[:1]),
        ),
        (
            details["v2"]["hc_flags"],
            details["v2"]["hc_signal_min_max"],
            comfort.history_signals(driven.states[:1], scene.past),
        ),
    ):
        assert {key: bool(value[0]) for key, value in comfort.within_limits(signals).items()} == flags
        for key, bounds in extremes.items():
            assert [signals[key].min(), signals[key].max()] == pytest.approx(bounds, abs=1e-3), key
    if before is not None:
        rms = comfort.changes(driven.states[:1], before, scene.before.steps)
        assert {key: value[0] for key, value in rms.items()} == pytest.approx(details["v2"]["ec_rms"], abs=1e-4)


def test_many_plans_at_once_score_as_one_by_one():
    plans = np.array([scene["plan"] for scene in SCENES.values()])
    for name in ("random_4", "human_all", "nc_already_overlapping"):
        scene = read_scene(SCENES[name])
        together = score_plans(scene, plans)
        for index in range(0, len(plans), 7):
            alone = score_plans(scene, plans[index : index + 1])
            for table in ("v11", "v2", "human_filtered"):
                if getattr(together, table) is None:
                    continue
                for key, values in getattr(together, table).items():
                    np.testing.assert_allclose(values[index], getattr(alone, table)[key][0], atol=1e-9, err_msg=key)


def test_turned_and_moved_scenes_keep_their_scores():
    scene = copy.deepcopy(SCENES["random_1"])
    turn, shift = 2.1, np.array([664430.25, 3997650.5])
    for_poses = [scene["ego"]["pose"], *scene["reference"], *scene["route_centerline"]]
    for_poses += [state["pose"] for state in scene["ego_past"]] + [scene["previous"]["ego"]["pose"]]
    for_poses += [row for agent in scene["agents"] for row in agent["track"] if row is not None]
    origin = np.array(scene["ego"]["pose"][:2])
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    for pose in for_poses:
        pose[:2] = rotation @ (np.array(pose[:2]) - origin) + shift
        pose[2] += turn
    for thing in scene["static_objects"]:
        thing["x"], thing["y"] = rotation @ (np.array([thing["x"], thing["y"]]) - origin) + shift
        thing["heading"] += turn
    for polygon in scene["map"]["polygons"]:
        polygon["exterior"] = ((np.array(polygon["exterior"]) - origin) @ rotation.T + shift).tolist()
    before, after = navsim.score(SCENES["random_1"]), navsim.score(scene)
    for version, table in before.items():
        assert after[version] == pytest.approx(table, abs=1e-6)


@pytest.mark.parametrize("name", ["human_ddc", "random_0"])
def test_one_version_alone_scores_as_both_together(name):
    scene = read_scene(SCENES[name])
    both = score_plans(scene, scene.plan[None])
    old, new = score_plans(scene, scene.plan[None], ("v11",)), score_plans(scene, scene.plan[None], ("v2",))
    assert old.v11 == both.v11 and not old.v2 and old.human_filtered is None
    assert not new.v11 and list(new.v2) == list(both.v2)
    assert all(np.array_equal(new.v2[key], both.v2[key], equal_nan=True) for key in both.v2)


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_scores_the_same_the_first_time_and_later(name):
    scene = read_scene(SCENES[name])
    first, later = score_plans(scene, scene.plan[None]), score_plans(scene, scene.plan[None])
    assert all(np.array_equal(first.v2[key], later.v2[key], equal_nan=True) for key in first.v2)
