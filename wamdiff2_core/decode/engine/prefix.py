"""The beginning of a prompt in pages of the engine's cache, to be shared by several answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from wamdiff2_core.decode.cache import KVCache
from wamdiff2_core.decode.decoder import Prefix
from wamdiff2_core.decode.engine.pages import Lease, PagePool
from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.model.masks import Part, label


class PagedPrefix(Prefix):
    """A Prefix whose keys and values stay in the engine's pages, which it holds as long as it lives.

    pages: of each row, in order. kept: tokens in them (the others are the tail).
    """

    def __init__(
        self,
        pool: PagePool,
        lease: Lease,
        pages: Sequence[Sequence[int]],
        kept: int,
        tail: Segment | None,
        length: int,
        next_position: int,
        block_size: int | None,
        forwards: int = 1,
        vision_ms: float = 0.0,
        prefill_ms: float = 0.0,
    ) -> None:
        values = {
            "tail": tail,
            "length": length,
            "next_position": next_position,
            "block_size": block_size,
            "forwards": forwards,
            "vision_ms": vision_ms,
            "prefill_ms": prefill_ms,
            "pool": pool,
            "lease": lease,
            "pages": tuple(tuple(row) for row in pages),
            "kept": kept,
        }
        for name, value in values.items():  # frozen, as its base is
            object.__setattr__(self, name, value)

    pool: PagePool
    lease: Lease
    pages: tuple[tuple[int, ...], ...]
    kept: int

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.pages)

    def rows(self, index: Sequence[int]) -> PagedPrefix:
        """These rows, in this order, in the same pages; a row may stand there more than once."""
        tail = None if self.tail is None else self.tail.rows(torch.tensor(index, device=self.tail.embeds.device))
        return PagedPrefix(
            self.pool,
            self.lease,
            [self.pages[row] for row in index],
            self.kept,
            tail,
            self.length,
            self.next_position,
            self.block_size,
            self.forwards,
            self.vision_ms,
            self.prefill_ms,
        )

    @cached_property
    def cache(self) -> KVCache:  # type: ignore[override]
        """A copy as the other kernel sets keep it."""
        rows = [self.pool.gather(row, self.kept) for row in self.pages]
        keys, values = (torch.stack([row[part] for row in rows], 1).transpose(2, 3).contiguous() for part in (0, 1))
        order = torch.arange(self.kept, device=keys.device).expand(len(rows), -1)
        return KVCache(keys, values, label(Part.PROMPT, order, self.block_size or 1))
