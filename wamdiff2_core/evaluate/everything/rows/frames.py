"""Labelled frames as rows of the table: plans, boxes and answers of one checkpoint and setting."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate import frame_run
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request

VERSION = "waypoint errors, COCO mAP at IoU 0.5, answers equal to the truth"
# (figure, key of the result, unit, more is better, what it counts)
FIGURES = (
    ("distance to the expert (ADE)", "ade_m", "m", False, "plans"),
    ("boxes, mAP50", "map50", "", True, "frames"),
    ("right answers", "answers_correct", "share", True, "questions"),
    ("failed plans", "failed_plans_share", "share", False, "frames"),
    ("all failures", "failures_share", "share", False, "frames"),
    ("forwards per plan", "forwards_per_plan", "", False, "frames"),
)


def drawing_only(request: Request, name: str) -> None:
    """ConfigError for a way to decode that the runs over frames and routes do not offer."""
    setting = request.setting
    if setting.temperature or not setting.scaffold:
        raise ConfigError(f"{name}: decodes greedily with scaffolds only, not with {setting}")


def measure_frames(
    request: Request, data: Path, most: int = 0, kind_of: Callable[[str], str] = lambda question: ""
) -> dict[str, Any]:
    """Figures of the request's checkpoint and setting on a folder of shards; see `frame_figures.figures`."""
    if request.checkpoint is None:
        raise ConfigError("frames: expected a checkpoint")
    setting = request.setting
    job = frame_run.FrameJob(
        request.checkpoint, data, request.out / "frames.json", (setting.block_size,), setting.steps,
        setting.threshold, setting.rule, most, request.device, request.dtype, request.workers,
        kernels=request.kernels,
    )  # fmt: skip
    report = frame_run.run(job, Console(quiet=True), kind_of)
    told = {name: report["settings"][name] for name in ("maps", "kernels")}  # type: ignore[index]
    return {**report["results"][0], **told}  # type: ignore[index]


def figures_of(result: Mapping[str, Any], main: str = "ade_m") -> list[Figure]:
    """A result of `measure_frames` as figures; `main`: the key of the one that plots show."""
    made = []
    for name, key, unit, better, counts in FIGURES:
        note = result.get("map_missing", "") if key == "map50" else ""
        count = result.get(counts, 0)
        made.append(Figure(name, result[key], unit, better, count, key == main, note))
    return made


def problems_of(result: Mapping[str, Any]) -> list[str]:
    """Failures by task and kind, a line each."""
    found = [(task, kind, n) for task, kinds in result["failures"].items() for kind, n in kinds.items()]
    return [f"{n} x {task}: {kind}" for task, kind, n in found]


def failed_of(result: Mapping[str, Any]) -> int:
    """Answers of all tasks that there are not."""
    return sum(sum(kinds.values()) for kinds in result["failures"].values())


@dataclass(frozen=True)
class Frames:
    name: str = "frames"
    title: str = "Labelled frames"
    decodes: bool = True
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, {"data": str, "frames": int})
        reading.least(self.name, options, "frames", 0)
        return reading.absent(options, ("data",))

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        drawing_only(request, self.name)
        data = Path(request.options["data"])
        result = measure_frames(request, data, request.options.get("frames", 0))
        maps = ", ".join(result["maps"]) or "unnamed maps"
        shown = f"{data.name}: {result['frames']} frames of {maps} ({_fingerprint(data)})"
        return Measured(
            tuple(figures_of(result)), shown, VERSION, failed_of(result),
            tuple(problems_of(result)), result["plan_total_ms"], result["forwards_per_plan"],
            kernels=result["kernels"],
        )  # fmt: skip


def _fingerprint(data: Path) -> str:
    """Of the labels of all shards."""
    seen = hashlib.sha256()
    for file in sorted(data.rglob("samples.json")):
        seen.update(hashlib.sha256(file.read_bytes()).digest())
    return seen.hexdigest()[:12]
