"""`wamdiff2 carla`: bridge, driver and follower on a running CARLA server; ends with Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wamdiff2_cli.drive import watch
from wamdiff2_cli.kernels import NodeKernels
from wamdiff2_cli.needs_ros import check_ros
from wamdiff2_core.errors import ConfigError

NAME = "carla"


def run(
    host: Annotated[str, typer.Option(help="Where the CARLA server is")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port")] = 2000,
    town: Annotated[str, typer.Option(help="Town to load; empty: the one that is there")] = "",
    role_name: Annotated[str, typer.Option(help="Of the car; topics are below /carla/ROLE_NAME")] = "hero",
    spawn: Annotated[str, typer.Option(help="random, an index of spawn points, x,y,z,yaw or attach")] = "random",
    goal: Annotated[str, typer.Option(help="x,y in CARLA's metres; empty: a random route")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of random places and routes")] = 0,
    tick_owner: Annotated[str, typer.Option(help="bridge: we tick; other: somebody else does, or nobody")] = "bridge",
    native: Annotated[bool, typer.Option(help="The server (started with --ros2) publishes its sensors")] = False,
    controller: Annotated[str, typer.Option(help="follower or waypoint_pid")] = "follower",
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    rig: Annotated[Path | None, typer.Option(help="Car and cameras; default config/carla_three.yaml")] = None,
    params: Annotated[Path | None, typer.Option(help="ROS parameter file; default config/carla.yaml")] = None,
    kernels: NodeKernels = None,
    bag: Annotated[Path | None, typer.Option(help="Folder for a bag")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the nodes' logs")] = Path("out/carla"),
) -> None:
    """Drive a CARLA server. `ros2 launch wamdiff2 carla.launch.py` does the same where ROS 2 is installed."""
    check_ros()
    from wamdiff2_ros import graph
    from wamdiff2_ros.carla_client import load_carla

    load_carla()
    folder = checkpoint or graph.default_checkpoint()
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no checkpoint folder: it has no config.json")
    config = graph.share_folder("config")
    bridge: dict[str, Any] = {"host": host, "port": port, "town": town, "role_name": role_name, "spawn": spawn}
    bridge |= {"goal": goal, "seed": seed, "tick_owner": tick_owner, "native": native}
    bridge["rig"] = str((rig or config / "carla_three.yaml").resolve())
    driver: dict[str, Any] = {"checkpoint": str(folder.resolve())}
    if kernels is not None:
        driver["kernels"] = kernels
    nodes = graph.carla(bridge, driver, controller, bag)
    watch(nodes, out / "log", params or config / "carla.yaml")
