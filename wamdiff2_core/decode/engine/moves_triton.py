"""How answers move, as Triton kernels: a program a row. The twin that says what they do is `state.Answers`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wamdiff2_core.decode.engine.forward import Tokens
from wamdiff2_core.decode.engine.lane import Lane
from wamdiff2_core.decode.engine.moves import Incoming
from wamdiff2_core.decode.engine.moves_rows import lined_up, looked_up
from wamdiff2_core.decode.engine.rules import ORDERED, SEQUENTIAL, STATIC
from wamdiff2_core.decode.engine.state import Code, Seen
from wamdiff2_core.decode.engine.triton_product import let_next_begin, wait_for_inputs
from wamdiff2_core.decode.engine.weights import TextWeights

_RUNNING = tl.constexpr(int(Code.RUNNING))
_COMPLETE = tl.constexpr(int(Code.COMPLETE))
_TRUNCATED = tl.constexpr(int(Code.TRUNCATED))
_INVALID = tl.constexpr(int(Code.INVALID))
_STATIC, _SEQUENTIAL, _ORDERED = tl.constexpr(STATIC), tl.constexpr(SEQUENTIAL), tl.constexpr(ORDERED)
_BEHIND_ALL = tl.constexpr(torch.iinfo(torch.int64).max)


@triton.jit
def _is_end(tokens, ends, ENDS: tl.constexpr):
    """Which tokens end an answer."""
    found = tokens == tl.load(ends)
    for number in tl.static_range(1, ENDS):
        found = found | (tokens == tl.load(ends + number))
    return found


@triton.jit
def _settled(code, masked, ended, full):
    """The code of a row with `masked` positions left, behind an end token or not, at its limit or not."""
    done = (code == _RUNNING) & (masked == 0) & (ended | full)
    return tl.where(done, tl.where(ended, _COMPLETE, _TRUNCATED), code)


@triton.jit
def _slots(pages, row, P, place, live, PAGE: tl.constexpr):
    """Slots of places; those that are not live lie on the trash page."""
    page = tl.load(pages + row * P + place // PAGE, live, other=0).to(tl.int64)
    return tl.where(live, page * PAGE + place % PAGE, 0)


@triton.jit
def take(
    tokens, decided, start, steps, share, log, code, ahead, request, pages, ends, ids, turn, slot, limit, rolled, sets,
    N, STRIDE, P, POSITIONS,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ENDS: tl.constexpr, PAGE: tl.constexpr,
    WIDE: tl.constexpr, NOISY: tl.constexpr, BY_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). See TorchMoves.take. N: places of an answer; STRIDE: of the request's rows; P: pages a row."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    asked = request + row * STRIDE
    last = tl.load(asked + 3 * N)
    held = tl.load(asked + 3 * N + 1) + tl.load(asked + 3 * N + 2)
    position = tl.load(asked + 3 * N + 3)
    most = tl.load(asked + 3 * N + 4)
    begin, state = tl.load(start + row), tl.load(code + row)
    place = begin + at
    mine = row * N + place
    have = tl.load(tokens + mine, inside, other=0)
    fixed = tl.load(decided + mine, inside, other=1) != 0
    left = tl.sum((inside & ~fixed & (place < last)).to(tl.int32), 0)
    width = SIZE * (WIDE + NOISY)
    if WIDE:
        roll = (state == _RUNNING) & (left == 0)
        clean = inside & roll
        out = row * width + at
        tl.store(ids + out, have, inside)
        tl.store(turn + out, tl.minimum(position + place, POSITIONS - 1), inside)
        tl.store(slot + out, _slots(pages, row, P, held + place, clean, PAGE), inside)
        if BY_BLOCK:
            sees = held + begin + SIZE + at * 0
        else:
            sees = held + place + 1
        tl.store(limit + out, tl.where(clean, sees, 0).to(tl.int32), inside)
        # The next block, where this one is decided.
        begin = tl.where(roll, begin + SIZE, begin)
        place = begin + at
        mine = row * N + place
        have = tl.load(tokens + mine, inside, other=0)
        fixed = tl.load(decided + mine, inside, other=1) != 0
        behind = tl.cumsum((inside & fixed & _is_end(have, ends, ENDS)).to(tl.int32), 0) > 0
        fill = inside & roll & behind & ~fixed
        have = tl.where(fill, tl.load(ends), have)
        fixed = fixed | fill
        left = tl.sum((inside & ~fixed & (place < last)).to(tl.int32), 0)
        ended = tl.sum((inside & fixed & _is_end(have, ends, ENDS)).to(tl.int32), 0) > 0
        state = _settled(state, left, ended, begin + SIZE >= last)
        tl.store(tokens + mine, have, fill)
        tl.store(decided + mine, fill.to(tl.uint8), fill)
        tl.store(start + row, begin)
        tl.store(code + row, state)
        tl.store(steps + row, tl.zeros((), tl.int64), roll)
        tl.store(share + row, (left + most - 1) // most, roll)
        tl.store(log + row * (N // SIZE) + begin // SIZE, tl.zeros((), tl.int64), roll)
        tl.store(ahead + row, roll.to(tl.uint8), roll)
        tl.store(rolled + row, roll.to(tl.uint8))
    if NOISY:
        live = inside & (state == _RUNNING) & (left > 0)
        out = row * width + SIZE * WIDE + at
        tl.store(ids + out, have, inside)
        tl.store(turn + out, tl.minimum(position + place, POSITIONS - 1), inside)
        tl.store(slot + out, _slots(pages, row, P, held + place, live, PAGE), inside)
        tl.store(limit + out, tl.where(live, held + begin + SIZE, 0).to(tl.int32), inside)
    tl.store(sets + row * SIZE + at, tl.load(asked + 2 * N + place, inside, other=0), inside)


@triton.jit
def step(
    seen, probability, certainty, usable, tokens, decided, confidence, start, steps, share, log, code, passes, moves,
    ahead, request, ends, flags, N, STRIDE, ROWS, MASK,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ENDS: tl.constexpr, FOLLOWING: tl.constexpr, OUTPUT_MASK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,). See Answers.apply. MASK: the mask token's id, asked for with OUTPUT_MASK only."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    asked = request + row * STRIDE
    last = tl.load(asked + 3 * N)
    most = tl.load(asked + 3 * N + 4)
    rule = tl.load(asked + 3 * N + 5)
    threshold = tl.load(asked + 3 * N + 6).to(tl.float64, bitcast=True).to(tl.float32)
    begin, state = tl.load(start + row), tl.load(code + row)
    place = begin + at
    mine, new = row * N + place, row * SIZE + at
    have = tl.load(tokens + mine, inside, other=0)
    fixed = tl.load(decided + mine, inside, other=1) != 0
    sure = tl.load(certainty + new, inside, other=0.0)
    masked = inside & ~fixed & (place < last)
    running = state == _RUNNING
    moving = running & (tl.sum(masked.to(tl.int32), 0) > 0)
    more = tl.sum((masked & (at > 0)).to(tl.int32), 0) > 0
    broken = inside & (tl.load(usable + new, inside, other=1) == 0)
    waits = tl.load(ahead + row) != 0
    counted = moving
    if FOLLOWING:
        counted = moving & (waits | more)
        broken = broken & ((at == 0) | more)
    tl.store(passes + row, tl.load(passes + row) + counted.to(tl.int64))
    tl.store(ahead + row, (waits & ~counted).to(tl.uint8))
    taken = tl.load(steps + row) + moving.to(tl.int64)
    tl.store(steps + row, taken)
    tl.store(moves + row, tl.load(moves + row) + moving.to(tl.int64))
    tl.store(log + row * (N // SIZE) + begin // SIZE, taken, running)
    fine = tl.sum(broken.to(tl.int32), 0) == 0
    state = tl.where(moving & ~fine, _INVALID, state)
    moving = moving & fine
    ends_here = taken >= most
    # What the rule keeps.
    score = tl.where(masked, sure, -1.0)
    mine_score, other = tl.expand_dims(score, 1), tl.expand_dims(score, 0)
    earlier = tl.expand_dims(at, 0) < tl.expand_dims(at, 1)
    before = tl.expand_dims(inside, 0) & ((other > mine_score) | ((other == mine_score) & earlier))
    order = tl.sum(before.to(tl.int32), 1)
    enough = masked & (sure >= threshold)
    any_enough = tl.sum(enough.to(tl.int32), 0) > 0
    kept = (any_enough & enough) | (~any_enough & masked & (order == 0))
    rank = tl.load(asked + N + place, inside, other=-1)
    lowest = tl.min(tl.where(masked, rank, _BEHIND_ALL), 0)
    ranked = (rule == _ORDERED) & (lowest >= 0)
    kept = (ranked & masked & (rank == lowest)) | (~ranked & kept)
    part = tl.load(share + row)
    kept = ((rule == _STATIC) & masked & (order < part)) | ((rule != _STATIC) & kept)
    turn = tl.cumsum(masked.to(tl.int32), 0)
    kept = ((rule == _SEQUENTIAL) & masked & (turn <= part)) | ((rule != _SEQUENTIAL) & kept)
    kept = moving & ((ends_here & masked) | (~ends_here & kept))
    have = tl.where(kept, tl.load(seen + new, inside, other=0), have)
    fixed = fixed | kept
    if OUTPUT_MASK:
        fixed = fixed & ~(moving & ~ends_here & (have == MASK))
    tl.store(confidence + mine, tl.load(probability + new, inside, other=0.0), kept)
    behind = tl.cumsum((inside & fixed & _is_end(have, ends, ENDS)).to(tl.int32), 0) > 0
    fill = inside & moving & behind & ~fixed
    have = tl.where(fill, tl.load(ends), have)
    fixed = fixed | fill
    tl.store(tokens + mine, have, inside & moving)
    tl.store(decided + mine, fixed.to(tl.uint8), inside & moving)
    left = tl.sum((inside & ~fixed & (place < last)).to(tl.int32), 0)
    ended = tl.sum((inside & fixed & _is_end(have, ends, ENDS)).to(tl.int32), 0) > 0
    state = _settled(state, left, ended, begin + SIZE >= last)
    tl.store(code + row, state)
    tl.store(flags + row, (state == _RUNNING).to(tl.int64))
    tl.store(flags + ROWS + row, ((state == _RUNNING) & (left == 0)).to(tl.int64))


class TritonMoves:
    """See Moves and TorchMoves."""

    name = "triton"

    def __init__(self, page_size: int, positions: int, by_block: bool, pdl: bool = False) -> None:
        """pdl: see TritonOps."""
        self._page_size, self._positions, self._by_block, self._pdl = page_size, positions, by_block, pdl
        self._launch = {"launch_pdl": True} if pdl else {}
        self._outputs: dict[tuple[int, int, int], Incoming] = {}

    def take(self, lane: Lane, pages: Tensor, wide: bool) -> Incoming:
        answers = lane.answers
        rows, size, eos = answers.rows, answers.size, answers.vocabulary.eos
        out = self._output(rows, size, size * (wide + lane.noisy), answers.tokens.device)
        request = answers.request.packed
        take[(rows,)](
            answers.tokens, answers.decided.view(torch.uint8), answers.start, answers.steps, answers.share,
            answers.log, answers.code, answers.ahead.view(torch.uint8), request, pages, eos,
            out.ids, out.turn, out.slot, out.limit, out.rolled.view(torch.uint8), out.sets,
            answers.places, request.stride(0), pages.stride(0), self._positions,
            SIZE=size, BLOCK=triton.next_power_of_2(size), ENDS=len(eos), PAGE=self._page_size,
            WIDE=int(wide), NOISY=int(lane.noisy), BY_BLOCK=int(self._by_block), PDL=self._pdl, num_warps=1,
            **self._launch,
        )  # fmt: skip
        return out

    def look_up(self, weights: TextWeights, taken: Incoming) -> Tokens:
        rows = looked_up(weights.embed, weights.cos, weights.sin, taken.ids, taken.turn, self._pdl)
        return Tokens(*rows, taken.slot, taken.limit)

    def line_up(self, lane: Lane, hidden: Tensor, taken: Incoming, bits: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
        following = lane.answers.following
        return lined_up(lane.carry, hidden, taken.rolled, bits, taken.sets, following, wide, self._pdl)

    def step(self, lane: Lane, seen: Seen) -> None:
        a, vocabulary = lane.answers, lane.answers.vocabulary
        request = a.request.packed
        step[(a.rows,)](
            seen.tokens.contiguous(), seen.probability.contiguous(), seen.certainty.contiguous(),
            seen.usable.contiguous().view(torch.uint8), a.tokens, a.decided.view(torch.uint8), a.confidence,
            a.start, a.steps, a.share, a.log, a.code, a.passes, a.moves, a.ahead.view(torch.uint8), request,
            vocabulary.eos, lane.flags.device, a.places, request.stride(0), a.rows, vocabulary.mask or 0,
            SIZE=a.size, BLOCK=triton.next_power_of_2(a.size), ENDS=len(vocabulary.eos),
            FOLLOWING=int(a.following), OUTPUT_MASK=int(vocabulary.output_mask), PDL=self._pdl, num_warps=1,
            **self._launch,
        )  # fmt: skip

    def _output(self, rows: int, size: int, width: int, device: torch.device) -> Incoming:
        """Buffers for tokens (rows, width), made once; every pass writes all of them."""
        key = (rows, size, width)
        if key not in self._outputs:
            ids, turn, slot = (torch.zeros(rows, width, dtype=torch.int64, device=device) for _ in range(3))
            self._outputs[key] = Incoming(
                ids=ids,
                turn=turn,
                slot=slot,
                limit=torch.zeros(rows, width, dtype=torch.int32, device=device),
                rolled=torch.zeros(rows, dtype=torch.bool, device=device),
                sets=torch.zeros(rows, size, dtype=torch.int64, device=device),
            )
        return self._outputs[key]
