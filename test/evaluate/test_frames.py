"""Evaluation on labelled frames: reading shards, running, resuming, figures and tables."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate import frame_run
from wamdiff2_core.evaluate.frame_figures import figures
from wamdiff2_core.evaluate.frames import Frame, read_frames, read_image, read_prompt
from wamdiff2_core.evaluate.tables import cells, markdown, merged_markdown, read_report
from wamdiff2_core.scene import EgoState
from wamdiff2_core.tasks import plan
from wamdiff2_sim.question_kinds import kind_of
from wamdiff2_sim.questions import WORDINGS

QUIET = Console(quiet=True)


def test_frames_hold_images_and_truth_of_all_tasks(shards: Path) -> None:
    frames = read_frames(shards, 0)
    assert len(frames) == 6 and len({frame.name for frame in frames}) == 6
    frame = frames[0]
    assert frame.points.shape == (8, 2) and len(frame.questions) == 2 and frame.instruction == "follow the road"
    scene = frame.scene(("cam_front", "cam_front_left", "cam_front_right"), "why?")
    assert scene.images["cam_front"].shape == (64, 64, 3) and scene.question == "why?"
    assert frame.points[0, 0] == pytest.approx(scene.ego.speed * 0.5, abs=0.02)
    assert [f.name for f in read_frames(shards, 2)] == [frames[0].name, frames[-1].name]


def test_the_prompt_reads_back() -> None:
    ego = EgoState((5.12, -0.3), (0.31, -0.05))
    back, instruction = read_prompt(plan.prompt_text(ego, "turn left in 40 m"))
    assert (back.velocity, back.acceleration, instruction) == (ego.velocity, ego.acceleration, "turn left in 40 m")
    with pytest.raises(DataError, match="human text"):
        read_prompt("drive!")


def test_what_is_missing_is_named(tmp_path: Path, micro: Path) -> None:
    with pytest.raises(DataError, match="wamdiff2 dataset"):
        read_frames(tmp_path, 0)
    (tmp_path / "samples.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="conversation"):
        read_frames(tmp_path, 0)
    with pytest.raises(DataError, match="image file"):
        read_image(tmp_path / "samples.json")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        frame_run.FrameJob(tmp_path, tmp_path, tmp_path / "x.json")
    with pytest.raises(ConfigError, match="block sizes"):
        frame_run.FrameJob(micro, tmp_path, tmp_path / "x.json", block_sizes=())


def test_on_an_engine_each_job_has_its_block_sizes_and_no_measured_frame_captures(
    micro: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_run, "_drivers", {})
    captured: list[int] = []
    answer_frame = frame_run.answer_frame

    def watched(driver: Driver, frame: Frame) -> dict[str, object]:
        before = len(driver.decoder.engine.graphs)  # type: ignore[attr-defined]
        row = answer_frame(driver, frame)
        captured.append(len(driver.decoder.engine.graphs) - before)  # type: ignore[attr-defined]
        return row

    monkeypatch.setattr(frame_run, "answer_frame", watched)
    for sizes in ((8, 12), (24,)):
        out = tmp_path / f"{len(sizes)}.json"
        job = frame_run.FrameJob(micro, shards, out, sizes, steps=2, frames=1, kernels="torch")
        assert [row["block_size"] for row in frame_run.run(job, QUIET, kind_of)["results"]] == list(sizes)  # type: ignore
    assert [count > 0 for count in captured] == [True, False] * 3  # the call before the measured one captures


def test_a_run_can_be_gone_on_with(micro: Path, shards: Path, tmp_path: Path) -> None:
    job = frame_run.FrameJob(micro, shards, tmp_path / "frames.json", (8, 32), steps=2, frames=2)
    report = frame_run.run(job, QUIET, kind_of)
    lines = job.rows_file.read_text().splitlines(keepends=True)
    assert len(lines) == 4 and [r["block_size"] for r in report["results"]] == [8, 32]
    assert read_report(job.out) == report
    job.rows_file.write_text("".join(lines[:3]) + lines[3][:40])  # as a kill leaves it
    again = frame_run.run(job, QUIET, kind_of)
    kept = job.rows_file.read_text().splitlines(keepends=True)
    assert kept[:3] == lines[:3] and len(kept) == 4
    assert [r["failures"] for r in again["results"]] == [r["failures"] for r in report["results"]]
    assert frame_run.recount(job.out, kind_of)["results"] == again["results"]
    text = merged_markdown([again])
    assert "| block size | 8 | 32 |" in text and "forwards per plan" in text and "| daytime |" in text


def row(block: int, offset: float | None, answer: str | None) -> dict:
    truth = np.column_stack([np.arange(1, 9) * 2.0, np.zeros(8)])
    failed = offset is None
    made = {
        "points": None if failed else (truth + [0.0, offset]).tolist(),
        "truth": truth.tolist(),
        "failure": "range" if failed else None,
        "forwards": 12,
        **dict.fromkeys(("vision_ms", "prefill_ms", "decode_ms", "total_ms"), 10.0),
    }
    boxes = {"boxes": [["car", [1, 1, 500, 500], 0.9]], "truth": [["car", [1, 1, 500, 500]]], "failure": None}
    ask = {"question": "is it day or night?", "answer": answer, "truth": "it is day.", "failure": None}
    return {"block_size": block, "plan": made, "detect": boxes, "ask": [ask]}


def test_figures_count_what_failed_and_score_the_rest() -> None:
    rows = [row(32, 0.5, "it is day"), row(32, None, None), row(1, 0.1, "it is night")]
    one, many = figures(rows, kind_of)
    assert (one["block_size"], many["block_size"]) == (1, 32)
    assert one["ade_m"] == pytest.approx(0.1) and many["ade_m"] == pytest.approx(0.5) and many["plans"] == 1
    assert many["failures"]["plan"] == {"range": 1} and many["failed_plans_share"] == 0.5
    assert many["answers_correct_by_kind"] == {"daytime": 0.5} and one["answers_correct"] == 0.0
    assert many["map50"] == pytest.approx(1.0) and many["parse_failures_share"] == 0.0


def test_without_its_package_map_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    monkeypatch.delitem(sys.modules, "wamdiff2_core.evaluate.detection", raising=False)
    (only,) = figures([row(32, 0.5, "it is day")])
    assert only["map50"] is None and "faster_coco_eval" in only["map_missing"] and only["ade_m"] == pytest.approx(0.5)


def test_figures_of_nothing_are_not_made_up() -> None:
    assert figures([]) == []
    (only,) = figures([row(4, None, None)])
    assert only["ade_m"] is None and only["per_waypoint_m"] is None
    assert "ADE" not in markdown(cells({"what": "frames", "results": [only]}))


def test_report_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with pytest.raises(DataError, match="result file"):
        read_report(file)
    file.write_text(json.dumps({"what": "weather", "results": []}))
    with pytest.raises(DataError, match="frames"):
        read_report(file)


@pytest.mark.parametrize("kind", WORDINGS)
def test_every_question_of_the_world_has_its_kind(kind: str) -> None:
    for wording in WORDINGS[kind]:
        assert kind_of(wording.format(move="turn left", text="turn left in 40 m")) == kind
    assert kind_of("who are you?") == "other"
