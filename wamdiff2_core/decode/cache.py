"""Key/value cache of one `generate` call: static buffers, labels of what lies in them, and the committed length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.model.masks import Labels, Part, attention_mask, concat


@dataclass
class KVCache:
    """keys, values: (L, R, kv_heads, capacity, head_dim). Slots below `length` are committed and described by `labels`.

    A forward pass writes its tokens behind the committed ones; `commit` keeps the first of them, the next pass writes
    over the rest. Rows of a batch move in lockstep, so one length serves all; padding inside a row is labelled PAD.
    """

    keys: Tensor
    values: Tensor
    labels: Labels  # (R, length)
    padded: bool = False

    @property
    def length(self) -> int:
        return self.labels.width

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def commit(self, segment: Segment) -> None:
        """Keep the tokens of `segment`, which the last pass wrote right behind the committed ones."""
        self.labels = concat([self.labels, segment.labels])
        self.padded = self.padded or segment.padded

    def mask(self, segment: Segment, context: str) -> Tensor | None:
        """Mask (R, Q, length + Q) for `segment` behind the committed tokens; None when everything is visible."""
        if not self.padded and segment.sees_all:
            return None
        return attention_mask(segment.labels, concat([self.labels, segment.labels]), context)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.labels = self.labels[rows]

    def rows(self, rows: Tensor) -> KVCache:
        """A copy of these rows, in this order; a row may stand there more than once."""
        return KVCache(self.keys[:, rows], self.values[:, rows], self.labels[rows], self.padded)

    def grown(self, capacity: int, rows: int = 1) -> KVCache:
        """A copy with more slots; a cache of one row is repeated for `rows` rows."""
        shape = list(self.keys.shape)
        shape[1], shape[3] = rows, capacity
        keys, values = self.keys.new_empty(shape), self.values.new_empty(shape)
        keys[:, :, :, : self.length] = self.keys[:, :, :, : self.length]
        values[:, :, :, : self.length] = self.values[:, :, :, : self.length]
        labels = Labels(*(one.expand(rows, -1) for one in (self.labels.part, self.labels.block, self.labels.order)))
        return KVCache(keys, values, labels, self.padded)


def new_cache(config: object, rows: int, capacity: int, device: torch.device, dtype: torch.dtype) -> KVCache:
    """An empty cache. config: transformers' text config."""
    heads = config.num_key_value_heads  # type: ignore[attr-defined]
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads  # type: ignore[attr-defined]
    shape = (config.num_hidden_layers, rows, heads, capacity, size)  # type: ignore[attr-defined]
    empty = torch.zeros(rows, 0, dtype=torch.int64, device=device)
    labels = Labels(torch.full_like(empty, int(Part.PROMPT)), empty, empty)
    return KVCache(
        torch.empty(shape, device=device, dtype=dtype), torch.empty(shape, device=device, dtype=dtype), labels
    )
