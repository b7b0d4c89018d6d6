"""How far a student agrees with a teacher: share of the teacher's k best tokens among the student's, where both guess.

Both read the same corrupted answers of held-out frames, each under its own block mask, as in training.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.corruption import Corruption, corrupt
from wamdiff2_core.distill.data import Ring, find_shards
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.recipe import make_recipe
from wamdiff2_core.distill.samples import Encoder, read_shard
from wamdiff2_core.distill.sources import data_spec
from wamdiff2_core.distill.teacher import Teacher, load_teacher
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.checkpoint import load_model
from wamdiff2_core.tasks import TASKS

TOP = 5
BATCH = 64


def top_overlap(one: Tensor, other: Tensor, k: int = TOP) -> Tensor:
    """(N,) shares 0..1 of tokens among both the k best of logits `one` (N, V) and of `other` (N, V)."""
    best, theirs = one.topk(k, -1).indices, other.topk(k, -1).indices
    return (best[:, :, None] == theirs[:, None, :]).any(2).float().mean(1)


def held_out_ring(checkpoint: Path, data: Path, frames: int, device: str) -> Ring:
    """The first `frames` frames of a folder on the device."""
    recipe = make_recipe({"name": "overlap", "init": str(checkpoint), "max_steps": 1})
    spec = data_spec(recipe, load_model(checkpoint).block_diffusion)
    ring, encoder = Ring(spec, frames, torch.device(device)), Encoder(spec)
    for folder in find_shards([data]):
        ring.write(read_shard(folder, encoder))
        if ring.filled >= frames:
            return ring
    if not ring.filled:
        raise DataError(f"{data}: expected shards with frames")
    return ring


def overlaps(
    student: Path, teachers: dict[str, tuple[Path, int]], ring: Ring, block_size: int = 32, seed: int = 0
) -> dict[str, dict[str, float]]:
    """{teacher: {task: share, "all": share, "tokens": count}}; teachers: name -> (checkpoint, its block size)."""
    device = str(ring.device)
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    how = Pass(getattr(torch, dtype))
    own = load_model(student, device=device, dtype=dtype)
    image_tokens = sum(ring.form.tokens(size) for size in ring.spec.sizes)
    readers = {name: load_teacher(path, own, size, how, dtype, image_tokens) for name, (path, size) in teachers.items()}
    readers[""] = load_teacher(student, own, 0, how, dtype, image_tokens)
    sums: dict[str, dict[str, list[Tensor]]] = {name: {task: [] for task in TASKS} for name in teachers}
    generator = torch.Generator(device=ring.device)
    generator.manual_seed(seed)
    for start in range(0, ring.filled, BATCH):
        frames = torch.arange(start, min(start + BATCH, ring.filled), device=ring.device)
        batch = RingBatch(ring.batch(frames), ring.spec.order())
        with torch.autocast(ring.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            masked = _masked_logits(readers, batch, own.mask_token_id, block_size, generator)
        for task, logits in masked.items():
            for name in teachers:
                sums[name][task].append(top_overlap(logits[""], logits[name]))
    return {name: _means(by_task) for name, by_task in sums.items()}


@torch.no_grad()
def _masked_logits(
    readers: dict[str, Teacher], batch: RingBatch, mask_token_id: int | None, block_size: int, generator
) -> dict[str, dict[str, Tensor]]:
    """{task: {reader: logits (N, V)}} at the masked tokens of each answer itself."""
    assert mask_token_id is not None  # checked by the caller's checkpoints: all of them have one
    seen = {name: batch.encoded(reader.model.model.visual, reader.how.encode) for name, reader in readers.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for task, rows in batch.parts.items():
        block = torch.full_like(rows.answer_length, block_size)
        live = rows.live_length(block)
        noise: Corruption = corrupt(rows.answer, live, rows.given, block, mask_token_id, generator=generator)
        at = torch.arange(rows.answer.shape[1], device=block.device) < rows.answer_length[:, None]
        chosen = noise.masked & at
        found[task] = {
            name: reader.hidden(rows, seen[name], live, block, noise)[chosen].float() @ reader.head.float().T
            for name, reader in readers.items()
        }
    return found


def _means(by_task: dict[str, list[Tensor]]) -> dict[str, float]:
    joined = {task: torch.cat(parts) for task, parts in by_task.items()}
    every = torch.cat(list(joined.values()))
    if not len(every):
        raise DataError("expected masked tokens, got none")
    means = {task: float(part.mean()) for task, part in joined.items() if len(part)}
    return {**means, "all": float(every.mean()), "tokens": len(every)}
