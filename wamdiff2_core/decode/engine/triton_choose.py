"""The language head without logits: each program keeps what a piece of the vocabulary says, a second kernel decides."""

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
def allowed_bits(rows, tile, words, inside, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Bits (BLOCK_M, BLOCK_N) of a vocabulary tile; rows (BLOCK_M, 1): where each token's words begin."""
    PIECES: tl.constexpr = (BLOCK_N + 31) // 32
    WIDTH: tl.constexpr = BLOCK_N // PIECES
    # A tile of 16 ids begins in the middle of a word or at its start.
    at = tile * BLOCK_N // 32 + tl.arange(0, PIECES)[None, :]
    word = tl.load(rows + at, inside & (at < words), other=0)
    shift = tile * BLOCK_N % 32 + tl.arange(0, WIDTH)
    return tl.reshape((word[:, :, None] >> shift[None, None, :]) & 1, (BLOCK_M, BLOCK_N))


@triton.jit(do_not_specialize=["T", "forbidden"])
def best_of_tile(
    x, head, scale, squares, allowed, best, index, sums, broken, T, forbidden, words,
    V: tl.constexpr, K: tl.constexpr, eps, LIMITED: tl.constexpr, SCALED: tl.constexpr, PARTS: tl.constexpr,
    HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    FLIP: tl.constexpr, WIDEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (vocabulary tiles, token tiles). x (T, K) un-normed, head (V, K), scale (V,) if SCALED,

    squares (PARTS, T) of x.

    Writes for each token and tile (T, tiles): best allowed logit, its id (the lowest of equals), the sum of
    exp(logit - best), and whether any logit is no number. allowed (T, words) int32 bits if LIMITED.
    """
    tile = tl.program_id(0)
    tiles = tl.num_programs(0)
    wait_for_inputs(PDL)
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    ids = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    x_in = tokens[:, None] < T
    parts = square_parts(squares, tokens, T, PARTS)
    # Ids behind the last one read the last one's row: no mask on the stream of weights.
    rows = tl.minimum(ids, V - 1)
    CHUNK: tl.constexpr = ((K + BLOCK_K - 1) // BLOCK_K) * BLOCK_K
    acc, _ = multiply(
        x, head, tokens, rows, 0, T, V, K, CHUNK, K % BLOCK_K == 0, False, True, HALF, BLOCK_M, BLOCK_N, BLOCK_K, FLIP,
        WIDEN,
    )  # fmt: skip
    let_next_begin(PDL)
    if FLIP:
        acc = tl.trans(acc)
    logits = acc * norm_factor(parts, K, eps)[:, None]
    if SCALED:
        logits *= tl.load(scale + rows)[None, :]
    real = (ids < V)[None, :]
    # NaN is below nothing. (A difference to itself tells less: the compiler fuses it with the product before it.)
    faults = tl.max(tl.where(real & ~(tl.abs(logits) < float("inf")), 1, 0), 1)
    may = real & (ids != forbidden)[None, :]
    if LIMITED:
        may = may & (
            allowed_bits(allowed + tokens[:, None].to(tl.int64) * words, tile, words, x_in, BLOCK_M, BLOCK_N) != 0
        )
    logits = tl.where(may, logits, -float("inf"))
    top, where = tl.max(logits, 1, return_indices=True, return_indices_tie_break_left=True)
    total = tl.sum(tl.exp(logits - tl.where(top == -float("inf"), 0.0, top)[:, None]), 1)
    place = tokens.to(tl.int64) * tiles + tile
    mine = tokens < T
    tl.store(best + place, top, mine)
    tl.store(index + place, tile * BLOCK_N + where, mine)
    tl.store(sums + place, total, mine)
    tl.store(broken + place, faults, mine)


@triton.jit
def best_of_all(
    best, index, sums, broken, tokens, certainty, usable, tiles, V: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Decide for one token a program from its (tiles,) pieces; BLOCK >= tiles. Writes (T,) int64, fp32, bool."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    token = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    there = at < tiles
    place = token.to(tl.int64) * tiles + at
    tops = tl.load(best + place, there, other=-float("inf"))
    top, where = tl.max(tops, 0, return_indices=True, return_indices_tie_break_left=True)
    shares = tl.exp(tops - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(tl.load(sums + place, there, other=0.0) * shares, 0)
    faults = tl.max(tl.load(broken + place, there, other=0), 0)
    # Nothing allowed: the sum is zero, the token stays in range and is not to be used.
    found = (faults == 0) & (top > -float("inf"))
    # Comparisons with NaN may leave any place; what is read and what is written stay in range.
    best_id = tl.load(index + token.to(tl.int64) * tiles + tl.minimum(where, tiles - 1))
    tl.store(tokens + token, tl.minimum(best_id, V - 1).to(tl.int64))
    tl.store(certainty + token, tl.where(found, 1.0 / total, float("nan")))
    tl.store(usable + token, found)
