"""Six raw 1600x900 cameras between two processes: they need the DDS profile that is shipped, and arrive with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ros, pytest.mark.slow]
pytest.importorskip("rclpy")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "camera_delivery.py"


def delivered(*flags: str) -> dict[str, Any]:
    """At 1 Hz, which leaves room on a busy machine: what counts is whether such messages fit at all.

    A receiver that is kept waiting for longer than a period loses a frame all the same; without the profile, which is
    what this tells apart, 0 to 12% arrived there.
    """
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_DEFAULT_PROFILES_FILE")}
    command = [sys.executable, str(BENCHMARK), "--seconds", "8", "--rate", "1", "--json", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=variables)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("sender", ["best_effort", "reliable"])
def test_six_raw_cameras_arrive_with_the_profile(sender: str) -> None:
    result = delivered("--sender", sender)
    assert result["profile"] and result["sent"] == 48 and result["share"] >= 0.8, result


def test_without_the_profile_they_do_not() -> None:
    result = delivered("--no-profile")
    assert not result["profile"] and result["share"] < 0.5, result
