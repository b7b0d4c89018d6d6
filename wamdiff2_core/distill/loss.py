"""Step 4: losses over answer tokens. Each is a pair (numerator, denominator), summed over rows, parts and ranks before
dividing, so that a token counts the same wherever it was computed. Everything here is fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.distill.chunked import chunked_both, chunked_cross_entropy, chunked_divergence, select
from wamdiff2_core.distill.corruption import Corruption, maskable
from wamdiff2_core.distill.divergence import token_divergence

if TYPE_CHECKING:
    from wamdiff2_core.distill.batch import Conversations
    from wamdiff2_core.distill.recipe import Recipe

WEIGHTINGS = ("flat", "inverse_t")


@dataclass(frozen=True)
class Share:
    """A part of a loss: total / count is its mean. Per row (R,) tensors, so that they can be summed by task."""

    total: Tensor
    count: Tensor

    def mean(self, denominator: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """`denominator` sums counts over processes."""
        count = self.count.sum()
        count = count if denominator is None else denominator(count)
        return self.total.sum() / count.clamp(min=1e-8)

    def plus(self, other: Share) -> Share:
        return Share(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class Weights:
    """Of answer tokens, (R, C) each. ce: of their cross-entropy; ce_count (R,): what its sum is divided by;
    distill: of their divergence from the teacher."""

    ce: Tensor
    ce_count: Tensor
    distill: Tensor

    @classmethod
    def of(
        cls, rows: Conversations, live: Tensor, noise: Corruption, left_out: Tensor | None, recipe: Recipe
    ) -> Weights:
        """left_out (R, C): tokens whose cross-entropy is the clean stream's affair (with "next": a block's first).

        weighting "inverse_t": each masked token x 1 / t, divided by the number of trainable tokens (the bound of masked
        diffusion); "flat": plain mean over masked tokens, which weighs the first, hardest denoising steps more.
        """
        own = answer_weights(rows, live, recipe.fill_weight)
        masked = torch.where(noise.masked, own, 0.0)
        ce = own if left_out is None else torch.where(left_out, 0.0, own)
        chosen = torch.where(noise.masked, ce, 0.0)
        if recipe.weighting == "flat":
            return cls(chosen, chosen.sum(1), masked)
        return cls(chosen / noise.t, ce.sum(1), masked)

    @classmethod
    def side_by_side(cls, draws: Sequence[Weights]) -> Weights:
        """Of several draws of the same answers: (R, K * C)."""
        ce, distill = (torch.cat([getattr(one, name) for one in draws], 1) for name in ("ce", "distill"))
        return cls(ce, torch.stack([one.ce_count for one in draws]).sum(0), distill)


def token_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """(R, C) fp32 cross-entropy times weight; where the weight is 0 nothing flows, not even NaN."""
    live = weight > 0
    rows, positions, vocabulary = logits.shape
    safe = torch.where(live[..., None], logits.float(), 0.0)
    loss = F.cross_entropy(safe.reshape(-1, vocabulary), target.reshape(-1), reduction="none")
    return loss.view(rows, positions) * weight


def answer_weights(rows: Conversations, live: Tensor, fill_weight: float) -> Tensor:
    """(R, C): 1 for answer tokens up to the first end token, `fill_weight` for the end tokens that fill the last
    block, 0 for
    scaffold-given and dead positions."""
    at = torch.arange(rows.answer.shape[1], device=live.device)
    own = (at < rows.answer_length[:, None]).float()
    return torch.where(maskable(live, rows.given), own + (1.0 - own) * fill_weight, 0.0)


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """(..., V) logits of hidden (..., H) with the output matrix (V, H), in the matrix's dtype."""
    return F.linear(hidden.to(head.dtype), head)


def autoregressive(hidden: Tensor, head: Tensor, rows: Conversations, chunk_tokens: int = 0) -> Share:
    """Next-token loss on the clean stream; hidden (R, C, H): outputs before each answer token."""
    weight = answer_weights(rows, rows.answer_length, 0.0)
    return Share(_cross_entropy(hidden, head, rows.answer, weight, chunk_tokens).sum(1), weight.sum(1))


def _cross_entropy(hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor, chunk_tokens: int) -> Tensor:
    """(R, C) weighted."""
    if not chunk_tokens:
        return token_loss(head_logits(hidden, head), target, weight)
    flat, at = weight.flatten(), select(weight.flatten())
    part = chunked_cross_entropy(hidden.flatten(0, 1)[at], head, target.flatten()[at], flat[at], chunk_tokens)
    return _spread(part, at, weight.shape)


def masked_losses(
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    weights: Weights,
    theirs: tuple[Tensor, Tensor] | None,
    recipe: Recipe,
) -> dict[str, Share]:
    """Losses of masked tokens from outputs (R, C, H) and, of a teacher, outputs (R, C, Ht) and output matrix."""
    ce, distill = recipe.ce_weight > 0, theirs is not None
    if recipe.chunk_tokens:
        parts = _chunked(hidden, head, target, weights, theirs, recipe)
    else:
        logits, parts = head_logits(hidden, head), {}
        if ce:
            parts["diffusion"] = token_loss(logits, target, weights.ce)
        if theirs is not None:
            given = torch.where((weights.distill > 0)[..., None], head_logits(*theirs).float(), 0.0)
            safe = torch.where((weights.distill > 0)[..., None], logits.float(), 0.0)
            each = token_divergence(
                safe.flatten(0, 1), given.flatten(0, 1), recipe.divergence, recipe.temperature, recipe.top_k
            )
            parts["distill"] = each.view(target.shape) * weights.distill
    counts = {"diffusion": weights.ce_count, "distill": weights.distill.sum(1)}
    assert set(parts) == {name for name, there in (("diffusion", ce), ("distill", distill)) if there}
    return {name: Share(part.sum(1), counts[name]) for name, part in parts.items()}


def _chunked(
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    weights: Weights,
    theirs: tuple[Tensor, Tensor] | None,
    recipe: Recipe,
) -> dict[str, Tensor]:
    """The same, some tokens at a time, and only those that count."""
    shape, size = target.shape, recipe.chunk_tokens
    kind: dict[str, Any] = {
        "kind": recipe.divergence,
        "temperature": recipe.temperature,
        "top_k": recipe.top_k,
        "chunk": size,
    }
    at = select((weights.ce + weights.distill).flatten() if theirs is not None else weights.ce.flatten())
    mine, answer = hidden.flatten(0, 1)[at], target.flatten()[at]
    ce, distill = weights.ce.flatten()[at], weights.distill.flatten()[at]
    if theirs is None:
        return {"diffusion": _spread(chunked_cross_entropy(mine, head, answer, ce, size), at, shape)}
    taught = theirs[0].flatten(0, 1)[at]
    if recipe.ce_weight <= 0:
        return {"distill": _spread(chunked_divergence(mine, head, taught, theirs[1], distill, **kind), at, shape)}
    first, second = chunked_both(mine, head, answer, ce, taught, theirs[1], distill, **kind)
    return {"diffusion": _spread(first, at, shape), "distill": _spread(second, at, shape)}


def _spread(part: Tensor, at: Tensor, shape: torch.Size) -> Tensor:
    """(R, C) with `part` (n,) at flat places `at` and 0 elsewhere."""
    return part.new_zeros(shape.numel()).index_put((at,), part).view(shape)


def from_labels(logits: Tensor, labels: Tensor, ignore: int = -100) -> Share:
    """Mean next-token loss of flat label lists: logits (R, L, V) at position i predict labels (R, L) at i + 1.

    Positions labelled `ignore` (prompt, padding) carry no loss and no gradient.
    """
    target = labels[:, 1:]
    weight = (target != ignore).float()
    return Share(token_loss(logits[:, :-1], target.clamp(min=0), weight).sum(1), weight.sum(1))
