"""Attention of a training pass: a dense additive mask through SDPA, or a FlexAttention BlockMask; the same result.

The mask of packed streams exists in both forms. Dense: `attention_mask` of the labels, within a sample. Flex: the same
rule as two comparisons of per-token numbers (`Reach`), evaluated inside the kernel; only a table of 128 x 128 tiles is
made beforehand, a few rows of tiles at a time, so that memory grows with L and not with L * L.

Padding, in the middle and at the end of a stream, sees the padding of its own sample (-1 is one, too): a row that sees
nothing would have no softmax. Nothing else sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.masks import CONTEXTS, Labels, Part, attention_mask

TILE = 128
_ROWS = 8  # query tiles whose rule is evaluated at a time
_ORDERS = 1 << 15  # places in a part; 2**15 blocks of them still fit an int32
_PROMPT = 1 << 30  # prompt places lie below all answer places
_NOWHERE = torch.iinfo(torch.int32).max


@dataclass(frozen=True)
class Mask:
    """Who sees whom, in the form that attention takes. cast: dtype that attention and the products around it run in.

    added: (S, 1, L, L) in `cast`, added to the scores; blocks: a BlockMask; one of the two.
    """

    cast: torch.dtype
    added: Tensor | None = None
    blocks: BlockMask | None = None


@dataclass(frozen=True)
class Reach:
    """The mask rule in numbers, each (S, L) int32: of one document, a token sees what stands at a `place` up to its
    `limit`, and the `group` that it wants. Only clean tokens and prompts have places; noisy blocks and padding are
    groups.
    """

    document: Tensor
    place: Tensor
    limit: Tensor
    group: Tensor
    wanted: Tensor


def reach(labels: Labels, document: Tensor, context: str) -> Reach:
    """labels and document (S, L): who sees whom, as `attention_mask` says. Parts of at most 2**15 tokens."""
    if context not in CONTEXTS:
        raise ConfigError(f"context: expected one of {CONTEXTS}, got {context!r}")
    if document.shape[-1] > _ORDERS:
        raise ConfigError(f"streams: expected at most {_ORDERS} tokens, got {document.shape[-1]}")
    prompt, noisy, pad = (labels.part == part for part in (Part.PROMPT, Part.NOISY, Part.PAD))
    first = labels.block * _ORDERS  # orders of a later block are later, so (block, order) sorts like order
    place = first + labels.order
    limit = place if context == "causal" else first + _ORDERS - 1
    limit = torch.where(noisy, first - 1, limit)
    place, limit = (torch.where(prompt, value - _PROMPT, value) for value in (place, limit))
    group = torch.where(noisy, labels.block, torch.where(pad, _PROMPT, -1))
    numbers = (
        document,
        place.masked_fill(noisy | pad, _NOWHERE),
        limit.masked_fill(pad, -_NOWHERE),
        group,
        group.masked_fill(group < 0, -2),
    )
    return Reach(*(value.to(torch.int32) for value in numbers))


def stream_mask(labels: Labels, document: Tensor, context: str, kind: str = "dense") -> Tensor | BlockMask:
    """labels, document (S, L) -> (S, L, L) bool for kind "dense", a BlockMask for "flex"."""
    if kind == "flex":
        return block_mask(reach(labels, document, context))
    return attention_mask(labels, labels, context) & (document[:, :, None] == document[:, None, :])


def block_mask(rule: Reach, tile: int = TILE) -> BlockMask:
    """FlexAttention's mask: which tiles hold anything, which are seen as a whole, and the rule for the others."""
    streams, length = rule.document.shape
    tiles = -(-length // tile)
    some = torch.empty(streams, tiles, tiles, dtype=torch.bool, device=rule.document.device)
    whole = torch.empty_like(some)
    stream = torch.arange(streams, device=some.device)[:, None, None]
    keys = torch.arange(length, device=some.device)[None, None]
    sees = _rule(rule)
    for row in range(0, tiles, _ROWS):
        queries = keys[..., row * tile : (row + _ROWS) * tile].transpose(1, 2)
        seen = sees(stream, stream, queries, keys)  # (S, queries, L)
        seen = F.pad(seen, (0, tiles * tile - length)).unflatten(2, (tiles, tile))
        there, full = seen.any(3), seen.all(3)
        below = (0, 0, 0, -there.shape[1] % tile)  # rows behind the last query do not matter
        some[:, row : row + _ROWS] = F.pad(there, below).unflatten(1, (-1, tile)).any(2)
        whole[:, row : row + _ROWS] = F.pad(full, below, value=True).unflatten(1, (-1, tile)).all(2)
    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=tile,
        mask_mod=sees,
        seq_lengths=(length, length),
    )


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many key tiles (S, 1, T), and which (S, 1, T, T), the listed ones first, for each query tile."""
    count = tiles.sum(2, dtype=torch.int32)[:, None]
    index = tiles.to(torch.int32).argsort(dim=2, descending=True, stable=True).to(torch.int32)[:, None]
    return count, index.contiguous()


def _rule(rule: Reach) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's form of the rule: stream, head, query and key indices of any shapes that broadcast."""
    document, place, limit = rule.document, rule.place, rule.limit
    group, wanted = rule.group, rule.wanted

    def sees(stream: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = document[stream, query] == document[stream, key]
        return same & ((place[stream, key] <= limit[stream, query]) | (group[stream, key] == wanted[stream, query]))

    return sees


def prepared(mask: Tensor | BlockMask, cast: torch.dtype) -> Mask:
    """mask: (S, L, L) bool, True = query sees key, or a BlockMask.

    FlexAttention has no backward pass on a CPU: there the BlockMask's own rule is evaluated as a dense mask.
    """
    if isinstance(mask, BlockMask):
        if mask.kv_indices.device.type != "cpu":
            return Mask(cast, blocks=mask)
        mask = dense(mask)
    floor = torch.finfo(cast).min
    return Mask(cast, added=torch.zeros(mask.shape, dtype=cast, device=mask.device).masked_fill_(~mask, floor)[:, None])


def dense(mask: BlockMask) -> Tensor:
    """(S, L, L) bool: the rule of a BlockMask for all pairs."""
    device = mask.kv_indices.device
    streams, (queries, keys) = mask.kv_indices.shape[0], mask.seq_lengths
    stream = torch.arange(streams, device=device)[:, None, None]
    query, key = torch.arange(queries, device=device)[None, :, None], torch.arange(keys, device=device)[None, None]
    return mask.mask_mod(stream, torch.zeros_like(stream), query, key)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor:
    """query (S, heads, L, D), key and value (S, KV heads, L, D), all in mask.cast -> (S, heads, L, D)."""
    groups = query.shape[1] // key.shape[1]
    if mask.blocks is not None:
        fused = query.is_cuda and not torch.compiler.is_compiling()  # inside a compiled layer it is compiled anyway
        kernel = compiled_flex() if fused else flex_attention
        return kernel(query, key, value, block_mask=mask.blocks, scale=scale, enable_gqa=groups > 1)
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.added, scale=scale)


@lru_cache(maxsize=1)
def compiled_flex() -> Callable[..., Tensor]:
    """FlexAttention as a fused kernel; uncompiled it would make the (L, L) scores in memory."""
    return torch.compile(flex_attention, dynamic=False)
