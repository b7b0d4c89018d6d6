"""Comparisons of rows over the same routes or frames, and the spread over seeds. Missing stays missing (None)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

Scores = Mapping[object, float]  # route or frame -> score


def spread(values: Mapping[int, float | None]) -> dict | None:
    """Mean over seeds with their standard deviation (None for a single seed), extremes and the values themselves."""
    known = {seed: value for seed, value in sorted(values.items()) if value is not None and math.isfinite(value)}
    if not known:
        return None
    every = list(known.values())
    deviation = float(np.std(every, ddof=1)) if len(every) > 1 else None
    return {
        "mean": float(np.mean(every)),
        "spread": deviation,
        "min": min(every),
        "max": max(every),
        "seeds": every,
        "seed_numbers": list(known),
    }


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values; None for fewer than two."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def paired(one: Scores, other: Scores) -> dict | None:
    """`one` minus `other` over what both have: mean, standard error, count. None if they share nothing."""
    common = [place for place in one if place in other]
    if not common:
        return None
    differences = [one[place] - other[place] for place in common]
    return {"mean": float(np.mean(differences)), "error": standard_error(differences), "count": len(differences)}


def row_difference(row: Mapping[int, Scores], base: Mapping[int, Scores]) -> dict | None:
    """A row minus another, each {seed: {route: score}}.

    mean and error: over routes, after averaging a route's differences over the seeds that both drove it with;
    spread: of the seeds' own mean differences.
    """
    by_seed = {seed: paired(row[seed], base[seed]) for seed in sorted(row) if seed in base}
    by_route: dict[object, list[float]] = {}
    for seed, difference in by_seed.items():
        if difference is not None:
            for place in row[seed]:
                if place in base[seed]:
                    by_route.setdefault(place, []).append(row[seed][place] - base[seed][place])
    if not by_route:
        return None
    routes = [float(np.mean(values)) for values in by_route.values()]
    seeds = spread({seed: found["mean"] for seed, found in by_seed.items() if found is not None})
    assert seeds is not None  # some seed shares a route
    return {
        "mean": float(np.mean(routes)),
        "error": standard_error(routes),
        "routes": len(routes),
        "spread": seeds["spread"],
        "seeds": seeds["seeds"],
    }
