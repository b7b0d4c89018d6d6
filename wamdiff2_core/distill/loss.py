"""Step 4: losses over answer tokens. Each is a pair (numerator, denominator), summed over rows, parts and ranks before
dividing, so that a token counts the same wherever it was computed. Everything here is fp32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.distill.corruption import Corruption, block_index, maskable
from wamdiff2_core.distill.layout import Rows
from wamdiff2_core.errors import ConfigError

WEIGHTINGS = ("flat", "inverse_t")


@dataclass(frozen=True)
class Share:
    """A part of a loss: total / count is its mean. Per row (R,) tensors, so that they can be summed by task."""

    total: Tensor
    count: Tensor

    def mean(self) -> Tensor:
        return self.total.sum() / self.count.sum().clamp(min=1e-8)


def token_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """(R, C) fp32 cross-entropy times weight; where the weight is 0 nothing flows, not even NaN."""
    live = weight > 0
    rows, positions, vocabulary = logits.shape
    safe = torch.where(live[..., None], logits.float(), 0.0)
    loss = F.cross_entropy(safe.reshape(-1, vocabulary), target.reshape(-1), reduction="none")
    return loss.view(rows, positions) * weight


def answer_weights(rows: Rows, live: Tensor, fill_weight: float) -> Tensor:
    """(R, C): 1 for answer tokens up to the first end token, `fill_weight` for the end tokens that fill the last
    block, 0 for
    scaffold-given and dead positions."""
    at = torch.arange(rows.answer.shape[1], device=live.device)
    own = (at < rows.answer_length[:, None]).float()
    return torch.where(maskable(live, rows.given), own + (1.0 - own) * fill_weight, 0.0)


def autoregressive(logits: Tensor, rows: Rows) -> Share:
    """Next-token loss on the clean stream; logits (R, C, V) at the position before each answer token."""
    weight = answer_weights(rows, rows.answer_length, 0.0)
    return Share(token_loss(logits, rows.answer, weight).sum(1), weight.sum(1))


def diffusion(
    logits: Tensor,
    rows: Rows,
    live: Tensor,
    block: Tensor,
    corruption: Corruption,
    *,
    prediction: str = "next",
    weighting: str = "flat",
    fill_weight: float = 0.1,
) -> Share:
    """Cross-entropy of masked tokens. With "next" the first token of a block is the clean stream's affair, so it is
    left out.

    weighting "inverse_t": each masked token x 1 / t, divided by the number of trainable tokens (the bound of masked
    diffusion); "flat": plain mean over masked tokens, which weighs the first, hardest denoising steps more.
    logits (R, C, V) predict the token at their own index.
    """
    if weighting not in WEIGHTINGS:
        raise ConfigError(f"weighting: expected one of {', '.join(WEIGHTINGS)}; got {weighting!r}")
    weight = answer_weights(rows, live, fill_weight)
    if prediction == "next":
        index = block_index(block, rows.answer.shape[1])
        first = index != F.pad(index, (1, 0), value=-1)[:, :-1]
        weight = torch.where(first, 0.0, weight)
    chosen = torch.where(corruption.masked, weight, 0.0)
    if weighting == "flat":
        return Share(token_loss(logits, rows.answer, chosen).sum(1), chosen.sum(1))
    return Share((token_loss(logits, rows.answer, chosen) / corruption.t).sum(1), weight.sum(1))


def from_labels(logits: Tensor, labels: Tensor, ignore: int = -100) -> Share:
    """Mean next-token loss of flat label lists: logits (R, L, V) at position i predict labels (R, L) at i + 1.

    Positions labelled `ignore` (prompt, padding) carry no loss and no gradient.
    """
    target = labels[:, 1:]
    weight = (target != ignore).float()
    return Share(token_loss(logits[:, :-1], target.clamp(min=0), weight).sum(1), weight.sum(1))
