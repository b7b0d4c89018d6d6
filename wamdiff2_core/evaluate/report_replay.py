"""report.html of a replay: one self-contained file with its own script, nothing from outside, works offline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from wamdiff2_core.evaluate.report import show
from wamdiff2_core.evaluate.tables import cells, kind_cells, waypoint_cells

NOTE = (
    "Plans made once more from the pictures of a bag. Nothing was driven: the car went where the recorded plans or its "
    "human driver, took it, so an error grows as soon as a plan differs from what was done."
)


def write_replay_report(path: Path, report: Mapping[str, Any], viewer: Mapping[str, Any]) -> None:
    """Write the page of a replay's `report` to `path`, whole or not at all.

    `viewer`: cameras, block sizes, pictures and frames as `wamdiff2_ros.replay_page.viewer` gives them.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(default=True)
    )
    page = environment.get_template("replay.html.j2").render(
        title=f"wamdiff2 replay of {report['settings']['bag']}",
        note=NOTE,
        verdict=report["verdict"],
        passed=report["exit_code"] == 0,
        limits=[(v["limit"], show(v["figure"]), v["held"]) for v in report["limits"]],
        problems=report["input"]["problems"],
        tiles=_tiles(report),
        tables=_tables(report),
        topics=[_topic(row) for row in report["input"]["topics"]],
        curves=_curves(report),
        viewer=viewer,
        rows=_rows(report),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".html.part")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)


def _tiles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    entry, then = report["input"], report["recorded"]
    best = [row["ade_m"] for row in report["results"] if row["ade_m"] is not None]
    frames = max((row["frames"] for row in report["results"]), default=0)
    share = entry["read_share"]
    read = f"{share:.1%}" if share is not None else f"{entry['messages_read']}"
    return [
        ("frames planned again", str(frames)),
        ("of the recording", f"{entry['duration_s']:.1f} s"),
        ("messages read" if share is None else "of the messages read", read),
        ("longest gap in inputs", show(entry["max_gap_s"], "{:.2f} s")),
        ("distance to what was driven, best", show(min(best, default=None), "{:.2f} m")),
        ("the recorded plans' distance", show(then["ade_m"], "{:.2f} m")),
        ("recorded latency, median", show(then["plan_total_ms"], "{:.0f} ms")),
        ("recorded age of pictures, median", show(then["frame_age_ms"], "{:.0f} ms")),
    ]


def _tables(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not report["results"]:
        return []
    tables = {"By block size": cells(report)}
    tables["Distance per waypoint"] = waypoint_cells(report)
    tables["Right answers by kind of question"] = kind_cells(report)
    return [{"title": title, "cells": table} for title, table in tables.items() if table]


def _topic(row: Mapping[str, Any]) -> list[str]:
    gap = show(row["max_gap_s"], "{:.2f} s")
    where = f" at {row['gap_at_s']:.1f} s" if row["gap_at_s"] is not None else ""
    told = [f"{row[key]} {text}" for key, text in (("undecodable", "not readable"), ("zero_stamps", "stamps of zero"),
            ("same_times", "equal times"), ("steps_back", "steps back")) if row[key]]  # fmt: skip
    period = show(row["period_s"], "{:.3f} s") if row["period_s"] is not None else ""
    texts = (row["topic"], row["part"], row["type"], str(row["messages"]), period)
    return [*texts, gap + where if row["max_gap_s"] is not None else "", ", ".join(told)]


def _curves(report: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    curves = {f"block size {row['block_size']}": row["per_waypoint_m"] for row in report["results"]}
    curves["recorded plans"] = report["recorded"]["per_waypoint_m"]
    return {name: values for name, values in curves.items() if values}


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(f"{name}", show(value)) for name, value in report["settings"].items()]
    rows += [(f"recorded.{name}", show(value)) for name, value in report["recorded"].items()]
    rows += [(name, show(value)) for name, value in report["input"].items() if name not in ("topics", "problems")]
    return rows + [(name, show(value)) for name, value in report["machine"].items()]
