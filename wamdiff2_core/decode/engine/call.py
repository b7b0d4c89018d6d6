"""One `generate` call on the engine: what the host does between launches."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.engine.engine import Engine
from wamdiff2_core.decode.engine.lane import Lane, RowReports
from wamdiff2_core.decode.engine.pages import Lease
from wamdiff2_core.decode.engine.prefix import PagedPrefix
from wamdiff2_core.decode.engine.request import RowRequest
from wamdiff2_core.decode.engine.schedule import NARROW, WIDE, schedule
from wamdiff2_core.decode.engine.state import Code
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.decode.sampling import Sampler
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.errors import ConfigError

_STATUS = {Code.COMPLETE: Status.COMPLETE, Code.TRUNCATED: Status.TRUNCATED, Code.INVALID: Status.INVALID}


@dataclass
class Call:
    """segment: prompts behind the prefix, right-padded; lengths (R,): their tokens; positions (R,): of the answers."""

    engine: Engine
    config: DecodingConfig
    segment: Segment
    lengths: list[int]
    positions: list[int]
    limits: list[int]
    temperature: list[float]
    prefix: PagedPrefix | None = None
    sampler: Sampler | None = None  # None: greedy
    scaffolds: list[Scaffold | None] = field(default_factory=list)

    def clock(self, started: float, vision_ms: float, prefill_from: float) -> None:
        """When the call began (for the time limit) and when the prompt's own work began."""
        self.started, self.vision_ms, self.prefill_from = started, vision_ms, prefill_from
        self._prefilled: float | None = None

    def finish(self) -> list[DecodeResult]:
        """Run to the end; a result per row."""
        with self.engine.turn():
            lane = self.engine.lane(len(self.limits), self.config.block_size)
            lease = self._pages(lane)
            try:
                report = self._run(lane)
            finally:
                lane.answers.idle()  # on the device behind all launches: what comes late finds no row to change
                lease.end()
        ended = time.perf_counter()
        prefilled = ended if self._prefilled is None else self._prefilled
        prefill_ms, decode_ms = (prefilled - self.prefill_from) * 1e3, (ended - prefilled) * 1e3
        return [self._result(row, report, prefill_ms, decode_ms) for row in range(len(self.limits))]

    def _run(self, lane: Lane) -> RowReports:
        """Load everything, launch passes until all rows are done or time is up, read what there is."""
        engine, drawn = self.engine, self.sampler is not None
        use = ("first", lane.size.block_size, drawn)
        prompt = engine.prompt(len(self.limits), self.segment.width, self.segment.deepstack is not None, use)
        keys = engine.call_passes(lane, prompt, drawn)
        held = self.prefix.kept if self.prefix else 0
        rows = [RowRequest(*one) for one in self._requests(held)]
        engine.sets.make_room(self.scaffolds)
        lane.table.load(self._tables)
        engine.plan(lane.size.rows, self._tables, engine.passes.widths(lane, prompt))
        lane.request.load(rows, self.config, engine.sets)
        prompt.load(self.segment, self.lengths, [held] * len(rows))
        if self.sampler is not None:
            self._draw(lane, self.sampler)
        if self._late():
            lane.answers.begin()
        else:
            self._launch(lane, keys)
        engine.graphs.run(keys["report"])
        return lane.read()

    def _launch(self, lane: Lane, keys: Mapping[str, Hashable]) -> None:
        """Pass after pass. The flags of a launch are read behind the next one if its kind is known, else before it."""
        graphs, flags, engine = self.engine.graphs, lane.flags, self.engine
        ahead = engine.lookahead == 1
        guess = ahead and 2 * lane.size.rows * lane.size.block_size <= engine.config.guess
        graphs.run(keys["first"])
        ticket = flags.post()
        running, waiting = True, True
        for kind in schedule(self.config, self.scaffolds, self.limits, engine.loaded.eos_token_ids, guess):
            behind = ahead and kind is not None
            if not behind:
                running, waiting = self._progress(lane, ticket)
            if not running or self._late():
                return
            graphs.run(keys[kind or (WIDE if waiting else NARROW)])
            before, ticket = ticket, flags.post()
            if behind:
                running, waiting = self._progress(lane, before)

    def _progress(self, lane: Lane, ticket: int) -> tuple[bool, bool]:
        """Whether a row runs and whether one waits, as the launch of this ticket left them."""
        found = lane.progress(ticket)
        if self._prefilled is None:
            self._prefilled = time.perf_counter()
        return found

    def _requests(self, held: int) -> Iterator[tuple]:
        for row, limit in enumerate(self.limits):
            yield limit, held, self.lengths[row], self.positions[row], self.temperature[row], self.scaffolds[row]

    def _pages(self, lane: Lane) -> Lease:
        """Pages of all rows: a prefix's full pages are shared, its last one is copied where it is not full."""
        pool, size = self.engine.pool, self.engine.pool.page_size
        held = self.prefix.kept if self.prefix else 0
        block = self.config.block_size
        shared = held // size
        counts = []
        for length, limit, position in zip(self.lengths, self.limits, self.positions, strict=True):
            problem = self.engine.config.too_long(max(held + length, position), limit, block)
            if problem:
                raise ConfigError(problem)
            counts.append(pool.pages_for(held + length + -(-limit // block) * block) - shared)
        lease = pool.lease(sum(counts))
        own, self._tables = iter(lease.pages), []
        for row, count in enumerate(counts):
            before = self._prefix_pages(row)
            mine = [next(own) for _ in range(count)]
            self.engine.clear_behind(mine, held + self.lengths[row] - shared * size)
            if held % size:
                pool.copy_page(before[shared], mine[0])
            self._tables.append([*before[:shared], *mine])
        return lease

    def _prefix_pages(self, row: int) -> Sequence[int]:
        if self.prefix is None:
            return ()
        return self.prefix.pages[row if self.prefix.count > 1 else 0]

    def _draw(self, lane: Lane, sampler: Sampler) -> None:
        """All numbers that the rows may need, in the order in which they would ask for them."""
        size = self.config.block_size
        uniforms = lane.uniforms
        most = self.config.steps if lane.answers.vocabulary.output_mask else min(self.config.steps, size)
        count = -(-max(self.limits) // size) * most * size
        room = uniforms.device.shape[1]
        if count > room:
            raise ConfigError(f"steps: the engine draws at most {room} numbers a row, got a call that may need {count}")
        host = uniforms.host
        for row in range(len(self.limits)):
            for at in range(0, count, size):
                host[row, at : at + size] = sampler.next(row, size)
        uniforms.send()

    def _late(self) -> bool:
        limit = self.config.time_limit_s
        return limit is not None and time.perf_counter() - self.started >= limit

    def _result(self, row: int, report: RowReports, prefill_ms: float, decode_ms: float) -> DecodeResult:
        tokens, confidences = self._answer(row, report)
        code, block = report.code[row], report.start[row] // self.config.block_size
        steps = report.log[row][: block + 1]
        if code is Code.RUNNING and self._done(row, report):
            steps.append(0)  # time was up before the next block took a step
        status = self._judge(tokens, _STATUS.get(code, Status.TRUNCATED))
        passes = report.passes[row]
        return DecodeResult(
            tokens, status, confidences, steps, passes, self.vision_ms, prefill_ms, decode_ms, passes
        )  # fmt: skip

    def _answer(self, row: int, report: RowReports) -> tuple[list[int], list[float]]:
        """Tokens and confidences up to the end token, the limit, or the first undecided position."""
        ends = set(self.engine.loaded.eos_token_ids)
        limit = report.start[row] if report.code[row] is Code.INVALID else self.limits[row]
        tokens: list[int] = []
        for token, fine in zip(report.tokens[row][:limit], report.decided[row][:limit], strict=True):
            if not fine or token in ends:
                break
            tokens.append(token)
        return tokens, report.confidence[row][: len(tokens)]

    def _done(self, row: int, report: RowReports) -> bool:
        """Whether everything up to the end of the row's block is decided."""
        start = report.start[row]
        return all(report.decided[row][start : min(start + self.config.block_size, self.limits[row])])

    def _judge(self, tokens: Sequence[int], status: Status) -> Status:
        mask = self.engine.vocabulary.mask
        if mask is not None and mask in tokens:
            return Status.INVALID
        return Status.EMPTY if status is Status.COMPLETE and not tokens else status
