"""World, driver, follower and recorder as real processes: the car moves, the bag holds the drive, all end cleanly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ros, pytest.mark.slow]
pytest.importorskip("rclpy")

from wamdiff2_core.evaluate.summary import summarise  # noqa: E402
from wamdiff2_core.rig import load_rig  # noqa: E402
from wamdiff2_ros import graph  # noqa: E402
from wamdiff2_ros.bag_reader import read_drive  # noqa: E402
from wamdiff2_ros.graph import NodeSpec  # noqa: E402
from wamdiff2_ros.supervisor import Supervisor  # noqa: E402

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "config"
LIMIT_S = 240.0


def test_a_drive_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    rig = CONFIG / "rig_three.yaml"
    cameras = load_rig(rig)
    names = [camera.name for camera in cameras]
    world = {"map": "procedural:1", "seconds": 5.0, "rig": str(rig), "cars": 0, "walkers": 0}
    world["wait_for"] = ["recorder", "follower", "wamdiff2"]
    nodes = [
        graph.recorder(tmp_path / "bag"),
        graph.follower("/world"),
        NodeSpec(
            "wamdiff2", "driver_node", {"cameras": names, "rig": str(rig)}, graph.inputs_from("/world", names),
            module="fake_driver_process",
        ),
        NodeSpec("world", "world_node", world, ends_run=True),
    ]  # fmt: skip
    supervisor = Supervisor(nodes, tmp_path / "log", CONFIG / "demo.yaml")
    with supervisor:
        until_s = time.monotonic() + LIMIT_S
        while not supervisor.over():
            assert time.monotonic() < until_s, "the drive did not end"
            time.sleep(0.1)
        codes = supervisor.stop()
    assert set(codes.values()) == {0} and not supervisor.killed, codes
    for name in codes:
        log = (tmp_path / "log" / f"{name}.log").read_text()
        assert "Traceback" not in log, f"{name}: {log}"

    record = read_drive(tmp_path / "bag", cameras)
    summary = summarise(record)
    assert summary["sim_seconds"] == pytest.approx(5.0, abs=0.3)
    assert summary["plans"] > 3 and summary["distance_m"] > 0.5 and summary["block_size"] == 32
    assert record.snapshots and set(record.snapshots[0].pictures) == set(names)
    assert all(plan.expert is not None for plan in record.plans)
