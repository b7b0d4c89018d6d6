"""report.html of a drive: one self-contained file, no script, no outside address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape

from wamdiff2_core.evaluate import plots
from wamdiff2_core.evaluate.answers import normalise
from wamdiff2_core.evaluate.record import DriveRecord

WORLD_NOTE = (
    "This drive took place in wamdiff2's own test world: road networks of CARLA towns (or procedural ones), our own "
    "renderer, traffic and vehicle model. It is not CARLA, and its figures are not CARLA's, NAVSIM's or Bench2Drive's."
)


def write_report(
    path: Path,
    record: DriveRecord,
    summary: dict[str, object],
    title: str = "wamdiff2 drive",
    tables: Mapping[str, list[list[str]]] | None = None,
    note: str = WORLD_NOTE,
) -> None:
    """Write the report of `record` with the figures of `summary` (see `summarise`) to `path`, whole or not at all.

    `tables`: further ones by title, each a heading and rows.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(default=True)
    )
    start_s = float(record.track[0, 0]) if len(record.track) else 0.0
    per_waypoint = summary.get("per_waypoint_l2_m")
    page = environment.get_template("drive.html.j2").render(
        title=title,
        note=note,
        tables=[{"title": name, "cells": cells} for name, cells in (tables or {}).items()],
        tiles=_tiles(summary),
        rows=[(key, show(value)) for key, value in summary.items()],
        route_map=plots.route_map(record),
        speed_curve=plots.speed_curve(record),
        waypoint_curve=plots.waypoint_curve(per_waypoint if isinstance(per_waypoint, list) else []),
        latency_histogram=plots.latency_histogram(record),
        snapshots=[
            {
                "caption": snapshot.caption,
                "pictures": [(name, plots.picture_uri(image)) for name, image in snapshot.pictures.items()],
            }
            for snapshot in record.snapshots
        ],
        answers=[
            (f"{a.stamp_s - start_s:.1f}", a.question, a.answer, a.truth, not a.truth or _same(a.answer, a.truth))
            for a in record.answers
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".html.part")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)


def _same(answer: str, truth: str) -> bool:
    return normalise(answer) == normalise(truth)


def _tiles(summary: dict[str, object]) -> list[tuple[str, str]]:
    latency = summary.get("plan_latency_ms")
    median = latency.get("p50") if isinstance(latency, dict) else None
    return [
        ("route completed", show(summary.get("route_completion"), "{:.0%}")),
        ("distance", show(summary.get("distance_m"), "{:.0f} m")),
        ("collisions", show(summary.get("collisions"))),
        ("red lights run", show(summary.get("red_lights"))),
        ("plans per second", show(summary.get("plan_hz"), "{:.1f}")),
        ("latency, median", show(median, "{:.0f} ms")),
        ("distance to expert", show(summary.get("ade_to_expert_m"), "{:.2f} m")),
        ("block size", show(summary.get("block_size"))),
    ]


def show(value: object, form: str = "{:.3g}") -> str:
    """A figure as text: `form` applies to floats; lists and dicts show their members."""
    if value is None:
        return "not known"
    if isinstance(value, float):
        return form.format(value)
    if isinstance(value, list):
        return ", ".join(show(v, form) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {show(v, form)}" for key, v in value.items())
    return str(value)
