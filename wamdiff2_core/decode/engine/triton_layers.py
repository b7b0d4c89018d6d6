"""All text layers of a step as one Triton kernel whose programs stay: few tokens, so reading the weights is the time.

One program a processor runs every phase of every layer; a barrier over all of them stands between phases. Before a
program waits there it asks the L2 for the weights it needs next, so that the memory goes on reading while programs
wait. A layer's phases, each a number of units of work that programs take in turn:

    0 begin     copy the input and square it (first layer only)
    1 qkv       norm and product; the last program of a head norms and rotates it, then writes query or cache
    2 attend    see triton_attend
    3 out       product and residual into the hidden state
    4 gate_up   norm, product and gate
    5 down      like `out`

The weight is the left operand: sums are (outputs, tokens), the tensor cores' tall side along the outputs. A norm's
factor belongs to a whole token and is applied behind the product; its sum of squares comes from whoever wrote the
hidden state, tile by tile, added up in a fixed order. (A tile that a pipelined loop loads must go into products alone:
used in registers as well, it gets a buffer too few in Triton 3.6, and results race.) Split sums are as in
`triton_product`: the last one to finish adds all of them up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wamdiff2_core.decode.engine.triton_attend import add_parts, parts_of

WHOLE = -1  # PHASE: all of them, with barriers; this is what a step runs
PHASES = ("begin", "qkv", "attend", "out", "gate_up", "down")

# The state: programs that have arrived (at its start), programs that have left, whether one gave up, units' counters.
LEFT = tl.constexpr(32)
FAILED = tl.constexpr(64)
COUNTERS = tl.constexpr(96)

# One thread looks at the count, the others wait for it at the barrier behind: what it has acquired they may read, too
# (a grid barrier in CUDA works the same way), and the count's line is not asked for by thousands. A thread that has
# looked too often lifts the count above all targets: nobody waits any longer in this launch, and FAILED says so.
_WAIT = """{
    .reg .pred p;
    .reg .b32 seen, polls;
    mov.b32 seen, 0;
    mov.b32 polls, %tid.x;
    setp.ne.s32 p, polls, 0;
    @p bra through;
look:
    ld.acquire.gpu.global.b32 seen, [$1];
    setp.ge.s32 p, seen, $3;
    @p bra through;
    add.s32 polls, polls, 1;
    setp.lt.s32 p, polls, $4;
    @p bra look;
    red.relaxed.gpu.global.max.s32 [$1], 1073741824;
    mov.b32 polls, 1;
    st.relaxed.gpu.global.b32 [$2], polls;
through:
    min.s32 $0, seen, 0;
}"""
WAIT = tl.constexpr(_WAIT)


@triton.jit
def arrive(state):
    """Tell the other programs that everything this one wrote so far may be read."""
    tl.debug_barrier()
    tl.atomic_add(state, 1, sem="release")


@triton.jit
def wait(state, target, polls):
    """Until `target` arrivals have been counted, or `polls` looks have shown fewer. Returns zero, which the compiler

    does not know: addresses that start from it stay behind the wait. Otherwise it computes those of all phases in front
    of the loop over the layers, and registers overflow.
    """
    nil = tl.inline_asm_elementwise(
        WAIT, "=r,l,l,r,r", [state, state + FAILED, target, polls], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.debug_barrier()
    return nil


@triton.jit
def leave(state, programs, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """The last program to come here sets all counters back to zero, for the next launch."""
    tl.debug_barrier()
    left = tl.atomic_add(state + LEFT, 1, sem="acq_rel")
    if left == programs - 1:
        tl.store(state, 0)
        tl.store(state + LEFT, 0)
        for first in range(0, COUNTS, BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(state + COUNTERS + at, tl.zeros((BLOCK,), tl.int32), at < COUNTS)


@triton.jit
def ask(at):
    """Ask the L2 for the lines at these addresses; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def ask_weight(
    weight, first, begin, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, SKIP: tl.constexpr,
    WARM: tl.constexpr,
):  # fmt: skip
    """Ask for WARM lines of 128 bytes of BLOCK_N outputs from `first` on, behind the first SKIP from input `begin`."""
    LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)
    lines = begin + (SKIP + tl.arange(0, WARM)) * LINE
    ask(weight + rows[:, None] * K + tl.minimum(lines, K - 1)[None, :])


@triton.jit
def ask_product(
    weight, pid, programs, N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SKIP: tl.constexpr, WARM: tl.constexpr,
):  # fmt: skip
    """Ask for the weights of this program's first unit; one that has none asks for what lies behind another's."""
    if WARM > 0:
        TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
        CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
        LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
        unit = pid % (TILES * SPLITS)
        begin = (unit % SPLITS) * CHUNK + (pid // (TILES * SPLITS)) * WARM * LINE
        first = (unit // SPLITS) * BLOCK_N
        ask_weight(weight, first, begin, N, K, BLOCK_N, SKIP, WARM)
        if GATED:
            ask_weight(weight, N + first, begin, 2 * N, K, BLOCK_N, SKIP, WARM)


@triton.jit
def ask_ahead(weight, wanted, pid, programs, CUT: tl.constexpr):
    """`ask_product`, if wanted, of a weight cut by CUT: its arguments from N on."""
    if wanted:
        ask_product(weight, pid, programs, CUT[0], CUT[1], CUT[2], CUT[3], CUT[4], CUT[5], CUT[6], CUT[7])


@triton.jit
def product(
    x, weight, first, begin, T, nil, N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Sums (BLOCK_N, BLOCK_M) over CHUNK inputs from `begin` on of weight (N, K) times x (T, K); if GATED also those of

    the N outputs behind, else the same again.
    """
    tokens = nil + tl.arange(0, BLOCK_M)
    outputs = first + tl.arange(0, BLOCK_N)
    at_k = begin + tl.arange(0, BLOCK_K)
    x_at = x + tokens[:, None] * K + at_k[None, :]
    w_at = weight + outputs[:, None].to(tl.int64) * K + at_k[None, :]
    x_in = tokens[:, None] < T
    w_in = outputs[:, None] < N
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc_up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(0, CHUNK + nil, BLOCK_K, num_stages=STAGES):
        if EVEN:
            xs = tl.load(x_at + k, x_in, other=0.0)
        else:
            k_in = (k + at_k)[None, :] < K
            xs = tl.load(x_at + k, x_in & k_in, other=0.0)
        if EVEN and N % BLOCK_N == 0:
            ws = tl.load(w_at + k)
        else:
            ws = tl.load(w_at + k, w_in & ((k + at_k)[None, :] < K), other=0.0)
        if WIDEN:
            xs = xs.to(tl.float32)
        acc = tl.dot(ws.to(xs.dtype), tl.trans(xs), acc, input_precision="ieee")
        if GATED:
            if EVEN and N % BLOCK_N == 0:
                us = tl.load(w_at + N * K + k)
            else:
                us = tl.load(w_at + N * K + k, w_in & ((k + at_k)[None, :] < K), other=0.0)
            acc_up = tl.dot(us.to(xs.dtype), tl.trans(xs), acc_up, input_precision="ieee")
    return acc, acc_up


@triton.jit
def squares_of(squares, T, nil, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sums of squares (tiles rounded up to a power of two, BLOCK_M) of each token by tiles of the hidden state."""
    SIZE: tl.constexpr = triton.next_power_of_2(TILES)
    tiles, tokens = tl.arange(0, SIZE), nil + tl.arange(0, BLOCK_M)
    inside = (tiles[:, None] < TILES) & (tokens[None, :] < T)
    return tl.load(squares + tiles[:, None] * T + tokens[None, :], inside, other=0.0, cache_modifier=".cg")


@triton.jit
def keep(acc, scale, hidden, squares, tile, T, nil, N: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr,
         BLOCK_N: tl.constexpr):  # fmt: skip
    """Add sums (BLOCK_N, BLOCK_M) to a tile of the hidden state and note its squares."""
    tokens = nil + tl.arange(0, BLOCK_M)
    outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (outputs[:, None] < N) & (tokens[None, :] < T)
    if SCALED:
        acc *= tl.load(scale + outputs, outputs < N, other=0.0)[:, None]
    at = hidden + tokens[None, :] * N + outputs[:, None]
    new = (acc + tl.load(at, inside, other=0.0, cache_modifier=".cg").to(tl.float32)).to(hidden.dtype.element_ty)
    tl.store(at, new, inside)
    wide = new.to(tl.float32)  # zero outside
    tl.store(squares + tile * T + tokens, tl.sum(wide * wide, 0), tokens < T)


@triton.jit
def begin_phase(
    x, hidden, squares, pid, programs, T, nil, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Copy x (T, N) into the hidden state and note its squares."""
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tokens = nil + tl.arange(0, BLOCK_M)
    for tile in tl.range(pid, TILES, programs, disable_licm=True):
        outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (outputs[:, None] < N) & (tokens[None, :] < T)
        at = tokens[None, :] * N + outputs[:, None]
        new = tl.load(x + at, inside, other=0.0)
        tl.store(hidden + at, new, inside)
        wide = new.to(tl.float32)
        tl.store(squares + tile * T + tokens, tl.sum(wide * wide, 0), tokens < T)


@triton.jit
def add_phase(
    x, weight, scale, hidden, squares, partial, counter, pid, programs, ahead, wanted, T, nil, N: tl.constexpr,
    K: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """hidden (T, N) += x (T, K) times weight (N, K); squares (output tiles, T) of the result."""
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    AREA: tl.constexpr = BLOCK_N * BLOCK_M
    inner = nil * 16 + tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    UNITS: tl.constexpr = TILES * SPLITS
    if pid >= UNITS:
        ask_ahead(ahead, wanted, pid, programs, AHEAD)
    for unit in tl.range(pid, UNITS, programs, disable_licm=True):
        tile = unit // SPLITS
        acc, _ = product(
            x, weight, tile * BLOCK_N, (unit % SPLITS) * CHUNK, T, nil, N, K, False, BLOCK_M, BLOCK_N, BLOCK_K, CHUNK,
            EVEN, STAGES, WIDEN,
        )  # fmt: skip
        ask_ahead(ahead, wanted & (unit + programs >= UNITS), pid, programs, AHEAD)
        if SPLITS == 1:
            keep(acc, scale, hidden, squares, tile, T, nil, N, SCALED, BLOCK_M, BLOCK_N)
        else:
            tl.store(partial + unit * AREA + inner, acc)
            tl.debug_barrier()
            done = tl.atomic_add(counter + tile, 1, sem="acq_rel")
            if done == SPLITS - 1:
                total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
                for split in tl.static_range(SPLITS):
                    total += tl.load(partial + (tile * SPLITS + split) * AREA + inner, cache_modifier=".cg")
                keep(total, scale, hidden, squares, tile, T, nil, N, SCALED, BLOCK_M, BLOCK_N)
                tl.store(counter + tile, 0)


@triton.jit
def gate(
    acc, acc_up, raw, scale, out, tile, T, nil, eps, N: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Norm, gate and store of sums (BLOCK_N, BLOCK_M); raw: see `squares_of`."""
    tokens = nil + tl.arange(0, BLOCK_M)
    outputs = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (outputs[:, None] < N) & (tokens[None, :] < T)
    if SCALED:
        acc *= tl.load(scale + outputs, outputs < N, other=0.0)[:, None]
        acc_up *= tl.load(scale + N + outputs, outputs < N, other=0.0)[:, None]
    factor = (1.0 / tl.sqrt(tl.sum(raw, 0) / K + eps))[None, :]
    acc *= factor
    acc = acc / (1.0 + tl.exp(-acc)) * (acc_up * factor)
    tl.store(out + tokens[None, :] * N + outputs[:, None], acc.to(out.dtype.element_ty), inside)


@triton.jit
def gate_phase(
    x, weight, scale, squares, out, partial, counter, pid, programs, ahead, wanted, T, nil, eps, N: tl.constexpr,
    K: tl.constexpr, SQUARES: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """out (T, N): silu(gate) * up of the normed x (T, K), weight (2 N, K) gate first; SQUARES tiles of squares."""
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    AREA: tl.constexpr = BLOCK_N * BLOCK_M
    inner = nil * 16 + tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    UNITS: tl.constexpr = TILES * SPLITS
    if pid >= UNITS:
        ask_ahead(ahead, wanted, pid, programs, AHEAD)
    for unit in tl.range(pid, UNITS, programs, disable_licm=True):
        tile = unit // SPLITS
        raw = squares_of(squares, T, nil, SQUARES, BLOCK_M)  # in front of the product, where nobody waits for it
        acc, acc_up = product(
            x, weight, tile * BLOCK_N, (unit % SPLITS) * CHUNK, T, nil, N, K, True, BLOCK_M, BLOCK_N, BLOCK_K, CHUNK,
            EVEN, STAGES, WIDEN,
        )  # fmt: skip
        ask_ahead(ahead, wanted & (unit + programs >= UNITS), pid, programs, AHEAD)
        if SPLITS == 1:
            gate(acc, acc_up, raw, scale, out, tile, T, nil, eps, N, K, SCALED, BLOCK_M, BLOCK_N)
        else:
            tl.store(partial + unit * 2 * AREA + inner, acc)
            tl.store(partial + (unit * 2 + 1) * AREA + inner, acc_up)
            tl.debug_barrier()
            done = tl.atomic_add(counter + tile, 1, sem="acq_rel")
            if done == SPLITS - 1:
                acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
                acc_up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
                for split in tl.static_range(SPLITS):
                    at = partial + (tile * SPLITS + split) * 2 * AREA + inner
                    acc += tl.load(at, cache_modifier=".cg")
                    acc_up += tl.load(at + AREA, cache_modifier=".cg")
                gate(acc, acc_up, raw, scale, out, tile, T, nil, eps, N, K, SCALED, BLOCK_M, BLOCK_N)
                tl.store(counter + tile, 0)


@triton.jit
def turn_head(
    a, b, raw, scale, head_norm, cos, sin, slot, queries, keys, values, head, T, nil, eps, HQ: tl.constexpr,
    HKV: tl.constexpr, D: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Sums of a head's halves (D / 2, BLOCK_M) into its query, key or value."""
    HALF: tl.constexpr = D // 2
    tokens, at = nil + tl.arange(0, BLOCK_M), tl.arange(0, HALF)
    inside = (at[:, None] < HALF) & (tokens[None, :] < T)
    if SCALED:
        a *= tl.load(scale + head * D + at)[:, None]
        b *= tl.load(scale + head * D + HALF + at)[:, None]
    factor = (1.0 / tl.sqrt(tl.sum(raw, 0) / K + eps))[None, :]
    a *= factor
    b *= factor
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


@triton.jit
def qkv_phase(
    x, weight, scale, squares, head_norm, cos, sin, slot, queries, keys, values, partial, counter, pid, programs, ahead,
    wanted, T, nil, eps, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, K: tl.constexpr, SQUARES: tl.constexpr,
    SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    WIDEN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A unit is half a head times one of SPLITS parts of the inputs; the last one of a head turns and stores it."""
    HALF: tl.constexpr = D // 2
    N: tl.constexpr = (HQ + 2 * HKV) * D
    CHUNK: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    EVEN: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    AREA: tl.constexpr = HALF * BLOCK_M
    inner = nil * 16 + tl.arange(0, HALF)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    UNITS: tl.constexpr = (HQ + 2 * HKV) * 2 * SPLITS
    if pid >= UNITS:
        ask_ahead(ahead, wanted, pid, programs, AHEAD)
    for unit in tl.range(pid, UNITS, programs, disable_licm=True):
        acc, _ = product(
            x, weight, (unit // SPLITS) * HALF, (unit % SPLITS) * CHUNK, T, nil, N, K, False, BLOCK_M, HALF, BLOCK_K,
            CHUNK, EVEN, STAGES, WIDEN,
        )  # fmt: skip
        ask_ahead(ahead, wanted & (unit + programs >= UNITS), pid, programs, AHEAD)
        tl.store(partial + unit * AREA + inner, acc)
        tl.debug_barrier()
        head = unit // (2 * SPLITS)
        done = tl.atomic_add(counter + head, 1, sem="acq_rel")
        if done == 2 * SPLITS - 1:
            raw = squares_of(squares, T, nil, SQUARES, BLOCK_M)
            a = tl.zeros((HALF, BLOCK_M), tl.float32)
            b = tl.zeros((HALF, BLOCK_M), tl.float32)
            for split in tl.static_range(SPLITS):
                at = partial + (head * 2 * SPLITS + split) * AREA + inner
                a += tl.load(at, cache_modifier=".cg")
                b += tl.load(at + SPLITS * AREA, cache_modifier=".cg")
            turn_head(
                a, b, raw, scale, head_norm, cos, sin, slot, queries, keys, values, head, T, nil, eps, HQ, HKV, D, K,
                SCALED, BLOCK_M,
            )  # fmt: skip
            tl.store(counter + head, 0)


@triton.jit
def ask_places(
    keys, values, pages, limit, pid, T, width, rows, pages_a_row, HKV: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Ask for the keys and values that the program's first unit of `attend_phase` reads."""
    LINE: tl.constexpr = 1024 // keys.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = (D + LINE - 1) // LINE
    tiles = tl.cdiv(width * GROUP, BLOCK_M)
    if pid < rows * tiles * HKV * SPLITS:
        group = pid // SPLITS
        head = group % HKV
        row = group // HKV // tiles
        query = (group // HKV % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
        last = tl.max(tl.load(limit + row * width + query // GROUP, query < width * GROUP, other=0), 0)
        chunk, _ = parts_of(last, BLOCK_K, SPLITS)
        start = (pid % SPLITS) * chunk
        for first in range(start, tl.minimum(start + chunk, last), BLOCK_K):
            place = first + tl.arange(0, BLOCK_K)
            page = tl.load(pages + row.to(tl.int64) * pages_a_row + place // PAGE, place < last, other=0).to(tl.int64)
            at = ((page * PAGE + place % PAGE) * HKV + head) * D
            lines = tl.arange(0, LINES) * LINE
            ask(keys + at[:, None] + lines[None, :])
            ask(values + at[:, None] + lines[None, :])


@triton.jit
def attend_phase(
    q, keys, values, pages, limit, out, partial, logs, counter, pid, programs, width, rows, pages_a_row, scale,
    HKV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """See `triton_attend.attend`. A unit is one of SPLITS parts of the places, for a tile of a key head's queries."""
    HQ: tl.constexpr = HKV * GROUP
    tiles = tl.cdiv(width * GROUP, BLOCK_M)
    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_K)
    for unit in tl.range(pid, rows * tiles * HKV * SPLITS, programs, disable_licm=True):
        split = unit % SPLITS
        group = unit // SPLITS
        head = group % HKV
        row = group // HKV // tiles
        query = (group // HKV % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = query < width * GROUP
        token = row * width + query // GROUP
        index = token * HQ + head * GROUP + query % GROUP
        seen = tl.load(limit + token, inside, other=0)
        last = tl.max(seen, 0)
        chunk, parts = parts_of(last, BLOCK_K, SPLITS)
        if split < parts:
            start = split * chunk
            end = tl.minimum(start + chunk, last)
            queries = tl.load(q + index[:, None] * D + d[None, :], inside[:, None], other=0.0, cache_modifier=".cg")
            highest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            acc = tl.zeros((BLOCK_M, D), tl.float32)
            table = pages + row.to(tl.int64) * pages_a_row
            for first in tl.range(start, end, BLOCK_K, num_stages=STAGES):
                place = first + n
                there = place < end
                page = tl.load(table + place // PAGE, there, other=0).to(tl.int64)
                at = ((page * PAGE + place % PAGE) * HKV + head) * D
                # Slots nobody may see can hold anything, NaN too: zero before the products.
                key = tl.load(keys + at[:, None] + d[None, :], there[:, None], other=0.0)
                value = tl.load(values + at[:, None] + d[None, :], there[:, None], other=0.0)
                if WIDEN:
                    scores = tl.dot(queries.to(tl.float32), tl.trans(key.to(tl.float32)), input_precision="ieee")
                else:
                    scores = tl.dot(queries, tl.trans(key))
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
                highest = above
            acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            at_part = index * SPLITS
            log = tl.where(total == 0.0, -float("inf"), highest + tl.log2(total))
            tl.store(logs + at_part + split, log, inside)
            tl.store(partial + (at_part + split)[:, None] * D + d[None, :], acc, inside[:, None])
            tl.debug_barrier()
            done = tl.atomic_add(counter + group, 1, sem="acq_rel")
            if done == parts - 1:
                whole = add_parts(partial, logs, at_part, inside, parts, D, BLOCK_M, SPLITS)
                tl.store(out + index[:, None] * D + d[None, :], whole.to(out.dtype.element_ty), inside[:, None])
                tl.store(counter + group, 0)


@triton.jit(do_not_specialize=["T", "rows", "slots", "pages_a_row", "layer_begin", "layer_end", "polls"])
def layers(
    x, qkv, out, gate_up, down, qkv_scale, out_scale, gate_up_scale, down_scale, head_norm, cos, sin, slot, limit,
    pages, keys, values, hidden, squares, queries, attended, inner, partial, logs, state,
    T, rows, slots, pages_a_row, layer_begin, layer_end, polls, scale, eps,
    H: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, FFN: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr, WIDEN: tl.constexpr, PHASE: tl.constexpr, COUNTS: tl.constexpr, BLOCK_M: tl.constexpr,
    QKV_K: tl.constexpr, QKV_SPLITS: tl.constexpr, QKV_STAGES: tl.constexpr, QKV_WARM: tl.constexpr,
    ATTEND_M: tl.constexpr, ATTEND_K: tl.constexpr, ATTEND_SPLITS: tl.constexpr, ATTEND_STAGES: tl.constexpr,
    ATTEND_WARM: tl.constexpr,
    OUT_N: tl.constexpr, OUT_K: tl.constexpr, OUT_SPLITS: tl.constexpr, OUT_STAGES: tl.constexpr,
    OUT_WARM: tl.constexpr,
    GATE_N: tl.constexpr, GATE_K: tl.constexpr, GATE_SPLITS: tl.constexpr, GATE_STAGES: tl.constexpr,
    GATE_EARLY: tl.constexpr, GATE_WARM: tl.constexpr,
    DOWN_N: tl.constexpr, DOWN_K: tl.constexpr, DOWN_SPLITS: tl.constexpr, DOWN_STAGES: tl.constexpr,
    DOWN_WARM: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """x (T, H) through layers layer_begin .. layer_end - 1 into hidden (T, H), its squares (down tiles, T) beside it.

    qkv, out, gate_up, down: (L, outputs, inputs), their scales (L, outputs) if SCALED; head_norm (L, HQ + HKV, D);
    cos, sin (T, D); slot, limit (T,); pages (rows, P) at a distance of pages_a_row; keys, values (L, slots, HKV, D).
    queries, attended (T, HQ D), inner (T, FFN), partial, logs: scratch. state: zeros, left as zeros but for FAILED.
    scale: of the scores, times log2(e). polls: looks at a barrier before a program gives up. PHASE: one phase of one
    layer alone, without barriers (a launch orders as well), or WHOLE. *_WARM: lines of 128 bytes of each weight row
    asked for ahead, powers of two or 0; GATE_EARLY: of gate_up, while attention runs; ATTEND_WARM: ask for keys and
    values too. SOON: ask as soon as a program's own weights are there, not only behind its sums. All programs have to
    be resident at once in a WHOLE launch.
    """
    ALL: tl.constexpr = PHASE == -1
    INNER: tl.constexpr = HQ * D
    QKV_N: tl.constexpr = INNER + 2 * HKV * D
    OUT_TILES: tl.constexpr = (H + OUT_N - 1) // OUT_N
    DOWN_TILES: tl.constexpr = (H + DOWN_N - 1) // DOWN_N
    NOW: tl.constexpr = 1 if ALL and SOON else 0
    THEN: tl.constexpr = 1 - NOW
    QKV_AHEAD: tl.constexpr = (QKV_N, H, False, D // 2, QKV_K, QKV_SPLITS, 0, QKV_WARM * NOW)
    OUT_AHEAD: tl.constexpr = (H, INNER, False, OUT_N, OUT_K, OUT_SPLITS, 0, OUT_WARM * NOW)
    GATE_AHEAD: tl.constexpr = (FFN, H, True, GATE_N, GATE_K, GATE_SPLITS, GATE_EARLY, GATE_WARM * NOW)
    DOWN_AHEAD: tl.constexpr = (H, FFN, False, DOWN_N, DOWN_K, DOWN_SPLITS, 0, DOWN_WARM * NOW)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    counter = state + COUNTERS
    width = T // rows
    target = programs
    nil = tl.zeros((), tl.int32)
    if PHASE == -1 or PHASE == 0:
        begin_phase(x, hidden, squares, pid, programs, T, nil, H, BLOCK_M, DOWN_N)
    if ALL:
        arrive(state)
        first = qkv + (tl.zeros((), tl.int64) + layer_begin) * (QKV_N * H)
        ask_product(first, pid, programs, QKV_N, H, False, D // 2, QKV_K, QKV_SPLITS, 0, QKV_WARM)
        nil = wait(state, target, polls)
    for number in tl.range(layer_begin, layer_end, disable_licm=True):
        layer = tl.zeros((), tl.int64) + number
        w_qkv, w_out = qkv + layer * (QKV_N * H), out + layer * (H * INNER)
        w_gate, w_down = gate_up + layer * (2 * FFN * H), down + layer * (H * FFN)
        s_qkv, s_out, s_gate, s_down = qkv_scale, out_scale, gate_up_scale, down_scale
        if SCALED:
            s_qkv, s_out = qkv_scale + layer * QKV_N, out_scale + layer * H
            s_gate, s_down = gate_up_scale + layer * (2 * FFN), down_scale + layer * H
        its_keys, its_values = keys + layer * slots * (HKV * D), values + layer * slots * (HKV * D)
        following, more = w_qkv + QKV_N * H, number + 1 < layer_end
        if PHASE == -1 or PHASE == 1:
            qkv_phase(
                hidden, w_qkv, s_qkv, squares, head_norm + layer * ((HQ + HKV) * D), cos, sin, slot, queries, its_keys,
                its_values, partial, counter, pid, programs, w_out, True, T, nil, eps, HQ, HKV, D, H, DOWN_TILES,
                SCALED, BLOCK_M, QKV_K, QKV_SPLITS, QKV_STAGES, WIDEN, OUT_AHEAD,
            )  # fmt: skip
        if ALL:
            arrive(state)
            if ATTEND_WARM:
                ask_places(
                    its_keys, its_values, pages, limit, pid, T, width, rows, pages_a_row, HKV, HQ // HKV, D, PAGE,
                    ATTEND_M, ATTEND_K, ATTEND_SPLITS,
                )  # fmt: skip
            ask_product(w_out, pid, programs, H, INNER, False, OUT_N, OUT_K, OUT_SPLITS, 0, OUT_WARM * THEN)
            ask_product(w_gate, pid, programs, FFN, H, True, GATE_N, GATE_K, GATE_SPLITS, 0, GATE_EARLY)
            target += programs
            nil = wait(state, target, polls)
        if PHASE == -1 or PHASE == 2:
            attend_phase(
                queries, its_keys, its_values, pages, limit, attended, partial, logs, counter, pid, programs, width,
                rows, pages_a_row, scale, HKV, HQ // HKV, D, PAGE, ATTEND_M, ATTEND_K, ATTEND_SPLITS, ATTEND_STAGES,
                WIDEN,
            )  # fmt: skip
        if ALL:
            arrive(state)
            target += programs
            nil = wait(state, target, polls)
        if PHASE == -1 or PHASE == 3:
            add_phase(
                attended, w_out, s_out, hidden, squares, partial, counter, pid, programs, w_gate, True, T, nil, H,
                INNER, SCALED, BLOCK_M, OUT_N, OUT_K, OUT_SPLITS, OUT_STAGES, WIDEN, GATE_AHEAD,
            )  # fmt: skip
        if ALL:
            arrive(state)
            ask_product(w_gate, pid, programs, FFN, H, True, GATE_N, GATE_K, GATE_SPLITS, GATE_EARLY, GATE_WARM * THEN)
            target += programs
            nil = wait(state, target, polls)
        if PHASE == -1 or PHASE == 4:
            gate_phase(
                hidden, w_gate, s_gate, squares, inner, partial, counter, pid, programs, w_down, True, T, nil, eps,
                FFN, H, OUT_TILES, SCALED, BLOCK_M, GATE_N, GATE_K, GATE_SPLITS, GATE_STAGES, WIDEN, DOWN_AHEAD,
            )  # fmt: skip
        if ALL:
            arrive(state)
            ask_product(w_down, pid, programs, H, FFN, False, DOWN_N, DOWN_K, DOWN_SPLITS, 0, DOWN_WARM * THEN)
            target += programs
            nil = wait(state, target, polls)
        if PHASE == -1 or PHASE == 5:
            add_phase(
                inner, w_down, s_down, hidden, squares, partial, counter, pid, programs, following, more, T, nil, H,
                FFN, SCALED, BLOCK_M, DOWN_N, DOWN_K, DOWN_SPLITS, DOWN_STAGES, WIDEN, QKV_AHEAD,
            )  # fmt: skip
        if ALL:
            if more:
                arrive(state)
                ask_product(following, pid, programs, QKV_N, H, False, D // 2, QKV_K, QKV_SPLITS, 0, QKV_WARM * THEN)
                target += programs
                nil = wait(state, target, polls)
    if ALL:
        leave(state, programs, COUNTS, 256)
