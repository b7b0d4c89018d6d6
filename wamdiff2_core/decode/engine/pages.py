"""Keys and values of all rows in pages of one pool, and who owns which page: planned on the host, in plain integers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.staging import Staged
from wamdiff2_core.errors import ConfigError

TRASH = 0  # the page that nobody owns: what counts for nothing is written there, and no token ever sees it


class Lease:
    """Pages in use. They go back to the pool by `end`, or when nothing refers to the lease any more."""

    def __init__(self, pool: PagePool, pages: list[int]) -> None:
        self.pages = tuple(pages)
        self._finalizer = weakref.finalize(self, pool.free.extend, pages)

    def end(self) -> None:
        """Give the pages back; what they hold may be overwritten from now on."""
        self._finalizer()


class PagePool:
    """keys, values (L, slots, Hkv, D): slot = page * page_size + place inside the page. Never grows.

    All work on the pages runs on one stream, so a page that was given back and taken again is written only after the
    passes that were launched before have read it.
    """

    def __init__(
        self, layers: int, pages: int, page_size: int, shape: Shape, device: torch.device, dtype: torch.dtype
    ) -> None:
        size = (layers, pages * page_size, shape.kv_heads, shape.head_dim)
        self.page_size = page_size
        # Zeros: no stale number, finite or not, is there from the start.
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)
        self.total = pages - 1
        self.free = [page for page in range(pages - 1, -1, -1) if page != TRASH]

    def pages_for(self, places: int) -> int:
        """Pages that hold this many places."""
        return -(-places // self.page_size)

    def lease(self, count: int) -> Lease:
        """`count` pages. Raises ConfigError when there are not as many left."""
        if count > len(self.free):
            raise ConfigError(
                f"key-value cache: expected at most {len(self.free)} more of {self.total} pages of {self.page_size} "
                f"tokens, got a call for {count}: let go of prefixes, or make the engine with more pages"
            )
        return Lease(self, [self.free.pop() for _ in range(count)])

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page in all layers."""
        a, b = source * self.page_size, target * self.page_size
        for store in (self.keys, self.values):
            store[:, b : b + self.page_size].copy_(store[:, a : a + self.page_size])

    def clear_values(self, pages: Iterable[int]) -> None:
        """Zero the values of these pages in all layers, see KernelSet.planner."""
        for first, last in _runs(sorted(pages)):
            self.values[:, first * self.page_size : (last + 1) * self.page_size].zero_()

    def gather(self, pages: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """Copies of the first `length` places of a row: keys and values (L, length, Hkv, D)."""
        where = torch.tensor(pages, device=self.keys.device, dtype=torch.int64)[:, None] * self.page_size
        slots = (where + torch.arange(self.page_size, device=self.keys.device)).flatten()[:length]
        return self.keys[:, slots], self.values[:, slots]


class PageTable:
    """pages (R, P) int32 on the device: the pages of each row's places, in order; TRASH behind them."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._staged = Staged((rows, width), torch.int32, device)
        self.used = 0  # columns that any row uses now

    @property
    def pages(self) -> Tensor:
        return self._staged.device

    def load(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the rows; those behind the given ones have no pages."""
        host = self._staged.host.fill_(TRASH)
        self.used = max((len(pages) for pages in rows), default=0)
        for number, pages in enumerate(rows):
            host[number, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self._staged.send()


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of neighbours in rising page numbers."""
    for _, run in groupby(enumerate(pages), lambda one: one[1] - one[0]):
        numbers = [page for _, page in run]
        yield numbers[0], numbers[-1]


def slots_of(pages: Tensor, place: Tensor, live: Tensor, page_size: int) -> Tensor:
    """Slots (R, W) int64 of logical places (R, W) int64; those that are not `live` (R, W) point at the trash page."""
    page = pages.long().gather(1, (place // page_size).masked_fill(~live, 0))
    return (page * page_size + place % page_size).masked_fill(~live, TRASH)
