"""What `wamdiff2 evaluate all` leaves behind: report.json, report.md, report.html, each whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.bench2drive.output import write_whole
from wamdiff2_core.evaluate.everything import plots
from wamdiff2_core.evaluate.everything.table import fronts

TITLE = "wamdiff2: all benchmarks"
HEADING = (
    "figure",
    "unit",
    "value",
    "± over seeds",
    "seeds",
    "samples",
    "checkpoint",
    "decoding",
    "ms",
    "what to know",
)
OWN_WORLD = "Measured in wamdiff2's own test world, not in CARLA, NAVSIM or Bench2Drive."
Report = Mapping[str, Any]


def write_report(out: Path, report: Report) -> list[Path]:
    """Write the three files to the folder `out`; the JSON last. ConfigError if it cannot be written."""
    whole = {**report, "pareto": fronts(report["rows"])}
    texts = {
        "report.md": markdown(whole),
        "report.html": html(whole),
        "report.json": json.dumps(whole, indent=1, allow_nan=False) + "\n",
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(out / name, text)
    except OSError as error:
        raise ConfigError(f"{out}: expected a folder that can be written: {error}") from error
    return [out / name for name in texts]


def sections(report: Report) -> list[dict[str, Any]]:
    """Per benchmark: title, what its rows have in common, heading and rows of cells."""
    titles = dict.fromkeys(row["title"] for row in report["rows"])
    return [_section(title, [row for row in report["rows"] if row["title"] == title]) for title in titles]


def _section(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    facts = [OWN_WORLD] if first["own_world"] else []
    facts += [
        f"Data: {'; '.join(dict.fromkeys(d for row in rows for d in row['data']))}.",
        f"Rules: {first['version']}.",
    ]
    kernels = dict.fromkeys(name for row in rows for name in row["kernels"])
    facts += [f"Kernels: {', '.join(kernels)}."] if kernels else []
    problems = dict.fromkeys(f"{_who(row)}{line}" for row in rows for line in row["problems"])
    return {
        "title": title,
        "facts": facts,
        "heading": list(HEADING),
        "rows": [_cells(row) for row in rows],
        "problems": list(problems),
        "files": list(dict.fromkeys(file for row in rows for file in row["files"])),
    }


def _who(row: Mapping[str, Any]) -> str:
    named = " ".join(part for part in (row["checkpoint"], row["setting"]) if part)
    return f"{named}: " if named else ""


def _cells(row: Mapping[str, Any]) -> list[str]:
    seeds = len(row["values"])
    return [
        row["figure"] + ("" if row["more_is_better"] else " ↓"),
        row["unit"],
        "not known" if row["mean"] is None else f"{row['mean']:.4g}",
        "" if row["std"] is None else f"{row['std']:.2g}",
        str(seeds),
        str(row["count"] or ""),
        row["checkpoint"],
        row["setting"],
        "" if row["latency_ms"] is None else f"{row['latency_ms']:.0f}",
        "; ".join(row["notes"]),
    ]


def facts(report: Report) -> list[str]:
    """What everything was measured on, a line each."""
    where = report["machine"]
    named = [f"{where[name]}" for name in ("gpu", "cpu") if where.get(name)]
    lines = [
        f"Machine: {', '.join(named)}, {where['cores']} cores, torch {where['torch']}, {where['device']}, "
        f"{where['dtype']}, {where['workers']} worker(s).",
        f"Commit: {where['commit'] or 'not known'}.",
    ]
    for name, folders in report["checkpoints"].items():
        told = ", ".join(f"{one['folder']} (weights {one['weights']})" for one in folders)
        lines.append(f"Checkpoint {name}: {told or 'not there'}.")
    lines.append(
        "↓: less is better. ± is the sample standard deviation over seeds (of training, routes or decoding); one seed "
        "has none. ms: median of one answer or plan alone, while that many workers ran."
    )
    return lines


def markdown(report: Report) -> str:
    """The report as Markdown."""
    parts = [f"# {TITLE}\n", "\n".join(f"- {line}" for line in facts(report)) + "\n"]
    for section in sections(report):
        rows = [section["heading"], *section["rows"]]
        lines = ["| " + " | ".join(_safe(cell) for cell in row) + " |" for row in rows]
        lines.insert(1, "|" + ":---|" * len(HEADING))
        parts += [f"## {section['title']}\n", " ".join(section["facts"]) + "\n", "\n".join(lines) + "\n"]
        parts += ["\n".join(f"- {_safe(line)}" for line in section["problems"]) + "\n"] if section["problems"] else []
    for title, entries in (("Left out", _absent(report)), ("Failed", _errors(report))):
        if entries:
            parts += [f"## {title}\n", "\n".join(f"- {_safe(line)}" for line in entries) + "\n"]
    return "\n".join(parts)


def _absent(report: Report) -> list[str]:
    return [f"{one['title']}: {'; '.join(one['missing'])}" for one in report["absent"]]


def _errors(report: Report) -> list[str]:
    return [
        " ".join(filter(None, (one["benchmark"], one["checkpoint"], one["setting"]))) + f": {one['error']}"
        for one in report["errors"]
    ]


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def html(report: Report) -> str:
    """The report as one self-contained page: no script, no outside address; texts of the input are escaped."""
    folder = Path(__file__).resolve().parent.parent / "templates"
    environment = Environment(loader=FileSystemLoader(folder), autoescape=select_autoescape(default=True))
    return environment.get_template("everything.html.j2").render(
        title=TITLE,
        facts=facts(report),
        sections=sections(report),
        pareto=[(f"{one['title']}: {one['figure']}", plots.pareto(one)) for one in report["pareto"]],
        bars=[(title, plots.main_figures(rows)) for title, rows in _main(report).items()],
        absent=_absent(report),
        errors=_errors(report),
    )


def _main(report: Report) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of main figures that are known, by benchmark and figure."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        if row["main"] and row["mean"] is not None:
            found.setdefault(f"{row['title']}: {row['figure']}", []).append(row)
    return found
