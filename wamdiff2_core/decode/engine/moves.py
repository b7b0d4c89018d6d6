"""What a pass takes from the answers and gives back to them: which tokens run, and the step that follows.

Two kinds, chosen when an engine is made: plain operations, and Triton kernels, two for each of the two halves
(`moves_triton.py`). Small operations cost a GPU more than a microsecond each, and a step has well over a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.forward import Tokens
from wamdiff2_core.decode.engine.lane import Lane
from wamdiff2_core.decode.engine.pages import slots_of
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.weights import TextWeights


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

    def look_up(self, weights: TextWeights, taken: Incoming) -> Tokens:
        """Embeddings and turns of what was taken."""
        ...

    def line_up(self, lane: Lane, hidden: Tensor, taken: Incoming, bits: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
        """What the current blocks are predicted from (R B, H), and the ids that may come there, bits (R B, words).

        hidden (R, W, H): of what was taken, if wide with clean tokens first, or of its noisy tokens alone. With "next"
        prediction each place is predicted from the one before it, the first one from the lane's carry; the last clean
        token of a row that went on becomes its carry. bits (S, words) int32: the call's sets of ids.
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

    def look_up(self, weights: TextWeights, taken: Incoming) -> Tokens:
        return Tokens(
            weights.embed[taken.ids], weights.cos[taken.turn], weights.sin[taken.turn], taken.slot, taken.limit
        )  # fmt: skip

    def line_up(self, lane: Lane, hidden: Tensor, taken: Incoming, bits: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
        size, following = lane.size.block_size, lane.answers.following
        if wide:
            if following:
                lane.carry.copy_(torch.where(taken.rolled[:, None], hidden[:, size - 1], lane.carry))
            hidden = hidden[:, size:]
        if following:
            hidden = torch.cat((lane.carry[:, None], hidden[:, :-1]), 1)
        return hidden.flatten(0, 1), bits[taken.sets.flatten()]

    def step(self, lane: Lane, seen: Seen) -> None:
        lane.answers.apply(seen)
        lane.raise_flags()
