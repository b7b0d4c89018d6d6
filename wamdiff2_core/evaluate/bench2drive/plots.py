"""The plots of a Bench2Drive report, each as a PNG data URI (matplotlib, no display)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wamdiff2_core.evaluate.bench2drive.benchmark import ABILITIES, MIN_SPEED
from wamdiff2_core.evaluate.canvas import new_figure, png_uri
from wamdiff2_core.evaluate.plots import BLUE, GREEN, GREY, INK, ORANGE


def abilities(report: Mapping[str, Any]) -> str:
    """Success rate by ability with the mean; what only a map decides is shown as the span of its bounds."""
    figure, axes = new_figure(7.2, 3.4)
    names = [*ABILITIES, "mean"]
    for k, name in enumerate(names):
        _bar(axes, k, report["ability"][name], 100.0, GREEN if name == "mean" else BLUE)
        if report["ability"][name]["mean"] is None and name in ABILITIES:
            _bounds(axes, k, [run["ability_detail"][name]["bounds"] for run in report["runs"]])
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.set_ylabel("success rate in %")
    axes.set_ylim(0, 108)
    return png_uri(figure)


def scenarios(report: Mapping[str, Any]) -> str:
    """Driving score (bar) and success rate (dot) of all scenarios, the weakest at the bottom."""
    rows = sorted(report["by_scenario"].items(), key=lambda item: (item[1]["driving_score"]["mean"], item[0]))
    figure, axes = new_figure(9.6, 10.5)
    place = np.arange(len(rows))
    scores = [row["driving_score"]["mean"] for _, row in rows]
    spread = [row["driving_score"]["std"] or 0.0 for _, row in rows]
    axes.barh(place, scores, xerr=spread if any(spread) else None, color=BLUE, ecolor=INK, height=0.68, label="score")
    axes.plot(
        [100 * row["success_rate"]["mean"] for _, row in rows], place, "o", color=ORANGE, markersize=5,
        label="success rate in %",
    )  # fmt: skip
    axes.set_yticks(place, [name for name, _ in rows], fontsize=8)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlim(-2, 105)
    axes.set_xlabel("driving score of the scenario's routes, missing ones as 0")
    axes.legend(frameon=True, loc="lower right")
    return png_uri(figure)


def towns(report: Mapping[str, Any]) -> str:
    """Driving score by town, with its number of routes."""
    figure, axes = new_figure(7.2, 3.2)
    for k, row in enumerate(report["by_town"].values()):
        _bar(axes, k, row["driving_score"], 1.0, BLUE)
    labels = [f"{name.removeprefix('Town')}\n{row['routes']}" for name, row in report["by_town"].items()]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("town, and its number of routes")
    axes.set_ylabel("driving score")
    axes.set_ylim(0, 108)
    return png_uri(figure)


def infractions(report: Mapping[str, Any]) -> str:
    """Share of records with a message of each kind; messages of being slow, which cost nothing, are left out."""
    kinds = sorted({kind for run in report["runs"] for kind in run["infractions"]} - {MIN_SPEED})
    records = sum(run["records"] for run in report["runs"])
    touched = [sum(run["infractions"].get(k, {"records": 0})["records"] for run in report["runs"]) for k in kinds]
    shares = [100.0 * count / records if records else 0.0 for count in touched]
    figure, axes = new_figure(7.2, 3.6)
    order = np.argsort(shares, kind="stable")
    axes.barh(range(len(kinds)), [shares[k] for k in order], color=ORANGE, height=0.68)
    axes.set_yticks(range(len(kinds)), [kinds[k].removesuffix("_infractions").replace("_", " ") for k in order])
    axes.set_xlabel("records with such a message in %")
    axes.set_xlim(0, max([*shares, 1.0]) * 1.1)
    return png_uri(figure)


def _bar(axes: Any, place: float, spread: Mapping[str, Any], factor: float, colour: str) -> None:
    """A bar of the mean, its deviation, its value; several runs as dots."""
    if spread["mean"] is None:
        axes.text(place, 2, "not known", ha="center", va="bottom", rotation=90, color=INK, fontsize=9)
        return
    height = factor * spread["mean"]
    axes.bar(place, height, color=colour, width=0.62)
    top = height
    if spread["std"] is not None:
        deviation = factor * spread["std"]
        axes.errorbar(place, height, yerr=deviation, color=INK, capsize=4, linewidth=1.2)
        known = [factor * value for value in spread["values"] if value is not None]
        axes.plot(place + np.linspace(-0.18, 0.18, len(known)), known, "o", color="white", mec=INK, markersize=4)
        top = max(height + deviation, *known)
    axes.text(place, top + 1.5, f"{height:.1f}", ha="center", va="bottom", color=INK, fontsize=9)


def _bounds(axes: Any, place: float, bounds: Sequence[Sequence[float] | None]) -> None:
    known = [pair for pair in bounds if pair]
    if known:
        low, high = 100 * min(pair[0] for pair in known), 100 * max(pair[1] for pair in known)
        axes.bar(place, high - low, bottom=low, color=GREY, width=0.62, hatch="//", edgecolor="white")
