"""Mean distance to the human's drive over the horizon, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wamdiff2_core.evaluate.canvas import new_figure
from wamdiff2_core.evaluate.navsim.vehicle import PLAN_STEP_S


def l2_curve(curve: Mapping[str, Any], path: Path) -> None:
    """`curve`: `l2_to_human` of a report with one scene or more."""
    figure, axes = new_figure(4.7, 3.2)
    values = curve["per_waypoint_m"]
    seconds = [PLAN_STEP_S * (k + 1) for k in range(len(values))]
    axes.plot(seconds, values, "o-", color="#2f6fde")
    for second, value in zip(seconds, values, strict=True):
        axes.annotate(
            f"{value:.2f}", (second, value), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8
        )
    axes.set_xlabel("seconds ahead")
    axes.set_ylabel(f"mean L2 in m ({curve['scenes']} scenes)")
    axes.set_ylim(0.0, 1.15 * max(values) + 0.01)
    figure.savefig(path, format="png")
