"""One training step as a function: batch in, losses out. Corrupt -> pack -> forward -> losses, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.batch import Conversations, TrainBatch
from wamdiff2_core.distill.corruption import Corruption, complement, corrupt
from wamdiff2_core.distill.forward import Pass, Visual, hidden_states, taken
from wamdiff2_core.distill.layout import Layout, decoding_at, first_of_block
from wamdiff2_core.distill.loss import Share, Weights, autoregressive, masked_losses
from wamdiff2_core.distill.recipe import MOST_BLOCK_SIZES, Recipe
from wamdiff2_core.distill.teacher import Teacher

KINDS = ("ar", "diffusion", "distill")


def unchanged(count: Tensor) -> Tensor:
    """The denominator of a loss in one process; several processes sum theirs (parallel.py)."""
    return count


@dataclass(frozen=True)
class Method:
    """What of a checkpoint and a recipe the step needs. denominator: see `unchanged`."""

    mask_token_id: int
    layout: Layout
    how: Pass
    recipe: Recipe
    denominator: Callable[[Tensor], Tensor] = unchanged


@dataclass(frozen=True)
class Losses:
    """loss: the scalar to minimise; shares[task][kind]: its parts; tokens: trained tokens."""

    loss: Tensor
    shares: dict[str, dict[str, Share]]
    tokens: Tensor

    def detached(self) -> Losses:
        """For the log: without what led to them."""
        shares = {
            task: {kind: Share(share.total.detach(), share.count.detach()) for kind, share in parts.items()}
            for task, parts in self.shares.items()
        }
        return Losses(self.loss.detach(), shares, self.tokens)


@dataclass(frozen=True)
class BlockSizes:
    """Block sizes to draw from: sizes (K,) int64 and the upper bounds (K,) of their shares of 0..1, on the device.

    Tensors of fixed length, so that a captured step sees another phase of the recipe without being captured again.
    """

    sizes: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, blocks: dict[int, float], device: torch.device) -> BlockSizes:
        self = cls(
            torch.ones(MOST_BLOCK_SIZES, dtype=torch.int64, device=device),
            torch.ones(MOST_BLOCK_SIZES, device=device),
        )
        self.set(blocks)
        return self

    def set(self, blocks: dict[int, float]) -> None:
        """Take other shares, in place."""
        total, upto = sum(blocks.values()), 0.0
        sizes, bounds = list(blocks), []
        for share in blocks.values():
            upto += share / total
            bounds.append(upto)
        fill = MOST_BLOCK_SIZES - len(sizes)
        self.sizes.copy_(torch.tensor(sizes + sizes[-1:] * fill))
        self.bounds.copy_(torch.tensor([*bounds[:-1], *[2.0] * (fill + 1)]))

    def draw(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """(R,) block size of each row."""
        point = torch.rand(rows, 1, device=self.sizes.device, generator=generator)
        return self.sizes[(point >= self.bounds).sum(1).clamp(max=MOST_BLOCK_SIZES - 1)]


def batch_losses(
    model: nn.Module,
    batch: TrainBatch,
    method: Method,
    blocks: BlockSizes | None,
    generator: torch.Generator | None = None,
    teacher: Teacher | None = None,
) -> Losses:
    """Images are encoded once per model; the conversations of all tasks share them. blocks None: autoregressive."""
    visual = batch.encoded(model.model.visual, method.how.encode)
    taught = _teacher_visual(teacher, batch)
    shares: dict[str, dict[str, Share]] = {}
    loss = torch.zeros((), device=model.device)
    tokens = torch.zeros((), device=model.device)
    for task, rows in batch.parts.items():
        weight = method.recipe.task_weights.get(task, 1.0)
        if weight <= 0.0:
            continue
        if blocks is None:
            shares[task] = {"ar": autoregressive_losses(model, rows, visual, method)}
        else:
            shares[task] = block_losses(model, rows, visual, method, blocks, generator, teacher, taught)
        for kind, share in shares[task].items():
            loss = loss + weight * _part(method.recipe, kind, blocks) * share.mean(method.denominator)
            tokens = tokens + share.count.sum()
    return Losses(loss, shares, tokens.detach())


def _part(recipe: Recipe, kind: str, blocks: BlockSizes | None) -> float:
    if blocks is None:
        return 1.0
    return {"ar": recipe.ar_weight, "diffusion": recipe.ce_weight, "distill": recipe.distill_weight}[kind]


@torch.no_grad()
def _teacher_visual(teacher: Teacher | None, batch: TrainBatch) -> Visual | None:
    return None if teacher is None else batch.encoded(teacher.model.model.visual, teacher.how.encode)


def autoregressive_losses(model: nn.Module, rows: Conversations, visual: Visual | None, method: Method) -> Share:
    """Next-token loss of the plain sequences [prompt | answer]."""
    block = torch.ones_like(rows.answer_length)
    packed = rows.packed(rows.answer_length, block, None, method.layout)
    hidden = taken(hidden_states(model, packed, visual, method.how), packed.clean_at)
    return autoregressive(hidden, model.lm_head.weight, rows, method.recipe.chunk_tokens)


def block_losses(
    model: nn.Module,
    rows: Conversations,
    visual: Visual | None,
    method: Method,
    blocks: BlockSizes,
    generator: torch.Generator | None = None,
    teacher: Teacher | None = None,
    taught: Visual | None = None,
) -> dict[str, Share]:
    """Losses of masked answers, by kind; with `complementary` also of the answers masked the other way round."""
    recipe = method.recipe
    block = blocks.draw(rows.answer.shape[0], generator)
    live = rows.live_length(block)
    noises = [
        corrupt(
            rows.answer,
            live,
            rows.given,
            block,
            method.mask_token_id,
            t_min=recipe.t_min,
            generator=generator,
            ranks=rows.ranks,
            ordered_share=recipe.ordered_share,
            part=(copy, recipe.noisy_copies),
        )
        for copy in range(recipe.noisy_copies)
    ]
    found = _noise_losses(model, rows, visual, method, live, block, noises, teacher, taught)
    if recipe.complementary:
        mask = method.mask_token_id
        other = [complement(rows.answer, noise, live, rows.given, mask, recipe.t_min) for noise in noises]
        second = _noise_losses(model, rows, visual, method, live, block, other, teacher, taught)
        found = {kind: share.plus(second[kind]) for kind, share in found.items()}
    return found


def _noise_losses(
    model: nn.Module,
    rows: Conversations,
    visual: Visual | None,
    method: Method,
    live: Tensor,
    block: Tensor,
    noises: Sequence[Corruption],
    teacher: Teacher | None,
    taught: Visual | None,
) -> dict[str, Share]:
    recipe, head, copies = method.recipe, model.lm_head.weight, len(noises)
    noise = Corruption.side_by_side(noises)
    packed = rows.packed(live, block, noise.noisy, method.layout)
    hidden = hidden_states(model, packed, visual, method.how)
    first = first_of_block(block, rows.answer.shape[1])
    left_out = first if method.layout.prediction == "next" else None
    weights = Weights.side_by_side([Weights.of(rows, live, one, left_out, recipe) for one in noises])
    found: dict[str, Share] = {}
    if recipe.ar_weight > 0:
        found["ar"] = autoregressive(taken(hidden, packed.clean_at), head, rows, recipe.chunk_tokens)
    at = decoding_at(packed, first, method.layout.prediction)
    target = rows.answer.repeat(1, copies)
    theirs = None if teacher is None else (teacher.hidden(rows, taught, live, block, noise), teacher.head)
    return found | masked_losses(taken(hidden, at), head, target, weights, theirs, recipe)
