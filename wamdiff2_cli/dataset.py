"""`wamdiff2 dataset`: labelled frames from the embedded world, for training and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "dataset"


def run(
    out: Annotated[Path, typer.Option(help="Folder for shards; what it holds already is kept")],
    frames: Annotated[int, typer.Option(min=0, help="How many; 0: until it is ended")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same frames")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes")] = 2,
    maps: Annotated[str, typer.Option(help="procedural, or towns like Town01,Town02")] = "procedural",
    shard_frames: Annotated[int, typer.Option(min=1, help="Frames in a shard")] = 256,
    natural: Annotated[bool, typer.Option("--natural", help="No perturbed moments (for evaluation)")] = False,
    rig: Annotated[Path | None, typer.Option(help="Camera rig file; default: the demo's")] = None,
) -> None:
    """Drive the expert through towns and write conversations with images, in shards."""
    from wamdiff2_sim import dataset

    arguments = ["--out", out, "--frames", frames, "--seed", seed, "--workers", workers, "--maps", maps]
    arguments += ["--shard-frames", shard_frames, *(["--natural"] if natural else []), *(["--rig", rig] if rig else [])]
    raise typer.Exit(dataset.main([str(argument) for argument in arguments]))
