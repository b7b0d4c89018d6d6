"""Attention of a training pass: a dense additive mask through SDPA, or a FlexAttention BlockMask; the same result."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention


@dataclass(frozen=True)
class Mask:
    """Who sees whom, in the form that attention takes. cast: dtype that attention and the products around it run in.

    added: (S, 1, L, L) in `cast`, added to the scores; blocks: a BlockMask; one of the two.
    """

    cast: torch.dtype
    added: Tensor | None = None
    blocks: BlockMask | None = None


def prepared(mask: Tensor | BlockMask, cast: torch.dtype) -> Mask:
    """mask: (S, L, L) bool, True = query sees key, or a BlockMask."""
    if isinstance(mask, BlockMask):
        return Mask(cast, blocks=mask)
    floor = torch.finfo(cast).min
    return Mask(cast, added=torch.zeros(mask.shape, dtype=cast, device=mask.device).masked_fill_(~mask, floor)[:, None])


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor:
    """query (S, heads, L, D), key and value (S, KV heads, L, D), all in mask.cast -> (S, heads, L, D)."""
    groups = query.shape[1] // key.shape[1]
    if mask.blocks is not None:
        return flex_attention(query, key, value, block_mask=mask.blocks, scale=scale, enable_gqa=groups > 1)
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.added, scale=scale)
