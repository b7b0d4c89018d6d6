"""Figures over the rows that `frames.answer_frame` made, for each block size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from wamdiff2_core.evaluate.answers import answer_score
from wamdiff2_core.evaluate.waypoints import waypoint_errors
from wamdiff2_core.scene import Box

Rows = Sequence[dict]
TIMES = ("vision_ms", "prefill_ms", "decode_ms", "total_ms")


def figures(rows: Rows, kind_of: Callable[[str], str] = lambda question: "") -> list[dict[str, object]]:
    """One dict for each block size, smallest first. `kind_of` names the kind of a question. None: not known."""
    by_block: dict[int, list[dict]] = defaultdict(list)
    for row in rows:
        by_block[row["block_size"]].append(row)
    return [{"block_size": block, **_figures(group, kind_of)} for block, group in sorted(by_block.items())]


def _figures(rows: Rows, kind_of: Callable[[str], str]) -> dict[str, object]:
    plans = [row["plan"] for row in rows]
    answers = [answer for row in rows for answer in row["ask"]]
    failures = {
        "plan": _kinds(plan["failure"] for plan in plans),
        "detect": _kinds(row["detect"]["failure"] for row in rows),
        "ask": _kinds(answer["failure"] for answer in answers),
    }
    asked = len(plans) + len(rows) + len(answers)
    failed = sum(sum(kinds.values()) for kinds in failures.values())
    parse = sum(kinds.get("parse", 0) for kinds in failures.values())
    return {
        "frames": len(rows),
        **_plan_figures(plans),
        **_box_figures([row["detect"] for row in rows]),
        "forwards_per_detection": _mean([row["detect"] for row in rows], "forwards"),
        **_answer_figures(answers, kind_of),
        "forwards_per_answer": _mean(answers, "forwards"),
        "failures": failures,
        "parse_failures_share": parse / asked if asked else None,
        "failures_share": failed / asked if asked else None,
        "failed_plans_share": sum(failures["plan"].values()) / len(plans) if plans else None,
    }


def _plan_figures(plans: Rows) -> dict[str, object]:
    made = [plan for plan in plans if plan["points"] is not None]
    errors = waypoint_errors(np.array([p["points"] for p in made]), np.array([p["truth"] for p in made]))
    each = [float(np.linalg.norm(np.subtract(p["points"], p["truth"]), axis=1).mean()) for p in made]
    known = errors.count > 0
    return {
        "plans": errors.count,
        "ade_m": errors.ade_m if known else None,
        "fde_m": errors.fde_m if known else None,
        "ade_median_m": float(np.median(each)) if known else None,
        "per_waypoint_m": list(errors.per_waypoint_m) if known else None,
        "forwards_per_plan": _mean(plans, "forwards"),
        **{f"plan_{name}": _median(plans, name) for name in TIMES},
    }


def _mean(rows: Rows, name: str) -> float | None:
    known = [row[name] for row in rows if name in row]
    return float(np.mean(known)) if known else None


def _median(rows: Rows, name: str) -> float | None:
    """None where it was not measured, as for plans made in a batch."""
    known = [row[name] for row in rows if name in row]
    return float(np.median(known)) if known else None


def _box_figures(rows: Rows) -> dict[str, object]:
    """mAP50 needs faster-coco-eval; without it the figure is None and `map_missing` says why."""
    try:
        from wamdiff2_core.evaluate.detection import detection_score
    except ModuleNotFoundError as error:
        return {"map50": None, "map": None, "ap50": {}, "map_missing": f"{error.name} is not installed"}
    predicted = [[Box(label, tuple(xyxy), score) for label, xyxy, score in row["boxes"]] for row in rows]
    truth = [[Box(label, tuple(xyxy)) for label, xyxy in row["truth"]] for row in rows]
    score = detection_score(predicted, truth)
    if not score.truths:
        return {"map50": None, "map": None, "ap50": {}, "map_missing": "no frame holds a box"}
    ap50 = {label: value for label, value in score.ap50.items() if value >= 0.0}
    return {"map50": score.map50, "map": score.map, "ap50": ap50, "true_boxes": score.truths}


def _answer_figures(answers: Rows, kind_of: Callable[[str], str]) -> dict[str, object]:
    score = answer_score((kind_of(a["question"]), a["answer"], a["truth"]) for a in answers)
    return {
        "questions": score.count,
        "answers_correct": score.correct if score.count else None,
        "answers_correct_by_kind": score.by_kind,
    }


def _kinds(failures: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(kind for kind in failures if kind))
