"""`wamdiff2 evaluate all`: every benchmark whose data is there, in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from wamdiff2_cli.kernels import ConfiguredKernels
from wamdiff2_core.errors import Wamdiff2Error

if TYPE_CHECKING:
    from wamdiff2_core.evaluate.everything.benchmark import Benchmark

NAME = "all"
SHOWN = (0, 2, 3, 6, 7, 8)  # columns of the report's table that a terminal has room for


def benchmarks() -> tuple[Benchmark, ...]:
    """All benchmarks: our own world first, for it brings its own data."""
    from wamdiff2_core.evaluate.everything import registry
    from wamdiff2_sim.world_row import World

    return (World(), *registry.benchmarks())


def run(
    config: Annotated[Path, typer.Option(help="What to run: config/evaluate_all.yaml is an example")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report and all rows; default: as configured")] = None,
    kernels: ConfiguredKernels = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else")] = False,
) -> None:
    """Run what data is present and say what is absent: report.json, report.md, report.html. Goes on where it ended."""
    from dataclasses import replace

    from wamdiff2_core.evaluate.everything.config import read_config
    from wamdiff2_core.evaluate.everything.output import write_report
    from wamdiff2_core.evaluate.everything.run import evaluate

    chosen = read_config(config)
    chosen = chosen if out is None else replace(chosen, out=out)
    chosen = chosen if kernels is None else replace(chosen, kernels=kernels)
    log = Console(stderr=True, highlight=False, quiet=as_json)
    report = evaluate(chosen, benchmarks(), lambda text: log.print(text, markup=False))
    files = write_report(chosen.out, report)
    if as_json:
        print(json.dumps(json.loads(files[-1].read_text(encoding="utf-8")), indent=2))
    else:
        _show(report, Console(highlight=False))
        log.print(f"wrote {', '.join(str(file) for file in files)}", markup=False)
    if report["errors"]:
        raise Wamdiff2Error(f"measurements failed: {len(report['errors'])}; the report names them")


def _show(report: dict[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from wamdiff2_core.evaluate.everything.output import sections

    for section in sections(report):
        shown = Table(box=None, title=section["title"], title_justify="left", header_style="bold", pad_edge=False)
        for k in SHOWN:
            shown.add_column(section["heading"][k], justify="right" if k in (2, 3, 8) else "left")
        for row in section["rows"]:
            shown.add_row(*(Text(row[k]) for k in SHOWN))
        console.print(shown)
    for one in report["absent"]:
        console.print(Text(f"left out: {one['title']}: {'; '.join(one['missing'])}"), style="yellow")
