"""Writes distill.json, the pictures, and the tables between the markers of docs/distillation.md and the README."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from training.proof.plots import draw_all
from training.proof.results import collect
from training.proof.tables import TABLES
from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.summary import write_json

_MARKED = re.compile(r"(<!-- table (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(run: Path, out: Path, docs: Path, rows: Sequence[str], seeds: Sequence[int]) -> dict:
    """Everything from the files of a run. What was not measured stays visible as such."""
    if not run.is_dir():
        raise DataError(f"{run}: expected the folder of a run of the proof")
    results = collect(run, rows, seeds)
    write_json(out / "distill.json", results)
    draw_all(results, docs / "images")
    for page in (docs / "distillation.md", docs.parent / "README.md"):
        if page.is_file():
            text = fill(page.read_text(encoding="utf-8"), results)
            new = page.with_name(f".{page.name}.new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, page)
    print(json.dumps({row: _short(found) for row, found in results["rows"].items()}, indent=1))
    return results


def fill(text: str, results: dict) -> str:
    """The page with every marked table anew. DataError for a marker without a table of its name."""

    def table(match: re.Match[str]) -> str:
        if match["name"] not in TABLES:
            raise DataError(f"marker {match['name']!r}: expected one of {', '.join(TABLES)}")
        return f"{match[1]}\n{TABLES[match['name']](results)}\n{match[3]}"

    return _MARKED.sub(table, text)


def _short(found: dict) -> dict:
    names = ("closed_loop", "ade_m", "map50", "answers")
    return {name: None if found[name] is None else round(found[name]["mean"], 4) for name in names}
