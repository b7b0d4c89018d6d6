"""Distillation at real size: a student of the 2B shape, a teacher of the 8B shape, random weights, a small fixed set.

python -m benchmarks.distill_real --out one.json
torchrun --nproc-per-node 2 -m benchmarks.distill_real --parallel fsdp --one one.json --out two.json

Shows that it fits, how fast it is, and that the losses fall. Every process has `--streams` packed streams a step, so
more processes train on more samples. No step is planned to end later than `--seconds` after the start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from benchmarks.real_data import FORMS, DataSize, batches
from benchmarks.real_report import SETTLE, medians, on_many, scaling, schedule, table
from benchmarks.real_shapes import SHAPES, Ids, billions, random_model, shape_config, sharpen
from benchmarks.real_step import Trial, make_recipe, make_trial
from benchmarks.real_variants import VARIANTS
from benchmarks.real_variants import measure as other_way
from wamdiff2_core.distill.batch import TrainBatch
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.parallel import Team
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.evaluate.machine import machine

BEGAN = time.monotonic()
GB = 1e9
RANK_SEED = 1000  # between the samples of two processes


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--one", type=Path, help="figures of one GPU, to compare with")
    parser.add_argument("--student", default="2b", choices=SHAPES)
    parser.add_argument("--teacher", default="8b", choices=SHAPES)
    parser.add_argument("--parallel", default="none", choices=("none", "ddp", "fsdp"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="stream", choices=FORMS)
    parser.add_argument("--attention", default="flex", choices=("flex", "dense"))
    parser.add_argument("--image", type=sides, default=(960, 640), help="WIDTHxHEIGHT; 960x640 is 600 tokens")
    parser.add_argument("--prompt-tokens", type=int, default=100, help="of text")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a stream")
    parser.add_argument("--streams", type=int, default=1, help="a step and process")
    parser.add_argument("--samples", type=int, default=16, help="of the fixed set, for each process")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--teacher-block", type=int, default=16)
    parser.add_argument("--ar-weight", type=float, default=0.3)
    parser.add_argument("--ce-weight", type=float, default=0.0)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--spread", type=float, default=3.0, help="of the teacher's logits, a standard deviation")
    parser.add_argument("--fp32", action="store_true", help="products in fp32 too")
    parser.add_argument("--bf16-weights", action="store_true", help="no fp32 master weights")
    parser.add_argument("--no-checkpointing", action="store_true", help="keep all activations")
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    parser.add_argument(
        "--variants", nargs="*", default=[], choices=VARIANTS, help="measure these, too, for a few steps"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def sides(text: str) -> tuple[int, int]:
    """(960, 640) from "960x640"."""
    width, _, height = text.partition("x")
    return int(width), int(height)


def data_size(options: argparse.Namespace) -> DataSize:
    return DataSize(options.image, options.prompt_tokens, options.max_tokens, options.block)


def trial_ids(options: argparse.Namespace) -> Ids:
    return Ids.of(shape_config(options.student).text_config.vocab_size)


def prepare(options: argparse.Namespace, team: Team) -> tuple[Trial, list[TrainBatch], dict]:
    """Models, this process' batches, and how large all of it is."""
    say(team, f"{team.world} x {team.device.type}: models")
    ids = trial_ids(options)
    size = data_size(options)
    product = torch.float32 if options.fp32 else torch.bfloat16
    student = random_model(
        options.student, team.device, product if options.bf16_weights else torch.float32, options.seed
    )
    teacher = random_model(options.teacher, team.device, product, options.seed + 1)
    sharpen(teacher, options.spread)
    numbers = {"student_billion": billions(student), "teacher_billion": billions(teacher)}
    recipe = make_recipe(
        teacher_block_size=options.teacher_block,
        ar_weight=options.ar_weight,
        ce_weight=options.ce_weight,
        chunk_tokens=options.chunk_tokens,
        lr=options.lr,
        vision_lr=options.lr,
        block=options.block,
        bf16=not options.fp32,
        master_weights=not options.bf16_weights,
        gradient_checkpointing=not options.no_checkpointing,
        compile=options.compile,
        attention=options.attention,
        parallel=options.parallel,
        device=str(team.device),
    )
    layout = Layout("next", "causal", ids.image, size.image_tokens)
    trial = make_trial(student, teacher, recipe, layout, ids.mask, team)
    say(team, "data")
    seed = options.seed + RANK_SEED * team.rank
    mine = batches(options.data, size, ids, options.samples, options.streams, options.attention, team.device, seed)
    return trial, mine, numbers | load(mine[0], size)


def load(batch: TrainBatch, size: DataSize) -> dict:
    """What one process does in one step."""
    part = batch.parts["answers"]
    count = len(part.answer)
    if isinstance(part, StreamBatch):
        places, used = part.ids.numel(), part.used
    else:
        places, used = count * size.longest, 1.0
    return {
        "samples_per_step": count,
        "tokens_per_step": places,
        "used": used,
        "answer_tokens_per_step": int(part.answer_length.sum()),
        "image_tokens": size.image_tokens,
    }


def train(trial: Trial, mine: Sequence[TrainBatch], options: argparse.Namespace) -> list[dict[str, float]]:
    """At most options.steps steps; milliseconds of their parts. The first ones are watched to see what fits in time."""
    team, began = trial.team, BEGAN
    generator = torch.Generator(device=team.device).manual_seed(options.seed + RANK_SEED * team.rank)
    end = options.steps
    for number in range(options.steps):
        if number == SETTLE + 1:
            wait(team)
            spent = time.monotonic() - began
            left = options.seconds - (time.monotonic() - BEGAN)
            end = min(end, number + max(1, int(team.agreed(left / spent))))
            say(team, f"{1e3 * spent:.0f} ms a step, {end} steps")
        if number >= end:
            break
        if number == SETTLE:
            wait(team)
            began = time.monotonic()
        trial.step(mine[number % len(mine)], generator)
        if number == 0:
            wait(team)
            say(team, "first step done")
    return trial.watch.take()


def measure(options: argparse.Namespace, team: Team) -> dict:
    """The whole trial; figures on rank 0, nothing elsewhere."""
    trial, mine, numbers = prepare(options, team)
    ready = memory(team)
    start = trial.evaluate(mine)
    say(team, f"before: {start}")
    if team.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = train(trial, mine, options)
    peak = team.everyones(memory(team)["peak"])
    end = trial.evaluate(mine)
    curve = trial.curve()
    variants = {}
    for name in options.variants:
        variants[name] = other_way(name, trial, mine, data_size(options), trial_ids(options))
        say(team, f"{name}: {variants[name]}")
    if not team.leads:
        return {}
    ms = medians(steps)
    each_s = 1e3 / ms["step"] * team.world
    return {
        "options": {name: str(value) for name, value in vars(options).items()},
        "machine": machine(str(team.device)),
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if team.device.type == "cuda" else "cpu",
        "gpus": team.world,
        **numbers,
        "steps": len(steps),
        "start": start,
        "end": end,
        "variants": variants,
        "curve": [[round(value, 5) for value in step] for step in curve],
        "ms": {name: round(value, 2) for name, value in ms.items()},
        "first_step_s": round(steps[0]["step"] / 1e3, 1),
        "tokens_per_s": round(numbers["tokens_per_step"] * each_s, 1),
        "answer_tokens_per_s": round(numbers["answer_tokens_per_step"] * each_s, 1),
        "samples_per_s": round(numbers["samples_per_step"] * each_s, 3),
        "memory_gb": [round(value, 2) for value in peak],
        "memory_ready_gb": round(ready["now"], 2),
        "hours": schedule(ms, numbers["samples_per_step"] * team.world),
        "seconds": round(time.monotonic() - BEGAN, 1),
    }


def compared(figures: dict, one: dict) -> dict:
    """With the efficiency against one GPU, and hours on many."""
    efficiency = scaling(one, figures)
    return figures | {"efficiency": round(efficiency, 3), "many": on_many(one["hours"]["all"], efficiency)}


def memory(team: Team) -> dict[str, float]:
    """GB of this process' GPU; 0 on a CPU."""
    if team.device.type != "cuda":
        return {"now": 0.0, "peak": 0.0}
    return {"now": torch.cuda.memory_allocated() / GB, "peak": torch.cuda.max_memory_allocated() / GB}


def wait(team: Team) -> None:
    if team.device.type == "cuda":
        torch.cuda.synchronize()


def say(team: Team, text: str) -> None:
    """One line of progress, from rank 0."""
    if team.leads:
        print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    torch.set_float32_matmul_precision("high")
    if options.device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)  # as in training: no plan for every shape of a mask
    with Team.of(make_recipe(parallel=options.parallel, device=options.device)) as team:
        figures = measure(options, team)
        if not team.leads:
            return 0
        before = []
        if options.one is not None:
            before = [json.loads(options.one.read_text(encoding="utf-8"))]
            figures = compared(figures, before[0])
        if options.out is not None:
            options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(table(*before, figures))
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Wamdiff2Error as error:
        print(f"distill_real: {error}", file=sys.stderr)
        sys.exit(1)
