"""What a pass takes from the answers and gives back to them: which tokens run, and the step that follows.

Two kinds, chosen when an engine is made: plain operations, and one Triton kernel for each of the two halves
(`moves_triton.py`). Small operations cost a GPU more than a microsecond each, and a step has well over a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.lane import Lane
from wamdiff2_core.decode.engine.pages import slots_of
from wamdiff2_core.decode.engine.state import Seen


@dataclass(frozen=True)
class Incoming:
    """W tokens of each of R rows, about to run: W = 2 B with clean tokens first, B without, or fewer (see Moves.take).

    ids, turn (rotary position), slot (R, W) int64; limit (R, W) int32, see Ops.attend. rolled (R,) bool: rows whose
    clean tokens count. sets (R, B) int64: the set of allowed ids at each place of the current block.
    """

    ids: Tensor
    turn: Tensor
    slot: Tensor
    limit: Tensor
    rolled: Tensor
    sets: Tensor


class Moves(Protocol):
    """How answers move. Everything runs on the device and never waits for it; outputs may be reused buffers."""

    name: str

    def take(self, lane: Lane, pages: Tensor, wide: bool) -> Incoming:
        """Let rows go on to their next block where theirs is decided (if wide), and say which tokens run.

        wide: B clean tokens a row, dead where it did not go on, before its B noisy ones. Lanes without noisy tokens
        have the clean ones only, or none.
        """
        ...

    def step(self, lane: Lane, seen: Seen) -> None:
        """Apply predictions (R, B) to the current blocks, and raise the flags."""
        ...


class TorchMoves:
    """See Moves. by_block: clean tokens see their whole block; positions: how many the table of turns has."""

    name = "torch"

    def __init__(self, page_size: int, positions: int, by_block: bool) -> None:
        self._page_size, self._positions, self._by_block = page_size, positions, by_block

    def take(self, lane: Lane, pages: Tensor, wide: bool) -> Incoming:
        answers, request = lane.answers, lane.request
        held = (request.held + request.prompt)[:, None]  # tokens before the answer
        ids, index, limit, live = [], [], [], []
        rolled = torch.zeros_like(answers.ahead)
        if wide:
            ids.append(answers.block)
            index.append(answers.index)
            place = held + answers.index
            rolled = answers.roll()
            limit.append((place[:, -1:] if self._by_block else place) + 1)
            live.append(rolled)
        if lane.noisy:
            ids.append(answers.block)
            index.append(answers.index)
            limit.append(held + answers.index[:, -1:] + 1)
            live.append(answers.running & answers.masked().any(1))
        if not ids:
            none = answers.block[:, :0]
            return Incoming(none, none, none, none.int(), rolled, request.sets.gather(1, answers.index))
        size = answers.size
        joined = torch.cat(index, 1)
        alive = torch.cat([one[:, None].expand(-1, size) for one in live], 1)
        seen = torch.cat([one.expand(-1, size) for one in limit], 1).masked_fill(~alive, 0)
        return Incoming(
            ids=torch.cat(ids, 1),
            turn=(request.position[:, None] + joined).clamp(max=self._positions - 1),
            slot=slots_of(pages, held + joined, alive, self._page_size),
            limit=seen.to(torch.int32),
            rolled=rolled,
            sets=request.sets.gather(1, answers.index),
        )

    def step(self, lane: Lane, seen: Seen) -> None:
        lane.answers.apply(seen)
        lane.raise_flags()
