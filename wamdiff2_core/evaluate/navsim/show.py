"""The result of a NAVSIM evaluation as tables on the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTS = ("scenes", "scenes_with_ec", "name")


def print_report(report: Mapping[str, Any], console: Any) -> None:
    """Scores by version, distance to the human by waypoint, guards, failures."""
    from rich.table import Table

    names = list(dict.fromkeys(key for table in report["scores"].values() for key in table if key not in COUNTS))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("sub-score")
    for scores in report["scores"].values():
        table.add_column(f"{scores['name']}, {scores['scenes']} scenes", justify="right")
    for name in names:
        table.add_row(name, *(_cell(scores.get(name)) for scores in report["scores"].values()))
    console.print(table)
    curve = report["l2_to_human"]
    if curve["scenes"]:
        steps = "  ".join(f"{0.5 * (k + 1):.1f} s {value:.2f}" for k, value in enumerate(curve["per_waypoint_m"]))
        console.print(f"distance to the human, m ({curve['scenes']} scenes): {steps}", highlight=False)
    if report["sources"]:
        console.print(f"scenes of {', '.join(report['sources'])}: by NAVSIM's rules, but not NAVSIM's benchmark")
    guards = report["guards"]
    console.print(
        f"plans that reverse: {len(guards['reverses'])}; with a clipped last waypoint: {len(guards['last_clipped'])}; "
        f"without them PDMS {_cell(guards['v11_score_without'])}, EPDMS {_cell(guards['v2_score_without'])}"
    )
    if report["two_stage"]:
        two = report["two_stage"]
        value = f"not known: {two['problem']}" if two["combined"] is None else f"{two['combined']:.4f}"
        console.print(f"{two['name']}: {value} ({two['groups']} groups, {two['scenes']} scenes)")
    left = report["plans_without_scene"]
    if left["count"]:
        console.print(f"plans that belong to no scene: {left['count']}, the first: {left['first'][0]!r}", markup=False)
    if report["failed"]:
        console.print(
            f"{report['failed']} could not be scored, the first: {report['failures'][0]['error']}", markup=False
        )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
