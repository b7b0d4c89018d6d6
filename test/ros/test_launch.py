"""Launch files load and name the nodes of the graph. Needs the launch packages of a ROS installation (not on PyPI)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")
pytest.importorskip("launch_ros", reason="the launch packages come with a ROS installation only")

from launch import LaunchContext, LaunchDescription  # noqa: E402
from launch.actions import DeclareLaunchArgument, OpaqueFunction  # noqa: E402
from launch_ros.actions import Node  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def described(name: str) -> LaunchDescription:
    spec = importlib.util.spec_from_file_location(name, ROOT / "launch" / f"{name}.launch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description()


@pytest.mark.parametrize(
    "name, given, executables",
    [
        ("demo", {"bag": "bag"}, ["recorder_node", "follower_node", "driver_node", "world_node"]),
        ("demo", {}, ["follower_node", "driver_node", "world_node"]),
        ("drive", {}, ["driver_node", "follower_node"]),
        ("drive", {"follow": "false"}, ["driver_node"]),
        ("replay", {"bag": "some_bag"}, ["driver_node"]),
        ("carla", {}, ["follower_node", "driver_node", "carla_bridge_node"]),
        (
            "carla",
            {"native": "true", "bag": "bag"},
            ["recorder_node", "follower_node", "driver_node", "carla_bridge_node"],
        ),
    ],
)
def test_launch_file(
    name: str, given: dict[str, str], executables: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = LaunchContext()
    context.launch_configurations.update({"checkpoint": str(tmp_path), **given})
    nodes: list[str] = []
    for entity in described(name).entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
        elif isinstance(entity, OpaqueFunction):
            made = entity.execute(context) or []
            nodes += [action.node_executable for action in made if isinstance(action, Node)]
    assert nodes == executables
    assert (tmp_path / "out" / "launch" / "params.yaml").is_file()
