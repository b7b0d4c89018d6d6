"""Time per plan of our NAVSIM scorer, by number of plans at once, against the official code's 23 ... 47 ms a call.

python benchmarks/navsim_speed.py [--scenes FILE.json.gz] [--repeats 5] [--objects 0] [--out FILE.json]

Medians over scenes. Wall time is what a user waits, processor time what the work costs where the machine is busy
with other things; the load is told with them. One thread. A plan is scored for v1.1, v2 and the human filter at once
where nothing else is said; the official code's call scores one version.
The scene's own drives (reference, human, plan before) are scored with the first plan of a scene and kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.evaluate import navsim
from wamdiff2_core.evaluate.machine import commit, cpu_name
from wamdiff2_core.evaluate.navsim.scene import read_scene
from wamdiff2_core.evaluate.navsim.scoring import VERSIONS, score_plans

GOLDEN = Path(__file__).parents[1] / "test" / "golden" / "navsim" / "scenes.json.gz"
OFFICIAL_MS = (23.0, 47.0)  # a call of the official code scores one plan beside the reference
COUNTS = (1, 8, 32, 64, 256)
NOISE_M = 0.1


def medians(work: Callable[[int], object], count: int, repeats: int, plans: int) -> dict[str, float]:
    """Median milliseconds per plan over `count` inputs, wall and processor."""
    wall, processor = [], []
    for index in range(count):
        for _ in range(repeats):
            began, used = time.perf_counter(), time.process_time()
            work(index)
            wall.append((time.perf_counter() - began) * 1e3 / plans)
            processor.append((time.process_time() - used) * 1e3 / plans)
    return {"wall_ms": statistics.median(wall), "processor_ms": statistics.median(processor)}


def crowded(scene: dict, objects: int) -> dict:
    """The scene with `objects` more parked cars around the ego's path, to see what a crowd costs."""
    random = np.random.default_rng(0)
    x, y, _ = scene["ego"]["pose"]
    more = [
        {
            "token": f"parked{k}", "type": "generic_object", "length": 4.5, "width": 1.9, "heading": 0.1 * k,
            "x": x + random.uniform(-40, 60), "y": y + random.uniform(-40, 40),
        }
        for k in range(objects)
    ]  # fmt: skip
    return {**scene, "static_objects": scene["static_objects"] + more}


def measure(path: Path, repeats: int, objects: int) -> dict[str, Any]:
    """Figures for every number of plans at once, and for `navsim.score` of a plain dict."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        plain = [crowded(scene, objects) for scene in json.load(file)["scenes"]]
    scenes = [read_scene(scene) for scene in plain]
    random = np.random.default_rng(0)
    rows = {"score(dict)": medians(lambda k: navsim.score(plain[k]), len(plain), repeats, 1)}
    fresh = [replace(scene, kept={}) for scene in scenes for _ in range(repeats)]
    rows["1, the first of its scene"] = medians(lambda k: score_plans(fresh[k], fresh[k].plan[None]), len(fresh), 1, 1)
    for version in VERSIONS:
        rows[f"1, {version} alone"] = medians(
            lambda k, v=version: score_plans(scenes[k], scenes[k].plan[None], (v,)), len(scenes), repeats, 1
        )
    for count in COUNTS:
        plans = [scene.plan + random.normal(0, NOISE_M, (count, 8, 3)) * [1, 1, 0.1] for scene in scenes]
        used = len(scenes) if count <= 32 else len(scenes) // 4
        rows[f"{count} at once"] = medians(lambda k, p=plans: score_plans(scenes[k], p[k]), used, repeats, count)
    for row in rows.values():
        row["times_faster_wall"] = [round(official / row["wall_ms"], 1) for official in OFFICIAL_MS]  # type: ignore[assignment]
    return {"scenes": len(scenes), "more_objects": objects, "repeats": repeats, "per_plan": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=Path, default=GOLDEN)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--objects", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    report = measure(arguments.scenes, arguments.repeats, arguments.objects)
    report["machine"] = {
        "cpu": cpu_name(), "cores": os.cpu_count(), "commit": commit(), "load_before": before,
        "load_after": os.getloadavg()[0], "threads": os.environ.get("OMP_NUM_THREADS", "not limited"),
    }  # fmt: skip
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
