"""Damaged, partial, doubled and foreign files: a named error or a counted entry, never a made-up score."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from bench2drive_sets import record, unpack, write_results

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive import command, summarize


def kinds(made) -> dict[str, int]:
    """Counts of problems but for the routes that these small sets lack."""
    return {kind: count for kind, count in made["problem_counts"].items() if kind != "missing_route"}


def changed(**changes) -> dict:
    return {**record(), **changes}


def scores(**changes) -> dict:
    return changed(scores={**record()["scores"], **changes})


BROKEN = {
    "no object": ["record"],
    "nothing": None,
    "no route": changed(route_id=None),
    "another route id": changed(route_id="Route_1711"),
    "a route id with an end": changed(route_id="RouteScenario_1711_rep0\n"),
    "no status": changed(status=None),
    "no scores": changed(scores=None),
    "no composed score": scores(score_composed=None),
    "score as text": scores(score_composed="100"),
    "score true": scores(score_composed=True),
    "score NaN": scores(score_composed=float("nan")),
    "score infinite": scores(score_route=float("inf")),
    "score beyond floats": scores(score_route=10**400),
    "score above 100": scores(score_composed=100.1),
    "score below 0": scores(score_composed=-0.1),
    "penalty above 1": scores(score_penalty=1.5),
    "no infractions": changed(infractions=None),
    "infractions as a list": changed(infractions=[]),
    "a count, no list": changed(infractions={"red_light": 2}),
    "numbers in a list": changed(infractions={"red_light": [3]}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_damaged_record_counts_as_not_driven(broken, tmp_path):
    write_results(tmp_path / "r.json", broken, record(1773, score=50.0))
    made = summarize(tmp_path)
    assert kinds(made) == {"damaged_record": 1}
    assert made["driving_score"] == pytest.approx(50.0 / 220) and made["records"] == 1
    assert made["files"][0]["damaged_records"] == 1
    assert "1711" in [route for _, route in made["ability"]["crashed"]]
    json.dumps(made, allow_nan=False)


CUT = {
    "empty": b"",
    "cut": b'{"_checkpoint": {"records": [',
    "no json": b"not json",
    "bytes": b"\xff\xfe\x00\x80",
    "a list": b"[]",
    "a number": b"7",
    "no checkpoint": b"{}",
    "a wrong checkpoint": b'{"_checkpoint": 3}',
    "no records": b'{"_checkpoint": {"records": {}}}',
    "too deep": b"[" * 100_000,
    "a long number": b"1" * 10_000,
}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT.keys())
def test_a_damaged_file_is_counted_beside_a_good_one_and_named_alone(data, tmp_path):
    (tmp_path / "eval_1.json").write_bytes(data)
    with pytest.raises(DataError, match=r"eval_1\.json"):
        summarize(tmp_path)
    write_results(tmp_path / "eval_0.json", record())
    made = summarize(tmp_path)
    assert kinds(made) == {"damaged_file": 1}
    assert made["files_in_merge_order"] == ["eval_0.json"] and made["driving_score"] == pytest.approx(100 / 220)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_golden_file_cut_anywhere_gives_no_score(share, tmp_path):
    folder, expected = unpack("02_mixed_two_files", tmp_path)
    data = (folder / "eval_1.json").read_bytes()
    (folder / "eval_1.json").write_bytes(data[: int(len(data) * share)])
    made = summarize(folder, expected["map_lookups"])
    assert kinds(made) == {"damaged_file": 1} and made["records"] == 110
    assert made["problem_counts"]["missing_route"] == 110
    assert made["driving_score"] < expected["driving_score"]


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bytes_end_in_figures_or_a_named_error(seed, tmp_path):
    rng = np.random.default_rng(seed)
    path = write_results(tmp_path / "r.json", *(record(number) for number in (1711, 1773, 1790)))
    data = bytearray(path.read_bytes())
    for place in rng.integers(len(data), size=4):
        data[place] = rng.integers(256)
    path.write_bytes(data)
    try:
        made = summarize(tmp_path)
    except DataError as error:
        assert "r.json" in str(error)
    else:
        assert 0.0 <= made["driving_score"] <= 300 / 220
        json.dumps(made, allow_nan=False)


def test_no_result_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="found none"):
        summarize(tmp_path)
    with pytest.raises(DataError, match="expected a folder"):
        summarize(tmp_path / "nowhere")


def test_outputs_of_the_official_tools_are_left_out(tmp_path):
    write_results(tmp_path / "eval_0.json", record())
    shutil.copy(tmp_path / "eval_0.json", tmp_path / "merged.json")
    (tmp_path / "merged_ability.json").write_text('{"Overtaking": 1.0}')
    made = summarize(tmp_path)
    assert made["records"] == 1 and made["files_skipped"] == ["merged.json", "merged_ability.json"]
    (tmp_path / "summary.json").write_text('{"driving_score": 63.3}')  # of `wamdiff2 leaderboard`
    assert summarize(tmp_path)["files_skipped"] == ["merged.json", "merged_ability.json", "summary.json"]
    assert not [problem for problem in summarize(tmp_path)["problems"] if problem["kind"] == "damaged_file"]
    (tmp_path / "eval_0.json").unlink()
    with pytest.raises(DataError, match=r"left out: \['merged\.json'"):
        summarize(tmp_path)


def test_a_copied_file_counts_twice_as_officially_and_is_told(tmp_path):
    write_results(tmp_path / "eval_0.json", record(1711), record(1773))
    shutil.copy(tmp_path / "eval_0.json", tmp_path / "eval_0 (copy).json")
    made = summarize(tmp_path)
    assert made["driving_score"] == pytest.approx(400 / 220) and made["distinct"]["driving_score"] < 1.0
    assert kinds(made) == {"duplicate_route": 2} and made["routes_driven"] == 2


@pytest.mark.parametrize("progress", [[1, 5], [5, 5], None, [1], ["1", "1"], [True, True]])
def test_an_unfinished_file_is_told(progress, tmp_path):
    path = write_results(tmp_path / "eval_0.json", record())
    value = json.loads(path.read_text())
    value["_checkpoint"]["progress"] = progress
    path.write_text(json.dumps(value))
    assert kinds(summarize(tmp_path)) == {"partial_file": 1}


def test_what_is_not_scored_may_hold_anything(tmp_path):
    path = write_results(tmp_path / "r.json", changed(meta={"duration_system": float("nan")}, index=[[]]))
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "entry_status": float("inf"), "sensors": 3}))
    made = command.evaluate([tmp_path], tmp_path / "out")
    assert kinds(made.summary) == {} and made.summary["files"][0]["entry_status"] is None
    json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)


def test_a_route_outside_of_the_benchmark_is_told(tmp_path):
    write_results(tmp_path / "r.json", record(99999))
    made = summarize(tmp_path)
    assert kinds(made) == {"unknown_route": 1} and made["routes_driven"] == 0
    assert made["driving_score"] == pytest.approx(100 / 220) and made["distinct"]["driving_score"] == 0.0


def test_lacking_lists_are_told(tmp_path):
    write_results(tmp_path / "r.json", changed(infractions={"min_speed_infractions": []}))
    assert kinds(summarize(tmp_path)) == {"missing_lists": 1}


def test_a_score_that_its_infractions_do_not_give_is_told(tmp_path):
    honest = record(1773, collisions_vehicle=["hit"])
    honest["scores"]["score_composed"] = 60.0
    write_results(tmp_path / "r.json", record(1711, collisions_vehicle=["hit"]), honest)
    made = summarize(tmp_path)
    assert [(p["kind"], p["where"]) for p in made["problems"] if p["kind"] != "missing_route"] == [
        ("wrong_score", "RouteScenario_1711_rep0")
    ]
    assert made["driving_score"] == pytest.approx(160 / 220) and made["success_rate"] == 0.0


STEP = {"acceleration": [0, 0, 9.8], "angular_velocity": [0, 0, 0], "forward_vector": [1, 0, 0]}
STEP["right_vector"] = [0, 1, 0]


def write_metric(folder, save_name, value) -> None:
    (folder / save_name).mkdir(parents=True)
    (folder / save_name / "metric_info.json").write_text(value if isinstance(value, str) else json.dumps(value))


def test_missing_and_damaged_metrics_are_counted(tmp_path):
    good, cut, short, absent = (record(number) for number in (1711, 1773, 1790, 1792))
    write_results(tmp_path / "r.json", good, cut, short, absent)
    write_metric(tmp_path / "metric", good["save_name"], {str(k): STEP for k in range(30)})
    write_metric(tmp_path / "metric", cut["save_name"], '{"0": {"accel')
    write_metric(tmp_path / "metric", short["save_name"], {"0": STEP, "1": STEP})
    made = summarize(tmp_path)
    assert kinds(made) == {"damaged_metric": 2, "missing_metric": 1}
    assert made["driving_smoothness"] == 1.0 and made["metric_records"] == 1


@pytest.mark.parametrize(
    "value",
    [[], {"0": 3}, {str(k): {**STEP, "acceleration": [0, 0]} for k in range(9)},
     {str(k): {**STEP, "forward_vector": [0, None, 0]} for k in range(9)},
     {str(k): {**STEP, "angular_velocity": [0, 0, float("nan")]} for k in range(9)}, {}],
)  # fmt: skip
def test_a_metric_file_that_is_none_gives_no_smoothness(value, tmp_path):
    write_results(tmp_path / "r.json", record())
    write_metric(tmp_path / "metric", record()["save_name"], value)
    made = summarize(tmp_path)
    assert kinds(made) == {"damaged_metric": 1} and made["driving_smoothness"] is None


def test_a_save_name_does_not_lead_out_of_the_folder(tmp_path):
    write_metric(tmp_path, "outside", {str(k): STEP for k in range(9)})
    write_results(tmp_path / "run" / "r.json", changed(save_name="../../outside"))
    (tmp_path / "run" / "metric").mkdir()
    assert summarize(tmp_path / "run")["driving_smoothness"] is None


def test_metrics_may_lie_elsewhere_but_must_lie_somewhere(tmp_path):
    write_results(tmp_path / "run" / "r.json", record())
    write_metric(tmp_path / "saved", record()["save_name"], {str(k): STEP for k in range(9)})
    assert summarize(tmp_path / "run", metric_dir=tmp_path / "saved")["driving_smoothness"] == 1.0
    with pytest.raises(DataError, match="nowhere"):
        summarize(tmp_path / "run", metric_dir=tmp_path / "nowhere")


def test_a_malformed_lookup_ends_the_evaluation(tmp_path):
    write_results(tmp_path / "r.json", record(28035, status="Failed", score=50.0))
    with pytest.raises(DataError, match=r"map_lookups\[28035\]"):
        summarize(tmp_path, {"28035": 7})
