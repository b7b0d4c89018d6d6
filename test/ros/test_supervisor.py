"""Node processes: parameters, a clean end on SIGINT, no orphans, errors that name the node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.ros
rclpy = pytest.importorskip("rclpy")

from wamdiff2_core.errors import ConfigError  # noqa: E402
from wamdiff2_ros import graph  # noqa: E402
from wamdiff2_ros.graph import NodeSpec  # noqa: E402
from wamdiff2_ros.supervisor import NodeDied, Supervisor, write_parameters  # noqa: E402

LIMIT_S = 120.0  # against hanging only


def wait_for(condition, what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: gone between opening and reading
        return False


def test_nodes_end_cleanly_together(tmp_path: Path) -> None:
    nodes = [graph.recorder(tmp_path / "bag"), graph.follower("/world")]
    supervisor = Supervisor(nodes, tmp_path / "log")
    with supervisor:
        wait_for(lambda: "no fresh odometry" in (tmp_path / "log" / "follower.log").read_text(), "follower starts")
        wait_for(lambda: (tmp_path / "bag").is_dir(), "recorder starts")
        assert not supervisor.over()
        codes = supervisor.stop()
    assert codes == {"recorder": 0, "follower": 0} and not supervisor.killed
    for name in codes:
        assert "Traceback" not in (tmp_path / "log" / f"{name}.log").read_text()
    assert (tmp_path / "bag" / "metadata.yaml").is_file()


def test_a_node_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    missing = NodeSpec("wamdiff2", "driver_node", {"checkpoint": str(tmp_path / "nowhere")})
    with Supervisor([missing], tmp_path / "log") as supervisor, pytest.raises(NodeDied, match="wamdiff2") as caught:
        wait_for(supervisor.over, "the end")
    told = str(caught.value)
    assert "nowhere" in told
    assert max(map(len, told.splitlines())) < 400  # the reason does not hide below all parameters in force
    assert any(len(line) > 1000 for line in (tmp_path / "log" / "wamdiff2.log").read_text().splitlines())


def test_nodes_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from wamdiff2_ros import graph\n"
        "from wamdiff2_ros.supervisor import Supervisor\n"
        f"with Supervisor([graph.follower('/world')], Path({str(tmp_path)!r})) as s:\n"
        "    print(s._running[0].process.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(lambda: "no fresh odometry" in (tmp_path / "follower.log").read_text(), "follower starts")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not alive(pid), "the follower ends too")


def test_own_parameters_win_over_the_file(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("/wamdiff2:\n  ros__parameters: {block_size: 32, steps: 8}\n/other:\n  ros__parameters: {a: 1}\n")
    spec = NodeSpec("wamdiff2", "driver_node", {"block_size": 4, "cameras": ("a", "b"), "rig": Path("/x")})
    content = yaml.safe_load(write_parameters(tmp_path / "out.yaml", [spec, graph.follower("/w")], base).read_text())
    assert content["/wamdiff2"]["ros__parameters"] == {"block_size": 4, "steps": 8, "cameras": ["a", "b"], "rig": "/x"}
    assert "/follower" not in content and content["/other"]["ros__parameters"] == {"a": 1}
    with pytest.raises(ConfigError, match="nowhere"):
        write_parameters(tmp_path / "out.yaml", [spec], tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    "base",
    [
        "/wamdiff2: {ros__parameters: {steps: 9}}\n/**: {ros__parameters: {rule: ordered, steps: 3, threshold: 1e-1}}",
        "/wamdiff2: {ros__parameters: {a: 9}}\nwamdiff2: {ros__parameters: {rule: static, steps: 3, threshold: .1}}",
        "/: {wamdiff2: {ros__parameters: {steps: 3, threshold: .1}}}\n/*: {ros__parameters: {rule: ordered}}",
        "/**/wamdiff2: {ros__parameters: {steps: 3, threshold: 1E-1}}\n/wamdiff2:\n/follower: {ros__parameters: }",
    ],
)
def test_own_parameters_win_wherever_the_file_names_the_node(tmp_path: Path, base: str) -> None:
    """rcl itself reads what was written: the last section that is for a node wins there."""
    file = tmp_path / "base.yaml"
    file.write_text(base)
    spec = NodeSpec("wamdiff2", "driver_node", {"rule": "dynamic"})
    written = write_parameters(tmp_path / "out.yaml", [spec, graph.follower("/w")], file)
    context = rclpy.Context()
    rclpy.init(context=context, args=["--ros-args", "--params-file", str(written)])
    node = rclpy.create_node("wamdiff2", context=context, automatically_declare_parameters_from_overrides=True)
    try:
        found = {name: node.get_parameter(name).value for name in ("rule", "steps", "threshold")}
    finally:
        node.destroy_node()
        context.shutdown()
    assert found == {"rule": "dynamic", "steps": 3, "threshold": 0.1}


@pytest.mark.parametrize("base", [b"- a\n", b"hello\n", b"\xff\xfe\x00a", b"a: [1"])
def test_a_file_that_is_no_parameter_file_is_named(tmp_path: Path, base: bytes) -> None:
    file = tmp_path / "base.yaml"
    file.write_bytes(base)
    with pytest.raises(ConfigError, match=r"base\.yaml: expected a ROS parameter file"):
        write_parameters(tmp_path / "out.yaml", [NodeSpec("wamdiff2", "driver_node", {})], file)
