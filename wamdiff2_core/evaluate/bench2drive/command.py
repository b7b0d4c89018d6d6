"""What `wamdiff2 evaluate bench2drive` does: read, sum up, write, show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.bench2drive import tables
from wamdiff2_core.evaluate.bench2drive.output import write_summary
from wamdiff2_core.evaluate.bench2drive.records import load_json, read_run
from wamdiff2_core.evaluate.bench2drive.seeds import find_runs, merge_runs
from wamdiff2_core.evaluate.bench2drive.summary import summarize_run


class Evaluation(NamedTuple):
    """`summary`: the content of summary.json; `report`: the same figures with their spread over the runs."""

    summary: Mapping[str, Any]
    report: Mapping[str, Any]


def evaluate(
    results: Sequence[Path], out: Path, map_lookups: Path | None = None, metric_dir: Path | None = None
) -> Evaluation:
    """Sum up the runs in `results` and write the report to `out`. DataError, ConfigError for what cannot be used."""
    folders = find_runs(results)
    if metric_dir is not None and len(folders) > 1:
        raise ConfigError(f"--metric-dir: expected one run with it, got {len(folders)}; else <run>/metric is looked at")
    lookups = None if map_lookups is None else read_lookups(map_lookups)
    runs = [read_run(folder) for folder in folders]
    summaries = [summarize_run(run, lookups, metric_dir) for run in runs]
    return Evaluation(write_summary(out, summaries, runs), merge_runs(summaries))


def read_lookups(path: Path) -> dict[str, Any]:
    """Map lookups by route number, alone or under `map_lookups`. DataError for another content."""
    value = load_json(path)
    lookups = value.get("map_lookups", value) if isinstance(value, dict) else value
    if not isinstance(lookups, dict):
        raise DataError(f"{path.name}: expected an object of lookups by route number, got {type(lookups).__name__}")
    return lookups


def show(made: Evaluation, console: Any) -> None:
    """Figures, abilities and problems on a rich console; texts of the input are not taken as markup."""
    from rich.table import Table
    from rich.text import Text

    for title, (heading, *rows) in tables.console_tables(made.report):
        shown = Table(box=None, title=title, title_justify="left", header_style="bold", pad_edge=False)
        for name in heading:
            shown.add_column(name)
        for row in rows:
            shown.add_row(*map(Text, row))
        console.print(shown)
    for run in made.report["runs"]:
        counts = ", ".join(f"{kind.replace('_', ' ')}: {count}" for kind, count in run["problem_counts"].items())
        if counts:
            console.print(Text(f"{run['input']}: {counts} (see report.md)"), style="yellow")
