"""On-policy training: the student's own answer takes the place of the truth, so that it learns where it really goes.

The answers are decoded greedily, as on the road, with the weights as they are now.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.layout import Rows
from wamdiff2_core.distill.stream.own import own_stream_answers
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.tasks import ask, detect, plan

STEPS = 4
THRESHOLD = 0.9
_ALLOWED = {"plan": plan.allowed, "detect": detect.allowed, "ask": ask.allowed}


def own_answers(loaded: LoadedModel, batch: RingBatch | StreamBatch, block_size: int) -> RingBatch | StreamBatch:
    """The batch with answers that the model gives; where it gives none that can be used, the truth stays."""
    if isinstance(batch, StreamBatch):
        return own_stream_answers(loaded, batch, _decoding(block_size))
    return _own_ring_answers(loaded, batch, block_size)


def _decoding(block_size: int) -> DecodingConfig:
    return DecodingConfig(block_size=block_size, steps=min(STEPS, block_size), threshold=THRESHOLD)


@torch.no_grad()
def _own_ring_answers(loaded: LoadedModel, batch: RingBatch, block_size: int) -> RingBatch:
    model = loaded.model
    training = model.training
    model.eval()
    try:
        pixels, grid = _pixels(batch)
        decoder = BlockDecoder(loaded)
        tokenizer = TextTokenizer.from_folder(str(loaded.folder))
        rows = {
            task: _answered(decoder, tokenizer, task, rows, pixels, grid, block_size)
            for task, rows in batch.batch.rows.items()
        }
    finally:
        model.train(training)
    return replace(batch, batch=replace(batch.batch, rows=rows))


def _pixels(batch: RingBatch) -> tuple[Tensor, Tensor]:
    """Patches as the decoder takes them: frame after frame, cameras in prompt order; grids (images, 3)."""
    groups = []
    for number, (patches, height, width) in enumerate(batch.batch.patches):
        cameras = sum(group == number for group, _ in batch.order)
        groups.append((patches.unflatten(0, (cameras, -1)), height, width))
    frames = groups[0][0].shape[1]
    flat = [groups[group][0][place, frame] for frame in range(frames) for group, place in batch.order]
    grid = [[1, *groups[group][1:]] for _ in range(frames) for group, _ in batch.order]
    return torch.cat(flat), torch.tensor(grid, device=flat[0].device)


def _answered(
    decoder: BlockDecoder,
    tokenizer: TextTokenizer,
    task: str,
    rows: Rows,
    pixels: Tensor,
    grid: Tensor,
    block_size: int,
) -> Rows:
    lengths, room = rows.prompt_length.tolist(), rows.answer.shape[1]
    there = [row for row, length in enumerate(lengths) if length]
    if not there:
        return rows
    images = len(grid) // len(lengths)
    patches = grid[:images].prod(1).sum().item()
    chosen = torch.tensor(there, device=pixels.device)
    ids = [rows.prompt[row, rows.prompt.shape[1] - lengths[row] :] for row in there]
    allowed = _ALLOWED[task](tokenizer)
    out = decoder.generate(
        ids,
        pixels.view(len(lengths), patches, -1)[chosen].flatten(0, 1),
        grid.view(len(lengths), images, 3)[chosen].flatten(0, 1),
        _decoding(block_size),
        Scaffold(allowed) if allowed else None,
        max_new_tokens=[room] * len(there),
    )
    results = [out] if isinstance(out, DecodeResult) else list(out)
    return _replaced(rows, there, results, tokenizer.eos_id)


def _replaced(rows: Rows, there: list[int], results: list[DecodeResult], end: int) -> Rows:
    answer, length = rows.answer.clone(), rows.answer_length.clone()
    room = answer.shape[1]
    for row, result in zip(there, results, strict=True):
        if result.status is Status.INVALID or not result.tokens:
            continue
        answer[row] = end
        answer[row, : len(result.tokens)] = torch.tensor(result.tokens, device=answer.device)
        length[row] = min(len(result.tokens) + 1, room)
    return replace(rows, answer=answer, answer_length=length)
