"""summary.json of a drive: one flat set of keys, the same for demo, replay and evaluation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from wamdiff2_core.evaluate.answers import answer_score
from wamdiff2_core.evaluate.record import DriveRecord
from wamdiff2_core.evaluate.waypoints import waypoint_errors
from wamdiff2_core.scene import Box

STATED: tuple[str, ...] = ("block_size", "block_sizes_used", "steps", "threshold", "rule", "checkpoint", "seed")
STATED += ("commit", "map", "kernels", "device", "bag_finished")
SCORED = ("route_completion", "collisions", "red_lights", "off_road_s", "comfort", "drive_ended")


def summarise(record: DriveRecord) -> dict[str, object]:
    """Figures of a drive (keys of `summary.json`); a figure that the record cannot give is None, never made up.

    `plans` counts valid ones; `plan_hz` is per second of the simulated or recorded clock; `wall_seconds` tells how
    long the drive took.
    """
    track = record.track
    seconds = float(track[-1, 0] - track[0, 0]) if len(track) else 0.0
    moved = np.linalg.norm(np.diff(track[:, 1:3], axis=0), axis=1).sum() if len(track) > 1 else 0.0
    plans = sum(p.points is not None for p in record.plans)
    forwards = [p.forwards for p in record.plans if p.forwards is not None]
    pairs = [(p.points, p.expert) for p in record.plans if p.points is not None and p.expert is not None]
    errors = waypoint_errors(np.array([p for p, _ in pairs]), np.array([e for _, e in pairs]))
    known = [(a.kind, a.answer or None, a.truth) for a in record.answers if a.truth]
    answers = answer_score(known)
    summary: dict[str, object] = {
        "sim_seconds": seconds,
        "wall_seconds": record.wall_seconds,
        "distance_m": float(moved),
        **{key: record.score.get(key) for key in SCORED},
        "plans": plans,
        "plans_withheld": len(record.plans) - plans,
        "plan_hz": plans / seconds if seconds else None,
        "plan_latency_ms": percentiles(p.latency_ms for p in record.plans),
        "frame_age_ms": percentiles(p.frame_age_ms for p in record.plans),
        "parse_failures": record.parse_failures,
        "failures": record.failures,
        "frames_dropped": record.frames_dropped,
        "forwards_per_plan": float(np.mean(forwards)) if forwards else None,
        "ade_to_expert_m": errors.ade_m,
        "per_waypoint_l2_m": list(errors.per_waypoint_m),
        **_detection(record),
        "answers_correct": answers.correct,
        "answers_correct_by_kind": answers.by_kind,
        "answers": answers.count,
        **{key: record.settings.get(key) for key in STATED},
    }
    return {key: _finite(value) for key, value in summary.items()}


def _detection(record: DriveRecord) -> dict[str, object]:
    """mAP50 and its frames; without faster-coco-eval the figure is None and the summary says so."""
    figures: dict[str, object] = {"detection_map50": None, "detection_frames": len(record.boxes)}
    try:
        figures["detection_map50"] = detection_figure(
            [b.predicted for b in record.boxes], [b.truth for b in record.boxes]
        )
    except ModuleNotFoundError as error:
        figures["detection_missing"] = f"{error.name} is not installed"
    return figures


def detection_figure(predicted: Sequence[Sequence[Box]], truth: Sequence[Sequence[Box]]) -> float | None:
    """mAP50 of boxes; None without a true box. ModuleNotFoundError without faster-coco-eval."""
    from wamdiff2_core.evaluate.detection import detection_score

    figure = detection_score(predicted, truth).map50
    return figure if math.isfinite(figure) else None


def write_json(path: Path, value: object) -> None:
    """Write JSON whole or not at all: to a neighbour first, then renamed. NaN is refused (ValueError)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def percentiles(figures: Iterable[float | None]) -> dict[str, float | None]:
    """Median and 99th percentile of those that are known."""
    values = [value for value in figures if value is not None]
    if not values:
        return {"p50": None, "p99": None}
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99))}


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value
