"""Queries, keys and values of a step as one Triton kernel: norm, product, head norms, rotation, append to the cache.

A program takes half a head times one of SPLITS parts of the inputs. The one of a head's programs that finishes last
adds up both halves in a fixed order, norms and rotates them (`triton_rotate` does the same to a finished product) and
writes the query or the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wamdiff2_core.decode.engine.triton_product import (
    let_next_begin,
    multiply,
    norm_factor,
    square_parts,
    wait_for_inputs,
)


@triton.jit
def turn(
    a, b, head_norm, cos, sin, slot, queries, keys, values, head, tokens, T, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Left and right half (D / 2, BLOCK_M) of a head of all tokens into its query, key or value."""
    HALF: tl.constexpr = D // 2
    at = tl.arange(0, HALF)
    inside = (at[:, None] < HALF) & (tokens[None, :] < T)
    if head >= HQ + HKV:
        place = tl.load(slot + tokens, tokens < T, other=0).to(tl.int64) * HKV + head - HQ - HKV
        to_value = values + place[None, :] * D + at[:, None]
        tl.store(to_value, a.to(values.dtype.element_ty), inside)
        tl.store(to_value + HALF, b.to(values.dtype.element_ty), inside)
    else:
        factor = (1.0 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps))[None, :]
        a *= factor * tl.load(head_norm + head * D + at).to(tl.float32)[:, None]
        b *= factor * tl.load(head_norm + head * D + HALF + at).to(tl.float32)[:, None]
        angle = tokens[None, :] * D + at[:, None]
        new_a = a * tl.load(cos + angle, inside, other=0.0).to(tl.float32)
        new_a -= b * tl.load(sin + angle, inside, other=0.0).to(tl.float32)
        new_b = b * tl.load(cos + angle + HALF, inside, other=0.0).to(tl.float32)
        new_b += a * tl.load(sin + angle + HALF, inside, other=0.0).to(tl.float32)
        if head < HQ:
            to_query = queries + (tokens[None, :] * HQ + head) * D + at[:, None]
            tl.store(to_query, new_a.to(queries.dtype.element_ty), inside)
            tl.store(to_query + HALF, new_b.to(queries.dtype.element_ty), inside)
        else:
            place = tl.load(slot + tokens, tokens < T, other=0).to(tl.int64) * HKV + head - HQ
            to_key = keys + place[None, :] * D + at[:, None]
            tl.store(to_key, new_a.to(keys.dtype.element_ty), inside)
            tl.store(to_key + HALF, new_b.to(keys.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["T"])
def project(
    x, weight, scale, squares, head_norm, cos, sin, slot, queries, keys, values, partial, counter, T, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr, PARTS: tl.constexpr,
    HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, WIDEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x (T, K), weight ((HQ + 2 HKV) D, K), its scale if SCALED, squares (PARTS, T) of x, head_norm (HQ + HKV, D).

    cos, sin (T, D); slot (T,): where keys and values (slots, HKV, D) go; queries (T, HQ, D). partial: fp32 scratch;
    counter (heads,) int32: zeros, left as zeros. Grid: (heads * 2 * SPLITS,). T fits into BLOCK_M.
    """
    SIZE: tl.constexpr = D // 2
    AREA: tl.constexpr = SIZE * BLOCK_M
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    wait_for_inputs(PDL)
    unit = tl.program_id(0)
    head = unit // (2 * SPLITS)
    tokens = tl.arange(0, BLOCK_M)
    outputs = (unit // SPLITS) * SIZE + tl.arange(0, SIZE)
    parts = 0.0
    if BLOCK_M <= 64:  # with more tokens there are no registers left to keep them in
        parts = square_parts(squares, tokens, T, PARTS)
    acc, _ = multiply(
        x, weight, tokens, outputs, (unit % SPLITS) * CHUNK, T, (HQ + 2 * HKV) * D, K, CHUNK, EVEN, False, True, HALF,
        BLOCK_M, SIZE, BLOCK_K, True, WIDEN,
    )  # fmt: skip
    let_next_begin(PDL)
    inner = tl.arange(0, SIZE)[:, None] * BLOCK_M + tokens[None, :]
    tl.store(partial + unit * AREA + inner, acc)
    tl.debug_barrier()
    done = tl.atomic_add(counter + head, 1, sem="acq_rel")
    if done == 2 * SPLITS - 1:
        if BLOCK_M <= 64:
            factor = norm_factor(parts, K, eps)[None, :]
        else:
            factor = norm_factor(square_parts(squares, tokens, T, PARTS), K, eps)[None, :]
        a = tl.zeros((SIZE, BLOCK_M), tl.float32)
        b = tl.zeros((SIZE, BLOCK_M), tl.float32)
        for split in tl.static_range(SPLITS):
            at = partial + (head * 2 * SPLITS + split) * AREA + inner
            a += tl.load(at, cache_modifier=".cg")
            b += tl.load(at + SPLITS * AREA, cache_modifier=".cg")
        if SCALED:
            at = tl.arange(0, SIZE)
            a *= tl.load(scale + head * D + at)[:, None]
            b *= tl.load(scale + head * D + SIZE + at)[:, None]
        turn(a * factor, b * factor, head_norm, cos, sin, slot, queries, keys, values, head, tokens, T, eps, HQ, HKV, D)
        tl.store(counter + head, 0)
