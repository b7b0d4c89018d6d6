"""`triton_product.product` for Hopper, one level lower (Gluon): weights come in before the kernel in front ends.

The loads of a Triton kernel begin behind its wait for the kernel in front. Here the first stages of the weights, which
wait for nobody, are on their way into shared memory by then: while the kernel in front adds up and writes, the memory
goes on reading. Up to 64 outputs a program (pairs of them if gated), inputs in whole turns. Weights of 16 bits go from
shared memory to the tensor cores; those of 8 bits (`Fp8Weight`) are widened on their way through registers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from wamdiff2_core.decode.engine.triton_product import UNPACK_TEXT

UNPACK = gl.constexpr(UNPACK_TEXT)


@gluon.jit
def let_next_begin(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def wait_for_inputs(PDL: gl.constexpr):
    if PDL:
        gl.inline_asm_elementwise(
            "griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def unpack(tile, LAYOUT: gl.constexpr):
    """Low and high bytes of a tile of 16-bit words in shared memory, as bfloat16 in registers."""
    return gl.inline_asm_elementwise(
        UNPACK, "=r,=r,r", [tile.load(LAYOUT)], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
    )


@gluon.jit
def bring(place, rows, inside, USED: gl.constexpr):
    """Weights on their way into shared memory."""
    if USED < 64:
        async_copy.async_copy_global_to_shared(place, rows, inside)
    else:
        async_copy.async_copy_global_to_shared(place, rows)


@gluon.jit
def norm_factor(
    squares, T, eps, K: gl.constexpr, PARTS: gl.constexpr, SIZE: gl.constexpr, BLOCK_M: gl.constexpr, OUT: gl.constexpr
):
    """1 / root mean square (BLOCK_M,) of each token, from squares (PARTS, T): sums over parts of its K numbers."""
    part = gl.arange(0, SIZE, gl.SliceLayout(1, OUT))[:, None]
    token = gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))[None, :]
    sums = gl.sum(gl.load(squares + part * T + token, (part < PARTS) & (token < T), other=0.0), 0)
    return 1.0 / gl.sqrt(sums / K + eps)


@gluon.jit
def multiply(
    x, weight, squares, first, begin, T, eps, N: gl.constexpr, K: gl.constexpr, TURNS: gl.constexpr,
    GATED: gl.constexpr, HALF: gl.constexpr, NORM: gl.constexpr, PARTS: gl.constexpr, SIZE: gl.constexpr,
    USED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr,
    WARPS: gl.constexpr, PDL: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums (64, BLOCK_M) of weight (., K) at rows `first` on times x (T, K), over TURNS * BLOCK_K inputs from `begin`;

    the same of rows N further on if GATED, else again; `norm_factor` if NORM, made while the first inputs are on their
    way. USED of the 64 rows are read, the others count as zeros. HALF: weights are pairs of 8-bit numbers, see
    `Fp8Weight`, and BLOCK_K is a multiple of 2 HALF; 0: they are of 16 bits. Waits for the kernel in front on the way,
    and lets the next one begin when the last loads are under way if EARLY, else when they are all there.
    """
    ROWS: gl.constexpr = 64
    WIDE: gl.constexpr = BLOCK_K // 2 if HALF > 0 else BLOCK_K  # columns of a tile
    KIND: gl.constexpr = gl.int16 if HALF > 0 else gl.bfloat16
    ACROSS: gl.constexpr = WIDE // 8
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [WARPS, 1], [1, 0])
    # Four warps share the outputs; further ones take tokens of their own.
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS // 4], [16, BLOCK_M * 4 // WARPS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    W_SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDE], KIND)
    X_SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, WIDE], gl.bfloat16)
    AHEAD: gl.constexpr = STAGES - 1
    ws = gl.allocate_shared_memory(KIND, [STAGES, ROWS, WIDE], W_SHARED)
    us = ws
    if GATED:
        us = gl.allocate_shared_memory(KIND, [STAGES, ROWS, WIDE], W_SHARED)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, WIDE], X_SHARED)
    fs = xs  # inputs of the high bytes
    if HALF > 0:
        fs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, WIDE], X_SHARED)
    column = gl.arange(0, WIDE, gl.SliceLayout(0, COPY))
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(1, COPY))
    STEP: gl.constexpr = K // 2 if HALF > 0 else K  # words of a row
    if HALF > 0:
        at_x = begin + column // HALF * (2 * HALF) + column % HALF
        at_w = begin // 2 + column
    else:
        at_x = begin + column
        at_w = at_x
    w_at = weight + rows[:, None].to(gl.int64) * STEP + at_w[None, :]
    x_at = x + tokens[:, None] * K + at_x[None, :]
    x_in = (tokens < T)[:, None]
    w_in = (rows < first + USED)[:, None]
    for stage in gl.static_range(AHEAD):
        bring(ws.index(stage), w_at + stage * WIDE, w_in, USED)
        if GATED:
            bring(us.index(stage), w_at + N * STEP + stage * WIDE, w_in, USED)
    async_copy.commit_group()
    wait_for_inputs(PDL)
    for stage in gl.static_range(AHEAD):
        async_copy.async_copy_global_to_shared(xs.index(stage), x_at + stage * BLOCK_K, x_in)
        if HALF > 0:
            async_copy.async_copy_global_to_shared(fs.index(stage), x_at + stage * BLOCK_K + HALF, x_in)
        async_copy.commit_group()
    factor = 1.0
    if NORM:
        factor = norm_factor(squares, T, eps, K, PARTS, SIZE, BLOCK_M, OUT)
    acc = gl.zeros((ROWS, BLOCK_M), gl.float32, SUMS)
    acc_up = gl.zeros((ROWS, BLOCK_M), gl.float32, SUMS)
    for turn in range(TURNS):
        async_copy.wait_group(AHEAD - 1)
        fence_async_shared()
        gl.thread_barrier()  # everybody's tiles are there, and nobody reads those of the turn before any more
        further = turn + AHEAD
        if further < TURNS:
            place = further % STAGES
            bring(ws.index(place), w_at + further * WIDE, w_in, USED)
            if GATED:
                bring(us.index(place), w_at + N * STEP + further * WIDE, w_in, USED)
            async_copy.async_copy_global_to_shared(xs.index(place), x_at + further * BLOCK_K, x_in)
            if HALF > 0:
                async_copy.async_copy_global_to_shared(fs.index(place), x_at + further * BLOCK_K + HALF, x_in)
        async_copy.commit_group()
        if EARLY and turn == (TURNS - AHEAD if TURNS > AHEAD else 0):
            let_next_begin(PDL)
        now = turn % STAGES
        x_turned = xs.index(now).permute((1, 0))
        if HALF > 0:
            far = fs.index(now).permute((1, 0))
            low, high = unpack(ws.index(now), LEFT)
            acc_now = warpgroup_mma(low, x_turned, acc, is_async=True)
            acc_now = warpgroup_mma(high, far, acc_now, is_async=True)
            if GATED:
                up_low, up_high = unpack(us.index(now), LEFT)
                up_now = warpgroup_mma(up_low, x_turned, acc_up, is_async=True)
                up_now = warpgroup_mma(up_high, far, up_now, is_async=True)
                acc, acc_up, low, high, up_low, up_high = warpgroup_mma_wait(
                    0, deps=(acc_now, up_now, low, high, up_low, up_high)
                )
            else:
                acc, low, high = warpgroup_mma_wait(0, deps=(acc_now, low, high))
        else:
            acc_now = warpgroup_mma(ws.index(now), x_turned, acc, is_async=True)
            if GATED:
                up_now = warpgroup_mma(us.index(now), x_turned, acc_up, is_async=True)
                acc, acc_up = warpgroup_mma_wait(0, deps=(acc_now, up_now))
            else:
                acc = warpgroup_mma_wait(0, deps=(acc_now,))
    if not EARLY:
        let_next_begin(PDL)
    return acc, acc_up, factor


@gluon.jit
def finish(
    acc, acc_up, factor, scale, squares, residual, out, tile, T, N: gl.constexpr, NORM: gl.constexpr,
    GATED: gl.constexpr, ADD: gl.constexpr, SCALED: gl.constexpr, USED: gl.constexpr, BLOCK_M: gl.constexpr,
    OUT: gl.constexpr,
):  # fmt: skip
    """Everything behind the sums (64, BLOCK_M): scales of weights, norm, gate, residual; the store, squares if ADD."""
    row = gl.arange(0, 64, gl.SliceLayout(1, OUT))
    outputs = tile * USED + row
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))
    inside = (row < USED)[:, None] & (tokens < T)[None, :]
    if SCALED:
        acc *= gl.load(scale + outputs, row < USED, other=0.0)[:, None]
        if GATED:
            acc_up *= gl.load(scale + N + outputs, row < USED, other=0.0)[:, None]
    if NORM:
        acc *= factor[None, :]
        if GATED:
            acc_up *= factor[None, :]
    if GATED:
        acc = acc / (1.0 + gl.exp(-acc)) * acc_up
    place = tokens[None, :] * N + outputs[:, None]
    if ADD:
        acc += gl.load(residual + place, inside, other=0.0).to(gl.float32)
    stored = acc.to(out.dtype.element_ty)
    gl.store(out + place, stored, inside)
    if ADD:
        seen = gl.where(inside, stored.to(gl.float32), 0.0)
        gl.store(squares + tile * T + tokens, gl.sum(seen * seen, 0), tokens < T)


@gluon.jit(do_not_specialize=["T"])
def product(
    x, weight, scale, squares, residual, out, partial, counter, T, eps, N: gl.constexpr, K: gl.constexpr,
    NORM: gl.constexpr, GATED: gl.constexpr, ADD: gl.constexpr, HALF: gl.constexpr, PARTS: gl.constexpr,
    SIZE: gl.constexpr, USED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SPLITS: gl.constexpr,
    STAGES: gl.constexpr, EARLY: gl.constexpr, WARPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `triton_product.product`. Grid: (N / USED * SPLITS,). K / SPLITS is a multiple of BLOCK_K, N of USED.

    SIZE: PARTS rounded up to a power of two. HALF: see `multiply`; scale is read with it only.
    """
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    TILES: gl.constexpr = N // USED
    TURNS: gl.constexpr = K // (SPLITS * BLOCK_K)
    tile = gl.program_id(0) % TILES
    split = gl.program_id(0) // TILES
    acc, acc_up, factor = multiply(
        x, weight, squares, tile * USED, split * (TURNS * BLOCK_K), T, eps, N, K, TURNS, GATED, HALF, NORM, PARTS, SIZE,
        USED, BLOCK_M, BLOCK_K, STAGES, EARLY, WARPS, PDL, OUT,
    )  # fmt: skip
    acc = gl.convert_layout(acc, OUT)
    if GATED:
        acc_up = gl.convert_layout(acc_up, OUT)
    if SPLITS == 1:
        finish(
            acc, acc_up, factor, scale, squares, residual, out, tile, T, N, NORM, GATED, ADD, HALF > 0, USED, BLOCK_M,
            OUT,
        )  # fmt: skip
    else:
        AREA: gl.constexpr = 64 * BLOCK_M
        PAIRS: gl.constexpr = 2 if GATED else 1
        inner = (
            gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))[None, :] * 64
            + gl.arange(0, 64, gl.SliceLayout(1, OUT))[:, None]
        )
        mine = partial + (tile * SPLITS + split) * (PAIRS * AREA)
        gl.store(mine + inner, acc)
        if GATED:
            gl.store(mine + AREA + inner, acc_up)
        gl.thread_barrier()
        done = gl.atomic_add(counter + tile, 1, sem="acq_rel")
        if done == SPLITS - 1:
            total = gl.zeros((64, BLOCK_M), gl.float32, OUT)
            total_up = gl.zeros((64, BLOCK_M), gl.float32, OUT)
            for part in gl.static_range(SPLITS):
                one = partial + (tile * SPLITS + part) * (PAIRS * AREA)
                total += gl.load(one + inner, cache_modifier=".cg")
                if GATED:
                    total_up += gl.load(one + AREA + inner, cache_modifier=".cg")
            finish(
                total, total_up, factor, scale, squares, residual, out, tile, T, N, NORM, GATED, ADD, HALF > 0, USED,
                BLOCK_M, OUT,
            )  # fmt: skip
            gl.store(counter + tile, 0)


@gluon.jit
def turn(
    a, b, norms, angles, places, queries, keys, values, head, T, eps, HQ: gl.constexpr, HKV: gl.constexpr,
    D: gl.constexpr, BLOCK_M: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """See `triton_heads.turn`. norms: the head's two halves; angles: both halves of cos, then of sin; places: slots."""
    HALF: gl.constexpr = D // 2
    at = gl.arange(0, HALF, gl.SliceLayout(1, OUT))
    tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))
    inside = (at < HALF)[:, None] & (tokens < T)[None, :]
    if head >= HQ + HKV:
        place = places * HKV + head - HQ - HKV
        to_value = values + place[None, :] * D + at[:, None]
        gl.store(to_value, a.to(values.dtype.element_ty), inside)
        gl.store(to_value + HALF, b.to(values.dtype.element_ty), inside)
    else:
        factor = (1.0 / gl.sqrt((gl.sum(a * a, 0) + gl.sum(b * b, 0)) / D + eps))[None, :]
        a = a * factor * norms[0].to(gl.float32)[:, None]
        b = b * factor * norms[1].to(gl.float32)[:, None]
        new_a = a * angles[0].to(gl.float32) - b * angles[2].to(gl.float32)
        new_b = b * angles[1].to(gl.float32) + a * angles[3].to(gl.float32)
        if head < HQ:
            to_query = queries + (tokens[None, :] * HQ + head) * D + at[:, None]
            gl.store(to_query, new_a.to(queries.dtype.element_ty), inside)
            gl.store(to_query + HALF, new_b.to(queries.dtype.element_ty), inside)
        else:
            to_key = keys + (places * HKV + head - HQ)[None, :] * D + at[:, None]
            gl.store(to_key, new_a.to(keys.dtype.element_ty), inside)
            gl.store(to_key + HALF, new_b.to(keys.dtype.element_ty), inside)


@gluon.jit(do_not_specialize=["T"])
def project(
    x, weight, scale, squares, head_norm, cos, sin, slot, queries, keys, values, partial, counter, T, eps,
    HQ: gl.constexpr, HKV: gl.constexpr, K: gl.constexpr, HALF: gl.constexpr, PARTS: gl.constexpr, SIZE: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr,
    WARPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See `triton_heads.project`; heads of 128. Grid: (heads * 2 * SPLITS,). K / SPLITS is a multiple of BLOCK_K."""
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    TURNS: gl.constexpr = K // (SPLITS * BLOCK_K)
    AREA: gl.constexpr = 64 * BLOCK_M
    unit = gl.program_id(0)
    head = unit // (2 * SPLITS)
    N: gl.constexpr = (HQ + 2 * HKV) * 128
    acc, _, factor = multiply(
        x, weight, squares, (unit // SPLITS) * 64, (unit % SPLITS) * (TURNS * BLOCK_K), T, eps, N, K, TURNS, False,
        HALF, True, PARTS, SIZE, 64, BLOCK_M, BLOCK_K, STAGES, EARLY, WARPS, PDL, OUT,
    )  # fmt: skip
    inner = (
        gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))[None, :] * 64 + gl.arange(0, 64, gl.SliceLayout(1, OUT))[:, None]
    )
    gl.store(partial + unit * AREA + inner, gl.convert_layout(acc, OUT))
    gl.thread_barrier()
    done = gl.atomic_add(counter + head, 1, sem="acq_rel")
    if done == 2 * SPLITS - 1:
        # All that a head needs is asked for before anything waits: sums over a head put a barrier between loads.
        at = gl.arange(0, 64, gl.SliceLayout(1, OUT))
        tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, OUT))
        inside = (at < 64)[:, None] & (tokens < T)[None, :]
        turns = tokens[None, :] * 128 + at[:, None]
        of_head = gl.minimum(head, HQ + HKV - 1) * 128 + at  # values have no norm
        norms = (gl.load(head_norm + of_head), gl.load(head_norm + 64 + of_head))
        angles = (
            gl.load(cos + turns, inside, other=0.0), gl.load(cos + 64 + turns, inside, other=0.0),
            gl.load(sin + turns, inside, other=0.0), gl.load(sin + 64 + turns, inside, other=0.0),
        )  # fmt: skip
        places = gl.load(slot + tokens, tokens < T, other=0).to(gl.int64)
        a = gl.zeros((64, BLOCK_M), gl.float32, OUT)
        b = gl.zeros((64, BLOCK_M), gl.float32, OUT)
        for split in gl.static_range(SPLITS):
            part = partial + (head * 2 * SPLITS + split) * AREA + inner
            a += gl.load(part, cache_modifier=".cg")
            b += gl.load(part + SPLITS * AREA, cache_modifier=".cg")
        if HALF > 0:
            a *= gl.load(scale + head * 128 + at)[:, None]
            b *= gl.load(scale + head * 128 + 64 + at)[:, None]
        turn(
            a * factor[None, :], b * factor[None, :], norms, angles, places, queries, keys, values, head, T, eps, HQ,
            HKV, 128, BLOCK_M, OUT,
        )  # fmt: skip
        gl.store(counter + head, 0)
