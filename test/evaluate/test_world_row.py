"""Our own world's benchmark in small form: one held-out town, frames and a short closed-loop route, in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wamdiff2_cli.evaluate_all import benchmarks
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.everything import config as configuration
from wamdiff2_core.evaluate.everything.benchmark import Request
from wamdiff2_core.evaluate.everything.output import write_report
from wamdiff2_core.evaluate.everything.run import evaluate
from wamdiff2_sim.world_row import World

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
SMALL = {"towns": ["Town02"], "frames": 2, "routes_per_town": 1, "route_m": [25, 35], "traffic": [4, 2]}
DRIVES = {"driving score", "route completion", "collisions per route", "red lights run per route", "off road"}
FRAMES = {"distance to the expert (ADE)", "boxes, mAP50", "right answers", "failed plans", "all failures"}


@pytest.mark.slow
def test_the_small_form_drives_and_answers(tmp_path: Path) -> None:
    world = {**SMALL, "data": str(tmp_path / "frames")}
    config = configuration.of({
        "checkpoints": {"tiny": str(TINY)}, "decoding": "B=32,steps=2,threshold=0.6", "out": str(tmp_path / "out"),
        "benchmarks": {"world": world},
    })  # fmt: skip
    report = evaluate(config, benchmarks())
    assert report["errors"] == []
    rows = {row["figure"]: row for row in report["rows"]}
    assert DRIVES | FRAMES | {"forwards per plan"} == set(rows)
    assert all(row["own_world"] and row["title"].startswith("Own world") for row in rows.values())
    assert 0.0 <= rows["driving score"]["mean"] <= 100.0 and 0.0 < rows["route completion"]["mean"] <= 1.0
    assert rows["right answers"]["count"] > 0 and rows["driving score"]["latency_ms"] > 0.0
    assert rows["driving score"]["data"] == ["towns Town02; 1 routes from seed 1000; 2 frames from seed 9"]
    write_report(config.out, report)
    fronts = json.loads((config.out / "report.json").read_text())["pareto"]
    assert {front["figure"] for front in fronts} == {"driving score", "distance to the expert (ADE)"}
    assert "not in CARLA" in (config.out / "report.md").read_text()
    kept = {path: path.read_bytes() for path in config.out.rglob("*.jsonl")}
    again = evaluate(config, benchmarks())
    assert len(kept) == 2 and all(path.read_bytes() == content for path, content in kept.items())
    assert [row["values"] for row in again["rows"]] == [row["values"] for row in report["rows"]]


def test_what_it_cannot_do_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="frames or routes_per_town"):
        World().needs({"frames": 0, "routes_per_town": 0})
    with pytest.raises(ConfigError, match="no option 'town'"):
        World().needs({"town": "Town01"})
    for wrong in ({"towns": [1]}, {"towns": []}, {"route_m": [1]}, {"traffic": [1, 2.5]}, {"routes_per_town": -1}):
        with pytest.raises(ConfigError, match=f"world: {next(iter(wrong))}: expected"):
            World().needs(wrong)
    assert World().needs({"latency_s": None}) == []
    unknown = Request({"towns": ["Nowhere"], "frames": 0}, tmp_path, TINY)
    with pytest.raises(DataError, match="Nowhere"):
        World().run(unknown)
    with pytest.raises(ConfigError, match="greedily"):
        World().run(Request({}, tmp_path, TINY, Setting(temperature=0.5)))
