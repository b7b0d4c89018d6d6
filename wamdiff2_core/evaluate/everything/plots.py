"""The plots of the table's report, each as a PNG data URI (matplotlib, no display)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wamdiff2_core.evaluate.canvas import new_figure, png_uri
from wamdiff2_core.evaluate.plots import BLUE, GREEN, INK, ORANGE

COLOURS = (BLUE, ORANGE, GREEN, "#8b5cf6", "#d64545", "#0e9aa7")


def pareto(front: Mapping[str, Any]) -> str:
    """Quality against latency, a numbered point for each way to decode; those that none beats in both are joined."""
    figure, axes = new_figure(9.6, max(3.6, 1.0 + 0.2 * len(front["points"])))
    names = list(dict.fromkeys(point["checkpoint"] for point in front["points"]))
    for number, point in enumerate(front["points"], start=1):
        colour = COLOURS[names.index(point["checkpoint"]) % len(COLOURS)]
        at = (point["latency_ms"], point["value"])
        label = f"{number}  {point['checkpoint']} {point['setting']}"
        axes.plot(*at, "o", color=colour, mfc=colour if point["best"] else "white", markersize=7, label=label)
        if point["std"]:
            axes.errorbar(*at, yerr=point["std"], color=colour, capsize=3)
        axes.annotate(str(number), at, textcoords="offset points", xytext=(6, 5), fontsize=8, color=INK)
    joined = sorted((p["latency_ms"], p["value"]) for p in front["points"] if p["best"])
    axes.plot([x for x, _ in joined], [y for _, y in joined], color=INK, linewidth=1, alpha=0.6, zorder=0)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(x=0.15, y=0.15)
    if not any(point["value"] for point in front["points"]):
        axes.set_ylim(-0.05, 1.0)  # zeros alone have no scale of their own
    axes.set_xlabel("ms of one answer or plan alone (median)")
    better = "more" if front["more_is_better"] else "less"
    unit = f" ({front['unit']})" if front["unit"] else ""
    axes.set_ylabel(f"{front['figure']}{unit},\n{better} is better")
    return png_uri(figure)


def main_figures(rows: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each checkpoint and way to decode, with the values of the seeds on it."""
    figure, axes = new_figure(8.4, max(1.6, 0.5 + 0.42 * len(rows)))
    for place, row in enumerate(reversed(rows)):
        axes.barh(place, row["mean"], color=BLUE, height=0.62, xerr=row["std"] or None, ecolor=INK, capsize=3)
        if len(row["values"]) > 1:
            axes.plot(row["values"], [place] * len(row["values"]), "o", color="white", mec=INK, markersize=4)
        axes.annotate(f"{row['mean']:.4g}", (row["mean"], place), textcoords="offset points", xytext=(8, 6), fontsize=8)
    labels = [" ".join(filter(None, (row["checkpoint"], row["setting"]))) for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.margins(x=0.12)
    if not any(row["mean"] for row in rows):
        axes.set_xlim(0.0, 1.0)  # bars of no length have no scale of their own
    unit = f" ({rows[0]['unit']})" if rows[0]["unit"] else ""
    axes.set_xlabel(f"{rows[0]['figure']}{unit}")
    return png_uri(figure)
