"""`wamdiff2 evaluate navsim`: folders in one and two processes, after an interruption, with broken files."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from wamdiff2_cli.main import app
from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.frames import read_frames
from wamdiff2_core.evaluate.navsim import rows
from wamdiff2_core.evaluate.navsim.run import NavsimJob, evaluate

GOLDEN = Path(__file__).parents[1] / "golden" / "navsim" / "scenes.json.gz"
NAMES = ("random_0", "random_4", "human_ddc", "ep_backwards", "ec_accel", "dac_carpark")


@pytest.fixture(scope="module")
def scenes() -> list[dict]:
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        by_id = {scene["id"]: scene for scene in json.load(file)["scenes"]}
    return [by_id[name] for name in NAMES]


@pytest.fixture
def folder(tmp_path: Path, scenes: list[dict]) -> Path:
    """Four scenes in one compressed file, two in files of their own."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "many.json.gz").write_bytes(gzip.compress(json.dumps({"scenes": scenes[:4]}).encode()))
    for scene in scenes[4:]:
        (data / f"{scene['id']}.json").write_text(json.dumps(scene))
    return data


def plain(report: dict) -> dict:
    return {key: value for key, value in report.items() if key not in ("machine", "settings")}


def test_command_prints_one_json_report(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    out = tmp_path / "out" / "navsim.json"
    result = CliRunner().invoke(app, ["evaluate", "navsim", str(folder), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report == json.loads(out.read_text())
    assert (report["scenes"], report["failed"], report["two_stage"]) == (6, 0, None)
    for version in ("v11", "v2"):
        expected = [scene["expected"][version]["score"] for scene in scenes]
        assert report["scores"][version]["score"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert report["scores"]["v2"]["scenes_with_ec"] == sum("previous" in scene for scene in scenes)
    assert report["scores"]["v2_human_filtered"]["scenes"] == report["l2_to_human"]["scenes"] == 1
    assert report["guards"]["reverses"] == ["ep_backwards"]
    shown = CliRunner().invoke(app, ["evaluate", "navsim", str(folder), "--out", str(out)])
    assert "plans that reverse: 1" in shown.stdout and "distance to the human" in shown.stdout


def test_two_processes_and_an_interrupted_run_give_the_same(folder: Path, tmp_path: Path, monkeypatch) -> None:
    alone = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    assert plain(evaluate(NavsimJob(folder, tmp_path / "b.json", workers=2))) == plain(alone)
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:100])  # killed while writing a row
    scored = []
    once = rows.score_record
    monkeypatch.setattr(rows, "score_record", lambda record, plans: scored.append(record["id"]) or once(record, plans))
    assert plain(evaluate(NavsimJob(folder, tmp_path / "c.json"))) == plain(alone)
    assert len(scored) == 3


def test_a_changed_file_is_scored_anew(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    before = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    changed = copy.deepcopy(scenes[4])
    changed["plan"] = [[0.0, 0.0, 0.0]] * 8
    (folder / f"{changed['id']}.json").write_text(json.dumps(changed))
    after = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    assert after["scenes"] == 6
    difference = navsim.score(changed)["v2"]["ep"] - navsim.score(scenes[4])["v2"]["ep"]
    assert 6 * (after["scores"]["v2"]["ep"] - before["scores"]["v2"]["ep"]) == pytest.approx(difference)


def test_broken_files_and_scenes_are_counted_and_named(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    (folder / "cut.json").write_text(json.dumps(scenes[0])[:5000])
    (folder / "cut.json.gz").write_bytes((folder / "many.json.gz").read_bytes()[:2000])
    (folder / "list.json").write_text("[1, 2]")
    (folder / "nan.json").write_text(json.dumps({**scenes[0], "id": "other", "plan": [[float("nan")] * 3] * 8}))
    twice = {"scenes": [{**scenes[0], "id": "same"}] * 2}
    (folder / "twice.json").write_text(json.dumps(twice))
    report = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    assert (report["scenes"], report["failed"]) == (6, 5)
    told = {failure["file"]: failure["error"] for failure in report["failures"]}
    assert "whole JSON" in told["cut.json"] and "whole JSON" in told["cut.json.gz"]
    assert "expected an object" in told["list.json"] and "NaN" in told["nan.json"] and "twice" in told["twice.json"]


def test_ids_in_two_files_and_empty_folders_are_refused(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    (folder / "again.json").write_text(json.dumps(scenes[0]))
    with pytest.raises(DataError, match="'random_0'"):
        evaluate(NavsimJob(folder, tmp_path / "a.json"))
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(DataError, match="expected a folder with scenes"):
        evaluate(NavsimJob(folder, tmp_path / "b.json"))
    (folder / "cut.json").write_text("{")
    with pytest.raises(DataError, match="none could be scored: cut.json"):
        evaluate(NavsimJob(folder, tmp_path / "b.json"))


def test_other_plans_replace_those_of_the_scenes(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    plans = tmp_path / "plans.json"
    plans.write_text(json.dumps({scene["id"]: scenes[0]["plan"] for scene in scenes[:3]}))
    report = evaluate(NavsimJob(folder, tmp_path / "a.json", plans))
    assert (report["scenes"], report["failed"]) == (3, 3)
    assert all("is missing" in failure["error"] for failure in report["failures"])
    expected = [navsim.score({**scene, "plan": scenes[0]["plan"]})["v11"]["score"] for scene in scenes[:3]]
    assert report["scores"]["v11"]["score"] == pytest.approx(np.mean(expected))
    assert report["plans_without_scene"] == {"count": 0, "first": []}


def test_plans_of_several_runs_share_a_file_of_rows(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    """The same result file for the scenes' own plans, others, and the own ones again: each as if it were alone."""
    plans = tmp_path / "plans.json"
    plans.write_text(json.dumps({**{scene["id"]: scenes[0]["plan"] for scene in scenes}, "of no scene": []}))
    own = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    others = evaluate(NavsimJob(folder, tmp_path / "a.json", plans))
    assert plain(others) == plain(evaluate(NavsimJob(folder, tmp_path / "b.json", plans)))
    assert others["plans_without_scene"] == {"count": 1, "first": ["of no scene"]}
    assert others["scores"] != own["scores"]
    assert plain(evaluate(NavsimJob(folder, tmp_path / "a.json"))) == plain(own)
    plans.write_text('{"x": 1, "x": 2}')
    with pytest.raises(DataError, match="'x' is there twice"):
        evaluate(NavsimJob(folder, tmp_path / "a.json", plans))


def test_files_that_were_renamed_or_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    before = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    (folder / "many.json.gz").rename(folder / "moved.json.gz")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    (folder / "folder.json").mkdir()
    after = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    assert (after["scenes"], after["scores"]["v11"]["score"]) == (6, pytest.approx(before["scores"]["v11"]["score"]))
    assert sorted(one["file"] for one in after["failures"]) == ["folder.json", "gone.json"]


def test_two_stages_of_a_folder(folder: Path, tmp_path: Path, scenes: list[dict]) -> None:
    pairs = [{"now": NAMES[2], "before": NAMES[3]}, {"now": NAMES[4], "before": NAMES[5]}]
    group = {"now": NAMES[0], "before": NAMES[1], "interval_s": 0.5, "second_stage": pairs}
    (folder / "two_stage.json").write_text(json.dumps({"groups": [group]}))
    two = evaluate(NavsimJob(folder, tmp_path / "a.json"))["two_stage"]
    assert (two["groups"], two["scenes"], two["human_filtered_scenes"]) == (1, 6, 1)
    official = [scene["expected"].get("v2_human_filtered", scene["expected"]["v2"]) for scene in scenes]
    assert two["stage_one"]["ep"] == pytest.approx((official[0]["ep"] + official[1]["ep"]) / 2, abs=1e-5)
    assert two["combined"] <= two["stage_one"]["score"]
    (folder / f"{NAMES[5]}.json").unlink()
    short = evaluate(NavsimJob(folder, tmp_path / "b.json"))  # no two-stage score, but those of one stage
    assert short["two_stage"]["combined"] is None and short["scores"]["v2"]["scenes"] == 5
    assert short["two_stage"]["problem"] == "two stages: 1 scenes were not scored, the first is 'dac_carpark'"


def test_a_checkpoint_plans_for_scenes_with_pictures(micro: Path, shards: Path, tmp_path: Path, scenes) -> None:
    """Random weights plan nothing that can be driven: every scene is counted with the reason, and gone on with."""
    from wamdiff2_core.evaluate.navsim import planned

    cameras = json.loads((micro / "config.json").read_text())["block_diffusion"]["cameras"]
    pictures = {name: str(path) for name, path in zip(cameras, read_frames(shards, 0)[0].images)}
    sensors = {"images": pictures, "instruction": "follow the road"}
    (tmp_path / "one.json").write_text(json.dumps({**scenes[0], "sensors": sensors}))
    (tmp_path / "two.json").write_text(json.dumps(scenes[1]))  # shows no pictures
    job = planned.PlanJob(micro)
    made = planned.plan_scenes(job, [tmp_path / "one.json", tmp_path / "two.json"], tmp_path / "p.jsonl", print)
    told = made.plans
    assert made.latency_ms is not None and made.latency_ms > 0 and made.forwards is not None and made.forwards > 0
    assert set(told) == {scenes[0]["id"], scenes[1]["id"]}
    assert "sensors" in told[scenes[1]["id"]]["failure"]
    first = told[scenes[0]["id"]]
    assert "no plan: " in first["failure"] if isinstance(first, dict) else np.shape(first) == (8, 3)
    before = (tmp_path / "p.jsonl").read_bytes()
    again = planned.plan_scenes(job, [tmp_path / "one.json"], tmp_path / "p.jsonl", print)
    assert again.plans == {scenes[0]["id"]: first}
    assert (tmp_path / "p.jsonl").read_bytes() == before
    with pytest.raises(DataError, match="none could be scored"):
        evaluate(NavsimJob(tmp_path / "two.json", tmp_path / "o.json", planner=job))


def test_a_curve_of_distances_is_drawn(folder: Path, tmp_path: Path) -> None:
    evaluate(NavsimJob(folder, tmp_path / "a.json"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_of_the_table_says_whose_scenes_it_is_of(folder: Path, tmp_path: Path) -> None:
    from wamdiff2_core.evaluate.navsim import row

    scene = json.loads((folder / f"{NAMES[5]}.json").read_text())
    (folder / f"{NAMES[5]}.json").write_text(json.dumps({**scene, "source": "a world of ours"}))
    (folder / "cut.json").write_text("{")
    report = evaluate(NavsimJob(folder, tmp_path / "a.json"))
    made = row.measured(report, tmp_path / "a.json")
    assert {"PDMS (NAVSIM v1.1)", "L2 to the human, mean"} <= {one.name for one in made.figures}
    assert "a world of ours: not NAVSIM's benchmark" in made.figures[0].note
    assert made.data.startswith("data: 4 files (") and made.data.endswith("6 scenes scored")
    assert "1 not scored and in no mean" in made.figures[0].note
    assert made.failed == 1 and any("plans reverse" in line for line in made.problems)
    assert any("cut.json" in line for line in made.problems)
