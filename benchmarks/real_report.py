"""Figures of a trial as plain values, a table of them, and what they mean for the paper's schedule.

python -m benchmarks.real_report one.json two.json --attention attention.json   # the section for RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

SETTLE = 3  # steps at the start that do not count: kernels are compiled, memory is taken
PARTS = ("teacher vision", "teacher text", "student vision", "forward", "backward", "optimiser", "step")
EPOCHS = 5  # of each stage, in the paper
STAGE_1_SIZES = 4  # block sizes 4, 8, 16, 32 one after the other, each a stage of its own
SAMPLES = 100_000
MANY = 64


def medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Milliseconds of each part, the median over the steps after SETTLE (over all, where there are no more)."""
    counted = steps[SETTLE:] or steps
    names = [name for name in PARTS if name in counted[-1]]
    return {name: statistics.median(step[name] for step in counted) for name in names}


def rest(parts: dict[str, float]) -> float:
    """Student's text model and losses: what of the forward pass has no name of its own."""
    return parts["forward"] - sum(parts.get(name, 0.0) for name in ("teacher vision", "teacher text", "student vision"))


def stage_ms(parts: dict[str, float]) -> dict[str, float]:
    """Milliseconds of a step in each stage. Stage 3 is what was measured; stage 1 has no teacher, and the teacher of
    stage 2, as large as the student, takes the student's forward time."""
    taught = parts.get("teacher vision", 0.0) + parts.get("teacher text", 0.0)
    alone = parts["step"] - taught
    forward = parts.get("student vision", 0.0) + rest(parts)
    return {"stage 1": alone, "stage 2": alone + forward, "stage 3": parts["step"]}


def schedule(parts: dict[str, float], samples_per_step: int, samples: int = SAMPLES) -> dict[str, float]:
    """Hours of each stage for `samples` samples, epochs x samples / (samples a second) / 3600, and of all."""
    epochs = {"stage 1": EPOCHS * STAGE_1_SIZES, "stage 2": EPOCHS, "stage 3": EPOCHS}
    hours = {stage: epochs[stage] * samples / samples_per_step * ms / 3.6e6 for stage, ms in stage_ms(parts).items()}
    return hours | {"all": sum(hours.values())}


def on_many(hours: float, efficiency: float, gpus: int = MANY) -> dict[str, float]:
    """Hours on `gpus` of what takes `hours` on one: if all further doublings are free, and if each costs as much as
    the first. An extrapolation from one machine; several machines have slower links between them."""
    doublings = (gpus - 1).bit_length()
    return {"best": hours / gpus / efficiency, "worst": hours / gpus / efficiency**doublings}


def scaling(one: dict, many: dict) -> float:
    """Efficiency of `many` processes against `one`: tokens a second of each GPU, as a fraction."""
    return many["tokens_per_s"] / many["gpus"] / one["tokens_per_s"]


def other(one: dict) -> str:
    """A variant in a few words."""
    if not one["fits"]:
        return "does not fit"
    return f"{one['ms']['step']:.0f} ms, {one['samples_per_step']} samples, {one['memory_gb']:.1f} GB"


def lines(figures: dict) -> dict[str, str]:
    """What a table says about one trial."""
    start, end = figures["start"], figures["end"]
    return {
        "GPUs": f"{figures['gpus']} x {figures['device']}",
        "parallel": figures["options"]["parallel"],
        "student, teacher": f"{figures['student_billion']:.2f} B, {figures['teacher_billion']:.2f} B weights",
        "step": f"{figures['ms']['step']:.0f} ms, {figures['steps']} steps",
        **{f"- {name}": f"{ms:.0f} ms" for name, ms in figures["ms"].items() if name != "step"},
        "tokens/s through the student": f"{figures['tokens_per_s']:.0f} ({figures['used']:.0%} of places filled)",
        "answer tokens/s trained": f"{figures['answer_tokens_per_s']:.0f}",
        "samples/s": f"{figures['samples_per_s']:.2f}",
        "memory, largest of the GPUs": f"{max(figures['memory_gb']):.1f} GB",
        "autoregressive loss": f"{start['autoregressive']:.3f} -> {end['autoregressive']:.3f}",
        "divergence from the teacher": f"{start['divergence']:.4f} -> {end['divergence']:.4f}",
        **{f"hours, {name}, {SAMPLES} samples": f"{hours:.0f}" for name, hours in figures["hours"].items()},
        **{f"otherwise: {name}": other(one) for name, one in figures["variants"].items()},
    }


def table(*trials: dict) -> str:
    """Markdown, a column for each trial."""
    columns = [lines(figures) for figures in trials]
    names = list(dict.fromkeys(name for column in columns for name in column))
    head = ["| |" + " |" * len(columns), "|:---|" + "---:|" * len(columns)]
    return "\n".join([*head, *(f"| {name} | {' | '.join(one.get(name, '') for one in columns)} |" for name in names)])


def section(trials: Sequence[dict], attention: dict | None) -> str:
    """The part of RESULTS.md about one run: trials of growing numbers of GPUs, and attention on its own."""
    one, last = trials[0], trials[-1]
    options = " ".join(f"{name}={value}" for name, value in one["options"].items() if name not in ("out", "one"))
    versions = f"commit `{one['machine']['commit'][:12]}`, torch {one['machine']['torch']}"
    parts = [
        "## Distillation at real size",
        f"{versions}, transformers {one['transformers']}; {options}",
        table(*trials),
    ]
    if "efficiency" in last:
        many = last["many"]
        parts.append(
            f"{last['gpus']} GPUs against one: {last['efficiency']:.0%} efficiency. All stages on {MANY} GPUs, an "
            f"extrapolation: {many['best']:.1f} h if further doublings are free, {many['worst']:.1f} h if each costs "
            "as much as the first."
        )
    for name, variant in one["variants"].items():
        if variant["fits"]:
            hours = schedule(variant["ms"], variant["samples_per_step"])
            parts.append(f"Otherwise, {name}: {hours['all']:.0f} h for all stages on one GPU.")
    if attention is not None:
        parts += [f"Attention of one layer, shape {attention['shape']}:", attention_table(attention["results"])]
    return "\n\n".join(parts) + "\n"


def attention_table(results: Sequence[dict]) -> str:
    """Markdown, a line for each stream and form of the mask."""
    found = [
        "| samples in a stream | attention | mask ms | forward ms | forward + backward ms | mask GB | pass GB |",
        "|---:|:---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        for kind in ("dense", "flex"):
            one = result[kind]
            times = " | ".join(f"{one[name]:.2f}" for name in ("mask_ms", "forward_ms", "both_ms"))
            found.append(f"| {result['samples']} | {kind} | {times} | {one['mask_gb']:.2f} | {one['both_gb']:.2f} |")
    return "\n".join(found)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", nargs="+", type=Path, help="figures of distill_real, one GPU first")
    parser.add_argument("--attention", type=Path, help="figures of distill_attention")
    options = parser.parse_args(given)
    read = [json.loads(path.read_text(encoding="utf-8")) for path in options.trials]
    attention = json.loads(options.attention.read_text(encoding="utf-8")) if options.attention else None
    print(section(read, attention))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
