"""summary.json of a leaderboard run in our world: figures over the routes that were asked for, and their table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, MIN_SPEED
from wamdiff2_core.evaluate.bench2drive.records import Record, read_run
from wamdiff2_core.evaluate.bench2drive.summary import summarize_run
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_sim.leaderboard.select import OfficialRoute

WORLD = "our own world on CARLA's maps under the leaderboard's code; not CARLA"


def write_summary(out: Path, asked: Sequence[OfficialRoute], settings: dict[str, Any]) -> dict[str, Any]:
    """Read `out`/results.json, write and return `out`/summary.json. A route without a record counts as zero."""
    (out / "summary.json").unlink(missing_ok=True)  # of an earlier run: it is no result file
    run = read_run(out)
    figures = summarize_run(run)
    records = {record.number: record for record in run.records}
    rows = [_row(route, records.get(route.id), out) for route in asked]
    summary = {
        "world": WORLD,
        "benchmark": figures["benchmark"],
        **_figures(rows),
        "by_ability": {name: _figures([row for row in rows if row["scenario"] in types])
                       for name, types in ABILITIES.items()},
        "by_town": _grouped(rows, lambda row: row["town"]),
        "by_scenario": _grouped(rows, lambda row: row["scenario"]),
        "infractions": dict(sum((Counter(row["infractions"]) for row in rows), Counter())),
        "driving_efficiency": figures["driving_efficiency"],
        "driving_smoothness": figures["driving_smoothness"],
        "problems": figures["problem_counts"],
        "agent": _agent(rows),
        "settings": settings,
        "routes_table": rows,
    }  # fmt: skip
    write_json(out / "summary.json", summary)
    return summary


def _row(route: OfficialRoute, record: Record | None, out: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"id": route.id, "town": route.town, "scenario": route.scenario, "status": "not driven",
                           "driving_score": 0.0, "route_completion": 0.0, "success": False, "infractions": {},
                           "sim_seconds": 0.0, "wall_seconds": 0.0, "agent": {}}  # fmt: skip
    if record is None:
        return row
    meta = record.raw.get("meta", {})
    kinds = {name: len(texts) for name, texts in record.infractions.items() if texts and name != MIN_SPEED}
    report = out / "metric" / (record.save_name or "") / "wamdiff2.json"
    row.update(
        status=record.status, driving_score=record.score_composed, route_completion=record.score_route,
        success=record.success, infractions=kinds, sim_seconds=meta.get("duration_game", 0.0),
        wall_seconds=meta.get("duration_system", 0.0),
        agent=json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {},
    )  # fmt: skip
    row["agent"].pop("settings", None)
    return row


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    count = len(rows)

    def mean(key: str) -> float | None:
        return sum(float(row[key]) for row in rows) / count if count else None

    return {
        "routes": count,
        "driven": sum(row["status"] != "not driven" for row in rows),
        "driving_score": mean("driving_score"),
        "route_completion": mean("route_completion"),
        "successes": sum(row["success"] for row in rows),
        "success_rate": mean("success"),
    }


def _grouped(rows: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> dict[str, dict[str, Any]]:
    return {name: _figures([row for row in rows if key(row) == name]) for name in sorted({key(row) for row in rows})}


def _agent(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums of the agent's own counts over all routes."""
    reports = [row["agent"] for row in rows if row["agent"]]
    failures: Counter[str] = sum((Counter(report["failures"]) for report in reports), Counter())
    gaps: Counter[str] = sum((Counter(report["gaps"]) for report in reports), Counter())
    times = sorted(report["planning_ms_p50"] for report in reports if report["planning_ms_p50"] is not None)
    return {
        **{name: sum(report[name] for report in reports) for name in ("ticks", "plans", "exceptions", "braking_ticks")},
        "failures": dict(failures),
        "gaps": dict(gaps),
        "planning_ms_p50": times[len(times) // 2] if times else None,
    }
