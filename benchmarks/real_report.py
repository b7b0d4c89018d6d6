"""Figures of a trial as plain values, a table of them, and what they mean for the paper's schedule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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


def table(figures: dict) -> str:
    """A Markdown table of one trial."""
    start, end = figures["start"], figures["end"]
    rows = [
        ("GPUs", f"{figures['gpus']} x {figures['device']}"),
        ("student, teacher", f"{figures['student_billion']:.2f} B, {figures['teacher_billion']:.2f} B weights"),
        ("step", f"{figures['ms']['step']:.0f} ms, {figures['steps']} steps"),
        ("tokens/s through the student", f"{figures['tokens_per_s']:.0f} ({figures['used']:.0%} of places filled)"),
        ("answer tokens/s trained", f"{figures['answer_tokens_per_s']:.0f}"),
        ("samples/s", f"{figures['samples_per_s']:.2f}"),
        ("memory, largest of the GPUs", f"{max(figures['memory_gb']):.1f} GB"),
        ("autoregressive loss", f"{start['autoregressive']:.3f} -> {end['autoregressive']:.3f}"),
        ("divergence from the teacher", f"{start['divergence']:.4f} -> {end['divergence']:.4f}"),
        *((f"ms: {name}", f"{ms:.0f}") for name, ms in figures["ms"].items() if name != "step"),
        *((f"other way: {name}", other(one)) for name, one in figures["variants"].items()),
        *((f"hours, {name}, {SAMPLES} samples", f"{hours:.0f}") for name, hours in figures["hours"].items()),
    ]
    return "\n".join(["| | |", "|:---|---:|", *(f"| {name} | {value} |" for name, value in rows)])
