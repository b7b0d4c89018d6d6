"""Every figure of every golden set equals that of the official tools, to the last bit; quirks one by one."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from bench2drive_sets import GOLDEN, SETS, record, unpack, write_results

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive import summarize
from wamdiff2_core.evaluate.bench2drive.abilities import junction_completion
from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, penalty, routes
from wamdiff2_core.evaluate.bench2drive.comfort import smoothness

EXACT = (
    "driving_score", "success_rate", "eval_num", "records", "warning_not_220", "successful_route_ids", "ability",
    "driving_efficiency", "driving_smoothness", "files_in_merge_order",
)  # fmt: skip
SOME_SETS_ONLY = ("merged_route_order", "smoothness_per_record")


def test_eight_sets_are_there():
    assert len(SETS) == 8


@pytest.mark.parametrize("name", SETS)
def test_all_figures_are_the_official_ones(name, tmp_path):
    folder, expected = unpack(name, tmp_path)
    made = summarize(folder, expected["map_lookups"])
    for key in (*EXACT, *(key for key in SOME_SETS_ONLY if key in expected)):
        assert made[key] == expected[key], key
    rounded = expected.get("driving_efficiency_per_record", made["driving_efficiency_per_record"])
    assert made["driving_efficiency_per_record"] == pytest.approx(rounded, abs=6e-7)
    assert not {"wrong_score", "damaged_record", "missing_lists", "map_needed"} & set(made["problem_counts"])


@pytest.mark.parametrize("name", [name for name in SETS if "map" in name])
def test_without_the_map_the_sign_ability_is_bounded_not_guessed(name, tmp_path):
    folder, expected = unpack(name, tmp_path)
    made = summarize(folder)
    assert made["ability"]["Traffic_Signs"] is None and made["ability"]["mean"] is None
    assert made["ability"]["Merging"] == expected["ability"]["Merging"]
    low, high = made["ability_detail"]["Traffic_Signs"]["bounds"]
    assert low <= expected["ability"]["Traffic_Signs"] <= high and low < high
    assert set(made["map_needed"]) <= set(expected["map_lookups"])
    assert made["problem_counts"]["map_needed"] == len(made["map_needed"])


def test_a_part_of_the_lookups_is_not_enough(tmp_path):
    folder, expected = unpack("07_map_Town04_Town05", tmp_path)
    needed = summarize(folder)["map_needed"]
    some = {key: value for key, value in expected["map_lookups"].items() if key != needed[0]}
    assert summarize(folder, some)["map_needed"] == needed[:1]


def test_routes_and_abilities_are_those_of_the_release():
    table = json.loads(gzip.decompress((GOLDEN / "routes220.json.gz").read_bytes()))
    assert [list(route) for route in routes()] == table["routes"]
    counts = {name: sum(route.scenario in kinds for route in routes()) for name, kinds in ABILITIES.items()}
    assert counts == {"Overtaking": 45, "Merging": 80, "Emergency_Brake": 60, "Give_Way": 10, "Traffic_Signs": 95}


@pytest.mark.parametrize(
    ("lookup", "expected"),
    [
        ({"waypoints_to_first_junction": 77, "route_waypoints": 126}, 85 / 126),
        ({"junction_completion": 0.25}, 0.25),
    ],
)
def test_junction_completion(lookup, expected):
    assert junction_completion("1", lookup) == pytest.approx(expected)


@pytest.mark.parametrize(
    "lookup",
    [None, {}, {"waypoints_to_first_junction": 5}, {"waypoints_to_first_junction": 0, "route_waypoints": 9},
     {"waypoints_to_first_junction": 10, "route_waypoints": 9}, {"junction_completion": "half"},
     {"waypoints_to_first_junction": True, "route_waypoints": 9}],
)  # fmt: skip
def test_a_malformed_lookup_is_named(lookup):
    with pytest.raises(DataError, match=r"map_lookups\[28035\]"):
        junction_completion("28035", lookup)


@pytest.mark.parametrize(("score", "credited"), [(67.46, 0), (67.47, 1)])
def test_a_failed_sign_route_counts_once_past_its_junction(score, credited, tmp_path):
    """Strictly above (77 + 8) / 126 = 67.4603 %."""
    write_results(tmp_path / "r.json", record(28035, status="Failed", score=score))
    lookup = {"28035": {"waypoints_to_first_junction": 77, "route_waypoints": 126}}
    made = summarize(tmp_path, lookup)
    assert made["ability_detail"]["Traffic_Signs"]["successes"] == credited
    assert made["success_rate"] == 0.0


@pytest.mark.parametrize("kind", ["stop_infraction", "red_light"])
def test_a_stop_or_red_light_message_needs_no_map(kind, tmp_path):
    write_results(tmp_path / "r.json", record(28035, status="Failed", **{kind: ["Agent ran it"]}))
    made = summarize(tmp_path)
    assert made["ability"]["Traffic_Signs"] == 0.0 and made["map_needed"] == []


def test_abilities_without_a_route_are_not_known(tmp_path):
    write_results(tmp_path / "r.json", record(1711))
    ability = summarize(tmp_path)["ability"]
    assert ability["Emergency_Brake"] == 1.0 and ability["Overtaking"] is None and ability["mean"] is None
    assert len(ability["crashed"]) == 219


def test_first_repetition_in_merged_order_counts_for_abilities(tmp_path):
    write_results(tmp_path / "r.json", record(1711, 0), record(1711, 1, status="Failed", score=10.0))
    made = summarize(tmp_path)
    assert made["merged_route_order"] == ["RouteScenario_1711_rep1", "RouteScenario_1711_rep0"]
    assert made["ability"]["Emergency_Brake"] == 0.0
    assert made["driving_score"] == pytest.approx(110.0 / 220)  # both count in the sum ...
    assert made["distinct"]["driving_score"] == pytest.approx(10.0 / 220)  # ... one per route here
    assert made["problem_counts"]["duplicate_route"] == 1


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["Average speed is 50% of it", "Average speed is 100.5% of it"], 75.25),
        (["Average speed is 1000% of it", "Average speed is 1000.1% of it"], 1000.0),
        (["Average speed is 2000% of it"], None),
        (["no number here"], None),
        ([], None),
    ],
)
def test_efficiency_of_one_record(messages, expected, tmp_path):
    write_results(tmp_path / "r.json", record(min_speed_infractions=messages))
    made = summarize(tmp_path)
    assert made["driving_efficiency"] == (None if expected is None else pytest.approx(expected))
    assert made["problem_counts"].get("no_average_speed", 0) == (bool(messages) and expected is None)
    assert made["success_rate"] == pytest.approx(1 / 220)


def test_penalties_multiply():
    infractions = {"collisions_pedestrian": ["a"], "red_light": ["a", "b"], "min_speed_infractions": ["slow"] * 9}
    assert penalty(infractions, 10.0) == pytest.approx(0.5 * 0.7**2 * 0.9)


def steps(count: int, rate: float = 0.0, push: float = 0.0) -> tuple[np.ndarray, ...]:
    """A drive straight on: `push` m/s^2 ahead, `rate` rad/s."""
    ahead, right = np.tile([1.0, 0.0], (count, 1)), np.tile([0.0, 1.0], (count, 1))
    return push * ahead, ahead, right, np.full(count, rate)


def test_smooth_chunks():
    assert smoothness(*steps(64)) == 1.0
    assert smoothness(*steps(40, rate=0.94)) == 1.0 and smoothness(*steps(40, rate=0.96)) == 0.0
    assert smoothness(*steps(40, push=2.39)) == 1.0 and smoothness(*steps(40, push=2.41)) == 0.0
    assert smoothness(*steps(3, push=-4.06)) == 0.0


def test_an_unfinished_last_chunk_is_left_out():
    parts = [np.concatenate(pair) for pair in zip(steps(20), steps(19, push=9.0))]
    assert smoothness(*parts) == 1.0
    parts = [np.concatenate(pair) for pair in zip(steps(20), steps(20, push=9.0))]
    assert smoothness(*parts) == 0.5


def test_too_short_a_drive_has_no_smoothness():
    with pytest.raises(DataError, match="more than 2 steps"):
        smoothness(*steps(2))
