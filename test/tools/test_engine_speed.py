"""The speed table of the engine, rehearsed: its file has its keys, a row that fails costs no other one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import engine_speed, speed_dial, speed_rows  # noqa: E402
from benchmarks.speed_report import AIMS, HEADLINES, Aim, headlines, write_report  # noqa: E402
from benchmarks.speed_setup import TINY, Setup, fixed, quantile  # noqa: E402
from wamdiff2_core.decode.engine import flashinfer_ops, kernel_sets  # noqa: E402
from wamdiff2_core.decode.engine.flashinfer_checks import Finding  # noqa: E402
from wamdiff2_core.errors import ConfigError, DataError  # noqa: E402

SMALL = replace(TINY, prefixes=(20,), tokens=40, slow_tokens=2, frames={"3 cameras of 600": ((1, 4, 4),) * 3})
PASSES = [
    {"pass": "narrow", "block_size": 32, "tokens": 32, "prefix": 20, "ms": 1.25, "bytes": 4e9, "flops": 1e11},
    {"pass": "first", "block_size": 32, "tokens": 20, "prefix": 0, "ms": 9.0, "bytes": 4e9, "flops": 1e12},
]
PAIR = {
    "from": 32, "to": 1, "changed_ms": 9.0, "same_ms": 8.5, "difference_ms": 0.5, "largest_ms": 3.0, "changes": 7,
}  # fmt: skip
STAGES = {name: {"p50": ms, "p99": 2 * ms} for name, ms in (("vision", 9.0), ("prefill", 8.0), ("decode", 20.0))}
ROWS: dict[str, Any] = {
    "copy": {"tb_s": 4.2},
    "engine_step": {"passes": PASSES},
    "engine_step_fp8": {"passes": [PASSES[0] | {"ms": 0.9}]},
    "engine_ar": {"prefixes": {"20": {"tps": 600.0}}},
    "blocks": {"block_sizes": {"32": {"20": {"tps": 3000.0}}}},
    "hf_eager_ar": {"prefixes": {"20": {"tps": 15.0}}},
    "hf_graph_ar": {"prefixes": {"20": {"tps": 170.0}}},
    "batch3": {"speedup": 2.5},
    "dial": {"pairs": [PAIR, PAIR | {"from": 1, "to": 32, "difference_ms": 0.75}, PAIR | {"difference_ms": -0.5}]},
    "frames": {"frames": {"3 cameras of 600": {"ms": STAGES | {"total": {"p50": 37.0, "p99": 44.0}}, "prompt": 1900}}},
}
WANTED = dict(
    zip(HEADLINES, (1.25, 0.9, 600.0, 3000.0, 15.0, 170.0, 2.5, 0.75, 44.0, 4.2), strict=True)
)  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """(exit code, what the file says) of a rehearsal."""
    monkeypatch.setattr(engine_speed, "TINY", SMALL)

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "speed.json"
        fixed = ["--tiny", "--device", "cpu", "--kernels", "torch", "--seconds", "0.01", "--out", str(out)]
        return engine_speed.main([*fixed, *options]), json.loads(out.read_text())

    return run


def test_the_file_has_its_keys_and_figures(run) -> None:
    code, told = run("--rows", "copy,engine_ar,frames,hf_graph_ar,hf_eager_ar")
    assert code == 0 and set(HEADLINES) <= told.keys()
    assert {"machine", "commit", "command", "versions", "weights", "settings", "rows"} <= told.keys()
    assert told["weights"].startswith("random") and "--tiny" in told["command"] and told["versions"]["torch"]
    for name in ("copy_tb_s", "tps_b1", "frame_ms_p99_3cams", "tps_hf_eager_ar", "tps_hf_graph_ar"):
        assert told[name] > 0
    assert told["step_ms_b32"] is None
    one = told["rows"]["engine_ar"]["prefixes"]["20"]
    assert (one["tokens"], one["forwards"]) == (40, 40)
    frame = told["rows"]["frames"]["frames"]["3 cameras of 600"]
    assert set(frame["ms"]) == {"vision", "prefill", "decode", "total"} and frame["visual_tokens"] == 12
    assert frame["ms"]["total"]["p99"] >= frame["ms"]["total"]["p50"] > 0


def test_a_row_that_fails_is_recorded_and_costs_no_other(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setup: Setup) -> dict[str, Any]:
        raise ConfigError("no such kernels")

    monkeypatch.setitem(engine_speed.ROWS, "batch3", broken)
    code, told = run("--rows", "batch3,copy")
    assert code == 1 and told["rows"]["batch3"]["error"] == "ConfigError: no such kernels"
    assert told["batch3_speedup"] is None and told["copy_tb_s"] > 0
    code, again = run("--rows", "prebuild", "--keep")
    assert code == 1 and again["rows"].keys() == {"batch3", "copy", "prebuild"}
    assert again["copy_tb_s"] == told["copy_tb_s"]
    monkeypatch.setitem(engine_speed.ROWS, "batch3", lambda setup: {"speedup": 2.5})
    code, again = run("--rows", "batch3", "--keep")
    assert code == 0 and again["batch3_speedup"] == 2.5


def test_a_dead_device_or_a_stuck_row_starts_the_program_anew(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are left run in a new process, and what was measured is kept."""
    started: list[list[str]] = []

    class Replaced(Exception):
        pass

    def execv(program: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise Replaced

    def broken(setup: Setup) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(engine_speed.os, "execv", execv)
    monkeypatch.setattr(engine_speed, "poisoned", lambda: True)
    monkeypatch.setattr(Setup, "cuda", property(lambda self: True))
    monkeypatch.setitem(engine_speed.ROWS, "copy", broken)
    with pytest.raises(Replaced):
        run("--rows", "copy,batch3,ladder")
    monkeypatch.setitem(engine_speed.ROWS, "copy", lambda setup: {"tb_s": 1.0, "flashinfer_problem": "CUDA error"})
    with pytest.raises(Replaced):
        run("--rows", "copy,batch3,ladder")
    assert started.pop() == started[-1]
    command = started.pop()
    assert command[1:3] == ["-m", "benchmarks.engine_speed"] and "--keep" in command and "--tiny" in command
    assert engine_speed.options_of(command[3:]).rows == ["batch3", "ladder"]

    waiting, over = engine_speed.threading.Event(), engine_speed.threading.Event()

    def release() -> None:
        over.set()
        waiting.set()

    monkeypatch.setattr(Setup, "cuda", property(lambda self: False))
    monkeypatch.setitem(engine_speed.ROWS, "copy", lambda setup: {"never": waiting.wait(20)})
    monkeypatch.setattr(engine_speed.os, "execv", lambda program, arguments: started.append(arguments))
    monkeypatch.setattr(engine_speed.os, "_exit", lambda code: release())
    monkeypatch.setitem(engine_speed.ROWS, "batch3", lambda setup: {"speedup": 1.0})
    run("--rows", "copy,batch3", "--row-limit", "0.2")
    assert over.is_set() and engine_speed.options_of(started[0][3:]).rows == ["batch3"]


def test_rows_after_the_time_are_named_not_run(run) -> None:
    code, told = run("--rows", "copy", "--total", "-1")
    assert code == 1 and "not run" in told["rows"]["copy"]["error"]


def test_every_headline_is_read_from_its_row() -> None:
    assert headlines(ROWS) == WANTED
    for name in ROWS:
        rest = headlines({key: row for key, row in ROWS.items() if key != name})
        assert sum(value is None for value in rest.values()) == 1
    assert set(headlines({name: {"error": "x"} for name in ROWS}).values()) == {None}


def test_the_report_has_tables_ratios_errors_and_plots(tmp_path: Path) -> None:
    rows = ROWS | {"ladder": {"error": "CaptureError: pass x"}}
    report: dict[str, Any] = {"machine": {"cpu": "c", "gpu": "NVIDIA H200"}, "commit": "a" * 40, "command": "cmd"}
    report |= {"versions": {"torch": "2", "triton": None}, "weights": "random", "prefixes": [20], "rows": rows} | WANTED
    text = write_report(report, tmp_path)
    reached = "<= 1.5, mark 1.15 | reached, the mark **missed** |"
    assert f"| one denoising step of 32 tokens, ms (`step_ms_b32`) | 1.25 | {reached}" in text
    assert "| B = 32 against our B = 1, times | 5 | >= 3.5 | reached |" in text
    assert "| B = 1, tokens/s (`tps_b1`) | 600 | >= 650 | **missed** |" in text
    assert "(`tps_hf_eager_ar`) | 15 | baseline |" in text and "(`copy_tb_s`) | 4.2 | - |  |" in text
    assert "| bf16, narrow, B = 32 | 32 | 20 | 1.25 | 3.20 | 76% |" in text
    assert "`ladder` failed: CaptureError: pass x" in text and "8 steps a block | 3,000 | 673.4 |" in text
    assert "median of the dearest pair, ms (`dial_ms`) | 0.75 | <= 5 | reached |" in text
    assert "| 32 to 1 | 9 | 8.5 | 0.5 | 3 | 7 |" in text and "| 1 to 32 | 9 | 8.5 | 0.75 | 3 | 7 |" in text
    assert {path.name for path in tmp_path.iterdir()} == {"engine_stages.png", "engine_roofline.png"}
    older = {name: value for name, value in report.items() if name != "dial_ms"}
    older["rows"] = {name: row for name, row in rows.items() if name != "dial"}
    text = write_report(older, tmp_path)
    assert "(`dial_ms`) | - | <= 5 | not measured |" in text and "| block size, ms of a call |" not in text


def test_the_dial_row_counts_changes_and_captures(run) -> None:
    code, told = run("--rows", "dial")
    row = told["rows"]["dial"]
    assert code == 0 and [(one["from"], one["to"]) for one in row["pairs"]] == list(speed_dial.PAIRS)
    assert row["captures_before"] == row["captures_after"] >= 4 * len(speed_dial.SIZES)
    for one in row["pairs"]:
        assert min(one["changed_ms"], one["same_ms"]) > 0 and one["largest_ms"] >= one["difference_ms"]
        assert one["changes"] >= speed_dial.LEAST
    assert told["dial_ms"] == max(0.0, *(one["difference_ms"] for one in row["pairs"]))


def test_a_capture_among_the_changes_fails_the_dial_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_dial, "SIZES", (1, 4, 8, 16))  # the changes to 32 come without a warm-up
    with pytest.raises(DataError, match="no captures after warm-up"):
        speed_dial.dial(Setup(torch.device("cpu"), SMALL, "torch", seconds=0.0))


def test_the_dials_figure_is_the_largest_median_difference() -> None:
    """A clock that charges for changes: 2 ms, to B = 32 it is 4, and once 86 more."""
    calls: list[int] = []

    def charged(size: int) -> float:
        change = bool(calls) and calls[-1] != size
        calls.append(size)
        once = 86.0 if len(calls) == 2 else 0.0  # no median shows it
        return 10.0 + size + change * ((4.0 if size == 32 else 2.0) + once)

    pairs = speed_dial.changes(charged, [(32, 1), (1, 32), (4, 16)], seconds=0.0)
    assert [one["difference_ms"] for one in pairs] == [2.0, 4.0, 2.0]
    assert [one["largest_ms"] for one in pairs] == [88.0, 4.0, 2.0]
    assert (pairs[1]["changed_ms"], pairs[1]["same_ms"], pairs[1]["changes"]) == (46.0, 42.0, speed_dial.LEAST)
    assert headlines({"dial": {"pairs": pairs}})["dial_ms"] == 4.0
    faster = [one | {"difference_ms": -0.1} for one in pairs]
    assert headlines({"dial": {"pairs": faster}})["dial_ms"] == 0.0


LADDER = {
    "eager_b32_tps": 113.0, "kernels_b32_tps": 322.0, "graphs_b32_tps": 2470.0, "kernels": "triton",
    "paper": {"eager_b1": 44.5, "eager_b32": 124.8, "flashinfer_b32": None, "flashinfer_graphs_b32": 673.4},
}  # fmt: skip
NO_FLASHINFER = {"flashinfer_b32_tps": None, "flashinfer_graphs_b32_tps": None, "flashinfer_problem": "no nvcc"}


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, ["| + FlashInfer; ours: triton | 322 | - |", "| + graphs | 2,470 | 673.4 |"]),
        (
            {"flashinfer_b32_tps": 300.0, "flashinfer_graphs_b32_tps": 1500.0, "flashinfer_problem": None},
            ["| tokens/s | ours, triton | ours, FlashInfer | paper, FlashInfer |", "| eager, B = 1 | 15 | 15 | 44.5 |",
             "| + kernels | 322 | 300 | - |", "| + graphs | 2,470 | 1,500 | 673.4 |"],
        ),
        (NO_FLASHINFER, ["| + graphs | 2,470 | - | 673.4 |", "FlashInfer's steps were not taken: no nvcc"]),
    ],
)  # fmt: skip
def test_the_ladder_with_and_without_flashinfer_and_as_it_was_measured_before(tmp_path: Path, more, lines) -> None:
    report: dict[str, Any] = {"machine": {"cpu": "c", "gpu": "NVIDIA H200"}, "commit": "a" * 40, "command": "cmd"}
    report |= {"versions": {"torch": "2"}, "weights": "random", "prefixes": [20], "rows": {"ladder": LADDER | more}}
    text = write_report(report | WANTED, tmp_path).splitlines()
    assert [line for line in text if line in lines] == lines
    assert any("not taken" in line for line in text) == (more == NO_FLASHINFER)


def test_the_ladder_takes_flashinfers_steps_where_it_can_and_says_why_not_elsewhere(monkeypatch) -> None:
    setup = Setup(torch.device("cpu"), SMALL, "torch", seconds=0.0)
    nvcc = [Finding("package", True, "0.6.8"), Finding("nvcc", False, "not there", "install it")]
    monkeypatch.setattr(flashinfer_ops, "here", lambda: nvcc)
    one = speed_rows.ladder(setup)
    assert one["flashinfer_b32_tps"] is one["flashinfer_graphs_b32_tps"] is None and one["graphs_b32_tps"] > 0
    assert one["flashinfer_problem"] == "nvcc: not there; install it"
    monkeypatch.setattr(flashinfer_ops, "here", lambda: [Finding("kernels", False, "not compiled: norm", "build it")])
    assert speed_rows.flashinfer_steps(setup, 20, fixed(32, 8, 40), 0.0)["flashinfer_problem"].startswith("kernels")

    monkeypatch.setattr(flashinfer_ops, "here", list)
    told = speed_rows.flashinfer_steps(setup, 20, fixed(32, 8, 40), 0.0)["flashinfer_problem"]
    assert told == "ConfigError: engine kernels flashinfer: expected a CUDA device, got cpu"
    asked: list[str] = []
    monkeypatch.setattr(kernel_sets, "_flashinfer", lambda *a: (asked.append("asked"), kernel_sets.plain_set(*a))[1])
    found = speed_rows.flashinfer_steps(setup, 20, fixed(32, 8, 40), 0.0)
    assert found["flashinfer_b32_tps"] > 0 and found["flashinfer_graphs_b32_tps"] > 0
    assert found["flashinfer_problem"] is None and asked == ["asked"]

    def broken(*_: object) -> None:
        raise RuntimeError("ninja: build stopped\nand a page of it")

    monkeypatch.setattr(kernel_sets, "_flashinfer", broken)
    assert speed_rows.ladder(setup)["flashinfer_problem"] == "RuntimeError: ninja: build stopped"


def test_an_aim_counts_what_is_equal_and_looks_at_the_figure_before_rounding() -> None:
    least, most = Aim(3.5, True), Aim(1.5, False, 1.15)
    assert (least.verdict(3.5), least.verdict(3.499)) == ("reached", "**missed**")
    assert most.verdict(1.5) == "reached, the mark **missed**" and most.verdict(1.501) == "**missed**"
    assert most.verdict(1.15) == "reached, the mark too"
    assert {name for name in AIMS if name.startswith("over_")} == AIMS.keys() - set(HEADLINES)


def test_the_kept_figures_agree_with_their_rows_and_stand_in_results(tmp_path: Path) -> None:
    report = json.loads((ROOT / engine_speed.OUT).read_text())
    missing = {name for name in HEADLINES if name not in report}
    assert missing <= {"dial_ms"}  # figures of before that row was there
    assert headlines(report["rows"]) == {name: report.get(name) for name in HEADLINES} and None not in report.values()
    assert {row["commit"] for row in report["rows"].values()} == {report["commit"], report["machine"]["commit"]}
    assert "H200" in report["machine"]["gpu"] and not any("error" in row for row in report["rows"].values())
    shown = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    text = write_report(report, tmp_path)
    told = text[text.index("| figure |") : text.index("| one pass |")].splitlines()
    told = [line for line in told if not any(f"(`{name}`) | - |" in line for name in missing)]
    assert len(told) > 20 and all(line in shown for line in told) and f"`{report['command']}`" in shown


def test_answers_never_end_early_and_steps_are_fixed() -> None:
    setup = Setup(torch.device("cpu"), SMALL, "torch", seconds=0.0)
    found = speed_rows.blocks(setup)["block_sizes"]
    assert {size: one["20"]["forwards"] for size, one in found.items()} == {"32": 16, "16": 24, "8": 40, "4": 40}
    assert {one["20"]["tokens"] for one in found.values()} == {40}
    assert {one["pass"] for one in speed_rows.engine_step(setup)["passes"]} == {"narrow", "wide", "first"}


def test_only_an_h200_writes_the_h200s_file(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--tiny", "--device", "cpu", "--out", str(engine_speed.OUT)], ["--rows", "no"]):
        with pytest.raises(SystemExit):
            engine_speed.options_of(options)
    assert "no" in capsys.readouterr().err
    assert engine_speed.options_of(["--tiny", "--device", "cpu"]).out == engine_speed.ELSEWHERE


def test_quantiles() -> None:
    values = [float(k) for k in range(1, 101)]
    assert (quantile(values, 0.99), quantile(values, 0.5), quantile([3.0], 0.99)) == (99.0, 50.0, 3.0)
