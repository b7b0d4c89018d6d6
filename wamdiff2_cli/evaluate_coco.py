"""`wamdiff2 evaluate coco`: boxes of named categories on data in COCO's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wamdiff2_cli import evaluate_texts as texts
from wamdiff2_cli.kernels import BatchKernels
from wamdiff2_core.errors import ConfigError

NAME = "coco"


def run(
    instances: Annotated[Path, typer.Argument(help="COCO instances file (JSON)")],
    images: Annotated[Path | None, typer.Option(help="Folder that file names start from; else the file's own")] = None,
    checkpoint: texts.Checkpoint = None,
    detections: Annotated[Path | None, typer.Option(help="Official result file to score, without a checkpoint")] = None,
    categories: Annotated[str, typer.Option(help="Names to ask for, like person,car; else all of the file")] = "",
    names: Annotated[str, typer.Option(help="Categories by the checkpoint's labels: person=pedestrian,...")] = "",
    mode: Annotated[
        str, typer.Option(help="one: a single question; each: one per category; auto: by checkpoint")
    ] = "auto",
    decoding: texts.Decoding = "B=32,steps=8,threshold=0.9",
    devices: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or several for the workers: cuda:0,cuda:1")
    ] = "cpu",
    dtype: texts.Dtype = "float32",
    kernels: BatchKernels = "auto",
    workers: texts.Workers = 1,
    most: Annotated[int, typer.Option(min=0, help="Only the first pictures; 0: all")] = 0,
    out: Annotated[Path, typer.Option(help="coco.json, detections.json")] = Path("out/evaluate/coco"),
    as_json: texts.AsJson = False,
) -> None:
    """Detect named categories with a checkpoint, or take a result file, and score them as COCO does."""
    from wamdiff2_core.evaluate.coco import row
    from wamdiff2_core.evaluate.coco.run import CocoJob, evaluate
    from wamdiff2_core.evaluate.decode_grid import parse_settings

    settings = parse_settings(decoding)
    if len(settings) != 1:
        raise ConfigError(f"--decoding: expected one way, got {len(settings)}")
    job = CocoJob(
        instances, images or instances.parent, out, checkpoint, detections, _list(categories), row.pairs(names),
        settings[0], mode, _list(devices), dtype, workers, most, kernels=kernels,
    )  # fmt: skip
    report = evaluate(job)
    texts.show(row.measured(report, out), report, as_json)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
