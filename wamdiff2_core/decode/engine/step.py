"""The passes of a call. Each is a function of tensors at fixed addresses, so that it can be captured once and replayed.

first: the rest of the prompt, and the first block's noisy tokens behind it.
wide:  2 B tokens a row. A row whose block is decided brings its clean tokens (they fill the cache) and the noisy tokens
       of its next block; for any other row the clean half is dead and the noisy half is one more step of its block.
narrow: B tokens a row. One more step; a row whose block is decided waits.
prefill: the beginning of a prompt that several answers share; nothing is predicted.

Which of them the host launches decides how fast an answer comes, never what it says: rows move on the device alone.
With "next" prediction and B = 1 noisy tokens would tell nothing: passes are of clean tokens, the narrow one of none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import predict
from wamdiff2_core.decode.engine.forward import Tokens, join, run_layers
from wamdiff2_core.decode.engine.lane import Lane
from wamdiff2_core.decode.engine.ops import Ops
from wamdiff2_core.decode.engine.pages import PagePool
from wamdiff2_core.decode.engine.prompt import PromptBuffers
from wamdiff2_core.decode.engine.request import AllowedSets
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.weights import TextWeights


@dataclass(frozen=True)
class Passes:
    """What all passes share. following: "next" prediction; by_block: clean tokens see their whole block."""

    weights: TextWeights
    ops: Ops
    pool: PagePool
    sets: AllowedSets
    following: bool
    by_block: bool
    whole_table: bool  # False: passes run as they are, on only as many pages as the call uses

    def prefill(self, pages: Tensor, prompt: PromptBuffers, block_size: int) -> None:
        """Fill the cache with a prompt's tokens."""
        tokens = prompt.tokens(block_size if self.by_block else 1)
        run_layers(self.weights, self.ops, self.pool, pages, tokens, prompt.deepstack)

    def first(self, lane: Lane, prompt: PromptBuffers, drawn: bool) -> None:
        """Begin a call: its request is taken over here."""
        lane.answers.begin()
        parts = [prompt.tokens(lane.size.block_size if self.by_block else 1)]
        if not self._clean_only(lane):
            parts.append(self._noisy(lane))
        hidden = run_layers(self.weights, self.ops, self.pool, self.pages(lane), join(parts), prompt.deepstack)
        if self.following:
            rows = torch.arange(len(hidden), device=hidden.device)
            lane.carry.copy_(hidden[rows, (prompt.length - 1).clamp(min=0)])
        self._predict(lane, hidden[:, prompt.width :], drawn)

    def wide(self, lane: Lane, drawn: bool) -> None:
        """Commit decided blocks and go on with the next ones; one more step for the others."""
        answers, size = lane.answers, lane.size.block_size
        index, clean = answers.index, answers.block
        rolled = answers.roll()
        place = self._held(lane) + index
        limit = place[:, -1:] + 1 if self.by_block else place + 1
        parts = [self._text(lane, clean, index, place, limit.expand_as(place), rolled)]
        if not self._clean_only(lane):
            parts.append(self._noisy(lane))
        hidden = run_layers(self.weights, self.ops, self.pool, self.pages(lane), join(parts))
        if self.following:
            lane.carry.copy_(torch.where(rolled[:, None], hidden[:, size - 1], lane.carry))
        self._predict(lane, hidden[:, size:], drawn)

    def narrow(self, lane: Lane, drawn: bool) -> None:
        """One more step."""
        if self._clean_only(lane):
            self._predict(lane, lane.carry[:, None, :][:, :0], drawn)
            return
        hidden = run_layers(self.weights, self.ops, self.pool, self.pages(lane), self._noisy(lane))
        self._predict(lane, hidden, drawn)

    def pages(self, lane: Lane) -> Tensor:
        """The page table (R, P) that passes of this lane read."""
        table = lane.table
        return table.pages if self.whole_table else table.pages[:, : max(table.used, 1)]

    def _clean_only(self, lane: Lane) -> bool:
        return self.following and lane.size.block_size == 1

    def _held(self, lane: Lane) -> Tensor:
        """Tokens (R, 1) before the answer."""
        return (lane.request.held + lane.request.prompt)[:, None]

    def _noisy(self, lane: Lane) -> Tokens:
        answers = lane.answers
        index = answers.index
        place = self._held(lane) + index
        moving = answers.running & answers.masked().any(1)
        return self._text(lane, answers.block, index, place, (place[:, -1:] + 1).expand_as(place), moving)

    def _text(self, lane: Lane, ids: Tensor, index: Tensor, place: Tensor, limit: Tensor, rows: Tensor) -> Tokens:
        """Answer tokens (R, B) at places `index` of the answer; rows (R,): the others are dead."""
        turn = (lane.request.position[:, None] + index).clamp(max=self.weights.positions - 1)
        live = rows[:, None].expand_as(place)
        return Tokens(
            self.weights.embed[ids], self.weights.cos[turn], self.weights.sin[turn], place, limit, live
        )  # fmt: skip

    def _predict(self, lane: Lane, hidden: Tensor, drawn: bool) -> None:
        """Predict all positions of the current blocks from hidden states (R, B, H) of noisy tokens, and step."""
        if self.following:
            hidden = torch.cat((lane.carry[:, None], hidden[:, :-1]), 1)
        rows, width, size = hidden.shape
        flat = hidden.reshape(rows * width, size)
        answers, request = lane.answers, lane.request
        allowed = self.sets.bits[request.sets.gather(1, answers.index)].flatten(0, 1)
        vocabulary = answers.vocabulary
        forbidden = -1 if vocabulary.mask is None or vocabulary.output_mask else vocabulary.mask
        if drawn:
            seen = self._draw(lane, flat, allowed)
        else:
            choice = self.ops.choose(flat, self.weights.head, allowed, forbidden, self.weights.shape.eps)
            tokens, certainty, usable = (
                one.view(rows, width) for one in (choice.tokens, choice.certainty, choice.usable)
            )
            seen = Seen(tokens, certainty, certainty, usable)
        answers.apply(seen)
        lane.raise_flags()

    def _draw(self, lane: Lane, hidden: Tensor, allowed: Tensor) -> Seen:
        """Tokens drawn at each row's temperature, with the row's next numbers. Needs all logits for a moment."""
        answers, (rows, width) = lane.answers, (lane.size.rows, lane.size.block_size)
        numbers = lane.uniforms.device
        at = answers.moves[:, None] * width + torch.arange(width, device=hidden.device)
        uniforms = numbers.gather(1, at.clamp(max=numbers.shape[1] - 1))
        logits = self.ops.norm_linear(hidden, self.weights.head, self.weights.shape.eps)
        size = logits.shape[1]
        ids = torch.arange(size, device=hidden.device)
        bits = (allowed[:, ids // 32] >> (ids % 32).to(allowed.dtype) & 1).bool()
        seen = predict(
            logits.view(rows, width, size),
            bits.view(rows, width, size),
            answers.vocabulary,
            uniforms,
            lane.request.temperature,
        )
        return Seen(seen.tokens, seen.probability, seen.certainty, seen.usable[:, None].expand(rows, width))
