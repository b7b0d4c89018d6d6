"""Which predictions a denoising step keeps. Pure functions on (R, B) tensors: probability and what is still masked."""

from __future__ import annotations

import torch
from torch import Tensor

from wamdiff2_core.decode.config import DecodingConfig


def quota(open_count: Tensor, steps: int) -> Tensor:
    """Equal share per step, rounded up: ceil(open / steps), (R,) -> (R,)."""
    return -(-open_count // steps)


def dynamic(probability: Tensor, masked: Tensor, threshold: float) -> Tensor:
    """All masked positions with probability >= threshold; a row without any keeps its single best."""
    sure = masked & (probability >= threshold)
    best = torch.zeros_like(masked)
    best.scatter_(1, probability.masked_fill(~masked, -1.0).argmax(1, keepdim=True), True)
    return torch.where(sure.any(1, keepdim=True), sure, best & masked)


def static(probability: Tensor, masked: Tensor, share: Tensor) -> Tensor:
    """The `share` (R,) most probable masked positions of each row; the earlier one wins a tie."""
    order = probability.masked_fill(~masked, -1.0).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    return masked & (rank < share[:, None])


def sequential(masked: Tensor, share: Tensor) -> Tensor:
    """The first `share` (R,) masked positions of each row."""
    return masked & (masked.cumsum(1) <= share[:, None])


def ordered(probability: Tensor, masked: Tensor, rank: Tensor, threshold: float) -> Tensor:
    """The masked positions of the lowest rank (R, B) in each row; rows with unranked (-1) ones: the dynamic rule."""
    lowest = rank.masked_fill(~masked, torch.iinfo(rank.dtype).max).amin(1, keepdim=True)
    return torch.where(lowest >= 0, masked & (rank == lowest), dynamic(probability, masked, threshold))


def accept(
    config: DecodingConfig, probability: Tensor, masked: Tensor, share: Tensor, last_step: bool, rank: Tensor
) -> Tensor:
    """Positions (R, B) to keep in this step; the last step keeps everything that is left."""
    if last_step:
        return masked
    if config.rule == "ordered":
        return ordered(probability, masked, rank, config.threshold)
    if config.rule == "dynamic":
        return dynamic(probability, masked, config.threshold)
    return static(probability, masked, share) if config.rule == "static" else sequential(masked, share)
