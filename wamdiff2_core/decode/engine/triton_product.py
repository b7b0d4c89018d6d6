"""Products of few tokens with a large weight, as one Triton kernel: norm before, gate or residual behind.

The weight is read once and is what the time goes into. Where outputs alone do not keep all processors busy, several
programs share an output tile, each taking a part of the inputs (split-K): all put their sums into scratch, and the one
that finishes last adds them up in a fixed order, so the result does not hang on who that is. The norm's factor belongs
to a whole token and is applied after the product. Its sum of squares is never taken beside the product: whoever writes
the hidden states sums up what it writes (`square_sums` does where nobody did). Inputs that feed the tensor cores and
are read by the threads as well get one buffer too few from Triton 3.6, and are overwritten while the cores read them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

# Programmatic dependent launch. A kernel lets the next one's programs begin when its own have read their weights: then
# the next kernel is loaded and waits in the freed places while sums are still being added up and written. Earlier is
# worse: programs that wait would hold places unevenly, and the processors would share the work unevenly.


@triton.jit
def let_next_begin(PDL: tl.constexpr):
    """Allow the next kernel's programs to begin; they wait for the end of this kernel themselves."""
    if PDL:
        cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait until the kernel before this one has ended. What that kernel writes may not be touched earlier.

    Every kernel but attention's two lets the next one begin behind its own wait, so all kernels in front of the one
    before have ended by then. Behind attention comes a product, which reads nothing but weights before it waits.
    """
    if PDL:
        cuda.gdc_wait()


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


# Two e4m3 numbers of one 16-bit word, for two words at a time: sign and the seven bits behind it go to their places in
# a bfloat16, whose exponent counts from 120 further down; the product with 2 ** 120 is exact, also for the numbers that
# have no leading one.
UNPACK_TEXT = """{
    .reg .b32 sign, rest, far, none;
    mov.b32 far, 0x7b807b80;
    mov.b32 none, 0x80008000;
    and.b32 sign, $2, 0x00800080;
    shl.b32 sign, sign, 8;
    and.b32 rest, $2, 0x007f007f;
    shl.b32 rest, rest, 4;
    or.b32 rest, rest, sign;
    fma.rn.bf16x2 $0, rest, far, none;
    and.b32 rest, $2, 0x7f007f00;
    shr.u32 rest, rest, 4;
    and.b32 sign, $2, 0x80008000;
    or.b32 rest, rest, sign;
    fma.rn.bf16x2 $1, rest, far, none;
}"""
UNPACK = tl.constexpr(UNPACK_TEXT)


@triton.jit
def from_e4m3(byte):
    """The fp32 number of an e4m3 byte in an int32."""
    bits = ((byte & 0x80) << 24) | ((byte & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120


@triton.jit
def unpack(pairs, WIDEN: tl.constexpr):
    """Low and high bytes of 16-bit words as numbers: bfloat16, or fp32 if WIDEN."""
    if WIDEN:
        wide = pairs.to(tl.int32)
        low, high = from_e4m3(wide & 0xFF), from_e4m3((wide >> 8) & 0xFF)
    else:
        low, high = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [pairs], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    return low, high


@triton.jit
def multiply(
    x, weight, tokens, rows, begin, T, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, FULL: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, FLIP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Sums over CHUNK inputs from `begin` on of x (T, K) at `tokens` times weight (., K) at `rows`.

    (BLOCK_M, BLOCK_N), or the other way round if FLIP. GATED: also those with the rows N further on, else zeros. FULL:
    all rows exist, EVEN: all inputs do. HALF: weights are pairs of 8-bit numbers, see `Fp8Weight`; 0: they are of x's
    type.
    """
    if FLIP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        acc_up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    WORDS: tl.constexpr = 2 if HALF > 0 else 1
    at_w = tl.arange(0, BLOCK_K // WORDS)
    at_k = begin + at_w
    if HALF > 0:
        at_k = begin + at_w // HALF * (2 * HALF) + at_w % HALF
    x_at = x + tokens[:, None].to(tl.int64) * K + at_k[None, :]
    w_at = weight + rows[:, None].to(tl.int64) * (K // WORDS) + (begin // WORDS + at_w)[None, :]
    x_in = tokens[:, None] < T
    w_in = rows[:, None] < N
    for k in range(0, CHUNK, BLOCK_K):
        k_in = (k + at_k)[None, :] < K
        if EVEN:
            xs = tl.load(x_at + k, x_in, other=0.0)
        else:
            xs = tl.load(x_at + k, x_in & k_in, other=0.0)
        if EVEN and FULL:
            ws = tl.load(w_at + k // WORDS)
        else:
            ws = tl.load(w_at + k // WORDS, w_in & k_in, other=0)
        us = ws
        if GATED:
            if EVEN and FULL:
                us = tl.load(w_at + N * (K // WORDS) + k // WORDS)
            else:
                us = tl.load(w_at + N * (K // WORDS) + k // WORDS, w_in & k_in, other=0)
        if HALF == 0:
            acc = accumulate(xs, ws, acc, FLIP, WIDEN)
            if GATED:
                acc_up = accumulate(xs, us, acc_up, FLIP, WIDEN)
        else:
            if EVEN:
                far = tl.load(x_at + k + HALF, x_in, other=0.0)
            else:
                far = tl.load(x_at + k + HALF, x_in & k_in, other=0.0)
            low, high = unpack(ws, WIDEN)
            acc = accumulate(xs, low, acc, FLIP, WIDEN)
            acc = accumulate(far, high, acc, FLIP, WIDEN)
            if GATED:
                low, high = unpack(us, WIDEN)
                acc_up = accumulate(xs, low, acc_up, FLIP, WIDEN)
                acc_up = accumulate(far, high, acc_up, FLIP, WIDEN)
    return acc, acc_up


@triton.jit
def square_parts(squares, tokens, T, PARTS: tl.constexpr):
    """squares (PARTS, T), rounded up to a power of two: read before a product and added up behind it, nobody waits."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    at = squares + part[:, None] * T + tokens[None, :]
    return tl.load(at, (part[:, None] < PARTS) & (tokens[None, :] < T), other=0.0)


@triton.jit
def norm_factor(parts, K: tl.constexpr, eps):
    """1 / root mean square of each token, from `square_parts`: sums over parts of its K numbers."""
    return 1.0 / tl.sqrt(tl.sum(parts, 0) / K + eps)


@triton.jit(do_not_specialize=["T"])
def square_sums(x, squares, T, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Sum of squares of each token of x (T, K) into squares (1, T). Grid: (T,)."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    token = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, K, BLOCK):
        one = tl.load(x + token.to(tl.int64) * K + k + at, k + at < K, other=0.0).to(tl.float32)
        total += one * one
    tl.store(squares + token, tl.sum(total, 0))


@triton.jit
def finish(
    acc, acc_up, scale, parts, squares, residual, out, tile, tokens, outputs, T, N: tl.constexpr, K: tl.constexpr,
    eps, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Everything behind the sums: weight scales, norm, gate, residual; then the store. ADD: and its sums of squares."""
    inside = (tokens[:, None] < T) & (outputs[None, :] < N)
    if SCALED:
        acc *= tl.load(scale + outputs, outputs < N, other=0.0)[None, :]
        if GATED:
            acc_up *= tl.load(scale + N + outputs, outputs < N, other=0.0)[None, :]
    if NORM:
        factor = norm_factor(parts, K, eps)
        acc *= factor[:, None]
        if GATED:
            acc_up *= factor[:, None]
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    place = tokens[:, None].to(tl.int64) * N + outputs[None, :]
    if ADD:
        acc += tl.load(residual + place, inside, other=0.0).to(tl.float32)
    stored = acc.to(out.dtype.element_ty)
    tl.store(out + place, stored, inside)
    if ADD:
        seen = tl.where(inside, stored.to(tl.float32), 0.0)
        tl.store(squares + tile * T + tokens, tl.sum(seen * seen, 1), tokens < T)


@triton.jit(do_not_specialize=["T"])
def product(
    x, weight, scale, squares, residual, out, partial, counter, T, N: tl.constexpr, K: tl.constexpr, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, PARTS: tl.constexpr,
    HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
    FLIP: tl.constexpr, WIDEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x (T, K) times weight (N, K; 2 N if GATED) into out (T, N). Grid: (output tiles * SPLITS, token tiles).

    scale (N or 2 N,): of each output of an 8-bit weight, if SCALED; HALF: see `multiply`. squares: (PARTS, T) of x,
    read, if NORM; (output tiles, T) of the result, written, if ADD. residual (T, N) if ADD. partial: fp32 scratch;
    counter (output tiles,) int32: zeros, left as zeros. SPLITS > 1 wants a single token tile.
    """
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    tile = tl.program_id(0) % TILES
    split = tl.program_id(0) // TILES
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    begin = split * CHUNK
    wait_for_inputs(PDL)
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    x_in = tokens[:, None] < T
    parts = 0.0
    if NORM:
        parts = square_parts(squares, tokens, T, PARTS)
    acc, acc_up = multiply(
        x, weight, tokens, outputs, begin, T, N, K, CHUNK, EVEN, GATED, N % BLOCK_N == 0, HALF, BLOCK_M, BLOCK_N,
        BLOCK_K, FLIP, WIDEN,
    )  # fmt: skip
    let_next_begin(PDL)
    if FLIP:
        acc = tl.trans(acc)
        acc_up = tl.trans(acc_up)
    if SPLITS == 1:
        finish(
            acc, acc_up, scale, parts, squares, residual, out, tile, tokens, outputs, T, N, K, eps,
            NORM, GATED, ADD, SCALED,
        )  # fmt: skip
    else:
        AREA: tl.constexpr = BLOCK_M * BLOCK_N
        row = tl.arange(0, BLOCK_M)
        inner = row[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = (tile * SPLITS + split).to(tl.int64)
        pairs: tl.constexpr = 2 if GATED else 1
        tl.store(partial + mine * pairs * AREA + inner, acc, x_in)
        if GATED:
            tl.store(partial + (mine * 2 + 1) * AREA + inner, acc_up, x_in)
        tl.debug_barrier()
        done = tl.atomic_add(counter + tile, 1, sem="acq_rel")
        if done == SPLITS - 1:
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for s in tl.static_range(SPLITS):
                one = (tile * SPLITS + s).to(tl.int64)
                acc += tl.load(partial + one * pairs * AREA + inner, x_in, other=0.0, cache_modifier=".cg")
                if GATED:
                    at_up = partial + (one * 2 + 1) * AREA + inner
                    acc_up += tl.load(at_up, x_in, other=0.0, cache_modifier=".cg")
            finish(
                acc, acc_up, scale, parts, squares, residual, out, tile, tokens, outputs, T, N, K, eps,
                NORM, GATED, ADD, SCALED,
            )  # fmt: skip
            tl.store(counter + tile, 0)
