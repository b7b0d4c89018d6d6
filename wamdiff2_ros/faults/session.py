"""One fault test from start to verdict, as the command and the test run it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.evaluate.machine import commit
from wamdiff2_core.rig import load_rig
from wamdiff2_ros.faults import pictures, schedule
from wamdiff2_ros.faults.bench import Bench
from wamdiff2_ros.faults.check import Limits
from wamdiff2_ros.faults.disk import Disk
from wamdiff2_ros.faults.kinds import KINDS, by_name
from wamdiff2_ros.faults.run import Runner
from wamdiff2_ros.faults.summary import Judge, summarise, write
from wamdiff2_ros.graph import share_folder

DRIVER: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "threads": 1, "block_size": 32, "steps": 3, "threshold": 0.6,
    "rule": "ordered",
    "tasks": ["plan", "detect"],
    "detect_rate_hz": 0.2, "sync_tolerance_s": 0.05, "max_frame_age_s": 0.8, "odometry_max_age_s": 0.8,
    "max_plan_age_s": 10.0,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What to run. seconds: from the first plan; kinds: names of faults, empty: all. once: each kind once, then end.

    slack_s: what scheduling and transport may add to every limit. start_s: to load the driver; recover_s: to plan
    again.
    """

    out: Path
    checkpoint: Path
    seconds: float = 600.0
    seed: int = 0
    kinds: Sequence[str] = ()
    once: bool = False
    transport: str = "compressed"
    slack_s: float = 0.25
    start_s: float = 90.0
    recover_s: float = 10.0
    frames: int = pictures.FRAMES
    module: str = ""  # run this as the driver node instead


def run_session(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the fault test and write OUT/summary.json; returns the summary."""
    out = options.out.resolve()
    clear(out)
    rig = share_folder("config") / "rig_three.yaml"
    cameras = load_rig(rig)
    pictures.render(out / "pictures", cameras, options.seed, options.frames)
    driver = {
        **DRIVER, "checkpoint": str(options.checkpoint.resolve()), "cameras": [camera.name for camera in cameras],
        "rig": str(rig), "image_transport": options.transport,
    }  # fmt: skip
    base = out / "base.yaml"
    base.write_text("/**:\n  ros__parameters:\n    use_sim_time: true\n", encoding="utf-8")
    kinds = [by_name(name) for name in options.kinds] or list(KINDS)
    order = kinds if options.once else schedule.rounds(kinds, options.seed)
    with Disk(out / "bags") as disk:
        bench = Bench(out, out / "pictures", driver, disk, options.seed, base, options.module)
        runner = Runner(bench, say, options.recover_s, options.start_s)
        record = runner.run(order, options.seconds)
        slack_s = max(options.slack_s, record.answer_s)
        limits = Limits(
            bench.driver["max_frame_age_s"], bench.driver["max_plan_age_s"], bench.driver["sync_tolerance_s"],
            bench.driver["odometry_max_age_s"], slack_s,
        )  # fmt: skip
        about = {"seed": options.seed, "transport": options.transport, "commit": commit()}
        summary = summarise(bench, record, Judge(limits, named_slack_s=slack_s), about)
    write(out / "summary.json", summary)
    return summary


def clear(out: Path) -> None:
    """Make the folder, without what an earlier run left there."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in ("bags", "log", "pictures"):
        shutil.rmtree(out / folder, ignore_errors=True)
    for file in ("sensors.jsonl", "witness.jsonl", "controller.jsonl", "summary.json"):
        (out / file).unlink(missing_ok=True)
