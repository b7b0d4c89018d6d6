"""`wamdiff2 demo`: a car drives itself through a town in the embedded world; leaves summary, report and bag."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from wamdiff2_cli.kernels import NodeKernels
from wamdiff2_cli.needs_ros import check_ros
from wamdiff2_core.errors import ConfigError

NAME = "demo"


@dataclass(frozen=True)
class DemoOptions:
    """What the demo drives: seconds of simulated time on a map, with a checkpoint and a dial."""

    seconds: float
    seed: int
    block_size: int
    steps: int
    threshold: float
    rule: str
    checkpoint: Path
    map_name: str
    rig: Path
    out: Path
    params: Path
    kernels: str | None = None


def run(
    seconds: Annotated[float, typer.Option(min=1.0, help="Simulated seconds to drive")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Route, traffic and weather")] = 0,
    block_size: Annotated[int, typer.Option(min=1, max=256, help="Tokens decoded together; 1: autoregressive")] = 32,
    steps: Annotated[int, typer.Option(min=1, max=256, help="Most denoising steps per block")] = 3,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")] = 0.6,
    rule: Annotated[str, typer.Option(help="dynamic, static, sequential or ordered")] = "ordered",
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    map_name: Annotated[str, typer.Option("--map", help="Town01 and the like, or procedural:SEED")] = "Town10HD",
    rig: Annotated[Path | None, typer.Option(help="Camera rig file")] = None,
    params: Annotated[Path | None, typer.Option(help="ROS parameter file")] = None,
    kernels: NodeKernels = None,
    out: Annotated[Path, typer.Option(help="Folder for what the drive leaves behind")] = Path("out/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else")] = False,
) -> None:
    """Drive through a town of the embedded world and write OUT/summary.json, report.html and bag/."""
    check_ros()
    from wamdiff2_ros import graph

    config = graph.share_folder("config")
    options = DemoOptions(
        seconds, seed, block_size, steps, threshold, rule, checkpoint or graph.default_checkpoint(), map_name,
        rig or config / "rig_three.yaml", out, params or config / "demo.yaml", kernels,
    )  # fmt: skip
    if not (options.checkpoint / "config.json").is_file():
        raise ConfigError(f"{options.checkpoint} is no checkpoint folder: it has no config.json")
    console = Console(stderr=True, quiet=as_json)
    wall_seconds, interrupted = drive_once(options, console)
    summary = report(options, wall_seconds, console)
    if as_json:
        print(json.dumps(summary, indent=2))
    if interrupted:
        raise typer.Exit(130)


def drive_once(options: DemoOptions, console: Console) -> tuple[float, bool]:
    """Run the nodes until the drive is over or Ctrl-C, with a progress line.

    Returns seconds of real time that the drive took, and whether it was interrupted once it had begun; before that
    there is nothing to sum up, and KeyboardInterrupt goes on. Raises ConfigError, before an earlier drive's results are
    cleared, for what the driver node could not be configured with.
    """
    from wamdiff2_core.rig import load_rig
    from wamdiff2_ros import beforehand, graph
    from wamdiff2_ros.monitor import Monitor
    from wamdiff2_ros.supervisor import Supervisor

    cameras = [camera.name for camera in load_rig(options.rig)]
    rig = str(options.rig.resolve())
    world = {"map": options.map_name, "seed": options.seed, "seconds": options.seconds, "rig": rig}
    dial = {name: getattr(options, name) for name in ("block_size", "steps", "threshold", "rule")}
    own = {**dial, "cameras": cameras, "rig": rig, "checkpoint": str(options.checkpoint.resolve())}
    if options.kernels is not None:
        own["kernels"] = options.kernels
    nodes = graph.demo(cameras, world, own, options.out.resolve() / "bag")
    beforehand.check(nodes, options.params)
    with Monitor() as monitor:
        present = monitor.others({spec.name for spec in nodes})
        if present:
            names = ", ".join(sorted(present))
            raise ConfigError(f"nodes named {names} are running already; end them, or set another ROS_DOMAIN_ID")
        clear_folder(options.out)
        with Supervisor(nodes, options.out / "log", options.params) as supervisor, Live(console=console) as live:
            began_s, interrupted = time.monotonic(), False
            try:
                while not supervisor.over():
                    monitor.turn(0.1)
                    if monitor.status is None:
                        began_s = time.monotonic()
                    live.update(progress_line(monitor, options.seconds))
            except KeyboardInterrupt:
                if monitor.status is None:
                    raise
                interrupted = True
            took_s = time.monotonic() - began_s
    if supervisor.killed:
        console.print(f"[yellow]these nodes did not end by themselves: {', '.join(supervisor.killed)}[/]")
    return took_s, interrupted


def progress_line(monitor: Any, seconds: float) -> str:
    """Where the drive is and what the driver does, on one line."""
    status, stats = monitor.status, monitor.stats
    if status is None:
        return "starting: the driver loads its checkpoint, the world its town ..."
    text = f"{status.time_s:5.1f}/{seconds:.0f} s  {status.speed_mps * 3.6:4.0f} km/h"
    text += f"  route {status.route_completion:4.0%}"
    if stats is not None:
        text += f"  block {stats.block_size}  plans {stats.plan_hz:4.1f} Hz  latency {stats.total_ms:4.0f} ms"
    return text + f"  collisions {status.collisions}  red lights {status.red_lights}"


def report(options: DemoOptions, wall_seconds: float, console: Console) -> dict[str, object]:
    """Read the bag, write summary.json and report.html, say where they are."""
    from wamdiff2_core.rig import load_rig
    from wamdiff2_ros.bag_reader import finish_drive

    title = f"wamdiff2 demo: {options.map_name}"
    summary = finish_drive(options.out / "bag", options.out, load_rig(options.rig), wall_seconds, title)
    for name in ("summary.json", "report.html", "bag"):
        console.print(f"wrote {options.out / name}")
    return summary


def clear_folder(out: Path) -> None:
    """Make the folder, without what an earlier demo left there (and only that)."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("bag", "log"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("summary.json", "report.html"):
        (out / name).unlink(missing_ok=True)
