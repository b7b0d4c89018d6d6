"""Attention over paged keys and values with a limit for every token, as Triton kernels.

All tokens of a row and all heads of a group read a key once (they are the rows of one product). The places of a row are
split over programs; how long a part is follows from the row's largest limit on the device, so a graph serves every
length and short rows are split as finely as long ones. Parts are added up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wamdiff2_core.decode.engine.triton_product import let_next_begin, wait_for_inputs


@triton.jit
def parts_of(last, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr):
    """(places a part, number of parts) for a largest limit of `last`; one part even if there is nothing to see."""
    chunk = tl.maximum(tl.cdiv(tl.cdiv(last, SPLITS), BLOCK_K), 1) * BLOCK_K
    return chunk, tl.maximum(tl.cdiv(last, chunk), 1)


@triton.jit
def add_parts(partial, logs, at, inside, parts, D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    """Weighted sum (BLOCK, D) of `parts` normalised parts of the queries whose first part lies at `at` (BLOCK,)."""
    d = tl.arange(0, D)
    s = tl.arange(0, SPLITS)
    there = inside[:, None] & (s < parts)[None, :]
    highest = tl.max(tl.load(logs + at[:, None] + s[None, :], there, other=-float("inf"), cache_modifier=".cg"), 1)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    for part in tl.static_range(SPLITS):
        real = inside & (part < parts)
        log = tl.load(logs + at + part, real, other=-float("inf"), cache_modifier=".cg")
        one = tl.load(partial + (at + part)[:, None] * D + d[None, :], real[:, None], other=0.0, cache_modifier=".cg")
        share = tl.exp2(log - highest)
        total += share
        acc += share[:, None] * one
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def addresses(table, place, there, head, HKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Where the keys and values of one head at these places begin; of those that are not `there`, anywhere."""
    page = tl.load(table + place // PAGE, there, other=0).to(tl.int64)
    return ((page * PAGE + place % PAGE) * HKV + head) * D


@triton.jit
def paired(number, tiles):
    """The tile of queries that program `number` of `tiles` takes: the last ones first, then the first ones in order.

    Later tokens of a prompt see more places. Processors are dealt one program of the first half and one of the second:
    this way they all get as much to do.
    """
    far = tiles // 2
    return tl.where(number < tiles - far, tiles - 1 - number, number - (tiles - far))


@triton.jit
def first_new(limits, width, ROW: tl.constexpr):
    """A place that no token of a row, whose limits are these, lies before; 0 if none of them counts.

    Tokens of a block see its end, others themselves: the first one lies less than `width` places before the least
    limit.
    """
    at = tl.arange(0, ROW)
    seen = tl.load(limits + at, at < width, other=0)
    least = tl.min(tl.where(seen > 0, seen, 2147483647), 0)
    return tl.where(least == 2147483647, 0, tl.maximum(least - width, 0))


@triton.jit
def look(queries, key, value, place, seen, scale, highest, total, acc, ALL: tl.constexpr, WIDEN: tl.constexpr):
    """One turn: queries (BLOCK_M, D) see keys and values (BLOCK_K, D) at `place`; the running maximum, sum, average.

    ALL: every query sees all of them.
    """
    if WIDEN:
        scores = tl.dot(queries.to(tl.float32), tl.trans(key.to(tl.float32)), input_precision="ieee")
    else:
        scores = tl.dot(queries, tl.trans(key))
    if ALL:
        above = tl.maximum(highest, tl.max(scores, 1) * scale)
        base = above
        share = tl.exp2(scores * scale - base[:, None])
    else:
        scores = tl.where(place[None, :] < seen[:, None], scores * scale, -float("inf"))
        above = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(above == -float("inf"), 0.0, above)
        share = tl.exp2(scores - base[:, None])
    fade = tl.exp2(highest - base)
    total = total * fade + tl.sum(share, 1)
    if WIDEN:
        acc = tl.dot(share, value.to(tl.float32), acc * fade[:, None], input_precision="ieee")
    else:
        acc = tl.dot(share.to(value.dtype), value, acc * fade[:, None])
    return above, total, acc


@triton.jit(do_not_specialize=["width", "pages_a_row"])
def attend(
    q, keys, values, pages, limit, out, partial, logs, counter, width, pages_a_row, scale,
    HKV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, FUSED: tl.constexpr, ROW: tl.constexpr,
    WIDEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (SPLITS, HKV, rows * query tiles). q (T, Hq, D), keys, values (slots, HKV, D), out (T, Hq D).

    scale: of the scores, times log2(e). partial (T Hq, SPLITS, D), logs (T Hq, SPLITS): fp32 scratch if SPLITS > 1;
    counter (rows * query tiles * HKV,) int32: zeros, left as zeros. ROW: width rounded up to a power of two, to read
    the first keys and values before the kernel in front has ended; 0: behind it.
    """
    HQ: tl.constexpr = HKV * GROUP
    split = tl.program_id(0)
    head = tl.program_id(1)
    tiles = tl.cdiv(width * GROUP, BLOCK_M)
    row = tl.program_id(2) // tiles
    query = paired(tl.program_id(2) % tiles, tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = query < width * GROUP
    token = row * width + query // GROUP
    index = token.to(tl.int64) * HQ + head * GROUP + query % GROUP
    # Limits and pages are there since the pass began, so they need not wait for the kernel in front of this one.
    seen = tl.load(limit + token, inside, other=0)
    last = tl.max(seen, 0)
    chunk, parts = parts_of(last, BLOCK_K, SPLITS)
    begin = split * chunk
    end = tl.minimum(begin + chunk, last)
    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_K)
    table = pages + row.to(tl.int64) * pages_a_row
    there = begin + n < end
    at = addresses(table, begin + n, there, head, HKV, D, PAGE)
    if ROW > 0:
        # What this very pass appends comes from the kernel in front; everything before it is there already.
        early = begin + BLOCK_K <= first_new(limit + row * width, width, ROW)
        key = tl.load(keys + at[:, None] + d[None, :], there[:, None] & early, other=0.0)
        value = tl.load(values + at[:, None] + d[None, :], there[:, None] & early, other=0.0)
    let_next_begin(PDL)  # what comes next reads weights ahead, while this kernel waits for keys and values
    wait_for_inputs(PDL)
    if split < parts:
        queries = tl.load(q + index[:, None] * D + d[None, :], inside[:, None], other=0.0)
        highest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        # Slots nobody may see can hold anything, NaN too: zero before the products.
        if ROW > 0:
            if not early:
                key = tl.load(keys + at[:, None] + d[None, :], there[:, None], other=0.0)
                value = tl.load(values + at[:, None] + d[None, :], there[:, None], other=0.0)
            for start in range(begin, end, BLOCK_K):
                there = start + BLOCK_K + n < end  # the next turn's, a turn ahead
                at = addresses(table, start + BLOCK_K + n, there, head, HKV, D, PAGE)
                next_key = tl.load(keys + at[:, None] + d[None, :], there[:, None], other=0.0)
                next_value = tl.load(values + at[:, None] + d[None, :], there[:, None], other=0.0)
                highest, total, acc = look(
                    queries, key, value, start + n, seen, scale, highest, total, acc, False, WIDEN
                )  # fmt: skip
                key, value = next_key, next_value
        else:
            masked = begin
            if SPLITS == 1:
                # Prompts: most turns lie before what any of the tile's tokens must not see.
                masked = begin + (tl.minimum(tl.min(tl.where(inside, seen, last), 0), end) - begin) // BLOCK_K * BLOCK_K
                for start in range(begin, masked, BLOCK_K):
                    key = tl.load(keys + at[:, None] + d[None, :])
                    value = tl.load(values + at[:, None] + d[None, :])
                    there = start + BLOCK_K + n < end
                    at = addresses(table, start + BLOCK_K + n, there, head, HKV, D, PAGE)
                    highest, total, acc = look(
                        queries, key, value, start + n, seen, scale, highest, total, acc, True, WIDEN
                    )  # fmt: skip
            for start in range(masked, end, BLOCK_K):
                key = tl.load(keys + at[:, None] + d[None, :], there[:, None], other=0.0)
                value = tl.load(values + at[:, None] + d[None, :], there[:, None], other=0.0)
                there = start + BLOCK_K + n < end  # the next turn's addresses, a turn ahead
                at = addresses(table, start + BLOCK_K + n, there, head, HKV, D, PAGE)
                highest, total, acc = look(
                    queries, key, value, start + n, seen, scale, highest, total, acc, False, WIDEN
                )  # fmt: skip
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        if SPLITS == 1:
            tl.store(out + index[:, None] * D + d[None, :], acc.to(out.dtype.element_ty), inside[:, None])
        else:
            at_part = index * SPLITS
            log = tl.where(total == 0.0, -float("inf"), highest + tl.log2(total))
            tl.store(logs + at_part + split, log, inside)
            tl.store(partial + (at_part + split)[:, None] * D + d[None, :], acc, inside[:, None])
            if FUSED:
                tl.debug_barrier()
                mine = counter + tl.program_id(2) * HKV + head
                done = tl.atomic_add(mine, 1, sem="acq_rel")
                if done == parts - 1:
                    whole = add_parts(partial, logs, at_part, inside, parts, D, BLOCK_M, SPLITS)
                    tl.store(out + index[:, None] * D + d[None, :], whole.to(out.dtype.element_ty), inside[:, None])
                    tl.store(mine, 0)


@triton.jit(do_not_specialize=["width"])
def combine(
    limit, out, partial, logs, width, HQ: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add up the parts that `attend` left, one head of one token a program. Grid: (T, HQ). GROUP divides BLOCK_M."""
    token = tl.program_id(0)
    row = token // width
    # The same tile of queries as in `attend`, so the same number of parts.
    first = ((token - row * width) * GROUP // BLOCK_M) * BLOCK_M
    query = first + tl.arange(0, BLOCK_M)
    last = tl.max(tl.load(limit + row * width + query // GROUP, query < width * GROUP, other=0), 0)
    _, parts = parts_of(last, BLOCK_K, SPLITS)
    let_next_begin(PDL)
    wait_for_inputs(PDL)
    d = tl.arange(0, D)
    s = tl.arange(0, SPLITS)
    index = token.to(tl.int64) * HQ + tl.program_id(1)
    log = tl.load(logs + index * SPLITS + s, s < parts, other=-float("inf"))
    one = tl.load(partial + (index * SPLITS + s)[:, None] * D + d[None, :], (s < parts)[:, None], other=0.0)
    highest = tl.max(log, 0)
    share = tl.exp2(log - tl.where(highest == -float("inf"), 0.0, highest))
    total = tl.sum(share, 0)
    whole = tl.sum(share[:, None] * one, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + index * D + d, whole.to(out.dtype.element_ty))
