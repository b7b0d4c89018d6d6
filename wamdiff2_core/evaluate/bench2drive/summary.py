"""One evaluation summed up: driving score, success rate, abilities, efficiency, smoothness, scenarios, towns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive.abilities import abilities, first_records
from wamdiff2_core.evaluate.bench2drive.benchmark import RELEASE, ROUTES, Route, routes, routes_by_id
from wamdiff2_core.evaluate.bench2drive.checks import doubts
from wamdiff2_core.evaluate.bench2drive.comfort import efficiencies, smoothness_by_record
from wamdiff2_core.evaluate.bench2drive.records import Problem, Record, Run, read_run


def summarize(
    input_dir: Path | str, map_lookups: Mapping[str, Any] | None = None, metric_dir: Path | str | None = None
) -> dict[str, Any]:
    """Figures of the result files in `input_dir`, under the names of the official tools where they have one.

    map_lookups: by route number, `waypoints_to_first_junction` and `route_waypoints` (1 m apart) of routes that failed
        in a Traffic_Signs scenario. Without the one for such a route, that ability and the mean are None and
        `ability_detail` bounds it.
    metric_dir: folder of `<save_name>/metric_info.json`; else `input_dir`/metric, or `input_dir` itself.

    DataError if no file can be used, or if a lookup is malformed. A figure that the input cannot give is None.
    """
    return summarize_run(read_run(Path(input_dir)), map_lookups, metric_dir)


def summarize_run(
    run: Run, map_lookups: Mapping[str, Any] | None = None, metric_dir: Path | str | None = None
) -> dict[str, Any]:
    """Like `summarize`, for files that were read already."""
    merged = run.merged()
    first = first_records(merged)
    ability = abilities(merged, map_lookups)
    efficient, efficiency_problems = efficiencies(merged)
    smooth, smoothness_problems = _smoothness(run, merged, metric_dir)
    problems = [
        *run.problems,
        *doubts(run.records, first, ability.map_needed),
        *efficiency_problems,
        *smoothness_problems,
    ]
    return {
        "benchmark": RELEASE,
        "input": str(run.folder),
        "driving_score": sum(record.score_composed for record in run.records) / ROUTES,
        "success_rate": sum(record.success for record in run.records) / ROUTES,
        "ability": ability.shares(),
        "driving_efficiency": _mean(efficient),
        "driving_smoothness": _mean([smooth[r.save_name] for r in merged if r.save_name in smooth]),
        "records": len(run.records),
        "eval_num": len(run.records),
        "warning_not_220": len(run.records) != ROUTES,
        "metric_records": sum(record.save_name in smooth for record in merged),
        "routes_driven": sum(route in routes_by_id() for route in first),
        "distinct": _distinct(first),
        "ability_detail": ability.detail(),
        "map_needed": ability.map_needed,
        "by_scenario": _groups(first, lambda route: route.scenario),
        "by_town": _groups(first, lambda route: route.town),
        "statuses": dict(sorted(Counter(record.status for record in run.records).items())),
        "infractions": _infractions(run.records),
        "successful_route_ids": [record.route_id for record in run.records if record.success],
        "merged_route_order": [record.route_id for record in merged],
        "driving_efficiency_per_record": efficient,
        "smoothness_per_record": smooth,
        "files_in_merge_order": [file["file"] for file in run.files],
        "files": run.files,
        "files_skipped": run.skipped,
        "problem_counts": dict(sorted(Counter(problem.kind for problem in problems).items())),
        "problems": [problem.told() for problem in problems],
    }


def _smoothness(
    run: Run, merged: Sequence[Record], metric_dir: Path | str | None
) -> tuple[dict[str, float], list[Problem]]:
    """Shares by save_name. Without any metric file and without being asked for, nothing is told as missing."""
    if metric_dir is not None and not Path(metric_dir).is_dir():
        raise DataError(f"{metric_dir}: expected a folder of <save_name>/metric_info.json")
    beside = run.folder / "metric"
    folder = Path(metric_dir) if metric_dir is not None else beside if beside.is_dir() else run.folder
    shares, problems = smoothness_by_record(merged, folder)
    nothing = metric_dir is None and not shares and all(problem.kind == "missing_metric" for problem in problems)
    return shares, [] if nothing else problems


def _distinct(first: Mapping[str, Record]) -> dict[str, float]:
    """Driving score and success rate with one record per route (the one that abilities count), only of the 220."""
    known = [record for number, record in first.items() if number in routes_by_id()]
    return {
        "driving_score": sum(record.score_composed for record in known) / ROUTES,
        "success_rate": sum(record.success for record in known) / ROUTES,
    }


def _groups(first: Mapping[str, Record], key: Callable[[Route], str]) -> dict[str, dict[str, Any]]:
    """Per scenario or town: mean score and success rate over ALL its routes, the missing ones as 0."""
    groups: dict[str, list[Record | None]] = {}
    for route in routes():
        groups.setdefault(key(route), []).append(first.get(route.id))
    return {
        name: {
            "routes": len(rows),
            "driven": sum(row is not None for row in rows),
            "driving_score": sum(row.score_composed for row in rows if row is not None) / len(rows),
            "success_rate": sum(row.success for row in rows if row is not None) / len(rows),
        }
        for name, rows in sorted(groups.items())
    }


def _infractions(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """By kind: messages, and records with at least one."""
    messages: Counter[str] = Counter()
    touched: Counter[str] = Counter()
    for record in records:
        for name, texts in record.infractions.items():
            messages[name] += len(texts)
            touched[name] += bool(texts)
    return {name: {"messages": messages[name], "records": touched[name]} for name in sorted(messages)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
