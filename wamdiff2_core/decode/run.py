"""One `generate` call in progress: the loop over blocks and denoising steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary, apply_step, block_ranks, open_block, predict, scaffold_block
from wamdiff2_core.decode.cache import KVCache
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.kernels import Kernels
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.decode.sampling import Sampler
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.decode.segment import Segment, join
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.masks import Part, label


@dataclass
class _Row:
    """What a row has produced so far; status None while it runs."""

    limit: int
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    status: Status | None = None
    forwards: int = 0
    alone: int = 0


@dataclass
class Run:
    """Rows in lockstep: all denoise the same block; a row that has its answer leaves the batch.

    `pending` are clean tokens (the prompt, then finished blocks) that the cache does not have yet: they ride along with
    the next denoising forward, so committing a block costs no pass of its own, and the last block is never committed.
    With "next" prediction, `carry` is the hidden state of the last clean token, which predicts a block's first token.
    """

    loaded: LoadedModel
    kernels: Kernels
    config: DecodingConfig
    vocabulary: Vocabulary
    cache: KVCache
    pending: list[Segment]
    last: Tensor | None  # (R,) index of each row's last real token in the padded prompt
    next_position: Tensor  # (R,)
    limits: list[int]
    temperature: Tensor  # (R,)
    sampler: Sampler | None = None  # None: greedy
    scaffolds: list[Scaffold | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [_Row(limit) for limit in self.limits]
        self.active = list(range(len(self.rows)))
        self.carry: Tensor | None = None
        self.forwards = 0
        # Of each active row: passes it would have taken alone, and whether it has clean tokens to bring along.
        self.alone = torch.zeros(len(self.rows), dtype=torch.int64, device=self.loaded.device)
        self.ahead = torch.ones(len(self.rows), dtype=torch.bool, device=self.loaded.device)
        size = self.config.block_size
        self.blocks = -(-max(self.limits) // size)
        text = self.loaded.model.model.language_model
        places = self.next_position[:, None] + torch.arange(self.blocks * size, device=self.loaded.device)
        self.cos, self.sin = text.rotary_emb(self.pending[0].embeds, places.expand(3, -1, -1))

    def clock(self, started: float, vision_ms: float, prefill_from: float) -> None:
        """When the call began (for the time limit) and when the prompt's own work began."""
        self.started, self.vision_ms, self.prefill_from = started, vision_ms, prefill_from
        self.prefill_ms = 0.0

    def finish(self) -> list[DecodeResult]:
        """Run to the end; a result per row."""
        for block in range(self.blocks):
            if not self.active:
                break
            self._block(block * self.config.block_size)
        total_ms = (time.perf_counter() - self.prefill_from) * 1e3
        return [self._result(row, total_ms - self.prefill_ms) for row in self.rows]

    def _block(self, start: int) -> None:
        """Denoise the block that begins at answer position `start`."""
        size = self.config.block_size
        given, allowed = scaffold_block([self.scaffolds[row] for row in self.active], start, size, self.vocabulary)
        limits = torch.tensor([self.rows[row].limit for row in self.active], device=given.device)
        needed = torch.arange(start, start + size, device=given.device) < limits[:, None]
        ranks = block_ranks([self.scaffolds[row] for row in self.active], start, size, given.device)
        self.state = open_block(given, needed, self.vocabulary, self.config, ranks)
        self.allowed = allowed
        self._retire_complete()
        while self.active and bool(self.state.masked.any()):
            if self._late():
                self._retire(range(len(self.active)), Status.TRUNCATED)
                return
            self._step(start)
            self._retire_complete()
        if self.active:
            self._close(start)

    def _step(self, start: int) -> None:
        """One denoising step of all rows: a forward pass, predictions, and which of them are kept."""
        if len(self.rows) > 1:
            self._count()
        hidden = self._hidden(start)
        width = hidden.shape[1]
        allowed = None if self.allowed is None else self.allowed[:, :width]
        drawn = None if self.sampler is None else self.sampler.uniforms(self.active, self.state.masked)[:, :width]
        logits = self.loaded.model.lm_head(hidden)
        seen = predict(logits, allowed, self.vocabulary, drawn, self.temperature)
        if width < self.config.block_size:  # only the first position is open; the others keep what they have
            seen = seen.widened(self.config.block_size)
        if not bool(seen.usable.all()):
            self.state.tokens = torch.where(seen.usable[:, None], self.state.tokens, -1)
            fine = seen.usable.tolist()
            self._retire([index for index, one in enumerate(fine) if not one], Status.INVALID)
            seen = seen.select(seen.usable)
        if self.active:
            apply_step(self.state, seen, self.vocabulary, self.config)

    def _count(self) -> None:
        """Which rows would run a pass now if they were alone: those with open positions and something to compute."""
        masked = self.state.masked
        counted = masked.any(1)
        if self.loaded.prediction == "next":  # a lone first position is read from what the clean token before it gave
            counted = counted & (self.ahead | masked[:, 1:].any(1))
        self.alone += counted
        self.ahead = self.ahead & ~counted

    def _hidden(self, start: int) -> Tensor:
        """Hidden states (R, W, H) that predict the block's first W positions: W = block size, or 1 if that suffices."""
        following = self.loaded.prediction == "next"
        noisy = bool(self.state.masked[:, 1:].any()) if following else True
        segments = [*self.pending, self._segment(start, Part.NOISY)] if noisy else self.pending
        clean = sum(segment.width for segment in self.pending)
        hidden = self._forward(segments, commit=bool(self.pending)) if segments else None
        if self.pending and hidden is not None:
            # The prompt is padded to a common width; whole blocks are not.
            end = self.last if len(self.pending) == 1 and self.last is not None else None
            rows = torch.arange(len(hidden), device=hidden.device)
            self.carry = hidden[:, clean - 1] if end is None else hidden[rows, end]
            self.pending, self.last = [], None
        if not following:
            assert hidden is not None
            return hidden[:, clean:]
        assert self.carry is not None
        first = self.carry[:, None]
        return first if hidden is None or not noisy else torch.cat((first, hidden[:, clean:-1]), 1)

    def _forward(self, segments: list[Segment], commit: bool) -> Tensor:
        """A pass of the text model behind the cache; `commit` keeps the pending (clean) part of it."""
        segment = join(segments)
        hidden = self.kernels.forward(segment, self.cache, self.cache.mask(segment, self.loaded.context))
        if commit:
            self.cache.commit(join(self.pending))
        self.forwards += 1
        for row in self.active:
            self.rows[row].forwards += 1
        if self.forwards == 1:
            self.prefill_ms = (time.perf_counter() - self.prefill_from) * 1e3
        return hidden

    def _segment(self, start: int, part: Part) -> Segment:
        """The block as tokens for the text model, clean or noisy."""
        tokens, size = self.state.tokens, self.config.block_size
        order = torch.arange(start, start + size, device=tokens.device).expand(len(tokens), size)
        alone = part is Part.NOISY or size == 1 or self.loaded.context == "block_causal"
        return Segment(
            self.loaded.model.model.language_model.embed_tokens(tokens),
            self.cos[:, start : start + size],
            self.sin[:, start : start + size],
            label(part, order, size),
            sees_all=alone,
        )

    def _close(self, start: int) -> None:
        """The block is decided in all rows: note it, retire rows at their limit, leave it to be committed."""
        full = []
        for index, row in enumerate(self.active):
            if self.rows[row].limit <= start + self.config.block_size:
                full.append(index)
        self._retire(full, Status.TRUNCATED)
        if self.active:
            self._note(range(len(self.active)))
            self.ahead = torch.ones_like(self.ahead)
            self.pending.append(self._segment(start, Part.CLEAN))

    def _retire_complete(self) -> None:
        """Rows whose end token stands with everything before it decided are done."""
        done = torch.isin(self.state.tokens, self.vocabulary.eos) & self.state.decided
        complete = done.any(1) & ~self.state.masked.any(1)
        if bool(complete.any()):
            self._retire([index for index, one in enumerate(complete.tolist()) if one], Status.COMPLETE)

    def _retire(self, indices: Iterable[int], status: Status) -> None:
        """Rows (indices into the active ones) leave the batch with what they have."""
        leaving = set(indices)
        if not leaving:
            return
        if status is not Status.INVALID:
            self._note(sorted(leaving))
        passes = self.alone.tolist()
        for index in leaving:
            row = self.rows[self.active[index]]
            if status is Status.INVALID:
                row.steps.append(int(self.state.steps[index]) + 1)
            row.status = self._judge(row, status)
            row.alone = passes[index] if len(self.rows) > 1 else row.forwards
        keep = [index for index in range(len(self.active)) if index not in leaving]
        self.active = [self.active[index] for index in keep]
        if self.active:
            self._select(torch.tensor(keep, device=self.loaded.device))

    def _judge(self, row: _Row, status: Status) -> Status:
        if self.vocabulary.mask is not None and self.vocabulary.mask in row.tokens:
            return Status.INVALID
        return Status.EMPTY if status is Status.COMPLETE and not row.tokens else status

    def _note(self, indices: Sequence[int]) -> None:
        """Append the block's tokens of these rows up to the end token, the limit, or the first undecided position."""
        state = self.state
        end = set(self.vocabulary.eos.tolist())
        usable, steps = (state.decided & state.needed).tolist(), state.steps.tolist()
        tokens, confidence = state.tokens.tolist(), state.confidence.tolist()  # once for all rows: each copy waits
        for index in indices:
            row = self.rows[self.active[index]]
            for token, sure, fine in zip(tokens[index], confidence[index], usable[index], strict=True):
                if not fine or token in end:
                    break
                row.tokens.append(token)
                row.confidences.append(sure)
            row.steps.append(steps[index])

    def _select(self, rows: Tensor) -> None:
        """Keep only these rows of everything that is per row."""
        self.cache.select(rows)
        self.state = self.state.select(rows)
        self.alone, self.ahead, self.temperature = self.alone[rows], self.ahead[rows], self.temperature[rows]
        self.allowed = None if self.allowed is None else self.allowed[rows]
        self.pending = [segment.rows(rows) for segment in self.pending]
        self.cos, self.sin = self.cos[rows], self.sin[rows]
        self.last = None if self.last is None else self.last[rows]
        self.carry = None if self.carry is None else self.carry[rows]

    def _late(self) -> bool:
        limit = self.config.time_limit_s
        return limit is not None and time.perf_counter() - self.started >= limit

    def _result(self, row: _Row, decode_ms: float) -> DecodeResult:
        assert row.status is not None
        return DecodeResult(
            row.tokens,
            row.status,
            row.confidences,
            row.steps,
            row.forwards,
            self.vision_ms,
            self.prefill_ms,
            decode_ms,
            row.alone,
        )
