"""Node processes that cannot start say why on one line and end with exit code 1."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")


@pytest.mark.parametrize(
    ("node", "parameter", "says"),
    [
        ("driver_node", "block_size:=0", "block_size"),
        ("driver_node", "steps:=many", "steps"),
        ("driver_node", "rule:=poem", "'poem'"),
        ("follower_node", "rate_hz:=0.0", "rate_hz"),
        ("follower_node", "max_plan_age_s:=.nan", "max_plan_age_s"),
        ("world_node", "step_s:=0.0", "step_s"),
        ("recorder_node", "path:=/proc/nowhere/bag", "/proc/nowhere/bag"),
    ],
)
def test_a_wrong_parameter_is_named_without_a_traceback(node: str, parameter: str, says: str) -> None:
    command = [sys.executable, "-m", f"wamdiff2_ros.{node}", "--ros-args", "-p", parameter]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1 and says in ended.stderr and "Traceback" not in ended.stderr
