"""A replay through a real driver node process: every frame is answered, motion and texts arrive, the node ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ros, pytest.mark.slow]
pytest.importorskip("rclpy")

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "evaluate"), str(HERE.parent / "train")]

from bags import drive, write_items  # noqa: E402
from broken_bags import QUIET, RIG  # noqa: E402
from micro import build_micro  # noqa: E402

from wamdiff2_core.decode.config import DecodingConfig  # noqa: E402
from wamdiff2_ros.replay_live import checkpoint_cameras, run_live  # noqa: E402
from wamdiff2_ros.replay_run import PASSED, Request, finish  # noqa: E402


def test_live_replay_answers_every_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    checkpoint = build_micro(tmp_path / "micro")
    assert checkpoint_cameras(checkpoint)[0][0] == "cam_front"
    bag = write_items(tmp_path / "bag", drive(4.0))
    request = Request(bag, tasks="plan,detect")
    stated = {"bag": "bag", "checkpoint": "fake", "steps": 8, "threshold": 0.9, "rule": "dynamic"}
    stated |= {"device": "cpu", "dtype": "float32", "threads": 1}
    opened, replay = run_live(
        request, checkpoint, [DecodingConfig(8, 8)], stated, tmp_path / "nodes", QUIET, "fake_driver_process"
    )
    report = finish(request, opened, replay, (8,), stated, RIG, tmp_path / "out")
    (row,) = report["results"]
    assert report["exit_code"] == PASSED and row["frames"] == 8 and row["plans"] == 8, report["input"]["problems"]
    assert row["ade_to_recorded_m"] is not None and row["frame_age_ms"] is not None and row["detection_frames"] == 8
    log = (tmp_path / "nodes" / "block_8" / "wamdiff2_replay.log").read_text()
    assert "Traceback" not in log
