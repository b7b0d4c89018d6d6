"""What FlashInfer is told of a pass: the host's plan, and the mask that the device writes while the pass runs.

FlashInfer plans on the host, from each row's pages; in this engine limits move on the device. So a masked pass is
planned for all places of a row's pages, whole pages, and what its tokens see is a bit for each of these places:

    row r begins at byte starts[r]; its token q takes `each` = places of the row / 8 bytes; byte j of them says which of
    places 8 j .. 8 j + 7 it sees, the first in the lowest bit

That is how the library's kernels count (bit q * places + place, from the row's own byte on); places are whole bytes
because a page has a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.pages import TRASH
from wamdiff2_core.decode.engine.staging import Staged
from wamdiff2_core.errors import ConfigError

BYTE = 8  # places that a byte of the mask stands for
LARGEST_TILE = 128  # query rows of a program, at most
Mode = Literal["full", "causal", "mask"]
"""What the tokens of a row see: all places; one place more each, the last all; any limits, as a mask of bits."""


@dataclass(frozen=True)
class Layout:
    """A pass as FlashInfer is told of it, all on the host: R rows of equal width.

    starts, page_starts (R + 1,), pages, last (R,) int32; mode.
    """

    starts: Tensor
    page_starts: Tensor
    pages: Tensor
    last: Tensor
    mode: Mode


def layout(pages: Tensor, limit: Tensor, page_size: int, mode: Mode | None = None) -> Layout:
    """Lay out a pass. pages (R, P) int32 and limit (T,) int32 on the host, as in Ops.attend.

    mode: the kind of mask, None: the simplest that fits. ConfigError for limits that the asked kind cannot express or
    the table has no pages for.
    """
    rows = len(pages)
    limits = limit.view(rows, -1).numpy()
    longest = limits.max(1)
    if longest.max() > pages.shape[1] * page_size:
        raise ConfigError(f"flashinfer: a limit of {longest.max()} for {pages.shape[1]} pages of {page_size}")
    fitting = mode_of(limits)
    if mode is not None and mode != "mask" and mode != fitting and not (limits.shape[1] == 1 and limits.min() > 0):
        raise ConfigError(f"flashinfer: planned as {mode}, but these limits are {fitting}")
    seen = np.maximum(longest, 1)  # a row that sees nothing reads one page and is blanked afterwards
    counts = -(-seen // page_size)
    owned = [pages[row, :count].tolist() for row, count in enumerate(counts)]
    if (mode or fitting) == "mask":
        return whole_pages(owned, limits.shape[1], page_size)
    return _laid(
        owned, limits.shape[1], torch.tensor(seen - (counts - 1) * page_size, dtype=torch.int32), mode or fitting
    )


def whole_pages(rows: Sequence[Sequence[int]], width: int, page_size: int) -> Layout:
    """A pass of `width` tokens a row over all places of each row's pages, masked. No row is without a page."""
    return _laid(rows, width, torch.full((len(rows),), page_size, dtype=torch.int32), "mask")


def padded(rows: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, ...], ...]:
    """Page lists of `count` rows; those without pages have the one that nobody owns."""
    return (*(tuple(row) or (TRASH,) for row in rows), *((TRASH,) for _ in range(count - len(rows))))


def mode_of(limits: np.ndarray) -> Mode:
    """The simplest kind of mask for limits (R, W)."""
    if limits.min() > 0 and (limits == limits[:, :1]).all():
        return "full"
    if limits.min() > 0 and (np.diff(limits, axis=1) == 1).all():
        return "causal"
    return "mask"


def workspace_bytes(rows: int, width: int, shape: Shape, processors: int) -> int:
    """What a pass needs for the partial sums of its parts: outputs and their weights in fp32, for whole tiles.

    FlashInfer cuts the places of a row until every processor has two programs; passes of more tiles are not cut, but
    sum up in the same place.
    """
    tiles = rows * width * (shape.heads // shape.kv_heads) + rows * LARGEST_TILE
    return 4 * shape.heads * (shape.head_dim + 1) * max(tiles, 2 * processors // shape.kv_heads * LARGEST_TILE) + 4096


def plan_bytes(rows: int, width: int) -> int:
    """What the library's own plan of a pass takes: some integers a tile and a token, tiles of at least 16."""
    return 2**18 + 32 * rows * (width + 1)


class Mask:
    """The mask of passes of R rows and W tokens a row, at fixed addresses. places: of a row, at most.

    bits (bytes,) uint8 and starts (R + 1,) int32 are what the library's kernels read.
    """

    def __init__(self, rows: int, width: int, places: int, device: torch.device) -> None:
        most = places // BYTE
        self.bits = torch.zeros(rows * width * most + 1, dtype=torch.uint8, device=device)  # the last byte is nobody's
        self.starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._rows = Staged((2, rows + 1), torch.int64, device)
        self._order = torch.arange(most, dtype=torch.int32, device=device)
        self._tokens = torch.arange(width, device=device)[:, None]

    def load(self, told: Layout, page_size: int) -> None:
        """Take over where rows begin. On the host, before the pass."""
        each = told.page_starts.diff().long() * (page_size // BYTE)
        host = self._rows.host
        host[0, 1:] = (each * len(self._tokens)).cumsum(0)
        host[1, :-1] = each
        self._rows.send()
        self.starts.copy_(self._rows.device[0])

    def write(self, limit: Tensor) -> None:
        """Set the bits of all tokens. limit (R, W) int32; device work only, once for all layers of a pass."""
        each = self._rows.device[1, :-1, None, None]
        seen = limit[:, :, None] - BYTE * self._order
        values = (1 << seen.clamp_(0, BYTE)) - 1  # (R, W, most)
        at = self._rows.device[0, :-1, None, None] + self._tokens * each + self._order
        at.masked_fill_(self._order >= each, len(self.bits) - 1)
        self.bits.scatter_(0, at.flatten(), values.to(torch.uint8).flatten())


@dataclass
class Form:
    """Passes of R rows of W tokens under one kind of mask: the library's wrapper and the buffers it is bound to.

    pages: the plan's page numbers on their way to the device. told: page lists of the rows as they were last planned,
    None: not since the last change. copied: when the host may write into the plan again.
    """

    wrapper: Any
    pages: Staged
    mask: Mask | None
    out: Tensor
    told: tuple[tuple[int, ...], ...] | None = None
    copied: torch.cuda.Event | None = None


def _laid(rows: Sequence[Sequence[int]], width: int, last: Tensor, mode: Mode) -> Layout:
    return Layout(
        starts=_steps([width] * len(rows)),
        page_starts=_steps([len(row) for row in rows]),
        pages=torch.tensor([page for row in rows for page in row], dtype=torch.int32),
        last=last,
        mode=mode,
    )


def _steps(counts: Sequence[int]) -> Tensor:
    return torch.tensor(np.concatenate(([0], np.cumsum(counts))), dtype=torch.int32)
