"""`--kernels` of evaluations: one refusal everywhere, told in results, and rows of other kernels kept apart."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from language_files import lingo_folder
from rich.console import Console
from typer.testing import CliRunner

from wamdiff2_cli.main import app
from wamdiff2_core.decode.pick import Choice
from wamdiff2_core.errors import CheckpointError, ConfigError, Wamdiff2Error
from wamdiff2_core.evaluate import frame_run, kernels_used, text_answers
from wamdiff2_core.evaluate.coco import run as coco
from wamdiff2_core.evaluate.coco import shards as coco_shards
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.everything import config as configuration
from wamdiff2_core.evaluate.everything import output
from wamdiff2_core.evaluate.everything.rows.frames import Frames
from wamdiff2_core.evaluate.everything.run import evaluate
from wamdiff2_core.evaluate.frames import read_frames
from wamdiff2_core.evaluate.lingoqa import run as lingoqa
from wamdiff2_core.evaluate.navsim.planned import PlanJob
from wamdiff2_core.evaluate.tables import caption
from wamdiff2_core.evaluate.text_answers import AskJob, Question
from wamdiff2_sim.evaluate import Job

QUIET = Console(quiet=True)
NO_GPU = "kernels triton: expected a CUDA device, got cpu; "


def refused(*arguments: object) -> str:
    with pytest.raises(Wamdiff2Error) as caught:
        CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return str(caught.value)


def commands(checkpoint: Path, data: Path, out: Path) -> dict[str, tuple[object, ...]]:
    """Every evaluation that drives a model, with files that are there as far as options go."""
    (data / "all.yaml").write_text(json.dumps({
        "checkpoints": {"one": str(checkpoint)}, "benchmarks": {"frames": {"data": str(data)}}, "out": str(out),
    }))  # fmt: skip
    (data / "q.json").write_text("[]")
    ask = ("--checkpoint", checkpoint, "--images", data)
    return {
        "frames": ("evaluate", "frames", checkpoint, data, "--out", out / "f.json"),
        "drive": ("evaluate", "drive", checkpoint, "--out", out / "d.json"),
        "lingoqa": ("evaluate", "lingoqa", data / "q.json", *ask, "--out", out),
        "drivebench": ("evaluate", "drivebench", data / "q.json", *ask, "--out", out),
        "coco": ("evaluate", "coco", data / "q.json", "--checkpoint", checkpoint, "--out", out),
        "navsim": ("evaluate", "navsim", data / "q.json", "--checkpoint", checkpoint, "--out", out / "n.json"),
        "all": ("evaluate", "all", "--config", data / "all.yaml"),
    }


@pytest.mark.parametrize("name", ["frames", "drive", "lingoqa", "drivebench", "coco", "navsim", "all"])
def test_every_evaluation_refuses_alike_before_anything_is_written(micro: Path, tmp_path: Path, name: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    command = commands(micro, data, out)[name]
    assert refused(*command, "--kernels", "fast").startswith("--kernels: expected one of auto, lean, plain, engine")
    assert refused(*command, "--kernels", "triton").startswith(NO_GPU)
    assert not out.exists()
    told = CliRunner().invoke(app, [*map(str, command[:2]), "--help"], env={"COLUMNS": "200"}).stdout
    assert "--kernels" in told and "triton_fp8" in told


def test_frames_of_other_kernels_are_rows_of_their_own(micro: Path, shards: Path, tmp_path: Path) -> None:
    job = frame_run.FrameJob(micro, shards, tmp_path / "frames.json", (8,), steps=2, frames=2)
    lean = frame_run.run(job, QUIET)
    assert lean["settings"]["kernels"] == "lean" and "CUDA device" in lean["settings"]["kernels_reason"]  # type: ignore
    first = job.rows_file.read_text()
    engine = frame_run.run(replace(job, kernels="engine"), QUIET)
    assert engine["settings"]["kernels"] == "engine torch" and "kernels engine torch" in caption(engine)  # type: ignore
    both = job.rows_file.read_text()
    assert both.startswith(first) and len(both.splitlines()) == 4  # none of the other's rows was taken
    assert [row["key"][-1] for row in map(json.loads, both.splitlines())][2:] == ["engine torch"] * 2
    assert frame_run.recount(job.out)["results"] == engine["results"]
    for again in ("torch", "lean", "auto"):  # what ran counts, not the word
        frame_run.run(replace(job, kernels=again), QUIET)
    assert job.rows_file.read_text() == both
    assert frame_run.recount(job.out)["results"] == lean["results"]
    old = json.loads(job.out.read_text())
    del old["settings"]["kernels"], old["settings"]["kernels_reason"]  # a result of before there was a choice
    job.out.write_text(json.dumps(old))
    assert frame_run.recount(job.out)["results"] == lean["results"]


def test_keys_of_all_rows_name_kernels_other_than_lean(micro: Path, tmp_path: Path) -> None:
    question = Question("1", "what?", {})
    for one, other in (
        (Job("tiny", "Town01", 1, 32, 4, 0.6).key, Job("tiny", "Town01", 1, 32, 4, 0.6, kernels="torch").key),
        (PlanJob(micro).key(), PlanJob(micro, kernels="torch").key()),
        (AskJob(micro, tmp_path).key(question), AskJob(micro, tmp_path, kernels="torch").key(question)),
    ):
        assert one != other
    ask, drive = AskJob(micro, tmp_path, device="cuda"), Job("tiny", "Town01", 1, 32, 4, 0.6, "cuda")
    frames = frame_run.FrameJob(micro, tmp_path, tmp_path / "f.json", device="cuda")
    for keys in (  # on a GPU old rows, which name no kernels, may be of lean or of an engine: nobody takes them up
        [PlanJob(micro, kernels=k, devices=("cuda:0",)).key() for k in ("lean", "auto", "torch")]
        + [PlanJob(micro).key()],
        [replace(ask, kernels=k).key(question) for k in ("lean", "auto", "torch")]
        + [AskJob(micro, tmp_path).key(question)],
        [str(replace(drive, kernels=k).key) for k in ("lean", "auto", "torch")],
        [str(replace(frames, kernels=k).key("x", 8)) for k in ("lean", "auto", "torch")],
    ):
        assert len(set(keys)) == len(keys)
    assert drive.key[-1] == frames.key("x", 8)[-1] == "auto" and replace(drive, kernels="lean").key[-1] == "lean"
    assert kernels_used.name_part("engine triton", "cuda") == kernels_used.key_part("triton", "cuda")
    assert PlanJob(micro).key() == PlanJob(micro, kernels="lean").key()
    assert Job("tiny", "Town01", 1, 32, 4, 0.6, kernels="lean").key == Job("tiny", "Town01", 1, 32, 4, 0.6).key


def test_answers_to_questions_say_what_ran(micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_answers, "_drivers", {})
    lingo, rows = lingo_folder(tmp_path / "lingo"), tmp_path / lingoqa.ROWS
    job = AskJob(micro, rows, Setting(steps=2), fill="black")
    for kernels, told, count in (("auto", "lean", 3), ("torch", "engine torch", 6), ("engine", "engine torch", 6)):
        asking = replace(job, kernels=kernels)
        report = lingoqa.evaluate(lingoqa.LingoJob(lingo / "val.parquet", tmp_path, asking, lingo, tokenizer="words"))
        assert report["settings"]["kernels"] == told and report["settings"]["block_size"] == 32
        assert len(rows.read_text().splitlines()) == count
    (driver,) = text_answers._drivers.values()
    assert driver.kernels == "engine torch"


def test_boxes_of_other_kernels_are_rows_of_their_own(micro: Path, shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "i.json"
    file.write_text(json.dumps(coco_shards.instances(read_frames(shards, 0), shards)))
    counts = []
    for kernels, told in (("auto", "lean"), ("engine", "engine torch")):
        job = coco.CocoJob(file, shards, tmp_path / "out", micro, setting=Setting(8, 2), most=2, kernels=kernels)
        assert coco.evaluate(job)["settings"]["kernels"] == told
        counts.append(len((tmp_path / "out" / coco.ROWS).read_text().splitlines()))
    assert counts == [2, 4]


def test_the_table_of_all_takes_them_from_its_file_or_the_option(micro: Path, shards: Path, tmp_path: Path) -> None:
    raw: dict[str, Any] = {
        "checkpoints": {"micro": str(micro)}, "decoding": "B=8,steps=2", "out": str(tmp_path / "out"),
        "benchmarks": {"frames": {"data": str(shards), "frames": 1}}, "kernels": "torch",
    }  # fmt: skip
    report = evaluate(configuration.of(raw), (Frames(),))
    assert report["errors"] == [] and report["machine"]["kernels"] == report["settings"]["kernels"] == "torch"
    assert all(row["kernels"] == ["engine torch"] for row in report["rows"])
    assert "Kernels: engine torch." in output.sections(report)[0]["facts"]
    with pytest.raises(ConfigError, match="my.yaml: kernels: expected one of auto, .*; got 'fast'"):
        configuration.of({**raw, "kernels": "fast"}, "my.yaml")
    with pytest.raises(ConfigError, match=re.escape(NO_GPU)):
        evaluate(configuration.of({**raw, "kernels": "triton"}), (Frames(),))
    file = tmp_path / "all.yaml"
    file.write_text(json.dumps({**raw, "kernels": "triton"}))
    made = CliRunner().invoke(
        app, ["evaluate", "all", "--config", str(file), "--kernels", "plain", "--json"], catch_exceptions=False
    )
    assert {name for row in json.loads(made.stdout)["rows"] for name in row["kernels"]} == {"plain"}


def test_devices_that_would_decode_differently_are_refused(micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on(checkpoint: Path, device: str, *rest: object) -> Choice:
        return Choice("triton" if device == "cuda:0" else "lean", f"of {device}")

    monkeypatch.setattr(kernels_used, "_on", on)
    assert kernels_used.settled(micro, ("cuda:0", "cuda:0")).kernels == "engine triton"
    with pytest.raises(ConfigError, match=r"same on all devices, got cuda:0: engine triton .*; cpu: lean \(of cpu\)"):
        kernels_used.settled(micro, ("cuda:0", "cpu"))


def test_a_device_that_is_not_there_is_named_first(micro: Path, shards: Path, tmp_path: Path) -> None:
    job = frame_run.FrameJob(micro, shards, tmp_path / "out" / "frames.json", device="cuda:93")
    with pytest.raises(CheckpointError, match="cuda:93"):
        frame_run.run(job, QUIET)
    assert not (tmp_path / "out").exists()
