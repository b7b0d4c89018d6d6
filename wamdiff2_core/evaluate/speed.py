"""How fast a checkpoint answers on this machine, by block size: medians over repeated scenes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from wamdiff2_core.driver import Driver
from wamdiff2_core.scene import Scene
from wamdiff2_core.tasks import TASKS

TIMES = ("vision_ms", "prefill_ms", "decode_ms", "total_ms")


def measure(
    driver: Driver,
    scenes: Sequence[Scene],
    block_sizes: Sequence[int],
    steps: int = 8,
    repeats: int = 1,
    done: Callable[[], None] = lambda: None,
) -> list[dict[str, object]]:
    """Medians for each block size: a plan alone by stage (ms), its forwards, and all three tasks together (`scene_ms`).

    The first scene warms up and is not counted. `done` is called after every scene.
    """
    results: list[dict[str, object]] = []
    for block in block_sizes:
        driver.decoding = replace(driver.decoding, block_size=block, steps=min(steps, block))
        driver.answer(scenes[0], TASKS)
        rows = []
        for scene in [scene for _ in range(repeats) for scene in scenes]:
            plan = driver.plan(scene)
            began = time.perf_counter()
            driver.answer(scene, TASKS)
            together = (time.perf_counter() - began) * 1e3
            rows.append([*(getattr(plan.cost, name) for name in TIMES), plan.cost.forwards, together])
            done()
        middle = np.median(rows, axis=0)
        names = (*TIMES, "forwards_per_plan", "scene_ms")
        spread = {"total_ms_p10": float(np.percentile([r[3] for r in rows], 10)),
                  "total_ms_p90": float(np.percentile([r[3] for r in rows], 90))}  # fmt: skip
        row = {name: float(value) for name, value in zip(names, middle)}
        results.append({"block_size": block, "scenes": len(rows), **row, **spread})
    return results
