"""Block-causal attention: every token carries a label, and the mask is three named parts OR-ed.

A sequence is [prompt | clean response | noisy response]; noisy tokens reuse the positions of their clean twins.
The same function serves training (all queries, all keys) and decoding (new queries against cached keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from wamdiff2_core.errors import ConfigError

CONTEXTS = ("causal", "block_causal")


class Part(IntEnum):
    """What a token is. PAD fills rows of a batch up to a common width; nothing but other padding looks at it."""

    PROMPT = 0
    CLEAN = 1
    NOISY = 2
    PAD = 3


@dataclass(frozen=True)
class Labels:
    """Labels of tokens, each (..., S) int64: the part, the block inside its part, the place inside its part."""

    part: Tensor
    block: Tensor
    order: Tensor

    def __getitem__(self, index: object) -> Labels:
        return Labels(self.part[index], self.block[index], self.order[index])  # type: ignore[index]

    @property
    def width(self) -> int:
        return self.part.shape[-1]

    def to(self, device: torch.device | str) -> Labels:
        return Labels(self.part.to(device), self.block.to(device), self.order.to(device))


def concat(labels: list[Labels]) -> Labels:
    """Join labels along the token dimension."""
    return Labels(
        torch.cat([one.part for one in labels], -1),
        torch.cat([one.block for one in labels], -1),
        torch.cat([one.order for one in labels], -1),
    )


def label(part: Part, order: Tensor, block_size: int) -> Labels:
    """Labels of one part: `order` (..., S) counts from 0 inside the part, blocks of `block_size` are cut from 0."""
    return Labels(torch.full_like(order, int(part)), order // block_size, order)


def padded_label(part: Part, lengths: Tensor, width: int, block_size: int) -> Labels:
    """Labels (R, width) of right-padded rows with `lengths` (R,) real tokens each."""
    order = torch.arange(width, device=lengths.device).expand(len(lengths), width)
    labels = label(part, order, block_size)
    return Labels(labels.part.masked_fill(order >= lengths[:, None], int(Part.PAD)), labels.block, labels.order)


def training_labels(
    prompt_lengths: Tensor, response_lengths: Tensor, block_size: int, prompt_width: int, response_width: int
) -> Labels:
    """Labels (R, prompt_width + 2 * response_width) of [prompt | clean | noisy], each part right-padded."""
    return concat(
        [
            padded_label(Part.PROMPT, prompt_lengths, prompt_width, block_size),
            padded_label(Part.CLEAN, response_lengths, response_width, block_size),
            padded_label(Part.NOISY, response_lengths, response_width, block_size),
        ]
    )


def attention_mask(query: Labels, key: Labels, context: str) -> Tensor:
    """Who sees whom: bool (..., Q, K), True = query attends to key."""
    if context not in CONTEXTS:
        raise ConfigError(f"context: expected one of {CONTEXTS}, got {context!r}")
    q = Labels(query.part[..., :, None], query.block[..., :, None], query.order[..., :, None])
    k = Labels(key.part[..., None, :], key.block[..., None, :], key.order[..., None, :])
    return prompt_part(q, k, context) | clean_part(q, k, context) | noisy_part(q, k) | _padding(q, k)


def prompt_part(q: Labels, k: Labels, context: str) -> Tensor:
    """Part 1: the prompt sees itself, causally by token or by block."""
    return (q.part == Part.PROMPT) & (k.part == Part.PROMPT) & _not_after(q, k, context)


def clean_part(q: Labels, k: Labels, context: str) -> Tensor:
    """Part 2: clean tokens see the prompt and the clean past, never noise."""
    past = (k.part == Part.CLEAN) & _not_after(q, k, context)
    return (q.part == Part.CLEAN) & ((k.part == Part.PROMPT) | past)


def noisy_part(q: Labels, k: Labels) -> Tensor:
    """Part 3: a noisy block sees the prompt, the clean blocks before it, and itself in both directions."""
    clean_before = (k.part == Part.CLEAN) & (k.block < q.block)
    own_block = (k.part == Part.NOISY) & (k.block == q.block)
    return (q.part == Part.NOISY) & ((k.part == Part.PROMPT) | clean_before | own_block)


def _padding(q: Labels, k: Labels) -> Tensor:
    """Padding sees padding: a softmax over no key at all would be NaN."""
    return (q.part == Part.PAD) & (k.part == Part.PAD)


def _not_after(q: Labels, k: Labels, context: str) -> Tensor:
    return k.order <= q.order if context == "causal" else k.block <= q.block
