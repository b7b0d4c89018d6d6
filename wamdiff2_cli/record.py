"""`wamdiff2 record`: topics into an MCAP bag that `ros2 bag play` accepts; ends with Ctrl-C."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wamdiff2_cli.needs_ros import check_ros
from wamdiff2_core.errors import ConfigError

NAME = "record"


def run(
    bag: Annotated[Path, typer.Argument(help="Folder to make; it must not exist yet")],
    prefix: Annotated[list[str] | None, typer.Option(help="Record topics that begin so; repeat it")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave this topic out; repeat it")] = None,
    max_file_mb: Annotated[float, typer.Option(min=0.0, help="MiB per file, 0: one file")] = 1024.0,
    max_file_s: Annotated[float, typer.Option(min=0.0, help="Seconds per file, 0: no limit")] = 0.0,
    min_free_mb: Annotated[float, typer.Option(min=0.0, help="Stop writing when less is free on the disk")] = 64.0,
    on_full: Annotated[str, typer.Option(help="On a full disk: wait (go on when there is room) or end")] = "wait",
    seconds: Annotated[float, typer.Option(min=0.0, help="Stop after so long; 0: at Ctrl-C")] = 0.0,
) -> None:
    """Record topics until Ctrl-C."""
    check_ros()
    from wamdiff2_ros import graph
    from wamdiff2_ros.supervisor import Supervisor

    if bag.exists():
        raise ConfigError(f"{bag} exists already; a bag is not written over")
    parameters: dict[str, object] = {"max_file_mb": max_file_mb, "max_file_s": max_file_s}
    parameters |= {"min_free_mb": min_free_mb, "on_full": on_full}
    if prefix:
        parameters["prefixes"] = prefix
    if exclude:
        parameters["exclude"] = exclude
    console = Console(stderr=True)
    log = bag.resolve().parent / f"{bag.name}_log"
    try:
        with Supervisor([graph.recorder(bag.resolve(), parameters)], log) as supervisor:
            console.print(f"recording to {bag}; Ctrl-C ends it")
            until_s = time.monotonic() + seconds if seconds else float("inf")
            while time.monotonic() < until_s and not supervisor.over():
                time.sleep(0.1)
    except KeyboardInterrupt:
        pass
    for line in (log / "recorder.log").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("recorder: "):  # what it counted at its end
            console.print(line, highlight=False)
