"""Quality against forwards per plan over decoding settings: which settings nothing beats, how many steps are needed."""

from __future__ import annotations

from collections.abc import Sequence

KEPT = ("block_size", "steps", "threshold", "rule", "scaffold", "frames", "ade_m", "answers_correct", "map50",
        "forwards_per_plan", "forwards_per_detection", "forwards_per_answer", "parse_failures_share",
        "failed_plans_share")  # fmt: skip


MOST_WITHHELD = 0.1  # share of plans without an answer: beyond it, the error of the others is no figure of quality


def point(figures: dict) -> dict:
    """What of a setting's figures is kept."""
    return {name: figures.get(name) for name in KEPT}


def front(points: Sequence[dict], cost: str = "forwards_per_plan", loss: str = "ade_m") -> list[dict]:
    """Points that give most of their plans and that no other beats in both (smaller is better), cheapest first."""
    known = [p for p in points if p[cost] is not None and p[loss] is not None and _gives_plans(p)]
    best: list[dict] = []
    for candidate in sorted(known, key=lambda p: (p[cost], p[loss])):
        if not best or candidate[loss] < best[-1][loss]:
            best.append(candidate)
    return best


def steps_needed(points: Sequence[dict], tolerance: float = 0.02, loss: str = "ade_m") -> dict[int, dict]:
    """For each block size the fewest steps whose loss is within `tolerance` (a share) of that block size's best."""
    found = {}
    for block in sorted({p["block_size"] for p in points}):
        mine = [p for p in points if p["block_size"] == block and p[loss] is not None and _gives_plans(p)]
        if mine:
            limit = min(p[loss] for p in mine) * (1.0 + tolerance)
            found[block] = min((p for p in mine if p[loss] <= limit), key=lambda p: (p["steps"], p[loss]))
    return found


def _gives_plans(one: dict) -> bool:
    return (one.get("failed_plans_share") or 0.0) <= MOST_WITHHELD
