"""`wamdiff2 evaluate navsim`: PDMS and EPDMS of plans in scene files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wamdiff2_cli.kernels import Kernels
from wamdiff2_core.errors import ConfigError

NAME = "navsim"


def run(
    data: Annotated[Path, typer.Argument(help="Folder of scenes (.json, .json.gz), or one file: docs/navsim.md")],
    plans: Annotated[Path | None, typer.Option(help="JSON of plans by scene id; else the scenes' own")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a checkpoint that plans for scenes' pictures")
    ] = None,
    decoding: Annotated[str, typer.Option(help="How it decodes")] = "B=32,steps=8,threshold=0.9",
    devices: Annotated[str, typer.Option("--device", help="cpu, cuda, or several for workers: cuda:0,cuda:1")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, ...")] = "float32",
    kernels: Kernels = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Processes")] = 1,
    out: Annotated[Path, typer.Option(help="Result; rows go to a .jsonl beside it")] = Path("out/evaluate/navsim.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """PDMS and EPDMS of plans, as NAVSIM's official code scores them; goes on where it was ended."""
    from wamdiff2_core.evaluate.decode_grid import parse_settings
    from wamdiff2_core.evaluate.navsim import run, show
    from wamdiff2_core.evaluate.navsim.planned import PlanJob

    settings = parse_settings(decoding)
    if len(settings) != 1:
        raise ConfigError(f"--decoding: expected one way, got {len(settings)}")
    asked = tuple(part.strip() for part in devices.split(",") if part.strip())
    planner = None if checkpoint is None else PlanJob(checkpoint, settings[0], asked, dtype, workers, kernels)
    stderr = Console(stderr=True, quiet=as_json)
    report = run.evaluate(run.NavsimJob(data, out, plans, workers, planner, stderr.print))
    if as_json:
        print(json.dumps(report, indent=2))
        return
    show.print_report(report, Console())
    stderr.print(f"wrote {out}")
