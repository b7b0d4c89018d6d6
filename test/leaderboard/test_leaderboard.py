"""The leaderboard's own code drives our agent through our world: records, situations, failures, resuming.

Every run is a process of its own: the leaderboard keeps its state in classes. Skipped, visibly, where its package is
not installed (tools/leaderboard_setup.sh) or where CARLA has no wheel for this Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wamdiff2_core.evaluate.bench2drive.records import read_run
from wamdiff2_sim.leaderboard.package import missing
from wamdiff2_sim.leaderboard.select import OfficialRoute, drivable, read_routes, spread

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FIVE = "24224,24784,24211,24781,24330"  # pedestrian, slip, pedestrian, hard brake x 2; Town02, Town01, Town10HD
LIMIT_S = 800  # against hanging only
pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
    pytest.mark.timeout(LIMIT_S + 100),
]


def leaderboard(out: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wamdiff2_cli.main", "leaderboard", "--out", str(out), "--json", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Five routes in three towns, driven by our agent with the world's expert in the model's place."""
    out = tmp_path_factory.mktemp("reference")
    return out, summary(leaderboard(out, "--reference", "--ids", FIVE))


def test_result_file_is_the_official_one(reference: tuple[Path, dict[str, Any]]) -> None:
    out, _ = reference
    content = json.loads((out / "results.json").read_text())
    assert content["entry_status"] == "Finished" and content["eligible"] is True
    assert content["_checkpoint"]["progress"] == [5, 5]
    assert content["sensors"] == ["carla_imu", "carla_gnss", "carla_speedometer"]
    assert len(content["values"]) == len(content["labels"]) == 15
    (out / "summary.json").rename(out / "summary.kept")
    run = read_run(out)
    (out / "summary.kept").rename(out / "summary.json")
    assert run.problems == [] and len(run.records) == 5
    assert {record.town for record in run.records} == {"Town01", "Town02", "Town10HD"}
    assert all(record.infractions["min_speed_infractions"] for record in run.records)  # traffic was there to compare


def test_who_looks_masters_the_situations(reference: tuple[Path, dict[str, Any]]) -> None:
    _, made = reference
    assert made["driven"] == 5 and made["successes"] == 5, made["routes_table"]
    assert made["by_ability"]["Emergency_Brake"]["success_rate"] == 1.0
    assert made["by_ability"]["Overtaking"]["routes"] == 0
    assert made["agent"]["exceptions"] == 0 and made["agent"]["plans"] > 100


def test_metric_info_is_written_for_every_route(reference: tuple[Path, dict[str, Any]]) -> None:
    out, made = reference
    files = sorted((out / "metric").glob("*/metric_info.json"))
    assert len(files) == 5
    steps = json.loads(files[0].read_text())
    assert set(steps["0"]) == {
        "acceleration", "angular_velocity", "forward_vector", "right_vector", "location", "rotation"
    }  # fmt: skip
    assert made["driving_smoothness"] is not None and made["driving_efficiency"] is not None


def test_who_does_not_look_fails_in_them(tmp_path: Path) -> None:
    made = summary(leaderboard(tmp_path, "--agent", str(HERE / "blind_agent.py"), "--ids", "24224,24781"))
    by_id = {row["id"]: row for row in made["routes_table"]}
    assert by_id["24224"]["infractions"].get("collisions_pedestrian") == 1
    assert by_id["24781"]["infractions"].get("collisions_vehicle", 0) >= 1
    assert made["successes"] == 0 and made["by_ability"]["Emergency_Brake"]["success_rate"] == 0.0


@pytest.mark.parametrize(
    ("where", "status", "entry"),
    [
        ("setup", "Failed - Agent couldn't be set up", "Finished"),
        ("sensors", "Failed - Agent's sensors were invalid", "Rejected"),
    ],
)
def test_an_agent_that_breaks_is_recorded(tmp_path: Path, where: str, status: str, entry: str) -> None:
    agent = str(HERE / "broken_agents.py")
    made = summary(leaderboard(tmp_path, "--agent", agent, "--ids", "24784", WAMDIFF2_TEST_BREAK=where))
    assert made["routes_table"][0]["status"] == status and made["driving_score"] == 0.0
    assert json.loads((tmp_path / "results.json").read_text())["entry_status"] == entry
    assert "Traceback" in (tmp_path / "failures.log").read_text()


def test_a_run_that_was_cut_short_goes_on_where_it_ended(
    reference: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    content = json.loads((reference[0] / "results.json").read_text())
    kept = content["_checkpoint"]["records"][:4]
    content["_checkpoint"].update(records=kept, progress=[4, 5])
    content["entry_status"] = "Started"
    (tmp_path / "results.json").write_text(json.dumps(content))
    summary(leaderboard(tmp_path, "--reference", "--ids", FIVE, "--resume"))
    after = json.loads((tmp_path / "results.json").read_text())
    assert after["_checkpoint"]["records"][:4] == kept
    assert len(after["_checkpoint"]["records"]) == 5 and after["entry_status"] == "Finished"
    assert len(list((tmp_path / "metric").glob("*"))) == 1  # one route was driven


def test_the_agent_file_is_found_by_name_and_hides_nothing_of_python() -> None:
    """The leaderboard puts the file's folder first on the path, where our `mailbox` would stand before Python's."""
    code = """
import sys
from wamdiff2_sim.leaderboard.package import prepare
prepare()
sys.path.insert(0, sys.argv[1])
import bench2drive_agent as agent
import mailbox
assert "wamdiff2_ros" not in mailbox.__file__, mailbox.__file__
assert issubclass(getattr(agent, agent.get_entry_point()), agent.AutonomousAgent)
print("fine")
"""
    folder = str(ROOT / "wamdiff2_ros")
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_wrong_wishes_are_one_line(tmp_path: Path) -> None:
    done = leaderboard(tmp_path, "--ids", "24784,7")
    assert done.returncode == 1 and "7 are not among" in done.stderr and "Traceback" not in done.stderr


def test_routes_are_spread_over_towns() -> None:
    from wamdiff2_sim.leaderboard.package import prepare

    known = drivable(read_routes(prepare().routes))
    assert len(known) == 55
    chosen = spread(known, 8)
    assert len({route.town for route in chosen}) == 8
    assert isinstance(chosen[0], OfficialRoute) and spread(known, 55) == known
