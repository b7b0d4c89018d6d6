"""`wamdiff2 salvage BAG --out DIR`: a proper bag out of one that a kill, a full disk or a bad copy left in pieces."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from wamdiff2_core.errors import DataError

if TYPE_CHECKING:
    from wamdiff2_ros.bag_salvage import Salvage

NAME = "salvage"


def run(
    bag: Annotated[Path, typer.Argument(help="Bag folder, or one .mcap, .db3 or .zstd file; it is not changed")],
    out: Annotated[Path, typer.Option(help="Folder for the new bag; it must not exist yet")],
    max_file_mb: Annotated[float, typer.Option(min=0.0, help="MiB per file, 0: one file")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else")] = False,
) -> None:
    """Save what can be read of an unfinished or damaged bag; say what was kept and what was lost."""
    from wamdiff2_ros.bag_salvage import salvage

    try:
        report = salvage(bag, out, max_file_mb)
    except OSError as error:
        raise DataError(f"{bag} could not be salvaged: {error}") from error
    if as_json:
        print(json.dumps(as_dict(report), indent=2))
    else:
        _show(report, Console())


def as_dict(report: Salvage) -> dict[str, Any]:
    """For --json: kept and lost by topic, the files, and whether anything is known or suspected to be missing."""
    plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(report).items()}
    return plain | {"files": [asdict(file) for file in report.files], "complete": report.complete}


def _show(report: Salvage, console: Console) -> None:
    table = Table("topic", "kept", "lost", "dropped when recorded")
    for topic in sorted({*report.kept, *report.lost, *report.never_recorded}):
        counts = report.kept[topic], report.lost[topic], report.never_recorded[topic]
        table.add_row(topic, *(str(count) if count else "-" for count in counts))
    console.print(table)
    for file in report.files:
        console.print(f"{file.path}: {file.kept} messages, {'whole' if file.finished else 'its end is missing'}")
        for note in file.notes:
            console.print(f"  {note}")
    for new, old in report.renamed.items():
        console.print(f"{new}: {old}")
    for note in report.notes:
        console.print(note)
    if not report.complete:
        console.print("lost counts what left a trace; behind a cut there may have been more")
    console.print(f"wrote {report.out}")
