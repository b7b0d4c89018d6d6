"""Answers in the making, on the device: R rows, each at its own block. The rules of `blocks.py`, without the host.

Nothing here waits for the device or depends on a number that only the device knows: every update is masked, and what
is done does not move. So a pass that was launched needlessly changes nothing, and one captured graph serves all calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.engine.request import Request
from wamdiff2_core.decode.engine.rules import keep


class Code(IntEnum):
    """What a row is doing. IDLE: the call has no such row."""

    RUNNING = 0
    COMPLETE = 1
    TRUNCATED = 2
    INVALID = 3
    IDLE = 4


@dataclass(frozen=True)
class Seen:
    """Predictions of R rows at the B positions of their blocks.

    tokens, probability (of these tokens), certainty (largest probability there), usable: all logits are numbers.
    """

    tokens: Tensor
    probability: Tensor
    certainty: Tensor
    usable: Tensor


class Answers:
    """tokens, decided, confidence (R, N): all places of the answers, N a multiple of the block size B.

    start (R,): first place of the block being denoised. steps (R,): of that block; log (R, N / B): of every block.
    share (R,): tokens that static and sequential rules keep per step. code (R,): see Code. passes (R,): forward passes
    as BlockDecoder counts them for a row alone; ahead (R,): clean tokens wait to be brought along. moves (R,): own
    denoising steps so far.
    """

    def __init__(self, request: Request, vocabulary: Vocabulary, following: bool) -> None:
        """following: "next" prediction, where a lone first position costs no pass."""
        self.request, self.vocabulary, self.following = request, vocabulary, following
        self.size, self.rows, self.places = request.block_size, request.rows, request.places
        device = request.device
        self._fill = vocabulary.mask if vocabulary.mask is not None else int(vocabulary.eos[0])
        self.tokens = torch.zeros(self.rows, self.places, dtype=torch.int64, device=device)
        self.decided = torch.zeros(self.rows, self.places, dtype=torch.bool, device=device)
        self.confidence = torch.zeros(self.rows, self.places, device=device)
        self.log = torch.zeros(self.rows, self.places // self.size, dtype=torch.int64, device=device)
        self.start, self.steps, self.share, self.passes, self.moves, self.code = (
            torch.zeros(self.rows, dtype=torch.int64, device=device) for _ in range(6)
        )
        self.ahead = torch.zeros(self.rows, dtype=torch.bool, device=device)
        self._offsets = torch.arange(self.size, device=device)
        self.idle()

    def idle(self) -> None:
        """No row is in use: passes run and change nothing."""
        self.code.fill_(int(Code.IDLE))

    # What the rows look like now.

    @property
    def running(self) -> Tensor:
        return self.code == int(Code.RUNNING)

    @property
    def index(self) -> Tensor:
        """Places (R, B) of the current blocks."""
        return self.start[:, None] + self._offsets

    @property
    def block(self) -> Tensor:
        """Tokens (R, B) of the current blocks; the mask token where undecided."""
        return self.tokens.gather(1, self.index)

    def masked(self) -> Tensor:
        """Positions (R, B) that are still to be decided."""
        index = self.index
        return ~self.decided.gather(1, index) & (index < self.request.limit[:, None])

    # How they change.

    def begin(self) -> None:
        """Take over the request: all rows at their first block."""
        given = self.request.given
        fixed = given >= 0
        self.tokens.copy_(torch.where(fixed, given, self._fill))
        self.decided.copy_(fixed)
        self.confidence.copy_(fixed)
        for counter in (self.start, self.steps, self.passes, self.moves, self.log):
            counter.zero_()
        self.ahead.fill_(True)
        self.code.copy_(torch.where(self.request.limit > 0, int(Code.RUNNING), int(Code.IDLE)))
        self._open(self.running)

    def roll(self) -> Tensor:
        """Rows whose block is decided go on to their next one: which did (R,)."""
        done = self.running & ~self.masked().any(1)
        self.start += done * self.size
        self.steps.masked_fill_(done, 0)
        self.ahead |= done
        self._open(done)
        return done

    def apply(self, seen: Seen) -> None:
        """One denoising step: keep some of the predictions (R, B). Numbers that are none end a row as invalid."""
        index, masked = self.index, self.masked()
        running = self.running
        moving = running & masked.any(1)
        more = masked[:, 1:].any(1)
        self._count(moving, more)
        rest = seen.usable[:, 1:].all(1)
        # What stands behind a lone first position is not asked for with "next" prediction.
        usable = seen.usable[:, 0] & (rest | ~more if self.following else rest)
        self.steps += moving
        self.moves += moving
        self._note(running)
        self.code.masked_fill_(moving & ~usable, int(Code.INVALID))
        moving = moving & usable
        last = self.steps >= self.request.most
        rank = self.request.rank.gather(1, index)
        kept = keep(
            seen.certainty, masked, self.request.rule, self.request.threshold, self.share, rank, last
        ) & moving[:, None]  # fmt: skip
        tokens = torch.where(kept, seen.tokens, self.tokens.gather(1, index))
        confidence = torch.where(kept, seen.probability, self.confidence.gather(1, index))
        decided = self.decided.gather(1, index) | kept
        if self.vocabulary.output_mask:  # upstream predicts a predicted mask token again
            decided &= ~((tokens == self.vocabulary.mask) & (moving & ~last)[:, None])
        self.confidence.scatter_(1, index, confidence)
        self._end(index, tokens, decided, moving)
        self._settle()

    def _open(self, rows: Tensor) -> None:
        """Rows (R,) stand at a fresh block: given tokens may end it, or fill it whole."""
        index = self.index
        self._end(index, self.tokens.gather(1, index), self.decided.gather(1, index), rows)
        left, most = self.masked().sum(1), self.request.most
        self.share.copy_(torch.where(rows, (left + most - 1) // most, self.share))
        self._note(rows)
        self._settle()

    def _end(self, index: Tensor, tokens: Tensor, decided: Tensor, rows: Tensor) -> None:
        """Write blocks back; behind the first decided end token of these rows come end tokens only."""
        ended = ((decided & self._is_end(tokens)).cumsum(1) > 0) & rows[:, None]
        self.tokens.scatter_(1, index, torch.where(ended & ~decided, self.vocabulary.eos[0], tokens))
        self.decided.scatter_(1, index, decided | ended)

    def _settle(self) -> None:
        """Rows with nothing left to decide are complete behind an end token, and truncated at their limit."""
        index = self.index
        done = self.running & ~self.masked().any(1)
        ended = (self.decided.gather(1, index) & self._is_end(self.tokens.gather(1, index))).any(1)
        full = self.start + self.size >= self.request.limit
        result = torch.where(ended, int(Code.COMPLETE), int(Code.TRUNCATED))
        self.code.copy_(torch.where(done & (ended | full), result, self.code))

    def _count(self, moving: Tensor, more: Tensor) -> None:
        counted = moving & (self.ahead | more) if self.following else moving
        self.passes += counted
        self.ahead &= ~counted

    def _note(self, rows: Tensor) -> None:
        """Write the steps of these rows' current block to the log."""
        at = (self.start // self.size)[:, None]
        self.log.scatter_(1, at, torch.where(rows[:, None], self.steps[:, None], self.log.gather(1, at)))

    def _is_end(self, tokens: Tensor) -> Tensor:
        return (tokens[..., None] == self.vocabulary.eos).any(-1)
