"""The same step done otherwise, a few times each: what checkpointing, masks, padding and compiling cost or save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.real_data import DataSize, batches
from benchmarks.real_report import SETTLE, medians
from benchmarks.real_shapes import Ids
from benchmarks.real_step import Trial, timed_passes
from wamdiff2_core.distill.batch import TrainBatch
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.errors import ConfigError

STEPS = SETTLE + 5
GB = 1e9
Set = list[TrainBatch]
Change = Callable[[Trial, Set, DataSize, Ids], tuple[Trial, Set]]


def all_activations(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """No gradient checkpointing."""
    how = replace(trial.method.how, checkpointing=False)
    return replace(trial, method=replace(trial.method, how=how)), mine


def dense(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """Streams with a dense mask."""
    streams: Set = [replace(batch, attention="dense") for batch in mine if isinstance(batch, StreamBatch)]
    return trial, streams


def rows(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """As many samples as padded rows. All are about equally long here, so hardly anything is padding."""
    count = len(mine[0].parts["answers"].answer)
    streams = count // size.samples_per_stream
    return trial, batches("rows", size, ids, count, streams, "dense", trial.team.device)


def large_image(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """Pictures of 1920 x 1080 as upstream's rule fits them, 1,980 tokens: fewer samples in streams as long."""
    large = replace(size, image=(1920, 1056))
    return trial, batches("stream", large, ids, 1, 1, trial.recipe.attention, trial.team.device)


def two_streams(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """Twice as many tokens a step."""
    return trial, batches("stream", size, ids, 1, 2, trial.recipe.attention, trial.team.device)


def compiled(trial: Trial, mine: Set, size: DataSize, ids: Ids) -> tuple[Trial, Set]:
    """Layers compiled, as with the recipe's `compile`."""
    if trial.team.mesh is not None:
        raise ConfigError("the variant compiled works on whole models: expected parallel none or ddp")
    own, theirs = timed_passes(replace(trial.recipe, compile=True), trial.watch)
    teacher = replace(trial.teacher, how=theirs)
    return replace(trial, method=replace(trial.method, how=own), teacher=teacher), mine


_CHANGES: tuple[Change, ...] = (all_activations, dense, rows, large_image, two_streams, compiled)
VARIANTS: dict[str, Change] = {change.__name__: change for change in _CHANGES}


def measure(name: str, trial: Trial, mine: Set, size: DataSize, ids: Ids) -> dict:
    """Milliseconds and peak memory of a step done so; {"fits": False} where one process runs out of memory."""
    cuda = trial.team.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    other, its_own = VARIANTS[name](trial, mine, size, ids)
    try:
        steps = run(other, its_own)
    except torch.OutOfMemoryError:
        if trial.team.several:
            raise
        return {"fits": False}
    part = its_own[0].parts["answers"]
    peak = torch.cuda.max_memory_allocated() / GB if cuda else 0.0
    return {
        "fits": True,
        "ms": {stage: round(value, 2) for stage, value in medians(steps).items()},
        "samples_per_step": len(part.answer),
        "memory_gb": round(peak, 2),
    }


def run(trial: Trial, mine: Sequence[TrainBatch]) -> list[dict[str, float]]:
    """STEPS steps; milliseconds of their parts."""
    generator = torch.Generator(device=trial.team.device).manual_seed(0)
    for number in range(STEPS):
        trial.step(mine[number % len(mine)], generator)
    return trial.watch.take()
