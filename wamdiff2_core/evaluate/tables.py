"""Result files of `wamdiff2 evaluate` as tables: a column per block size, on the console (rich) and in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import DataError

# (heading, key of a result, format); a key that a result lacks leaves its cell empty
FRAMES = (
    ("frames", "frames", "{:d}"),
    ("ADE m", "ade_m", "{:.2f}"),
    ("FDE m", "fde_m", "{:.2f}"),
    ("mAP50", "map50", "{:.3f}"),
    ("right answers", "answers_correct", "{:.1%}"),
    ("parse failures", "parse_failures_share", "{:.2%}"),
    ("all failures", "failures_share", "{:.2%}"),
    ("forwards per plan", "forwards_per_plan", "{:.1f}"),
    ("vision ms", "plan_vision_ms", "{:.0f}"),
    ("prefill ms", "plan_prefill_ms", "{:.0f}"),
    ("decode ms", "plan_decode_ms", "{:.0f}"),
    ("plan ms", "plan_total_ms", "{:.0f}"),
)
DRIVE = (
    ("routes", "routes", "{:d}"),
    ("route completion", "route_completion", "{:.1%}"),
    ("driving score", "driving_score", "{:.1f}"),
    ("routes completed", "completed_routes", "{:d}"),
    ("collisions per route", "collisions_per_route", "{:.2f}"),
    ("red lights per route", "red_lights_per_route", "{:.2f}"),
    ("off road s per route", "off_road_s_per_route", "{:.2f}"),
    ("closed-loop ADE m", "ade_m", "{:.2f}"),
    ("parse failures", "parse_failures_share", "{:.2%}"),
    ("failed plans", "failed_plans_share", "{:.2%}"),
    ("forwards per plan", "forwards_per_plan", "{:.1f}"),
)
BENCH = (
    ("forwards per plan", "forwards_per_plan", "{:.1f}"),
    ("vision ms", "vision_ms", "{:.1f}"),
    ("prefill ms", "prefill_ms", "{:.1f}"),
    ("decode ms", "decode_ms", "{:.1f}"),
    ("plan ms", "total_ms", "{:.1f}"),
    ("scene ms", "scene_ms", "{:.1f}"),
)
REPLAY = (
    ("frames", "frames", "{:d}"),
    ("ADE to what was driven m", "ade_m", "{:.2f}"),
    ("FDE to what was driven m", "fde_m", "{:.2f}"),
    ("frames compared with it", "compared_with_driven", "{:d}"),
    ("ADE to the recorded plan m", "ade_to_recorded_m", "{:.2f}"),
    ("FDE to the recorded plan m", "fde_to_recorded_m", "{:.2f}"),
    ("plans as recorded", "plans_as_recorded_share", "{:.1%}"),
    ("ADE to the expert m", "ade_to_expert_m", "{:.2f}"),
    ("FDE to the expert m", "fde_to_expert_m", "{:.2f}"),
    ("mAP50", "map50", "{:.3f}"),
    ("right answers", "answers_correct", "{:.1%}"),
    ("answers as recorded", "answers_as_recorded_share", "{:.1%}"),
    ("failed plans", "failed_plans_share", "{:.2%}"),
    *FRAMES[-5:],
    ("plan ms, 99 %", "plan_total_p99_ms", "{:.0f}"),
    ("age of pictures ms", "frame_age_ms", "{:.0f}"),
)
COLUMNS = {"frames": FRAMES, "drive": DRIVE, "bench": BENCH, "replay": REPLAY}
WHAT = {
    "frames": "Open loop, labelled frames",
    "drive": "Closed loop, routes",
    "bench": "Speed",
    "replay": "A bag planned once more",
}
SHOWN: tuple[str, ...] = ("bag", "checkpoint", "maps", "towns", "steps", "threshold", "rule", "latency_s")
SHOWN += ("plan_period_s", "route_m", "device", "dtype", "kernels", "workers", "threads")
Cells = list[list[str]]


def read_report(path: Path) -> dict[str, Any]:
    """A result file. DataError if it is not one."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a result file of `wamdiff2 evaluate`: {error}") from error
    if not isinstance(report, dict) or report.get("what") not in COLUMNS or not isinstance(report.get("results"), list):
        raise DataError(f'{path}: expected "what" ({", ".join(COLUMNS)}) and "results" in it')
    return report


def cells(report: Mapping[str, Any]) -> Cells:
    """Heading (block sizes) and a row per figure; figures that no result holds are left out."""
    results = report["results"]
    columns = [c for c in COLUMNS[report["what"]] if any(row.get(c[1]) is not None for row in results)]
    rows = [[heading, *(_cell(row.get(key), form) for row in results)] for heading, key, form in columns]
    return [_heading(results, "block size"), *rows]


def waypoint_cells(report: Mapping[str, Any]) -> Cells:
    """Heading and a row per waypoint: its mean error."""
    results = [row for row in report["results"] if row.get("per_waypoint_m")]
    if not results:
        return []
    curves = [row["per_waypoint_m"] for row in results]
    rows = [[f"{0.5 * (k + 1):.1f} s", *(f"{v:.2f}" for v in values)] for k, values in enumerate(zip(*curves))]
    reference = "what was driven" if report["what"] == "replay" else "expert"
    return [_heading(results, f"distance to {reference}, m"), *rows]


def kind_cells(report: Mapping[str, Any]) -> Cells:
    """Heading and a row per kind of question: the share of right answers."""
    results = [row for row in report["results"] if row.get("answers_correct_by_kind")]
    shares = [row["answers_correct_by_kind"] for row in results]
    kinds = sorted({kind for share in shares for kind in share if kind})
    if not kinds:
        return []
    rows = [[kind, *(_cell(share.get(kind), "{:.0%}") for share in shares)] for kind in kinds]
    return [_heading(results, "right answers"), *rows]


def markdown(table: Cells) -> str:
    """A Markdown table, numbers to the right."""
    heading, *rows = table
    lines = ["| " + " | ".join(heading) + " |", "|:---|" + "---:|" * (len(heading) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def merged_markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """All tables of several reports, each with what it was measured on; for README and model card."""
    parts = []
    for report in reports:
        parts.append(f"{caption(report)}\n\n{markdown(cells(report))}")
        parts += [markdown(table) for table in (waypoint_cells(report), kind_cells(report)) if table]
    return "\n".join(parts)


def caption(report: Mapping[str, Any]) -> str:
    """What was measured, on what machine, in one line."""
    settings, where = report.get("settings", {}), report.get("machine", {})
    what = WHAT[report["what"]]
    told = [f"{name} {_plain(settings[name])}" for name in SHOWN if settings.get(name)]
    told += [str(where[name]) for name in ("gpu", "cpu") if where.get(name)]
    if where.get("cores"):
        told.append(f"{where['cores']} cores")
    if where.get("torch"):
        told.append(f"torch {where['torch']}")
    return f"{what}: {', '.join(told)}." if told else f"{what}."


def print_tables(report: Mapping[str, Any], console: Any) -> None:
    """All tables of one report on a rich console."""
    from rich.table import Table

    console.print(caption(report), highlight=False)
    for table in (cells(report), waypoint_cells(report), kind_cells(report)):
        if table:
            shown = Table(box=None, header_style="bold", pad_edge=False)
            for k, heading in enumerate(table[0]):
                shown.add_column(heading, justify="right" if k else "left")
            for row in table[1:]:
                shown.add_row(*row)
            console.print(shown)


def _heading(results: Sequence[Mapping[str, Any]], first: str) -> list[str]:
    return [first, *("expert" if row["block_size"] == 0 else str(row["block_size"]) for row in results)]


def _cell(value: object, form: str) -> str:
    return "" if value is None else form.format(value)


def _plain(value: object) -> str:
    return "+".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)
