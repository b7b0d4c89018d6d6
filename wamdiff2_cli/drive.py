"""`wamdiff2 drive`: driver and follower for a vehicle or simulator whose topics are there; ends with Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from wamdiff2_cli.kernels import NodeKernels
from wamdiff2_cli.needs_ros import check_ros
from wamdiff2_core.errors import ConfigError

if TYPE_CHECKING:
    from wamdiff2_ros.graph import NodeSpec

NAME = "drive"


def run(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint folder; default: the file's, or the one here")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Inputs are PREFIX/<camera>/image/compressed, ...")] = "/vehicle",
    camera: Annotated[list[str] | None, typer.Option(help="Camera name; repeat it; default: the file's")] = None,
    params: Annotated[Path | None, typer.Option(help="ROS parameter file; default config/drive.yaml")] = None,
    follow: Annotated[bool, typer.Option(help="Also run the follower, which sends PREFIX/control")] = True,
    kernels: NodeKernels = None,
    out: Annotated[Path, typer.Option(help="Folder for the nodes' logs")] = Path("out/drive"),
) -> None:
    """Run the driver on live topics. `ros2 launch wamdiff2 drive.launch.py` does the same where ROS 2 is installed."""
    check_ros()
    from wamdiff2_ros import beforehand, graph

    file = params or graph.share_folder("config") / "drive.yaml"
    given = beforehand.set_in(file)
    folder = checkpoint or Path(given.checkpoint or graph.default_checkpoint())
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no checkpoint folder: it has no config.json")
    cameras = tuple(camera or given.cameras)
    own: dict[str, object] = {"checkpoint": str(folder.resolve()), "cameras": cameras}
    if kernels is not None:
        own["kernels"] = kernels
    nodes = [graph.driver(prefix, cameras, own)]
    if follow:
        nodes.append(graph.follower(prefix))
    watch(nodes, out / "log", file)


def watch(nodes: Sequence[NodeSpec], log: Path, parameter_file: Path) -> None:
    """Run nodes as processes until Ctrl-C, with a line about the driver. Raises NodeDied if one ends.

    ConfigError, before any is started, for what the driver node could not be configured with.
    """
    from wamdiff2_ros import beforehand
    from wamdiff2_ros.monitor import Monitor
    from wamdiff2_ros.supervisor import Supervisor

    beforehand.check(nodes, parameter_file)
    console = Console(stderr=True)
    try:
        with Monitor() as monitor, Supervisor(nodes, log, parameter_file) as supervisor, Live(console=console) as live:
            while not supervisor.over():
                monitor.turn(0.1)
                live.update(_line(monitor))
                time.sleep(0.02)
    except KeyboardInterrupt:
        console.print(f"ended; logs are in {log}")


def _line(monitor: object) -> str:
    stats = getattr(monitor, "stats", None)
    if stats is None:
        return "waiting for frames; /diagnostics says what is missing"
    return (
        f"block {stats.block_size}  plans {stats.plan_hz:4.1f} Hz  latency {stats.total_ms:4.0f} ms  "
        f"frame age {stats.frame_age_ms:4.0f} ms  dropped {stats.frames_dropped}"
    )
