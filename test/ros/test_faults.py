"""The fault test in short: real processes, every group of faults once. `make faults` is the long form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ros, pytest.mark.slow]
pytest.importorskip("rclpy")

from wamdiff2_ros.faults.session import Options, run_session  # noqa: E402
from wamdiff2_ros.graph import default_checkpoint  # noqa: E402

KINDS = (
    "kill_driver", "kill_camera", "kill_recorder", "freeze_driver", "flood_camera", "truncated", "wrong_size",
    "late_camera", "nan_odometry", "clock_back", "half_invalid", "dial", "disk_full",
)  # fmt: skip
SLOW_S = 2.0  # a shared machine may add so much to every limit


@pytest.mark.timeout(900)
def test_faults_are_named_and_nothing_stale_or_lost_comes_of_them(tmp_path: Path) -> None:
    options = Options(
        tmp_path,
        default_checkpoint(),
        600.0,
        kinds=KINDS,
        once=True,
        slack_s=SLOW_S,
        start_s=240.0,
        recover_s=60.0,
        frames=4,
    )
    lines: list[str] = []
    summary = run_session(options, lines.append)
    seen = "\n".join([*lines, json.dumps({k: summary[k] for k in ("kinds", "bags", "bad_trajectories")}, indent=1)])
    assert not summary["failures"], f"{summary['failures']}\n{seen}"
    injected = set(summary["kinds"]) | set(summary["not_injected"])
    assert injected == set(KINDS) and set(summary["not_injected"]) <= {"disk_full"}, seen
    assert summary["plans"] > len(KINDS), seen
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert len(summary["bags"]["bags"]) >= 2 and all(row["messages"] for row in summary["bags"]["bags"]), seen
