"""Measurements as rows: one for each figure of a benchmark, checkpoint and way to decode, with its spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.evaluate.bench2drive.seeds import spread
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.everything.benchmark import Benchmark, Figure, Measured

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One measurement and where it belongs."""

    benchmark: Benchmark
    checkpoint: str
    folder: Path | None
    setting: Setting | None
    seed: int
    measured: Measured


def rows(cells: Sequence[Cell]) -> list[Row]:
    """Rows in the order of the measurements. A figure that one of the seeds lacks has no mean."""
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.benchmark.name, cell.checkpoint, str(cell.setting or "")].append(cell)
    return [row for group in groups.values() for row in _group(group)]


def _group(cells: Sequence[Cell]) -> list[Row]:
    names = dict.fromkeys(figure.name for cell in cells for figure in cell.measured.figures)
    return [_row(cells, name) for name in names]


def _row(cells: Sequence[Cell], name: str) -> Row:
    found = [next((f for f in cell.measured.figures if f.name == name), None) for cell in cells]
    some = next(figure for figure in found if figure is not None)
    first, setting = cells[0], cells[0].setting
    return {
        "benchmark": first.benchmark.name,
        "title": first.benchmark.title,
        "own_world": first.benchmark.own_world,
        "figure": name,
        "unit": some.unit,
        "more_is_better": some.more_is_better,
        "main": some.main,
        "checkpoint": first.checkpoint,
        "folders": list(dict.fromkeys(str(cell.folder) for cell in cells if cell.folder)),
        "setting": str(setting or ""),
        "decoding": setting.values() if setting else None,
        **spread(_values(found)),
        "seeds": [cell.seed for cell in cells],
        "count": sum(figure.count for figure in found if figure),
        "failed": sum(cell.measured.failed for cell in cells),
        "data": list(dict.fromkeys(cell.measured.data for cell in cells)),
        "version": first.measured.version,
        "notes": list(dict.fromkeys(figure.note for figure in found if figure and figure.note)),
        "problems": _problems(cells),
        "latency_ms": spread([cell.measured.latency_ms for cell in cells])["mean"],
        "forwards": spread([cell.measured.forwards for cell in cells])["mean"],
        "kernels": list(dict.fromkeys(cell.measured.kernels for cell in cells if cell.measured.kernels)),
        "files": [file for cell in cells for file in cell.measured.files],
    }


def _values(found: Sequence[Figure | None]) -> list[float | None]:
    values: list[float | None] = []
    for figure in found:
        values += figure.values if figure and figure.values else [figure.value if figure else None]
    return values


def _problems(cells: Sequence[Cell]) -> list[str]:
    """Of all seeds; each line once."""
    several = len(cells) > 1
    return [f"seed {c.seed}: {line}" if several else line for c in cells for line in c.measured.problems]


def absence(benchmark: Benchmark, lines: Sequence[str]) -> dict[str, Any]:
    """What a benchmark that did not run lacks."""
    return {"benchmark": benchmark.name, "title": benchmark.title, "missing": list(lines)}


def best(points: Sequence[tuple[float, float]], more_is_better: bool) -> list[int]:
    """Indices of (latency, quality) points that no other beats in both, by latency: the Pareto front."""
    sign = 1.0 if more_is_better else -1.0
    order = sorted(range(len(points)), key=lambda k: (points[k][0], -sign * points[k][1]))
    front: list[int] = []
    for k in order:
        if not front or sign * points[k][1] > sign * points[front[-1]][1]:
            front.append(k)
    return front


def fronts(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each benchmark with a main figure and latencies: its points, and which of them are on the Pareto front."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in table:
        if row["main"] and row["mean"] is not None and row["latency_ms"] is not None:
            groups[row["title"], row["figure"]].append(row)
    made = []
    for (title, figure), group in groups.items():
        points = [(row["latency_ms"], row["mean"]) for row in group]
        chosen = best(points, group[0]["more_is_better"])
        made.append({
            "title": title, "figure": figure, "unit": group[0]["unit"], "more_is_better": group[0]["more_is_better"],
            "points": [{"checkpoint": row["checkpoint"], "setting": row["setting"], "latency_ms": row["latency_ms"],
                        "value": row["mean"], "std": row["std"], "best": k in chosen} for k, row in enumerate(group)],
        })  # fmt: skip
    return made
