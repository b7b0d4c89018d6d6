"""One training step as a function: batch in, losses out. Corrupt -> pack -> forward -> losses, for every task in
turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.corruption import Corruption, complement, corrupt
from wamdiff2_core.distill.data import Batch
from wamdiff2_core.distill.forward import Visual, answer_logits, encode_frames, hidden_states
from wamdiff2_core.distill.layout import Rows, pack
from wamdiff2_core.distill.loss import Share, autoregressive, diffusion
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.tasks import TASKS


@dataclass(frozen=True)
class Method:
    """What of a checkpoint and recipe the step needs."""

    mask_token_id: int
    prediction: str
    context: str
    order: tuple[tuple[int, int], ...]
    cast: torch.dtype
    recipe: Recipe


@dataclass(frozen=True)
class Losses:
    """loss: the scalar to minimise; shares[task][kind]: its parts, kind "ar" or "diffusion"; tokens: trained tokens."""

    loss: Tensor
    shares: dict[str, dict[str, Share]]
    tokens: Tensor


def draw_blocks(
    rows: int, blocks: dict[int, float], device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """(R,) block size of each row, drawn by share; made without copying anything from the host."""
    total = sum(blocks.values())
    point = torch.rand(rows, device=device, generator=generator) * total
    chosen = torch.full((rows,), 0, dtype=torch.int64, device=device)
    bound = 0.0
    for size, share in blocks.items():
        chosen = torch.where(point >= bound, size, chosen)
        bound += share
    return chosen


def task_losses(
    model: nn.Module,
    rows: Rows,
    visual: Visual | None,
    method: Method,
    blocks: dict[int, float] | None,
    generator: torch.Generator | None = None,
) -> dict[str, Share]:
    """Losses of one task's rows. blocks: shares of block sizes; None: autoregressive only."""
    if blocks is None:
        block = torch.ones_like(rows.answer_length)
        packed = pack(rows, rows.answer_length, block, context=method.context)
        logits, _ = answer_logits(
            model, packed, hidden_states(model, packed, rows, visual, method.cast), method.prediction
        )
        return {"ar": autoregressive(logits, rows)}
    block = draw_blocks(rows.answer.shape[0], blocks, rows.answer.device, generator)
    live = rows.live_length(block)
    first = corrupt(
        rows.answer, live, rows.given, block, method.mask_token_id, t_min=method.recipe.t_min, generator=generator
    )
    found = _both_losses(model, rows, visual, method, live, block, first)
    if method.recipe.complementary:
        other = complement(rows.answer, first, live, rows.given, method.mask_token_id, method.recipe.t_min)
        second = _both_losses(model, rows, visual, method, live, block, other)
        found = {
            kind: Share(share.total + second[kind].total, share.count + second[kind].count)
            for kind, share in found.items()
        }
    return found


def _both_losses(
    model: nn.Module,
    rows: Rows,
    visual: Visual | None,
    method: Method,
    live: Tensor,
    block: Tensor,
    corruption: Corruption,
) -> dict[str, Share]:
    packed = pack(rows, live, block, corruption.noisy, method.context)
    hidden = hidden_states(model, packed, rows, visual, method.cast)
    clean, noisy = answer_logits(model, packed, hidden, method.prediction)
    assert noisy is not None  # the packed row has a noisy stream
    recipe = method.recipe
    share = diffusion(
        noisy,
        rows,
        live,
        block,
        corruption,
        prediction=method.prediction,
        weighting=recipe.weighting,
        fill_weight=recipe.fill_weight,
    )
    return {"ar": autoregressive(clean, rows), "diffusion": share}


def batch_losses(
    model: nn.Module,
    batch: Batch,
    method: Method,
    blocks: dict[int, float] | None,
    generator: torch.Generator | None = None,
) -> Losses:
    """Images are encoded once; the rows of all tasks share them."""
    visual = encode_frames(model.model.visual, batch.patches, method.order)
    shares: dict[str, dict[str, Share]] = {}
    loss = torch.zeros((), device=batch.patches[0][0].device)
    tokens = torch.zeros((), device=loss.device)
    for task in TASKS:
        weight = method.recipe.task_weights[task]
        if weight <= 0.0:
            continue
        shares[task] = task_losses(model, batch.rows[task], visual, method, blocks, generator)
        for kind, share in shares[task].items():
            part = method.recipe.ar_weight if kind == "ar" and blocks is not None else 1.0
            loss = loss + weight * part * share.mean()
            tokens = tokens + share.count.sum()
    return Losses(loss, shares, tokens.detach())
