"""`wamdiff2 replay BAG`: plan a bag's frames once more, with other settings or another checkpoint, and compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from wamdiff2_core.evaluate.record import DriveRecord
    from wamdiff2_core.scene import Camera

NAME = "replay"


def run(
    bag: Annotated[Path, typer.Argument(help="Bag folder of a demo or of a vehicle")],
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    blocks: Annotated[str, typer.Option("--block-sizes", help="Block sizes, like 1,8,32")] = "32",
    steps: Annotated[int, typer.Option(min=1, help="Most denoising steps per block")] = 8,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Probability from which a token is taken")] = 0.9,
    rule: Annotated[str, typer.Option(help="dynamic, static or sequential")] = "dynamic",
    frames: Annotated[int, typer.Option(min=0, help="At most so many, spread over the bag; 0: all")] = 0,
    prefix: Annotated[str, typer.Option(help="Of the recorded topics: PREFIX/<camera>/image, ...")] = "/world",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch")] = 2,
    rig: Annotated[Path | None, typer.Option(help="Camera rig file; default: the demo's")] = None,
    out: Annotated[Path, typer.Option(help="Folder for replay.json and report.html")] = Path("out/replay"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """Plan every recorded frame again, for each block size; compare with the recorded plans and with the expert's."""
    import torch

    from wamdiff2_cli.checkpoints import checkpoint_folder
    from wamdiff2_cli.evaluate import block_sizes
    from wamdiff2_core import DecodingConfig, Driver
    from wamdiff2_core.rig import load_rig
    from wamdiff2_ros import replay
    from wamdiff2_ros.graph import share_folder

    torch.set_num_threads(threads)
    sizes, folder = block_sizes(blocks), checkpoint_folder(checkpoint)
    settings = [DecodingConfig(size, min(steps, size), rule, threshold) for size in sizes]
    driver = Driver.from_checkpoint(folder, device, dtype)
    cameras = load_rig(rig or share_folder("config") / "rig_three.yaml")
    recorded = _recorded(bag, cameras)
    console = Console(stderr=True, quiet=as_json)
    made, shown = replay.replan(driver, bag, recorded, settings, prefix, frames, cameras, console)
    stated = {"bag": str(bag), "checkpoint": str(folder), "steps": steps, "threshold": threshold, "rule": rule}
    report = replay.report(made, recorded, stated | {"device": device, "dtype": dtype, "threads": threads})
    replay.write(out, report, made, recorded, shown, sizes[-1])
    _show(report, out, as_json)


def _recorded(bag: Path, cameras: Sequence[Camera]) -> DriveRecord:
    """The drive as it was; an empty record for a bag of bare camera topics."""
    from wamdiff2_core.evaluate.record import DriveRecord
    from wamdiff2_ros.bag_reader import NotADrive, read_drive

    try:
        return read_drive(bag, cameras, pictures=0)
    except NotADrive:
        return DriveRecord()


def _show(report: dict[str, Any], out: Path, as_json: bool) -> None:
    from wamdiff2_core.evaluate.tables import print_tables

    if as_json:
        print(json.dumps(report, indent=2))
        return
    print_tables(report, Console())
    console = Console(stderr=True)
    console.print(f"wrote {out / 'replay.json'} and {out / 'report.html'}")
