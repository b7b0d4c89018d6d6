"""What all converters share: a plan sample in upstream's layout or ours, checks, and a file that is whole or absent."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from wamdiff2_core.distill.stream.conversations import BadSample
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.prompt import human_text
from wamdiff2_core.scene import PLAN_POINTS, EgoState, Scene
from wamdiff2_core.tasks import plan

FORMS = ("upstream", "fixed")
Sample = dict[str, object]


def plan_sample(
    name: str, source: str, image: str, ego: EgoState, instruction: str, points: np.ndarray, form: str
) -> Sample:
    """One plan to learn; points (8, 2) m in the ego frame of `ego`. Raises BadSample for a motion that is none.

    form "upstream": prompt and answer as upstream's checkpoints know them; "fixed": as ours do, with the task's name.
    """
    if points.shape != (PLAN_POINTS, 2) or not np.isfinite(points).all():
        raise BadSample("no future", f"expected {PLAN_POINTS} finite waypoints, got shape {points.shape}")
    problem = plan.implausible(points, ego, plan.PlanLimits())
    if problem:
        raise BadSample("implausible motion", problem)
    if form == "fixed" and plan.clamped(points):
        raise BadSample("outside the fixed format", f"{plan.clamped(points)} waypoints behind us or too far away")
    try:
        if form == "upstream":
            human = plan.upstream_prompt(Scene({}, instruction, ego))
        else:
            human = human_text(plan.prompt_text(ego, instruction), 1)
        said = [{"from": "human", "value": human}, {"from": "gpt", "value": plan.serialise(points, form)}]
    except DataError as error:  # a velocity or acceleration that the prompt cannot say
        raise BadSample("no ego state", str(error)) from error
    sample: Sample = {"id": name, "datasource": source, "image": [image], "conversations": said}
    return sample if form == "upstream" else {**sample, "task": "plan"}


def numbers(value: object, count: int, reason: str) -> tuple[float, ...]:
    """`count` finite numbers, or BadSample under `reason`."""
    listed = value if isinstance(value, list) else [value]
    if len(listed) < count or not all(is_number(item) for item in listed[:count]):
        raise BadSample(reason, f"expected {count} finite numbers, got {str(value)[:60]}")
    return tuple(float(item) for item in listed[:count] if is_number(item))


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def local(points: np.ndarray, origin: Sequence[float], yaw: float) -> np.ndarray:
    """Points (N, 2) of a right-handed world in the frame of a pose: x forward, y left."""
    shifted = np.asarray(points, dtype=np.float64) - np.asarray(origin, dtype=np.float64)
    cos, sin = math.cos(yaw), math.sin(yaw)
    return np.stack([shifted[:, 0] * cos + shifted[:, 1] * sin, shifted[:, 1] * cos - shifted[:, 0] * sin], 1)


def write_samples(samples: Iterable[Sample], out: Path) -> int:
    """Write a JSON list, or lines for a name ending in .jsonl; returns how many. The file appears when it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    lines, count = out.suffix == ".jsonl", 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for text in _texts(samples):
                file.write(("" if lines else ",\n" if count else "[\n") + text + ("\n" if lines else ""))
                count += 1
            file.write("" if lines else "\n]\n" if count else "[]\n")
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _texts(samples: Iterable[Sample]) -> Iterator[str]:
    for sample in samples:
        yield json.dumps(sample, ensure_ascii=False, allow_nan=False)
