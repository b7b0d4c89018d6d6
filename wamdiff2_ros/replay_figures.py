"""What a replay comes to: figures by block size, of the drive as recorded, and of the bag itself.

Every figure has a name that is always there; one that could not be measured is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from wamdiff2_core.evaluate.answers import answer_score, normalise
from wamdiff2_core.evaluate.summary import detection_figure, percentiles
from wamdiff2_core.evaluate.waypoints import waypoint_errors
from wamdiff2_core.scene import Box, FailureKind
from wamdiff2_ros.bag_heard import Heard
from wamdiff2_ros.bag_reader import record_of
from wamdiff2_ros.bag_scenes import Footage
from wamdiff2_ros.replay import Frame, Made, Replay
from wamdiff2_sim.question_kinds import kind_of

SETTINGS = ("checkpoint", "block_size", "steps", "threshold", "rule", "map", "seed", "device", "kernels")
STAGES = ("vision", "prefill", "decode")
# Names of the figures of `recorded` and `of_input`, for limits that are checked before anything is measured.
RECORDED: tuple[str, ...] = (
    "plans",
    "plans_withheld",
    "stops",
    "plan_hz",
    "ade_m",
    "fde_m",
    "per_waypoint_m",
    "compared_with_driven",
)
RECORDED += ("ade_to_expert_m", "fde_to_expert_m", "per_waypoint_to_expert_m", "compared_with_expert", "map50")
RECORDED += ("detection_frames", "answers", "answers_correct", "plan_total_ms", "plan_total_p99_ms", "frame_age_ms")
RECORDED += ("frame_age_p99_ms", "recorded_after_ms", "frames_dropped")
INPUT: tuple[str, ...] = (
    "bag_finished",
    "messages_read",
    "messages_stated",
    "read_share",
    "undecodable",
    "moments_left_out",
)
INPUT += ("duration_s", "max_gap_s", "picture_spread_ms")
SAME_M = 0.01  # plans whose points all lie closer are the same
MOST_DELAY_NS = 60_000_000_000  # a longer one between stamp and recording means two clocks
Pairs = list[tuple[np.ndarray, np.ndarray]]


def results(replay: Replay, timing: bool = True) -> list[dict[str, Any]]:
    """Figures for each block size. timing False: without those that another run would measure differently."""
    frames = {frame.ns: frame for frame in replay.frames}
    sizes = sorted({one.block_size for one in replay.made})
    return [_of_size(size, [one for one in replay.made if one.block_size == size], frames, timing) for size in sizes]


def empty_row(size: int) -> dict[str, Any]:
    """Figures of a replay without a frame."""
    return _of_size(size, [], {}, True)


def _of_size(size: int, group: Sequence[Made], frames: dict[int, Frame], timing: bool) -> dict[str, Any]:
    plans = [(one.points, frames[one.ns]) for one in group if one.points is not None]
    failures = Counter(kind for one in group for kind in one.failures.values())
    asked = [one for one in group if one.points is not None or "plan" in one.failures]
    costs = [one.cost for one in asked if one.cost.forwards] if timing else []
    totals = percentiles(cost.total_ms for cost in costs)
    return {
        "block_size": size,
        "frames": len(group),
        "plans": len(plans),
        "failed_plans_share": 1.0 - len(plans) / len(asked) if asked else None,
        "failures": {kind.value: failures[kind.value] for kind in FailureKind},
        **_distances("", [(points, frame.driven) for points, frame in plans], "compared_with_driven"),
        **_distances("to_recorded_", [(points, frame.planned) for points, frame in plans], "compared_with_recorded"),
        "plans_as_recorded_share": _as_recorded([(points, frame.planned) for points, frame in plans]),
        **_distances("to_expert_", [(points, frame.expert) for points, frame in plans], "compared_with_expert"),
        **_boxes((one.boxes or (), frames[one.ns].true_boxes) for one in group if _asked(one, "detect")),
        **_answers([one for one in group if _asked(one, "ask")], frames),
        "forwards_per_plan": _mean(one.cost.forwards for one in asked if one.cost.forwards),
        **{f"plan_{name}_ms": _median(getattr(cost, f"{name}_ms") for cost in costs) for name in STAGES},
        "plan_total_ms": totals["p50"],
        "plan_total_p99_ms": totals["p99"],
        "frame_age_ms": percentiles(one.age_ms for one in group)["p50"] if timing else None,
    }


def _as_recorded(pairs: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> float | None:
    """Share of the plans whose points are those of then, to the centimetre; None without any."""
    same = [bool(np.abs(now - then).max() < SAME_M) for now, then in pairs if then is not None]
    return sum(same) / len(same) if same else None


def recorded(heard: Heard, footage: Footage) -> dict[str, Any]:
    """Figures of the drive as it was recorded, against the same path and truth, and the settings it had."""
    record = record_of(heard)
    plans = [(plan.points, plan) for plan in record.plans if plan.points is not None]
    latency, age = (percentiles(getattr(p, name) for p in record.plans) for name in ("latency_ms", "frame_age_ms"))
    after = percentiles(ns * 1e-6 for ns in heard.said_after_ns.values() if 0 <= ns < MOST_DELAY_NS)
    times = [plan.stamp_s for _, plan in plans]
    span = times[-1] - times[0] if len(times) > 1 else 0.0
    score = answer_score((a.kind, a.answer or None, a.truth) for a in record.answers if a.truth)
    return {
        "plans": len(plans),
        "plans_withheld": len(record.plans) - len(plans),
        "stops": heard.stops,
        "plan_hz": (len(times) - 1) / span if span else None,
        **_distances("", [(points, footage.driven(p.stamp_ns)) for points, p in plans], "compared_with_driven"),
        **_distances("to_expert_", [(points, p.expert) for points, p in plans], "compared_with_expert"),
        **_boxes((one.predicted, one.truth) for one in record.boxes),
        "answers": score.count,
        "answers_correct": score.correct if score.count else None,
        "plan_total_ms": latency["p50"],
        "plan_total_p99_ms": latency["p99"],
        "frame_age_ms": age["p50"],
        "frame_age_p99_ms": age["p99"],
        "recorded_after_ms": after["p50"],
        "frames_dropped": record.frames_dropped if heard.stats else None,
        "settings": {name: record.settings.get(name) for name in SETTINGS},
    }


def of_input(footage: Footage, heard: Heard, replay: Replay) -> dict[str, Any]:
    """How much of the bag was read, what is wrong with it, and gaps per topic."""
    bag = footage.bag
    start, end = footage.span_ns()
    topics = [_topic(footage, name, kind, start, end) for name, kind in sorted(bag.topics().items())]
    used = [row["max_gap_s"] for row in topics if row["part"] in (*footage.cameras, "odometry")]
    undecodable = sum(bag.undecodable.values()) + sum(footage.undecodable.values())
    problems = [*bag.problems, *footage.notes, *heard.notes, *replay.notes]
    missing = {part: why for part, why in footage.parts.missing.items() if part in (*footage.cameras, "odometry")}
    problems += [f"{part}: {why}" for part, why in missing.items()]
    problems += [f"{count} moments left out: {why}" for why, count in sorted(footage.skipped.items())]
    return {
        "bag_finished": int(bag.complete),
        "messages_read": len(bag) - undecodable,
        "messages_stated": bag.stated,
        "read_share": (len(bag) - undecodable) / max(bag.stated, 1) if bag.stated is not None else None,
        "undecodable": undecodable,
        "moments_left_out": sum(footage.skipped.values()),
        "duration_s": (end - start) * 1e-9,
        "max_gap_s": max(used) if used and not missing else None,
        "picture_spread_ms": percentiles(frame.spread_ms for frame in replay.frames)["p99"],
        "problems": list(dict.fromkeys(problems)),
        "topics": topics,
    }


def _topic(footage: Footage, name: str, kind: str, start: int, end: int) -> dict[str, Any]:
    line = footage.clock.timeline(name)
    part = footage.parts.of(name) if name in footage.parts.topics.values() else ""
    row: dict[str, Any] = {"topic": name, "type": kind, "part": part, "messages": len(line.ns)}
    row |= {"undecodable": footage.bag.undecodable[name] + footage.undecodable[part], "zero_stamps": line.zero}
    row |= {"same_times": line.same, "steps_back": line.back, "period_s": None, "max_gap_s": None, "gap_at_s": None}
    if len(line.ns) > 1:
        row["period_s"] = float(np.median(np.diff(line.ns))) * 1e-9
    if end > start and (len(line.ns) > 1 or part in footage.lines):
        length, at = line.gaps(start, end, footage.clock.breaks)
        row |= {"max_gap_s": length, "gap_at_s": (at - start) * 1e-9}
    return row


def _distances(name: str, pairs: Iterable[tuple[np.ndarray, np.ndarray | None]], count: str) -> dict[str, Any]:
    both = [(plan, reference) for plan, reference in pairs if reference is not None]
    errors = waypoint_errors(np.array([p for p, _ in both]), np.array([r for _, r in both]))
    found = bool(both)
    return {
        f"ade_{name}m": errors.ade_m if found else None,
        f"fde_{name}m": errors.fde_m if found else None,
        f"per_waypoint_{name}m": list(errors.per_waypoint_m) if found else None,
        count: errors.count,
    }


def _boxes(pairs: Iterable[tuple[Sequence[Box], Sequence[Box] | None]]) -> dict[str, Any]:
    known = [(seen, truth) for seen, truth in pairs if truth is not None]
    figure = detection_figure([seen for seen, _ in known], [truth for _, truth in known])
    return {"map50": figure, "detection_frames": len(known)}


def _answers(group: Sequence[Made], frames: dict[int, Frame]) -> dict[str, Any]:
    both = [(one, frames[one.ns]) for one in group]
    score = answer_score((kind_of(f.question or ""), m.answer, f.true_answer) for m, f in both if f.true_answer)
    then = [(m.answer or "", f.answer) for m, f in both if f.answer is not None]
    same = [normalise(now) == normalise(before) for now, before in then]
    return {
        "answers": score.count,
        "answers_correct": score.correct if score.count else None,
        "answers_correct_by_kind": score.by_kind,
        "answers_as_recorded_share": sum(same) / len(same) if same else None,
    }


def _asked(one: Made, task: str) -> bool:
    given = one.boxes if task == "detect" else one.answer
    return given is not None or task in one.failures


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.median(known)) if known else None
