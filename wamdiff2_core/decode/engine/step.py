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
from wamdiff2_core.decode.engine.moves import Incoming, Moves
from wamdiff2_core.decode.engine.ops import Ops, Planner
from wamdiff2_core.decode.engine.pages import PagePool, PageTable
from wamdiff2_core.decode.engine.prompt import PromptBuffers
from wamdiff2_core.decode.engine.request import AllowedSets
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.weights import TextWeights


@dataclass(frozen=True)
class Passes:
    """What all passes share. following: "next" prediction; by_block: clean tokens see their whole block."""

    weights: TextWeights
    ops: Ops
    moves: Moves
    pool: PagePool
    sets: AllowedSets
    following: bool
    by_block: bool
    whole_table: bool  # False: passes run as they are, on only as many pages as the call uses
    choices: int | None = None  # most tokens that ops choose for at once
    planner: Planner | None = None  # of ops whose attention is planned on the host

    def prefill(self, table: PageTable, prompt: PromptBuffers, block_size: int) -> None:
        """Fill the cache with a prompt's tokens."""
        pages = self.pages(table)
        self._run(self._prompt(prompt, pages, block_size), pages, prompt.deepstack)

    def first(self, lane: Lane, prompt: PromptBuffers, drawn: bool) -> None:
        """Begin a call: its request is taken over here."""
        lane.answers.begin()
        pages = self.pages(lane.table)
        noisy = self.moves.take(lane, pages, wide=False)
        parts = [self._prompt(prompt, pages, lane.size.block_size), self.moves.look_up(self.weights, noisy)]
        hidden = self._run(join(parts), pages, prompt.deepstack)
        if self.following:
            rows = torch.arange(len(hidden), device=hidden.device)
            lane.carry.copy_(hidden[rows, (prompt.length - 1).clamp(min=0)])
        self._predict(lane, hidden[:, prompt.width :], noisy, drawn)

    def wide(self, lane: Lane, drawn: bool) -> None:
        """Commit decided blocks and go on with the next ones; one more step for the others."""
        pages = self.pages(lane.table)
        taken = self.moves.take(lane, pages, wide=True)
        self._predict(lane, self._run(self.moves.look_up(self.weights, taken), pages), taken, drawn, wide=True)

    def narrow(self, lane: Lane, drawn: bool) -> None:
        """One more step."""
        pages = self.pages(lane.table)
        taken = self.moves.take(lane, pages, wide=False)
        hidden = lane.carry[:, None][:, :0]
        if lane.noisy:
            hidden = self._run(self.moves.look_up(self.weights, taken), pages)
        self._predict(lane, hidden, taken, drawn)

    def widths(self, lane: Lane, prompt: PromptBuffers) -> tuple[int, ...]:
        """How many tokens a row the passes of a call have, each number once."""
        block = lane.size.block_size
        noisy = block if lane.noisy else 0
        return tuple(dict.fromkeys(width for width in (prompt.width + noisy, block + noisy, noisy) if width))

    def pages(self, table: PageTable) -> Tensor:
        """The page numbers (R, P) that passes read."""
        return table.pages if self.whole_table else table.pages[:, : max(table.used, 1)]

    def _run(self, tokens: Tokens, pages: Tensor, deepstack: Tensor | None = None) -> Tensor:
        if self.planner is not None:
            self.planner.begin(tokens.limit)
        return run_layers(self.weights, self.ops, self.pool, pages, tokens, deepstack)

    def _prompt(self, prompt: PromptBuffers, pages: Tensor, block_size: int) -> Tokens:
        return prompt.tokens(block_size if self.by_block else 1, pages, self.pool.page_size)

    def _predict(self, lane: Lane, hidden: Tensor, taken: Incoming, drawn: bool, wide: bool = False) -> None:
        """Predict all positions of the current blocks from hidden states as `Moves.line_up` takes them, and step."""
        rows, width = lane.size.rows, lane.size.block_size
        flat, allowed = self.moves.line_up(lane, hidden, taken, self.sets.bits, wide)
        if drawn:
            seen = self._draw(lane, flat, allowed)
        else:
            tokens, certainty, usable = (one.view(rows, width) for one in self._choose(lane, flat, allowed))
            seen = Seen(tokens, certainty, certainty, usable)
        self.moves.step(lane, seen)

    def _choose(self, lane: Lane, hidden: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, certainty, usable (T,), in as many calls as the ops need."""
        vocabulary, head, eps = lane.answers.vocabulary, self.weights.head, self.weights.shape.eps
        forbidden = -1 if vocabulary.mask is None or vocabulary.output_mask else vocabulary.mask
        most = self.choices or len(hidden)
        if len(hidden) <= most:
            choice = self.ops.choose(hidden, head, allowed, forbidden, eps)
            return choice.tokens, choice.certainty, choice.usable
        parts = []
        for x, bits in zip(hidden.split(most), allowed.split(most), strict=True):
            choice = self.ops.choose(x, head, bits, forbidden, eps)
            parts.append((choice.tokens.clone(), choice.certainty.clone(), choice.usable.clone()))
        tokens, certainty, usable = zip(*parts, strict=True)
        return torch.cat(tokens), torch.cat(certainty), torch.cat(usable)

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
