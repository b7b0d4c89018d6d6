"""Several evaluations of one agent: the mean of every figure, and how far the runs lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, RELEASE
from wamdiff2_core.evaluate.bench2drive.records import result_files
from wamdiff2_core.evaluate.bench2drive.summary import summarize

FIGURES = ("driving_score", "success_rate", "driving_efficiency", "driving_smoothness")


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The folders of result files among `paths`; a folder without one stands for its subfolders that have some.

    DataError for a folder that gives none, ConfigError if one is named twice: it would feign a small spread.
    """
    runs: list[Path] = []
    for path in paths:
        runs += [path] if result_files(path)[0] else _inner_runs(path)
    places = [run.resolve() for run in runs]
    twice = sorted({str(place) for place in places if places.count(place) > 1})
    if twice:
        raise ConfigError(f"expected every folder of results once, got twice: {', '.join(twice)}")
    return runs


def _inner_runs(path: Path) -> list[Path]:
    inner = sorted((p for p in path.iterdir() if p.is_dir() and result_files(p)[0]), key=lambda p: p.name)
    if not inner:
        raise DataError(f"{path}: expected leaderboard result files (*.json) in it or in its subfolders, found none")
    return inner


def summarize_seeds(folders: Sequence[Path | str], map_lookups: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`summarize` of every folder under `runs`, and the spread of every figure over them. Errors as there."""
    return merge_runs([summarize(folder, map_lookups) for folder in folders])


def merge_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Spread of the summaries' figures. `by_scenario` and `by_town`: of their driving score and success rate."""
    if not runs:
        raise DataError("expected at least one summary, got none")
    return {
        "benchmark": RELEASE,
        "seeds": [run["input"] for run in runs],
        "figures": {name: spread([run[name] for run in runs]) for name in FIGURES},
        "ability": {name: spread([run["ability"][name] for run in runs]) for name in (*ABILITIES, "mean")},
        "by_scenario": _groups(runs, "by_scenario"),
        "by_town": _groups(runs, "by_town"),
        "runs": list(runs),
    }


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, sample standard deviation (n - 1; None for one value), least and most.

    All None unless EVERY run gives the figure: the runs that lack it may be just the bad ones.
    """
    known = [value for value in values if value is not None]
    whole = known if len(known) == len(values) else []
    return {
        "values": list(values),
        "known": len(known),
        "mean": statistics.fmean(whole) if whole else None,
        "std": statistics.stdev(whole) if len(whole) > 1 else None,
        "min": min(whole, default=None),
        "max": max(whole, default=None),
    }


def _groups(runs: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "routes": row["routes"],
            "driving_score": spread([run[key][name]["driving_score"] for run in runs]),
            "success_rate": spread([run[key][name]["success_rate"] for run in runs]),
        }
        for name, row in runs[0][key].items()
    }
