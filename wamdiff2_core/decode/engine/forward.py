"""The layers of a pass over tokens of R rows: what `Ops` offers, in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import Ops
from wamdiff2_core.decode.engine.pages import PagePool
from wamdiff2_core.decode.engine.weights import TextWeights


@dataclass(frozen=True)
class Tokens:
    """W tokens of each of R rows on their way through the layers.

    embeds (R, W, H); cos, sin (R, W, D); slot (R, W) int64: where their keys go; limit (R, W) int32: how many places of
    the row they see.
    """

    embeds: Tensor
    cos: Tensor
    sin: Tensor
    slot: Tensor
    limit: Tensor


def join(parts: list[Tokens]) -> Tokens:
    """Tokens of each row behind one another."""
    if len(parts) == 1:
        return parts[0]
    names = ("embeds", "cos", "sin", "slot", "limit")
    return Tokens(*(torch.cat([getattr(part, name) for part in parts], 1) for name in names))


def run_layers(
    weights: TextWeights, ops: Ops, pool: PagePool, pages: Tensor, tokens: Tokens, deepstack: Tensor | None = None
) -> Tensor:
    """Hidden states (R, W, H) behind the last layer, before the final norm; keys and values go to the pool.

    pages (R, P) int32. deepstack (L, R, N, H): added behind the first L layers to the first N tokens of each row.
    """
    rows, width, size = tokens.embeds.shape
    hidden = tokens.embeds.reshape(rows * width, size)
    slot, limit = tokens.slot.flatten(), tokens.limit.flatten()
    cos, sin = tokens.cos.flatten(0, 1).contiguous(), tokens.sin.flatten(0, 1).contiguous()
    shape, eps = weights.shape, weights.shape.eps
    for number, layer in enumerate(weights.layers):
        keys, values = pool.keys[number], pool.values[number]
        q = ops.project(hidden, layer.qkv, layer.head_norm, cos, sin, slot, keys, values, shape)
        seen = ops.attend(q, keys, values, pages, limit, shape)
        hidden = ops.linear_add(seen, layer.out, hidden)
        hidden = ops.linear_add(ops.gated(hidden, layer.gate_up, eps), layer.down, hidden)
        if deepstack is not None and number < len(deepstack):
            hidden = _deepened(hidden.view(rows, width, size), deepstack[number]).flatten(0, 1)
    return hidden.view(rows, width, size)


def _deepened(hidden: Tensor, added: Tensor) -> Tensor:
    """hidden (R, W, H) with added (R, N, H) on the first N tokens of each row: a new tensor, see `Ops.linear_add`."""
    count = added.shape[1]
    return torch.cat((hidden[:, :count] + added, hidden[:, count:]), 1)
