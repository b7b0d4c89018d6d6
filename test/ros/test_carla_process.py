"""The graph of carla.launch.py as real processes with its parameter file: the car drives, all end cleanly."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")
pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")

from carla_harness import RIG  # noqa: E402

from wamdiff2_ros import graph  # noqa: E402
from wamdiff2_ros.graph import NodeSpec  # noqa: E402
from wamdiff2_ros.supervisor import Supervisor  # noqa: E402

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "config"
LIMIT_S = 120.0  # against hanging only


def wait_until(condition: Callable[[], object], supervisor: Supervisor) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s and not supervisor.over()
        time.sleep(0.05)


def test_bridge_driver_and_follower_as_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    rig = tmp_path / "rig.yaml"
    rig.write_text(RIG)
    stand_ins = {"driver_node": "fake_driver_process", "carla_bridge_node": "carla_bridge_process"}
    nodes = [
        replace(node, module=stand_ins.get(node.executable, ""))
        for node in graph.carla({"role_name": "hero", "rig": str(rig)}, {})
    ]
    log = tmp_path / "log" / "carla_bridge.log"
    with Supervisor(nodes, tmp_path / "log", CONFIG / "carla.yaml") as supervisor:
        follower = tmp_path / "log" / "follower.log"
        wait_until(lambda: "following" in follower.read_text() and "driving" in log.read_text(), supervisor)
        wait_until(lambda: "under way" in log.read_text(), supervisor)
        codes = supervisor.stop()
    assert set(codes.values()) == {0} and not supervisor.killed, codes
    said = re.search(r"moved ([0-9.]+) m; left behind: 0 actors, synchronous False", log.read_text())
    assert said and float(said[1]) > 0.5, log.read_text()


def test_without_a_server_it_says_so_and_ends_at_once_when_told(tmp_path: Path) -> None:
    settings = {"rig": str(CONFIG / "carla_three.yaml"), "port": 1, "timeout_s": 0.5}
    log = tmp_path / "carla_bridge.log"
    with Supervisor([NodeSpec("carla_bridge", "carla_bridge_node", settings)], tmp_path) as supervisor:
        wait_until(lambda: "CARLA at 127.0.0.1:1: time-out" in log.read_text(), supervisor)
        supervisor._running[0].process.send_signal(signal.SIGINT)
        codes = supervisor.stop()
    assert codes == {"carla_bridge": 0} and not supervisor.killed
    assert "Traceback" not in log.read_text()
