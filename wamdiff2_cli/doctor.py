"""`wamdiff2 doctor`: what this machine can run, why, and what to do about the rest."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

NAME = "doctor"
_MARKS = {"ok": "[green]ok      [/]", "missing": "[red]missing [/]", "optional": "[yellow]optional[/]"}


def run(
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint to try; default: the one here")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON and nothing else")] = False,
    build: Annotated[bool, typer.Option("--build", help="Compile GPU kernels for it instead: minutes")] = False,
    arch: Annotated[int | None, typer.Option(help="With --build: for this architecture, 90 for an H200")] = None,
) -> None:
    """Check this machine, line by line. Exit code 0 if `make demo` can run here, 1 if something is missing for it.

    With --build: exit code 0 if all kernels are ready, 1 if some could not be compiled.
    """
    if build and as_json:
        raise typer.BadParameter("--json goes without --build, which has no findings")
    if build:
        _build(checkpoint, arch)
    if arch is not None:
        raise typer.BadParameter("--arch goes with --build")
    from wamdiff2_cli.checks import MISSING, OK, findings

    console = Console(quiet=as_json, highlight=False, soft_wrap=True)
    found = []
    for finding in findings(checkpoint):
        found.append(finding)
        console.print(f"{_MARKS[finding.state]}  {finding.name:<16}  {escape(finding.found)}")
        if finding.state != OK and finding.do:
            console.print(f"{'':<28}[bold]->[/] {escape(finding.do)}")
    missing = [finding.name for finding in found if finding.state == MISSING]
    if as_json:
        print(json.dumps({"demo": not missing, "findings": [finding.plain() for finding in found]}, indent=2))
    elif missing:
        console.print(f"\nThe demo cannot run here yet: see {', '.join(missing)}.")
    else:
        console.print("\nThe demo can run here: wamdiff2 demo")
    raise typer.Exit(1 if missing else 0)


def _build(checkpoint: Path | None, arch: int | None) -> NoReturn:
    from wamdiff2_cli import engine_build
    from wamdiff2_ros.graph import default_checkpoint

    problems = engine_build.build(checkpoint or default_checkpoint(), arch, partial(print, flush=True))
    for problem in problems:
        print(f"wamdiff2: {problem}", file=sys.stderr)
    raise typer.Exit(1 if problems else 0)
