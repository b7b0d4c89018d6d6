"""`wamdiff2 faults`: real nodes, faults on purpose, and whether anything stale, unsaid or lost came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from wamdiff2_cli.needs_ros import check_ros

NAME = "faults"
WIDTH = 170  # where the output is no terminal


def run(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to make faults")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Order of the faults, and their targets")] = 0,
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the one here")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this kind of fault; repeat it")] = None,
    transport: Annotated[str, typer.Option(help="compressed or raw images")] = "compressed",
    slack: Annotated[float, typer.Option(min=0.0, help="Seconds that a slow machine may add to every limit")] = 0.25,
    out: Annotated[Path, typer.Option(help="Folder for what the run leaves behind")] = Path("out/faults"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else")] = False,
) -> None:
    """Make faults for some minutes. Exit code 1 if one was not named, or if anything stale or lost came of it."""
    check_ros()
    from wamdiff2_cli.checkpoints import checkpoint_folder
    from wamdiff2_ros.faults.session import Options, run_session

    console = Console(stderr=True, quiet=as_json)
    options = Options(
        out, checkpoint_folder(checkpoint), minutes * 60.0, seed, only or (), transport=transport, slack_s=slack
    )
    summary = run_session(options, lambda line: console.print(line, highlight=False, soft_wrap=True, markup=False))
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        tell(summary, Console() if sys.stdout.isatty() else Console(width=WIDTH))
        console.print(f"wrote {out / 'summary.json'}")
    raise typer.Exit(1 if summary["failures"] else 0)


def tell(summary: Mapping[str, Any], console: Console) -> None:
    """The table of kinds, and the sums."""
    from wamdiff2_ros.faults.summary import table

    kinds = Table(title="Faults")
    for title in ("fault", "injected", "named", "within s", "plans again", "within s", "named as"):
        kinds.add_column(
            title, overflow="ellipsis", no_wrap=True, max_width=WIDTH - 90 if title == "named as" else None
        )
    for row in table(summary):
        kinds.add_row(*row)
    console.print(kinds)
    sums = Table(show_header=False)
    for name, value in (
        ("faults injected", summary["faults_injected"]),
        ("faults named in diagnostics or stats", summary["faults_named"]),
        ("plans published", summary["plans"]),
        ("stale or invalid plans published", summary["stale_or_invalid_published"]),
        ("messages lost from closed bag chunks", summary["lost_from_closed_chunks"]),
        ("memory growth, MB", summary["memory_growth_mb"]),
    ):
        sums.add_row(name, str(value))
    console.print(sums)
    for kind, why in summary["not_injected"].items():
        console.print(f"[yellow]not injected: {kind}: {why}[/]")
    for failure in summary["failures"]:
        console.print(f"[red]{failure}[/]", highlight=False)
