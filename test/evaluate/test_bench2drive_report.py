"""Several seeds, the report and the files that are left behind."""

from __future__ import annotations

import json
import os
import re
import statistics

import pytest
from bench2drive_sets import record, unpack, write_results

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.bench2drive import command, find_runs, output, summarize, summarize_seeds
from wamdiff2_core.evaluate.bench2drive.seeds import spread

FILES = {"summary.json", "report.md", "report.html", "merged.json"}


def seeds(root, *scores: float) -> list:
    """A folder of results for each score, one route each."""
    for number, score in enumerate(scores):
        write_results(root / f"seed_{number}" / "r.json", record(1711, score=score))
    return [root / f"seed_{number}" for number in range(len(scores))]


def test_spread_over_seeds(tmp_path):
    scores = (100.0, 80.0, 30.0)
    made = summarize_seeds(seeds(tmp_path, *scores))
    figure = made["figures"]["driving_score"]
    assert figure["values"] == [score / 220 for score in scores]
    assert figure["mean"] == pytest.approx(statistics.fmean(scores) / 220)
    assert figure["std"] == pytest.approx(statistics.stdev(scores) / 220)
    assert (figure["min"], figure["max"]) == (30 / 220, 100 / 220)
    assert made["by_scenario"]["ParkingCutIn"]["driving_score"]["mean"] == pytest.approx(210 / 3 / 5)
    assert made["figures"]["driving_smoothness"]["mean"] is None
    assert len(made["runs"]) == 3


def test_a_figure_that_one_run_lacks_has_no_mean():
    assert spread([0.5, None])["mean"] is None and spread([0.5, None])["known"] == 1
    assert spread([0.5])["mean"] == 0.5 and spread([0.5])["std"] is None


def test_runs_are_the_named_folders_or_those_below(tmp_path):
    runs = seeds(tmp_path, 1.0, 2.0)
    (tmp_path / "notes").mkdir()
    assert find_runs([tmp_path]) == runs
    assert find_runs(runs) == runs
    with pytest.raises(ConfigError, match="seed_0"):
        find_runs([tmp_path, runs[0]])
    with pytest.raises(DataError, match="notes"):
        find_runs([tmp_path / "notes"])


def test_one_run_leaves_all_files(tmp_path):
    folder, expected = unpack("04_duplicates", tmp_path)
    made = command.evaluate([folder], tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary == json.loads(json.dumps(made.summary))
    assert summary["driving_score"] == expected["driving_score"]
    merged = json.loads((tmp_path / "out" / "merged.json").read_text())
    assert [row["route_id"] for row in merged["_checkpoint"]["records"]] == expected["merged_route_order"]
    assert merged["driving score"] == expected["driving_score"] and merged["eval num"] == 45
    assert "index" not in merged["_checkpoint"]["records"][0]


def test_merged_json_is_left_out_when_it_is_beside_results(tmp_path):
    """The official tools can read it, and a later summary is not changed by it."""
    folder, _ = unpack("04_duplicates", tmp_path)
    command.evaluate([folder], tmp_path / "out")
    before = summarize(folder)
    os.rename(tmp_path / "out" / "merged.json", folder / "merged.json")
    after = summarize(folder)
    assert after.pop("files_skipped") == ["merged.json"] and before.pop("files_skipped") == []
    assert after == before


def test_several_runs_leave_their_spread(tmp_path):
    seeds(tmp_path / "runs", 10.0, 30.0)
    command.evaluate([tmp_path / "runs"], tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["figures"]["driving_score"]["mean"] == pytest.approx(20 / 220)
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"merged.json"} | {
        "merged_1.json",
        "merged_2.json",
    }
    assert "0.09 ± 0.06" in (tmp_path / "out" / "report.md").read_text()


def test_report_is_one_page_and_escapes_what_results_hold(tmp_path):
    evil = "Failed - <script>alert(1)</script> | x\ny \ud800"
    write_results(tmp_path / "r" / "r.json", record(status=evil))
    command.evaluate([tmp_path / "r"], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and page.count("<img") == 4
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    line = next(line for line in (tmp_path / "out" / "report.md").read_text().splitlines() if "alert" in line)
    assert "<script" not in line and line.count(" | ") == 1


def test_an_error_leaves_the_old_report_untouched(tmp_path, monkeypatch):
    runs = seeds(tmp_path, 10.0, 30.0)
    command.evaluate(runs[:1], tmp_path / "out")
    old = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        command.evaluate(runs[1:], tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == old


def test_results_are_never_written_among_results(tmp_path):
    (run,) = seeds(tmp_path, 10.0)
    with pytest.raises(ConfigError, match="another folder"):
        command.evaluate([run], run)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can be written"):
        command.evaluate([run], tmp_path / "file")


def test_lookups_from_a_file(tmp_path):
    folder, expected = unpack("07_map_Town04_Town05", tmp_path)
    made = command.evaluate([folder], tmp_path / "out", map_lookups=tmp_path / "expected.json")
    assert made.summary["ability"] == expected["ability"]
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match=r"list\.json"):
        command.evaluate([folder], tmp_path / "out", map_lookups=tmp_path / "list.json")


def test_one_metric_folder_is_for_one_run(tmp_path):
    with pytest.raises(ConfigError, match="metric-dir"):
        command.evaluate(seeds(tmp_path, 1.0, 2.0), tmp_path / "out", metric_dir=tmp_path)


def test_command_prints_json_alone(tmp_path):
    from typer.testing import CliRunner

    from wamdiff2_cli.evaluate import app

    (run,) = seeds(tmp_path, 10.0)
    done = CliRunner().invoke(app, ["bench2drive", str(run), "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["driving_score"] == pytest.approx(10 / 220)
    told = CliRunner().invoke(app, ["bench2drive", str(run), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0 and "missing route: 219" in " ".join(told.output.split())
