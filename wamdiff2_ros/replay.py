"""A bag's frames planned once more, with other settings or another checkpoint, compared with the recorded plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.record import DriveRecord, PlanRecord, Snapshot
from wamdiff2_core.evaluate.report import write_report
from wamdiff2_core.evaluate.summary import summarise, write_json
from wamdiff2_core.evaluate.tables import cells, waypoint_cells
from wamdiff2_core.evaluate.waypoints import WaypointErrors, waypoint_errors
from wamdiff2_core.overlay import EXPERT_COLOUR, draw_path, overlay
from wamdiff2_core.scene import Camera, Failure, Scene
from wamdiff2_ros.bag_scenes import scenes

PICTURES = 12
NOTE = (
    "Plans made once more from the pictures of a bag (green; thin and amber: the recorded ones). Nothing was driven: "
    "the car went where the recorded plans took it."
)
PAST = ("checkpoint", "block_size", "steps", "threshold", "map", "seed")


@dataclass(frozen=True)
class Made:
    """One plan made again, with what it took by stage (ms); `failure`: the kind, where there is no plan."""

    block_size: int
    plan: PlanRecord
    failure: str | None
    stages: tuple[float, float, float]


def replan(
    driver: Driver, bag: Path, recorded: DriveRecord, settings: Sequence[DecodingConfig], prefix: str, frames: int,
    cameras: Sequence[Camera], console: Console,
) -> tuple[list[Made], list[Snapshot]]:  # fmt: skip
    """Plan for each set of settings from the pictures of at most `frames` (0: all) recorded plans, or twice a second
    where the bag holds no plans. Returns the plans and moments to look at (the last settings' plans).
    """
    before = {plan.stamp_ns: plan for plan in recorded.plans}
    stamps = _spread(sorted(before), frames)
    every = max(1, (len(stamps) or PICTURES) // PICTURES)
    made: list[Made] = []
    shown: list[Snapshot] = []
    first = True
    with Progress(console=console) as progress:
        bar = progress.add_task("frames", total=len(stamps) or frames or None)
        for count, (ns, scene) in enumerate(scenes(bag, driver.cameras, prefix, set(stamps) if stamps else None)):
            if not stamps and frames and count >= frames:
                break
            for config in settings:
                driver.decoding = config
                if first:
                    driver.plan(scene)  # the first call allocates: not measured
                    first = False
                made.append(_plan_again(driver, scene, ns, before.get(ns)))
            if count % every == 0 and len(shown) < PICTURES:
                shown.append(_snapshot(scene, made[-1], before.get(ns), cameras))
            progress.advance(bar)
    if not made:
        raise DataError(f"{bag}: none of the {len(stamps)} plans has its pictures in the bag; was it recorded without?")
    return made, shown


def _spread(stamps: list[int], most: int) -> list[int]:
    if not most or len(stamps) <= most:
        return stamps
    return [stamps[k] for k in np.linspace(0, len(stamps) - 1, most).round().astype(int)]


def _plan_again(driver: Driver, scene: Scene, ns: int, before: PlanRecord | None) -> Made:
    result = driver.plan(scene)
    points, failure = (None, result.kind.value) if isinstance(result, Failure) else (result.points, None)
    cost, expert = result.cost, before.expert if before else None
    times = (cost.total_ms, cost.total_ms)
    plan = PlanRecord(scene.stamp_s, points, expert, *times, cost.forwards, scene.instruction, ns)
    return Made(driver.decoding.block_size, plan, failure, (cost.vision_ms, cost.prefill_ms, cost.decode_ms))


def _snapshot(scene: Scene, made: Made, before: PlanRecord | None, cameras: Sequence[Camera]) -> Snapshot:
    """Pictures with the new plan (green) and the recorded one (amber)."""
    drawn = {}
    for camera in sorted(cameras, key=lambda camera: -camera.yaw):
        if camera.name in scene.images:
            picture = scene.images[camera.name]
            fitting = replace(camera, width=picture.shape[1], height=picture.shape[0])
            drawn[camera.name] = overlay(picture, fitting, made.plan.points)
            if before is not None and before.points is not None:
                draw_path(drawn[camera.name], before.points, fitting, EXPERT_COLOUR, 0.25)
    caption = f"{scene.stamp_s:.1f} s, {scene.instruction}, {scene.ego.speed * 3.6:.0f} km/h"
    return Snapshot(scene.stamp_s, drawn, caption)


def report(made: Sequence[Made], recorded: DriveRecord, settings: dict[str, object]) -> dict[str, Any]:
    """What was compared, on what machine, and figures for each block size."""
    before = {plan.stamp_ns: plan for plan in recorded.plans}
    results = []
    for size in sorted({one.block_size for one in made}):
        group = [one for one in made if one.block_size == size]
        results.append({"block_size": size, **_figures(group, before)})
    was = {name: recorded.settings.get(name) for name in PAST}
    head = {"what": "replay", "settings": settings, "recorded": was, "machine": machine(str(settings["device"]))}
    return head | {"results": results}


def _figures(group: Sequence[Made], before: dict[int, PlanRecord]) -> dict[str, object]:
    def against(pairs: list[tuple[np.ndarray, np.ndarray]]) -> WaypointErrors:
        return waypoint_errors(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))

    good = [(one.plan.points, one.plan) for one in group if one.plan.points is not None]
    old = [(points, before.get(plan.stamp_ns)) for points, plan in good]
    expert = against([(points, plan.expert) for points, plan in good if plan.expert is not None])
    same = against([(points, plan.points) for points, plan in old if plan is not None and plan.points is not None])
    stages = np.median([one.stages for one in group], axis=0)
    return {
        "frames": len(group),
        "failures": dict(Counter(one.failure for one in group if one.failure)),
        "failed_plans_share": 1.0 - len(good) / len(group),
        "ade_m": expert.ade_m if expert.count else None,
        "fde_m": expert.fde_m if expert.count else None,
        "per_waypoint_m": list(expert.per_waypoint_m) if expert.count else None,
        "ade_to_recorded_m": same.ade_m if same.count else None,
        "compared_with_recorded": same.count,
        "forwards_per_plan": float(np.mean([one.plan.forwards for one in group])),
        **{f"plan_{name}_ms": float(value) for name, value in zip(("vision", "prefill", "decode"), stages)},
        "plan_total_ms": float(np.median([one.plan.latency_ms for one in group])),
    }


def write(
    out: Path, report: dict[str, Any], made: Sequence[Made], recorded: DriveRecord, shown: list[Snapshot], size: int
) -> None:
    """Write out/replay.json and out/report.html; the page shows the plans of block size `size`."""
    write_json(out / "replay.json", report)
    settings = {**recorded.settings, **report["settings"], "block_size": size, "commit": report["machine"]["commit"]}
    again = DriveRecord(
        settings, recorded.score, recorded.track, recorded.route, recorded.lanes,
        [one.plan for one in made if one.block_size == size], snapshots=shown,
    )  # fmt: skip
    tables = {"Plans made again, by block size": cells(report)}
    if waypoints := waypoint_cells(report):
        tables["Distance to the expert's plan"] = waypoints
    write_report(out / "report.html", again, summarise(again), f"wamdiff2 replay, block size {size}", tables, NOTE)
