"""The table of all benchmarks: what runs, what is absent, what fails, spread over seeds, plots, the command."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from language_files import drivebench_entry, lingo_folder, picture, write_json
from typer.testing import CliRunner

from wamdiff2_cli.main import app
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError, Wamdiff2Error
from wamdiff2_core.evaluate.everything import config as configuration
from wamdiff2_core.evaluate.everything import options, output, plots, registry
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Request
from wamdiff2_core.evaluate.everything.run import evaluate
from wamdiff2_core.evaluate.everything.table import best

GOLDEN = Path(__file__).parents[1] / "golden" / "bench2drive"


@dataclass(frozen=True)
class Made:
    """A benchmark of a function."""

    name: str = "made"
    title: str = "Made <up>"
    decodes: bool = True
    seeded: bool = True
    own_world: bool = False
    missing: tuple[str, ...] = ()
    measure: Callable[[Request], Measured] = lambda request: Measured((), "d", "v")
    seen: list[Request] = field(default_factory=list)

    def needs(self, options: Any) -> list[str]:
        return list(self.missing)

    def run(self, request: Request) -> Measured:
        self.seen.append(request)
        return self.measure(request)


def by_block(request: Request) -> Measured:
    """More steps take longer; quality is the seed's."""
    setting = request.setting
    quality = Figure("quality", setting.block_size + request.seed, "m", True, 10, True, "note | of <b>it</b>")
    return Measured((quality, Figure("other", None, note="no library")), f"data {request.seed}", "v1", 2,
                    ("two were lost",), 100.0 / setting.block_size, 5.0)  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_json(tmp_path / "checkpoint" / "config.json", {})
    return tmp_path / "checkpoint"


def configured(tmp_path: Path, checkpoint: Path | None = None, **more: Any) -> configuration.Config:
    named = {} if checkpoint is None else {"checkpoints": {"model": str(checkpoint)}}
    return configuration.of({"benchmarks": {"made": {}}, "out": str(tmp_path / "out"), **named, **more})


def test_rows_name_data_version_checkpoint_setting_and_spread(tmp_path: Path, checkpoint: Path) -> None:
    made = Made(measure=by_block)
    report = evaluate(configured(tmp_path, checkpoint, decoding="B=1|8", seeds=[0, 2, 4]), [made])
    assert len(made.seen) == 6 and len({request.out for request in made.seen}) == 6
    first, other, second, _ = report["rows"]
    assert (first["figure"], first["mean"], first["std"], first["values"]) == ("quality", 3.0, 2.0, [1, 3, 5])
    assert first["seeds"] == [0, 2, 4] and first["data"] == ["data 0", "data 2", "data 4"] and first["version"] == "v1"
    assert first["folders"] == [str(checkpoint)] and first["count"] == 30 and first["failed"] == 6
    assert first["decoding"]["block_size"] == 1 and second["decoding"]["block_size"] == 8
    assert other["mean"] is None and other["notes"] == ["no library"]
    assert report["machine"]["commit"] is not None and report["absent"] == [] and report["errors"] == []


def test_seeds_of_training_spread_too(tmp_path: Path, checkpoint: Path) -> None:
    write_json(tmp_path / "second" / "config.json", {})
    made = Made(measure=by_block, seeded=False)
    folders = {"model": [str(checkpoint), str(tmp_path / "second")]}
    report = evaluate(configured(tmp_path, checkpoints=folders, seeds=[0, 1]), [made])
    assert [request.checkpoint for request in made.seen] == [checkpoint, tmp_path / "second"]  # nothing to draw
    assert report["rows"][0]["values"] == [32, 32] and report["rows"][0]["std"] == 0.0
    drawn = Made(measure=by_block, seeded=False)
    evaluate(configured(tmp_path, checkpoint, seeds=[0, 5], decoding="B=8,temperature=0.5,seed=3"), [drawn])
    assert [request.setting.seed for request in drawn.seen] == [3, 8]


def test_a_figure_that_one_seed_lacks_has_no_mean(tmp_path: Path, checkpoint: Path) -> None:
    def measure(request: Request) -> Measured:
        return Measured((Figure("quality", None if request.seed else 1.0),), "d", "v")

    (row,) = evaluate(configured(tmp_path, checkpoint, seeds=[0, 1]), [Made(measure=measure)])["rows"]
    assert row["mean"] is None and row["values"] == [1.0, None]


def test_what_is_absent_or_fails_is_said_and_stops_nothing(tmp_path: Path, checkpoint: Path) -> None:
    def broken(request: Request) -> Measured:
        if request.seed:
            raise DataError("cut file")
        return by_block(request)

    several = [
        Made("gone", "Gone", missing=("data: x is not there",)),
        Made(measure=broken),
        Made("unnamed", "Unnamed"),
    ]
    config = configured(tmp_path, checkpoint, benchmarks={"made": {}, "gone": None}, seeds=[0, 1])
    told: list[str] = []
    report = evaluate(config, several, told.append)
    assert [one["benchmark"] for one in report["absent"]] == ["gone", "unnamed"]
    assert report["errors"][0]["error"] == "DataError: cut file" and report["errors"][0]["seed"] == 1
    assert report["rows"][0]["values"] == [32] and any("cut file" in line for line in told)

    def killed(request: Request) -> Measured:
        raise BrokenProcessPool("a process was killed")

    (error,) = evaluate(configured(tmp_path, checkpoint), [Made(measure=killed)])["errors"]
    assert error["error"] == "BrokenProcessPool: a process was killed"

    def faulty(request: Request) -> Measured:
        raise KeyError("a fault of ours")

    (error,) = evaluate(configured(tmp_path, checkpoint), [Made(measure=faulty)], told.append)["errors"]
    assert error["error"] == "KeyError: 'a fault of ours'" and "Traceback" in told[-1] and "in faulty" in told[-1]
    output.write_report(tmp_path / "out", report)
    for name in ("report.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "cut file" in text and "data: x is not there" in text and "not named in the configuration" in text
    none = evaluate(configured(tmp_path), [Made(measure=by_block)])
    assert none["absent"][0]["missing"] == ["`checkpoints` names none"]
    lost = evaluate(configured(tmp_path, tmp_path / "no"), [Made(measure=by_block)])
    assert "is no checkpoint folder" in lost["absent"][0]["missing"][0]
    with pytest.raises(ConfigError, match="there is no wrong; there are made"):
        evaluate(configured(tmp_path, benchmarks={"wrong": {}}), [Made()])


def test_a_device_that_is_not_there_ends_it_at_once_unless_nothing_decodes(tmp_path: Path, checkpoint: Path) -> None:
    for wrong, told in (
        ({"device": "cuda:93"}, "cuda:93"),
        ({"device": "gpu"}, "'gpu'"),
        ({"dtype": "half"}, "'half'"),
    ):
        made = Made()
        with pytest.raises(CheckpointError, match=told):
            evaluate(configured(tmp_path, checkpoint, **wrong), [made])
        assert not made.seen and not (tmp_path / "out").exists()
    report = evaluate(configured(tmp_path, checkpoint, device="cuda:93"), [Made(decodes=False)])
    assert report["errors"] == [] and report["machine"]["device"] == "cuda:93"  # as configured, for nobody


def test_files_are_whole_and_texts_are_escaped(tmp_path: Path, checkpoint: Path) -> None:
    report = evaluate(configured(tmp_path, checkpoint, decoding="B=1|8|32", seeds=[0, 1]), [Made(measure=by_block)])
    output.write_report(tmp_path, report)
    back = json.loads((tmp_path / "report.json").read_text())
    (front,) = back["pareto"]
    assert back["rows"] == report["rows"] and [point["best"] for point in front["points"]] == [False, False, True]
    text = (tmp_path / "report.md").read_text()
    assert (
        "| quality | m | 32.5 | 0.71 | 2 | 20 | model | B=32,steps=8,threshold=0.9 | 3 | note \\| of <b>it</b> |"
        in text
    )
    assert "not known" in text and "weights" in text and "data 0; data 1" in text
    page = (tmp_path / "report.html").read_text()
    assert "<b>it</b>" not in page and "&lt;b&gt;it&lt;/b&gt;" in page and "Made &lt;up&gt;" in page
    assert page.count("data:image/png;base64,") == 2 and not re.search(r"(src|href)=\"http|<script", page)


def test_best_points() -> None:
    points = [(10.0, 1.0), (20.0, 3.0), (15.0, 0.5), (30.0, 3.0), (10.0, 2.0)]
    assert best(points, True) == [4, 1] and best(points, False) == [0, 2]


def test_zeros_alone_are_drawn_on_a_scale_without_negative_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "png_uri", lambda figure: figure.axes[0])
    row = {"checkpoint": "a", "setting": "B=1", "mean": 0.0, "std": None, "values": [0.0], "unit": "", "figure": "f"}
    assert plots.main_figures([row]).get_xlim() == (0.0, 1.0)
    assert plots.main_figures([{**row, "mean": 5.0}]).get_xlim()[1] > 5.0
    point = {"checkpoint": "a", "setting": "B=1", "latency_ms": 5.0, "value": 0.0, "std": None, "best": True}
    front = {"points": [point], "more_is_better": True, "figure": "f", "unit": ""}
    assert plots.pareto(front).get_ylim() == (-0.05, 1.0)


WRONG = {
    "no list": ("[]", "expected entries"),
    "no yaml": ("a: [", "YAML"),
    "unknown": ("benchmarks: {frames: {}}\ncheckpoint: a", "there is no option 'checkpoint'"),
    "nothing to do": ("checkpoints: {a: b}", "benchmarks: expected at least one"),
    "options": ("benchmarks: {frames: 3}", "frames: expected its options"),
    "seeds": ("benchmarks: {frames: {}}\nseeds: [1, 1]", "seeds"),
    "no seeds": ("benchmarks: {frames: {}}\nseeds: []", "seeds"),
    "workers": ("benchmarks: {frames: {}}\nworkers: 0", "workers"),
    "a number that is a word": ("benchmarks: {frames: {}}\nworkers: many", "workers: expected int"),
    "decoding": ("benchmarks: {frames: {}}\ndecoding: B=0", "block"),
    "folders": ("benchmarks: {frames: {}}\ncheckpoints: {a: []}", "expected a folder"),
    "a benchmark without a name": ("benchmarks: {5: {}}", "expected names, got 5"),
    "a checkpoint without a name": ("benchmarks: {frames: {}}\ncheckpoints: {1: b}", "a name for the table, got 1"),
    "twice": ("benchmarks: {frames: {}}\ncheckpoints: {a: [b, ./b]}", "twice the same"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_configurations_are_named(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    (tmp_path / "all.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        configuration.read_config(tmp_path / "all.yaml")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="x: a: expected int, got True"):
        options.check("x", {"a": True}, {"a": int})
    options.check("x", {"a": 1, "b": None}, {"a": float, "b": (str, type(None))})
    for values in ([], [1.5], [True], [1, 2, 3], ["1", "2"]):
        with pytest.raises(ConfigError, match="x: a: expected 2 int"):
            options.members("x", {"a": values}, "a", int, 2)
    with pytest.raises(ConfigError, match="x: a: expected at least 0, got -1"):
        options.least("x", {"a": -1}, "a", 0)
    for benchmark in registry.benchmarks():
        with pytest.raises(ConfigError, match="no option 'wrong'"):
            benchmark.needs({"wrong": 1})
        assert benchmark.needs({}), benchmark.name


def test_the_example_says_what_is_absent() -> None:
    from wamdiff2_cli.evaluate_all import benchmarks

    example = configuration.read_config(Path(__file__).parents[2] / "config" / "evaluate_all.yaml")
    known = {benchmark.name: benchmark for benchmark in benchmarks()}
    assert set(example.benchmarks) <= set(known)
    for name, chosen in example.benchmarks.items():
        known[name].needs(chosen)


def test_the_command_on_small_data(micro: Path, shards: Path, tmp_path: Path) -> None:
    lingo = lingo_folder(tmp_path / "lingo")
    shown = {"CAM_FRONT": "nuscenes/samples/CAM_FRONT/1.jpg"}
    picture(tmp_path / shown["CAM_FRONT"])
    results = tmp_path / "results"
    results.mkdir()
    for file in (GOLDEN / "02_mixed_two_files" / "input").glob("*.gz"):
        (results / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    gone = {"CAM_FRONT": "nuscenes/samples/CAM_FRONT/2.jpg"}
    asked = [drivebench_entry("behavior", 0, "q", "A", image_path=paths) for paths in (shown, gone)]
    questions = write_json(tmp_path / "q.json", asked)
    values = {
        "checkpoints": {"micro": str(micro)}, "decoding": "B=8|32,steps=2", "out": str(tmp_path / "out"),
        "benchmarks": {
            "bench2drive": {"results": [str(results)]},
            "frames": {"data": str(shards), "frames": 2},
            "lingoqa": {"references": str(lingo / "val.parquet"), "images": str(lingo), "fill": "black",
                        "tokenizer": "words"},
            "drivebench": {"questions": str(questions), "images": str(tmp_path), "fill": "black",
                           "tokenizer": "words"},
        },
    }  # fmt: skip
    config = write_json(tmp_path / "all.yaml", values)  # JSON is YAML
    made = CliRunner().invoke(app, ["evaluate", "all", "--config", str(config), "--json"], catch_exceptions=False)
    report = json.loads(made.stdout)
    assert made.exit_code == 0 and report == json.loads((tmp_path / "out" / "report.json").read_text())
    rows = {(row["benchmark"], row["figure"], row["setting"]): row for row in report["rows"]}
    assert {name for name, _, _ in rows} == {"bench2drive", "frames", "lingoqa", "drivebench"}
    assert rows["bench2drive", "driving score", ""]["mean"] is not None
    lost = rows["drivebench", "accuracy", "B=8,steps=2,threshold=0.9"]
    assert lost["count"] == 2 and lost["mean"] <= 0.5 and lost["failed"] >= 1  # a picture is missing: a wrong answer
    assert "1 questions got no answer: picture" in lost["problems"]
    assert rows["lingoqa", "Lingo-Judge", "B=8,steps=2,threshold=0.9"]["mean"] is None
    assert [one["benchmark"] for one in report["absent"]][0] == "world"
    values["benchmarks"]["lingoqa"]["references"] = str(questions)
    write_json(config, values)
    with pytest.raises(Wamdiff2Error, match="measurements failed: 2"):
        CliRunner().invoke(app, ["evaluate", "all", "--config", str(config), "--json"], catch_exceptions=False)
    again = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "expected a Parquet file" in again["errors"][0]["error"] and "frames" in {
        r["benchmark"] for r in again["rows"]
    }
