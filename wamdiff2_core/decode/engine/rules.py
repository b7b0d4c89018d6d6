"""Which predictions a step keeps, for rows with rules of their own: `accept.py` without a decision on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from wamdiff2_core.decode.config import RULES

DYNAMIC, STATIC, SEQUENTIAL, ORDERED = (RULES.index(name) for name in ("dynamic", "static", "sequential", "ordered"))


def keep(
    certainty: Tensor, masked: Tensor, rule: Tensor, threshold: Tensor, share: Tensor, rank: Tensor, last: Tensor
) -> Tensor:
    """Masked positions (R, B) to keep; rows of `last` (R,) keep all.

    certainty (R, B) fp32; rule (R,): index into RULES; threshold (R,) fp32; share (R,); rank (R, B), -1: none.
    """
    score = certainty.masked_fill(~masked, -1.0)
    width = score.shape[1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=score.device).tril(-1)  # [i, j]: j stands before i
    mine, other = score[:, :, None], score[:, None, :]
    place = ((other > mine) | ((other == mine) & earlier)).sum(2)  # 0: the most certain; the earlier one wins a tie
    sure = masked & (certainty >= threshold[:, None])
    dynamic = torch.where(sure.any(1, keepdim=True), sure, masked & (place == 0))
    static = masked & (place < share[:, None])
    sequential = masked & (masked.cumsum(1) <= share[:, None])
    lowest = rank.masked_fill(~masked, torch.iinfo(rank.dtype).max).amin(1, keepdim=True)
    ordered = torch.where(lowest >= 0, masked & (rank == lowest), dynamic)
    which = rule[:, None]
    kept = torch.where(which == STATIC, static, torch.where(which == SEQUENTIAL, sequential, dynamic))
    kept = torch.where(which == ORDERED, ordered, kept)
    return torch.where(last[:, None], masked, kept)
