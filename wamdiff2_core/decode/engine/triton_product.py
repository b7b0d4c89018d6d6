"""Products of few tokens with a large weight, as one Triton kernel: norm before, gate or residual behind.

The weight is read once and is what the time goes into. Where outputs alone do not keep all processors busy, several
programs share an output tile, each taking a part of the inputs (split-K): all put their sums into scratch, and the one
that finishes last adds them up in a fixed order, so the result does not hang on who that is. The norm's factor belongs
to a whole token and is applied after the product.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

# Programmatic dependent launch. A kernel lets the next one's programs begin at once, since all of its own have begun
# then, and touches nothing but weights before every kernel in front of it has ended. So at any time one kernel works,
# while those behind it take up free room and read ahead: weights come in while attention leaves the memory idle.


@triton.jit
def let_next_begin(PDL: tl.constexpr):
    """Allow the next kernel's programs to begin; they wait for the end of this kernel themselves."""
    if PDL:
        cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait until the kernels before this one have ended. Only weights may be touched earlier."""
    if PDL:
        cuda.gdc_wait()


@triton.jit
def before_inputs(PDL: tl.constexpr):
    """Both, for kernels that have nothing to do in between."""
    let_next_begin(PDL)
    wait_for_inputs(PDL)


@triton.jit
def accumulate(x, w, acc, FLIP: tl.constexpr, WIDEN: tl.constexpr):
    """acc (tokens, outputs; the other way round if FLIP) + x (tokens, inputs) times w (outputs, inputs)."""
    if WIDEN:  # fp32, and the interpreter, which knows no bfloat16 product
        x = x.to(tl.float32)
    w = w.to(x.dtype)
    if FLIP:
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def finish(
    acc, acc_up, squares, scale, residual, out, tokens, outputs, T, N: tl.constexpr, K: tl.constexpr, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Everything behind the sums: weight scales, norm, gate, residual; then the store."""
    inside = (tokens[:, None] < T) & (outputs[None, :] < N)
    if SCALED:
        acc *= tl.load(scale + outputs, outputs < N, other=0.0)[None, :]
        if GATED:
            acc_up *= tl.load(scale + N + outputs, outputs < N, other=0.0)[None, :]
    if NORM:
        factor = 1.0 / tl.sqrt(squares / K + eps)
        acc *= factor[:, None]
        if GATED:
            acc_up *= factor[:, None]
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    place = tokens[:, None].to(tl.int64) * N + outputs[None, :]
    if ADD:
        acc += tl.load(residual + place, inside, other=0.0).to(tl.float32)
    tl.store(out + place, acc.to(out.dtype.element_ty), inside)


@triton.jit
def warm_weight(weight, first, begin, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, WARM: tl.constexpr):
    """Ask the L2 for the first WARM lines of 128 bytes of BLOCK_N outputs' weights, from input `begin` on."""
    LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)
    lines = tl.minimum(begin + tl.arange(0, WARM) * LINE, K - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weight + rows[:, None] * K + lines[None, :]],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T"])
def product(
    x, weight, scale, residual, out, partial, partial_squares, counter, T, N: tl.constexpr, K: tl.constexpr, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
    FLIP: tl.constexpr, WIDEN: tl.constexpr, PDL: tl.constexpr, WARM: tl.constexpr,
):  # fmt: skip
    """x (T, K) times weight (N, K; 2 N if GATED) into out (T, N). Grid: (output tiles * SPLITS, token tiles).

    scale (N or 2 N,): of each output of an 8-bit weight, if SCALED. residual (T, N) if ADD. partial, partial_squares:
    fp32 scratch; counter (output tiles,) int32: zeros, left as zeros. SPLITS > 1 wants a single token tile. WARM: lines
    of each weight row to ask for before waiting.
    """
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    tile = tl.program_id(0) % TILES
    split = tl.program_id(0) // TILES
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    begin = split * CHUNK
    let_next_begin(PDL)
    if WARM > 0:
        warm_weight(weight, tile * BLOCK_N, begin, N, K, BLOCK_N, WARM)
        if GATED:
            warm_weight(weight, N + tile * BLOCK_N, begin, 2 * N, K, BLOCK_N, WARM)
    wait_for_inputs(PDL)
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = begin + tl.arange(0, BLOCK_K)
    x_at = x + tokens[:, None].to(tl.int64) * K + at_k[None, :]
    w_at = weight + outputs[:, None].to(tl.int64) * K + at_k[None, :]
    if FLIP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        acc_up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    x_in = tokens[:, None] < T
    w_in = outputs[:, None] < N
    for k in range(0, CHUNK, BLOCK_K):
        if EVEN:
            xs = tl.load(x_at + k, x_in, other=0.0)
            if N % BLOCK_N == 0:
                ws = tl.load(w_at + k)
            else:
                ws = tl.load(w_at + k, w_in, other=0.0)
        else:
            k_in = (k + at_k)[None, :] < K
            xs = tl.load(x_at + k, x_in & k_in, other=0.0)
            ws = tl.load(w_at + k, w_in & k_in, other=0.0)
        acc = accumulate(xs, ws, acc, FLIP, WIDEN)
        if GATED:
            if EVEN and N % BLOCK_N == 0:
                us = tl.load(w_at + N * K + k)
            else:
                k_in = (k + at_k)[None, :] < K
                us = tl.load(w_at + N * K + k, w_in & k_in, other=0.0)
            acc_up = accumulate(xs, us, acc_up, FLIP, WIDEN)
        if NORM:
            wide = xs.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
    if FLIP:
        acc = tl.trans(acc)
        acc_up = tl.trans(acc_up)
    if SPLITS == 1:
        finish(acc, acc_up, squares, scale, residual, out, tokens, outputs, T, N, K, eps, NORM, GATED, ADD, SCALED)
    else:
        AREA: tl.constexpr = BLOCK_M * BLOCK_N
        row = tl.arange(0, BLOCK_M)
        inner = row[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = (tile * SPLITS + split).to(tl.int64)
        pairs: tl.constexpr = 2 if GATED else 1
        tl.store(partial + mine * pairs * AREA + inner, acc, x_in)
        if GATED:
            tl.store(partial + (mine * 2 + 1) * AREA + inner, acc_up, x_in)
        if NORM:
            tl.store(partial_squares + mine * BLOCK_M + row, squares)
        tl.debug_barrier()
        done = tl.atomic_add(counter + tile, 1, sem="acq_rel")
        if done == SPLITS - 1:
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            squares = tl.zeros((BLOCK_M,), tl.float32)
            for s in tl.static_range(SPLITS):
                one = (tile * SPLITS + s).to(tl.int64)
                acc += tl.load(partial + one * pairs * AREA + inner, x_in, other=0.0, cache_modifier=".cg")
                if GATED:
                    at_up = partial + (one * 2 + 1) * AREA + inner
                    acc_up += tl.load(at_up, x_in, other=0.0, cache_modifier=".cg")
                if NORM:
                    squares += tl.load(partial_squares + one * BLOCK_M + row, cache_modifier=".cg")
            finish(acc, acc_up, squares, scale, residual, out, tokens, outputs, T, N, K, eps, NORM, GATED, ADD, SCALED)
            tl.store(counter + tile, 0)
