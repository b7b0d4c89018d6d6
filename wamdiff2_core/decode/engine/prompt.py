"""A prompt at fixed addresses: padded to one of a few lengths, so that one captured pass serves all that fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.forward import Tokens
from wamdiff2_core.decode.engine.pages import slots_of
from wamdiff2_core.decode.engine.staging import Staged
from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.errors import ConfigError

BUCKETS = (16, 32, 64, 128, 256, 384, *range(512, 2561, 128), 3072, 4096, 6144, 8192)
"""Lengths that prompts are padded to. Products take tokens by 128, so finer ones would gain nothing."""


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `length` tokens."""
    for bucket in buckets:
        if length <= bucket:
            return bucket
    raise ConfigError(f"prompt: the engine was made for at most {buckets[-1]} tokens in one pass, got {length}")


class PromptBuffers:
    """N tokens of each of R rows. length (R,): how many are real; held (R,): tokens that the cache holds before them.

    embeds (R, N, H), cos, sin (R, N, D), deepstack (L, R, N, H) or None without images.
    """

    def __init__(
        self, rows: int, width: int, hidden: int, head_dim: int, layers: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """layers: of deepstack, 0 without images."""
        self.rows, self.width = rows, width
        self.embeds = torch.zeros(rows, width, hidden, device=device, dtype=dtype)
        self.cos, self.sin = (torch.zeros(rows, width, head_dim, device=device, dtype=dtype) for _ in range(2))
        deepstack = torch.zeros(layers, rows, width, hidden, device=device, dtype=dtype)
        self.deepstack = deepstack if layers else None
        self._staged = Staged((2, rows), torch.int64, device)
        self._order = torch.arange(width, device=device)

    @property
    def length(self) -> Tensor:
        return self._staged.device[0]

    def load(self, segment: Segment, lengths: Sequence[int], held: Sequence[int]) -> None:
        """Take a right-padded segment (R', Q) with R' <= R, Q <= N; rows behind have no tokens."""
        rows, width = segment.embeds.shape[:2]
        for mine, theirs in ((self.embeds, segment.embeds), (self.cos, segment.cos), (self.sin, segment.sin)):
            mine[:rows, :width].copy_(theirs)
        if self.deepstack is not None:
            self.deepstack.zero_()
            if segment.deepstack is not None:
                self.deepstack[:, :rows, :width].copy_(segment.deepstack)
        host = self._staged.host.zero_()
        host[0, :rows], host[1, :rows] = torch.tensor(lengths), torch.tensor(held)
        self._staged.send()

    def clear(self) -> None:
        """No row has tokens: a pass over them writes to the trash page only."""
        self._staged.host.zero_()
        self._staged.send()

    def tokens(self, block_size: int, pages: Tensor, page_size: int) -> Tokens:
        """The prompt's tokens; each sees its own block of `block_size`, counted from token 0, and all before it."""
        length, held = self._staged.device[0][:, None], self._staged.device[1][:, None]
        place, live = held + self._order, self._order < length
        limit = torch.minimum((place // block_size + 1) * block_size, held + length)
        limit = limit.masked_fill(~live, 0).to(torch.int32)
        return Tokens(self.embeds, self.cos, self.sin, slots_of(pages, place, live, page_size), limit)
