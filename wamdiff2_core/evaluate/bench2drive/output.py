"""What `wamdiff2 evaluate bench2drive` leaves behind: summary.json, report.md, report.html, merged.json.

Every file is written whole or not at all; merged.json has the official form, for the official tools that read it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.bench2drive import plots, tables
from wamdiff2_core.evaluate.bench2drive.records import Run
from wamdiff2_core.evaluate.bench2drive.seeds import merge_runs

TITLE = "Bench2Drive evaluation"


def write_summary(out: Path, summaries: Sequence[Mapping[str, Any]], runs: Sequence[Run] = ()) -> dict[str, Any]:
    """Write the report on one or several runs to the folder `out`; returns the content of summary.json.

    summaries: of `summarize`, one per run. One run: its summary is summary.json as it is; several: see `merge_runs`.
    runs: the same runs as read, for merged.json (several: merged_1.json, ...); none are written without them.

    ConfigError if `out` is a folder of results (it would be read as such next time) or cannot be written.
    """
    if out.resolve() in {Path(summary["input"]).resolve() for summary in summaries}:
        raise ConfigError(f"{out}: expected another folder than that of the results")
    report = merge_runs(summaries)
    summary = dict(summaries[0]) if len(summaries) == 1 else report
    texts = {
        "report.md": tables.markdown(report, TITLE),
        "report.html": html(report),
        **{_merged_name(k, len(runs)): merged(run, each) for k, (run, each) in enumerate(zip(runs, summaries))},
        # Last: whoever waits for it finds the others.
        "summary.json": json.dumps(summary, indent=1, allow_nan=False) + "\n",
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(out / name, text)
    except OSError as error:
        raise ConfigError(f"{out}: expected a folder that can be written: {error}") from error
    return summary


def merged(run: Run, summary: Mapping[str, Any]) -> str:
    """All usable records in the official order and form (without `index`), with the official three figures, as JSON.

    What a record holds beside scores and infractions is passed on as it is, a NaN included.
    """
    records = [{key: value for key, value in record.raw.items() if key != "index"} for record in run.merged()]
    value = {
        "_checkpoint": {"records": records},
        "driving score": summary["driving_score"],
        "success rate": summary["success_rate"],
        "eval num": summary["eval_num"],
    }
    return json.dumps(value) + "\n"


def html(report: Mapping[str, Any]) -> str:
    """The report as one self-contained page: no script, no outside address; texts of the input are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(default=True)
    )
    made = tables.all_tables(report)
    figures, several = made.pop("Figures"), len(report["runs"]) > 1
    return environment.get_template("report.html.j2").render(
        title=TITLE,
        inputs=report["seeds"],
        notes=tables.notes(report),
        tiles=figures[1:],
        several=several,
        pictures={
            "Abilities": plots.abilities(report),
            "Scenarios": plots.scenarios(report),
            "Towns": plots.towns(report),
            "Infraction messages": plots.infractions(report),
        },
        tables=[{"title": title, "heading": rows[0], "rows": rows[1:]} for title, rows in made.items()],
    )


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all, also beside another writer of the same file. OSError like `open`."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(
            handle, "w", encoding="utf-8", errors="backslashreplace"
        ) as file:  # a result may hold half a pair
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _merged_name(number: int, count: int) -> str:
    return "merged.json" if count == 1 else f"merged_{number + 1}.json"
