"""On-policy training on packed streams: the model's own answers in the place of the true ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.stream.encode import NO_TASK, answer_scaffolds
from wamdiff2_core.distill.stream.packing import StreamBatch
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.masks import Part
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.tasks import TASKS


@torch.no_grad()
def own_stream_answers(loaded: LoadedModel, batch: StreamBatch, config: DecodingConfig) -> StreamBatch:
    """The batch with answers that the model gives, each cut to the room of its sample; where it gives none that can be
    used, the truth stays. Samples of one batch are decoded together.
    """
    assert loaded.folder is not None  # a model in training was loaded from a folder
    tokenizer = TextTokenizer.from_folder(loaded.folder)
    allowed = answer_scaffolds(tokenizer, loaded.block_diffusion)
    scaffolds = [allowed[TASKS[number]] if number != NO_TASK else None for number in batch.task.tolist()]
    pixels, grid = _pictures(batch)
    model, training = loaded.model, loaded.model.training
    model.eval()
    try:
        out = BlockDecoder(loaded).generate(
            _prompts(batch), pixels, grid, config, [Scaffold(a) if a else None for a in scaffolds], None,
            batch.room.tolist(),
        )  # fmt: skip
    finally:
        model.train(training)
    return _answered(batch, [out] if isinstance(out, DecodeResult) else list(out), tokenizer.eos_id)


def _prompts(batch: StreamBatch) -> list[Tensor]:
    """Prompt ids of each sample."""
    prompt = batch.part == Part.PROMPT
    return [batch.ids[prompt & (batch.document == row)] for row in range(len(batch.names))]


def _pictures(batch: StreamBatch) -> tuple[Tensor | None, Tensor | None]:
    """Patches and grids of the samples' pictures, sample after sample: a shared one comes once for each."""
    shown = [picture for pictures in batch.shown for picture in pictures]
    if not shown:
        return None, None
    patches = batch.pixel_values()
    grid = torch.tensor([batch.grids[picture] for picture in shown], device=batch.ids.device)
    return torch.cat([patches[picture] for picture in shown]), grid


def _answered(batch: StreamBatch, results: list[DecodeResult], end: int) -> StreamBatch:
    answer, length = batch.answer.clone(), batch.answer_length.clone()
    for row, (result, room) in enumerate(zip(results, batch.room.tolist(), strict=True)):
        if result.status is Status.INVALID or not result.tokens:
            continue
        tokens = result.tokens[:room]
        answer[row] = end
        answer[row, : len(tokens)] = torch.tensor(tokens, device=answer.device)
        length[row] = min(len(tokens) + 1, room)
    return replace(batch, answer=answer, answer_length=length)
