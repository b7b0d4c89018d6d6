"""The commands on small input, and errors that say what to do. Each command is run in this process."""

import json
import re
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from wamdiff2_cli import bench, checks, doctor, kernels, main
from wamdiff2_cli.main import app
from wamdiff2_core import driver as driver_module
from wamdiff2_core.decode.pick import WORDS
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError, Wamdiff2Error
from wamdiff2_core.evaluate import speed
from wamdiff2_core.readiness import ROWS
from wamdiff2_sim import evaluate as closed_loop


def run(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> Wamdiff2Error:
    """The error of a command that must fail with one that a user can do something about."""
    with pytest.raises(Wamdiff2Error) as caught:
        CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return caught.value


def test_every_help_names_all_kernels() -> None:
    for option in (kernels.Kernels, kernels.BatchKernels, kernels.ConfiguredKernels, kernels.NodeKernels):
        said = re.findall(r"\w+", get_args(option)[1].help)
        assert set(WORDS) <= set(said), set(WORDS) - set(said)


def test_a_missing_checkpoint_is_named(tmp_path: Path, shards: Path) -> None:
    for command in (
        ("evaluate", "frames", tmp_path / "no", shards, "--out", tmp_path / "x.json"),
        ("evaluate", "drive", tmp_path / "no", "--out", tmp_path / "x.json"),
        ("plan", tmp_path / "x.jpg", "--checkpoint", tmp_path / "no"),
        ("replay", tmp_path, "--checkpoint", tmp_path / "no"),
        ("bench", "--checkpoint", tmp_path / "no"),
    ):
        error = refused(*command)
        assert isinstance(error, CheckpointError) and str(tmp_path / "no") in str(error)


def test_paths_and_killed_workers_end_in_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    """Through the entry point itself: what the operating system refuses is no traceback; our own faults are."""
    golden = Path(__file__).parents[1] / "golden" / "navsim"
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x.json", tmp_path):
        monkeypatch.setattr(sys, "argv", ["wamdiff2", "evaluate", "navsim", str(golden), "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert ended.value.code == 1 and told.startswith("wamdiff2: [Errno") and str(tmp_path) in told

    def raising(error: Exception) -> None:
        def app() -> None:
            raise error

        monkeypatch.setattr(main, "app", app)
        main.main()

    with pytest.raises(SystemExit):
        raising(BrokenProcessPool("x"))
    assert "a worker process was killed" in capsys.readouterr().err
    with pytest.raises(OSError, match="of ours"):
        raising(OSError("a fault of ours"))


def test_wrong_block_sizes_are_named(micro: Path, shards: Path, tmp_path: Path) -> None:
    for text in ("0", "8,8", "many"):
        error = refused("evaluate", "frames", micro, shards, "--block-sizes", text, "--out", tmp_path / "x.json")
        assert isinstance(error, ConfigError) and text in str(error)


def test_frames_prints_one_json_report(micro: Path, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "frames.json"
    options = ("--block-sizes", "32", "--frames", 1, "--steps", 2, "--out", out, "--json")
    report = json.loads(run("evaluate", "frames", micro, shards, *options))
    assert report == json.loads(out.read_text()) and report["results"][0]["frames"] == 1
    text = run("evaluate", "table", out)
    assert text.startswith("Open loop") and "| block size | 32 |" in text
    assert isinstance(refused("evaluate", "table", shards / "none.json"), DataError)


def test_plan_draws_and_tells(micro: Path, shards: Path, tmp_path: Path) -> None:
    pictures = sorted((shards / "shard_00000" / "images").glob("0000_*.jpg"))
    options = ("--checkpoint", micro, "--steps", 2, "--out", tmp_path / "plan.jpg", "--json")
    result = CliRunner().invoke(app, ["plan", *map(str, pictures), *map(str, options)], catch_exceptions=False)
    told = json.loads(result.stdout)
    assert result.exit_code == (2 if "failure" in told["plan"] else 0)
    assert told["plan"]["forwards"] > 0 and (tmp_path / "plan.jpg").is_file()
    assert "candidates" not in told
    options += ("--candidates", 3, "--temperature", 3.0, "--seed", 1)
    texts = [
        [
            candidate["text"]
            for candidate in json.loads(
                CliRunner().invoke(app, ["plan", *map(str, (*pictures, *options))], catch_exceptions=False).stdout
            )["candidates"]
        ]
        for _ in range(2)
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    error = refused("plan", pictures[0], *options)
    assert "expected 3 pictures in this order: cam_front cam_front_left cam_front_right; got 1" in str(error)


def test_replay_compares_block_sizes(micro: Path, bag: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", micro, "--block-sizes", "16,32", "--steps", 2, "--frames", 2, "--threads", 1)
    report = json.loads(run("replay", bag, *options, "--out", tmp_path, "--json"))
    assert [row["block_size"] for row in report["results"]] == [16, 32] and report["exit_code"] == 0
    assert [row["frames"] for row in report["results"]] == [2, 2]
    assert report["recorded"]["settings"]["map"] == "Town02"
    page = (tmp_path / "report.html").read_text()
    assert "Nothing was driven" in page and "By block size" in page
    assert "is no bag" in str(refused("replay", tmp_path / "none", *options))


def test_replay_guards_with_limits_and_exit_codes(micro: Path, bag: Path, tmp_path: Path) -> None:
    def code(*options: object, path: Path = bag) -> tuple[int, str]:
        fixed = ("--checkpoint", micro, "--steps", 1, "--frames", 1, "--threads", 1, "--out", tmp_path / "out")
        arguments = ["replay", path, *fixed, *options]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        return result.exit_code, result.output

    limits = tmp_path / "limits.yaml"
    limits.write_text("max_gap_s: 0.5\n")
    assert code("--limits", limits, "--limit", "frames=1")[0] == 0
    broken, said = code("--limits", limits, "--limit", "frames=2")
    assert broken == 3 and "BROKEN: frames >= 2 (1)" in said and "held: max_gap_s" in said
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metadata.yaml").write_text("rosbag2_bagfile_information: {message_count: 0, relative_file_paths: []}\n")
    failed, said = code(path=empty)
    assert failed == 4 and "no frame of the bag could be evaluated" in " ".join(said.split())
    assert isinstance(refused("replay", bag, "--limit", "ade=1", "--checkpoint", micro), ConfigError)
    assert "PART=TOPIC" in str(refused("replay", bag, "--topic", "cam_front", "--checkpoint", micro))


def test_doctor_tells_whether_the_demo_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    good, optional = checks.Finding("a", "ok", "there"), checks.Finding("b", "optional", "not there", "get it")
    missing = checks.Finding("c", "missing", "not there", "run this")
    for found, code in (([good, optional], 0), ([good, missing], 1)):
        monkeypatch.setattr(checks, "findings", lambda folder, found=found: iter(found))
        result = CliRunner().invoke(app, ["doctor", "--json"])
        assert result.exit_code == code
        assert json.loads(result.stdout) == {"demo": code == 0, "findings": [f.plain() for f in found]}
        text = CliRunner().invoke(app, ["doctor"]).stdout
        assert all(f.found in text and f.do in text for f in found)
    assert doctor.NAME == "doctor"


def test_single_findings(micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks._checkpoint(micro).state == "ok"
    broken = checks._checkpoint(tmp_path)
    assert broken.state == "missing" and "--checkpoint" in broken.do
    assert checks._town().state == "ok"
    lost = checks._packages("no_such_package_here")
    assert lost.state == "missing" and "no_such_package_here" in lost.found
    monkeypatch.setattr(checks, "PROBE_S", 0.01)
    assert checks._last_line(checks._probe("import time; time.sleep(5)")) == "no answer within 0 s"


def test_bench_measures_stored_frames_and_appends(micro: Path, shards: Path, tmp_path: Path) -> None:
    options = ("--data", shards, "--scenes", 2, "--block-sizes", "32", "--steps", 2, "--threads", 1)
    report = json.loads(run("bench", "--checkpoint", micro, *options, "--out", tmp_path / "b.json", "--json"))
    (row,) = report["results"]
    assert row["scenes"] == 2 and row["total_ms"] > 0 and report["machine"]["cores"] >= 1
    assert report["settings"]["kernels"] == "lean" and report["settings"]["kernels_reason"].startswith("auto: ")
    for _ in range(2):
        bench.append(tmp_path / "RESULTS.md", report)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("# Measured speed") == 1 and text.count("| plan ms |") == 2


def test_bench_gets_an_engine_ready_before_it_measures(
    micro: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    measure = speed.measure

    def watched(driver: Any, *arguments: Any) -> list[dict[str, object]]:
        graphs = driver.decoder.engine.graphs
        passes.append(len(graphs))
        results = measure(driver, *arguments)
        passes.append(len(graphs))
        return results

    monkeypatch.setattr(speed, "measure", watched)
    options = ("--data", shards, "--scenes", 1, "--block-sizes", "8,12", "--steps", 2, "--kernels", "torch")
    report = json.loads(run("bench", "--checkpoint", micro, *options, "--out", tmp_path / "b.json", "--json"))
    assert report["settings"]["kernels"] == "engine torch" and report["settings"]["kernels_reason"] == "asked for"
    assert len(passes) == 4 and len(set(passes)) == 1 and passes[0] > 0


def test_a_wrong_word_for_kernels_is_refused_before_results_are_cleared(tmp_path: Path) -> None:
    kept = tmp_path / "summary.json"
    kept.write_text("{}")
    for command in ("demo", "drive"):
        assert "--kernels: expected one of auto, lean" in str(refused(command, "--kernels", "fast", "--out", tmp_path))
    assert kept.is_file()


def test_kernels_that_cannot_run_end_a_command_in_one_line_before_anything_is_cleared_or_started(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rclpy")
    from wamdiff2_ros import carla_client, monitor, supervisor

    monkeypatch.setattr(supervisor.Supervisor, "__enter__", lambda self: pytest.fail("started processes"))
    monkeypatch.setattr(monitor.Monitor, "__enter__", lambda self: pytest.fail("joined the network"))
    monkeypatch.setattr(carla_client, "load_carla", lambda: None)
    kept = tmp_path / "summary.json"
    kept.write_text("{}")
    (tmp_path / "bag").mkdir()
    file = tmp_path / "params.yaml"
    file.write_text("/wamdiff2: {ros__parameters: {kernels: triton, candidates: 3}}\n")
    for command in ("demo", "drive", "carla"):
        base = (command, "--checkpoint", micro, "--out", tmp_path)
        for options in (("--kernels", "triton"), ("--params", file)):
            told = str(refused(*base, *options))
            assert told.startswith("kernels triton: expected a CUDA device, got cpu; ") and "auto" in told
            assert "\n" not in told and "parameters:" not in told
    file.write_text("/wamdiff2: {ros__parameters: {candidates: 65, device: cpu}}\n")
    assert str(refused("demo", "--checkpoint", micro, "--out", tmp_path, "--params", file)).startswith("candidates: 65")
    file.write_text("/wamdiff2: {ros__parameters: {device: 'cuda:93'}}\n")
    assert "cuda:93" in str(refused("drive", "--checkpoint", micro, "--out", tmp_path, "--params", file))
    assert kept.is_file() and (tmp_path / "bag").is_dir()


def test_drive_takes_cameras_and_checkpoint_from_the_file_unless_they_are_named(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rclpy")
    from wamdiff2_cli import drive

    ran: list[Any] = []
    monkeypatch.setattr(drive, "watch", lambda nodes, log, file: ran.append(nodes[0].parameters))
    file = tmp_path / "params.yaml"
    file.write_text(f"/wamdiff2: {{ros__parameters: {{cameras: [a, b], checkpoint: {micro}}}}}\n")
    run("drive", "--params", file)
    tiny = Path(__file__).parents[2] / "checkpoints" / "tiny"
    run("drive", "--params", file, "--camera", "c", "--checkpoint", tiny)
    assert [(list(one["cameras"]), one["checkpoint"]) for one in ran] == [(["a", "b"], str(micro)), (["c"], str(tiny))]
    file.write_text("/wamdiff2: {ros__parameters: {cameras: a}}\n")
    assert str(refused("drive", "--params", file)).startswith("cameras: expected a list of names, got 'a'")


def test_commands_that_load_by_themselves_refuse_kernels_before_they_read_anything(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "load_model", lambda *a, **k: pytest.fail("read weights"))
    for command in (
        ("bench", "--checkpoint", micro, "--out", tmp_path / "b.json"),
        ("plan", tmp_path / "a.jpg", "--checkpoint", micro),
        ("replay", tmp_path / "no_bag", "--checkpoint", micro, "--out", tmp_path / "out"),
        ("replay", tmp_path / "no_bag", "--checkpoint", micro, "--out", tmp_path / "out", "--live"),
    ):
        told = str(refused(*command, "--kernels", "triton"))
        assert told.startswith("kernels triton: expected a CUDA device, got cpu; "), command
        assert str(refused(*command, "--kernels", "fast")).startswith("--kernels: expected one of auto, lean")
    settings = tmp_path / "agent.yaml"
    settings.write_text(f"checkpoint: {micro}\nkernels: triton\n")
    told = str(refused("leaderboard", "--ids", "24211", "--config", settings, "--out", tmp_path / "out"))
    assert told.startswith(f"{settings}: kernels triton: expected a CUDA device")
    assert not (tmp_path / "out").exists() and not (tmp_path / "b.json").exists()


def test_more_candidates_than_an_engine_draws_are_refused_at_once_and_help_says_how_many(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "load_model", lambda *a, **k: pytest.fail("read weights"))
    options = (tmp_path / "a.jpg", "--checkpoint", micro, "--kernels", "torch", "--candidates", ROWS[-1] + 1)
    assert f"decode at most {ROWS[-1]} at once, got {ROWS[-1] + 1}" in str(refused("plan", *options))
    text = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).stdout
    assert f"draws at most {ROWS[-1]}" in text


def test_replay_through_an_engine_says_so(micro: Path, bag: Path, tmp_path: Path) -> None:
    options = ("--checkpoint", micro, "--block-sizes", "12", "--steps", 2, "--frames", 1, "--threads", 1)
    report = json.loads(run("replay", bag, *options, "--kernels", "engine", "--out", tmp_path, "--json"))
    assert report["settings"]["kernels"] == "engine torch" and "no Triton" in report["settings"]["kernels_reason"]
    assert [row["frames"] for row in report["results"]] == [1]


def test_train_names_the_recipes() -> None:
    assert "stage1" in str(refused("train", "no_such_recipe"))


def test_rows_of_drives_survive_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "drive.jsonl"
    file.write_text('{"key": [1]}\n{"key": [2]}\n{"key"')
    assert closed_loop.read_rows(file) == [{"key": [1]}, {"key": [2]}]
    assert file.read_text().endswith("[2]}\n")


def test_drive_rows_become_a_table() -> None:
    scored = {"route_completion": 1.0, "collisions": 0, "red_lights": 1, "off_road_s": 0.0, "comfort": 1.0}
    scored["collisions_by_kind"] = {"car": 1}
    plans = {"plans": 10, "failures": {"parse": 1}, "forwards_per_plan": 8.0, "latency_ms_p50": 100.0}
    rows = [{"block_size": 32, "per_waypoint_m": [0.1 * k] * 8, **plans, **scored} for k in (1, 3)]
    (row,) = closed_loop.table(rows)
    assert row["routes"] == 2 and row["completed_routes"] == 2 and row["ade_m"] == pytest.approx(0.2)
    assert row["driving_score"] == pytest.approx(100.0 * 0.6 * 0.7)
    assert row["failed_plans_share"] == pytest.approx(0.1) and row["red_lights_per_route"] == 1.0


@pytest.mark.parametrize("module", ["wamdiff2_sim.evaluate", "wamdiff2_core.evaluate.frame_run"])
def test_measuring_needs_few_packages(module: str) -> None:
    """Evaluation runs on machines without report and bag libraries."""
    import subprocess

    heavy = ("typer", "jinja2", "matplotlib", "faster_coco_eval", "rosbags", "rclpy")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("settings", ["block_size: many", "checkpoint: /nowhere", None])
def test_leaderboard_refuses_wrong_settings_before_the_first_route(settings, tmp_path):
    """The official code would score such an agent's routes 0 and end well."""
    file = tmp_path / "agent.yaml"
    if settings is not None:
        file.write_text(settings)
    with pytest.raises(ConfigError, match="agent.yaml"):
        CliRunner().invoke(
            app, ["leaderboard", "--ids", "24211", "--config", str(file), "--out", str(tmp_path / "out")],
            catch_exceptions=False,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
