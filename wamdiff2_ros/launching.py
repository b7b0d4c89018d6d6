"""Turns NodeSpecs into launch actions. Only launch files import this: `launch` exists on ROS installations only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from launch import LaunchContext
from launch.actions import DeclareLaunchArgument, EmitEvent, LogInfo, RegisterEventHandler, SetEnvironmentVariable
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from wamdiff2_ros import beforehand
from wamdiff2_ros.graph import NodeSpec, share_folder
from wamdiff2_ros.settings_report import run_warning
from wamdiff2_ros.supervisor import environment, write_parameters


def argument(name: str, default: Any, text: str) -> DeclareLaunchArgument:
    return DeclareLaunchArgument(name, default_value=str(default), description=text)


def value(context: LaunchContext, name: str) -> str:
    """What the user gave for a launch argument."""
    return LaunchConfiguration(name).perform(context)


def actions(nodes: Iterable[NodeSpec], parameter_file: Path, folder: Path) -> list[Any]:
    """The DDS profile and one action per node; the launch ends when a node that ends the run does.

    Parameters go through one file in `folder`, written per node name, so that they win over the parameter file's.
    Raises ConfigError, which ends the launch before it starts a process, for what the driver node would refuse.
    """
    nodes = list(nodes)
    beforehand.check(nodes, parameter_file)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = write_parameters(folder / "params.yaml", nodes, parameter_file)
    profiles = [(n, v) for n, v in environment().items() if n.endswith("_DEFAULT_PROFILES_FILE")]
    made: list[Any] = [SetEnvironmentVariable(name, path) for name, path in profiles]
    warning = run_warning(parameter_file, [f"/{spec.name}" for spec in nodes])
    if warning:
        made.append(LogInfo(msg=f"warning: {warning}"))
    for spec in nodes:
        node = Node(
            package="wamdiff2",
            executable=spec.executable,
            name=spec.name,
            parameters=[str(parameters.resolve())],
            remappings=list(spec.remappings),
            output="screen",
        )
        made.append(node)
        if spec.ends_run:
            stop = EmitEvent(event=Shutdown(reason=f"{spec.name} has ended"))
            made.append(RegisterEventHandler(OnProcessExit(target_action=node, on_exit=[stop])))
    return made


def default_parameters(name: str) -> Path:
    """A parameter file of ours by name."""
    return share_folder("config") / name
