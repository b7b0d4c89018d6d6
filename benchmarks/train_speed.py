"""Speed of a training step: eager, compiled, and captured as one CUDA graph, side by side in one run.

python benchmarks/train_speed.py RECIPE --data DIR --init DIR [--teacher DIR] [--steps 60] [--modes eager,capture]

Medians over windows of ten steps, after warm-up; losses of the modes are printed so that one sees that they compute the
same thing (they draw different random numbers, so the same up to noise).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from training.train import find_recipe
from wamdiff2_core.distill.recipe import Recipe, load_recipe
from wamdiff2_core.distill.trainer import Trainer

MODES = {
    "eager": {"compile": False, "capture": False},
    "compile": {"compile": True, "capture": False},
    "capture": {"compile": False, "capture": True},
    "both": {"compile": True, "capture": True},
}
WINDOW = 10


def measure(recipe: Recipe, steps: int, source: object | None) -> tuple[dict, object]:
    """Run `steps` steps; milliseconds a step, rows a second, memory and the last loss, and the source to go on with."""
    trainer = Trainer(recipe, source)  # type: ignore[arg-type]
    trainer.source.fill()
    began = time.perf_counter()
    for _ in range(8):
        trainer.source.poll()
        losses = trainer.train_step()
    _wait(recipe)
    start_up = time.perf_counter() - began
    each = []
    for _ in range(max(1, steps // WINDOW)):
        begin = time.perf_counter()
        for _ in range(WINDOW):
            losses = trainer.train_step()
        _wait(recipe)
        each.append((time.perf_counter() - begin) / WINDOW)
    step_s = statistics.median(each)
    rows = sum(part.answer.shape[0] for part in trainer.source.draw().parts.values())
    memory = torch.cuda.max_memory_allocated() / 2**30 if recipe.device.startswith("cuda") else 0.0
    figures = {
        "ms_per_step": round(step_s * 1e3, 2),
        "frames_per_s": round(recipe.frames_per_step / step_s),
        "rows_per_s": round(rows / step_s),
        "start_up_s": round(start_up, 1),
        "memory_gb": round(memory, 2),
        "loss": round(float(losses.loss), 4),
    }
    return figures, trainer.source


def profile(recipe: Recipe, source: object | None, rows: int = 25) -> None:
    """Which kernels a step spends its time in (eager, so that they carry names)."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    trainer = Trainer(recipe, source)  # type: ignore[arg-type]
    for _ in range(4):
        trainer.train_step()
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            trainer.train_step()
        _wait(recipe)
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=rows, max_name_column_width=70))


def _wait(recipe: Recipe) -> None:
    if recipe.device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--data", required=True)
    parser.add_argument("--init", required=True)
    parser.add_argument("--teacher")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--modes", default="eager,compile,capture,both")
    parser.add_argument("--profile", action="store_true", help="list the kernels of an eager step")
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    out = tempfile.mkdtemp()
    own = [f"init={options.init}", f"data={options.data}", f"out={out}", "follow=false", "tensorboard=false"]
    if options.teacher:
        own.append(f"teacher={options.teacher}")
    recipe = load_recipe(find_recipe(options.recipe), [*own, *options.overrides])
    found, source = {}, None
    for mode in options.modes.split(","):
        if recipe.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        found[mode], source = measure(replace(recipe, **MODES[mode]), options.steps, source)
        print(f"{recipe.name} {mode}: {json.dumps(found[mode])}", flush=True)
    if options.profile:
        profile(replace(recipe, **MODES["eager"]), source)
    if options.out:
        options.out.write_text(json.dumps({recipe.name: found}, indent=1) + "\n")
    if source is not None:
        source.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
