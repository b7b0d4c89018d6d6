"""How the Triton kernels cut their work: a table of measured choices, and a rule for shapes nobody measured.

Nothing is tuned at run time. `python benchmarks/engine_kernels.py --tune --pdl` measures on a GPU and prints the
entries of TABLE; shapes that are not in it go by `derive`.
"""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = (16, 32, 64, 128)
"""Numbers of tokens that kernels are compiled for; T tokens take the smallest bucket that holds them."""
HOPPER_SHARED = 227 * 1024
"""Bytes of shared memory a program may have; smaller devices give less."""
_SPARE = 27 * 1024  # beside the stages: sums on their way to memory
_PROCESSORS = 132


@dataclass(frozen=True)
class Tiles:
    """One product's cut. A program makes block_n outputs of all tokens from 1 / splits of the inputs.

    block_k: inputs a turn of the loop; stages: turns that are loaded ahead; flip: the weight is the left operand, so
    that the tensor cores' tall side lies along the outputs. In a gated product block_n counts pairs of outputs.
    """

    block_n: int
    block_k: int
    splits: int
    warps: int
    stages: int
    flip: bool = False


@dataclass(frozen=True)
class Chunks:
    """The cut of one attention call: block_m queries (heads of a group beside one another), block_k places a turn.

    splits: programs along the places. fused: the last of them to finish adds up, else a second kernel does. ahead: the
    first keys and values are read before the kernel in front has ended, if they are older than the pass.
    """

    block_m: int
    block_k: int
    splits: int
    warps: int
    stages: int
    fused: bool
    ahead: bool = False


@dataclass(frozen=True)
class Flow:
    """The cut of a product whose weights come in ahead (gluon_product).

    block_k: inputs a turn, a multiple of 128 for 8-bit weights; stages: turns in shared memory; early: the next kernel
    may begin when the last loads are under way, not only when they are there; rows: outputs, or pairs of them, that a
    program makes, at most 64, a divisor of all.
    """

    block_k: int
    splits: int
    stages: int
    early: bool = False
    warps: int = 4
    rows: int = 64


Key = tuple[str, int, int, int, int]
"""(kind, outputs N, inputs K, bucket, bytes of a weight); kind: norm, gated, add, choose, heads."""

TABLE: dict[Key, Tiles] = {
    ("heads", 4096, 2048, 16, 2): Tiles(64, 128, 2, 4, 8, True),  # 8.8 us
    ("add", 2048, 2048, 16, 2): Tiles(64, 128, 4, 4, 4, True),  # 5.7 us
    ("add", 2048, 6144, 16, 2): Tiles(64, 128, 3, 4, 6, True),  # 9.8 us
    ("gated", 6144, 2048, 16, 2): Tiles(64, 128, 1, 4, 4, True),  # 16.6 us
    ("choose", 151936, 2048, 16, 2): Tiles(128, 64, 1, 4, 8, True),  # 157.9 us
    ("heads", 4096, 2048, 32, 2): Tiles(64, 256, 2, 4, 4, True),  # 9.7 us
    ("add", 2048, 2048, 32, 2): Tiles(64, 128, 4, 4, 5, True),  # 5.7 us
    ("add", 2048, 6144, 32, 2): Tiles(64, 128, 4, 4, 5, True),  # 9.8 us
    ("gated", 6144, 2048, 32, 2): Tiles(64, 64, 1, 4, 6, True),  # 16.1 us
    ("choose", 151936, 2048, 32, 2): Tiles(128, 128, 1, 4, 5, True),  # 159.5 us
    ("heads", 4096, 2048, 64, 2): Tiles(64, 128, 2, 4, 6, True),  # 11.2 us
    ("add", 2048, 2048, 64, 2): Tiles(32, 128, 2, 4, 5),  # 6.5 us
    ("add", 2048, 6144, 64, 2): Tiles(64, 128, 4, 8, 4, True),  # 11.8 us
    ("gated", 6144, 2048, 64, 2): Tiles(64, 128, 1, 4, 4, True),  # 18.3 us
    ("choose", 151936, 2048, 64, 2): Tiles(128, 64, 1, 4, 3, True),  # 167.7 us
    ("heads", 4096, 2048, 128, 2): Tiles(64, 64, 2, 8, 8, True),
    ("add", 2048, 2048, 128, 2): Tiles(32, 64, 2, 8, 6),  # 7.9 us
    ("add", 2048, 6144, 128, 2): Tiles(64, 64, 4, 8, 8),  # 14.5 us
    ("gated", 6144, 2048, 128, 2): Tiles(64, 64, 1, 8, 6),  # 19.6 us
    ("choose", 151936, 2048, 128, 2): Tiles(128, 64, 1, 8, 3),  # 193.8 us
    ("choose", 151936, 2048, 16, 1): Tiles(128, 128, 1, 4, 4, True),
    ("choose", 151936, 2048, 64, 1): Tiles(128, 128, 1, 4, 4, True),
    ("choose", 151936, 2048, 128, 1): Tiles(128, 128, 1, 8, 4, True),
}
"""Measured on an H200 at the sizes of Qwen3-VL-2B, microseconds alone in a graph: `engine_kernels.py --tune --pdl`."""

ATTEND: dict[tuple[int, int, int, int], Chunks] = {
    (1, 2, 8, 128): Chunks(16, 128, 16, 4, 3, False),  # 8.2 us
    (1, 8, 8, 128): Chunks(16, 128, 16, 4, 3, False),  # one token's: the tile is the same
    (1, 16, 8, 128): Chunks(16, 128, 16, 4, 3, False),
    (1, 64, 8, 128): Chunks(64, 64, 8, 8, 2, False, True),
    (1, 128, 8, 128): Chunks(64, 64, 8, 8, 2, False, True),
    (3, 64, 8, 128): Chunks(64, 64, 8, 4, 2, False),
}
"""Measured cuts of attention: (rows, queries of a row and key head, key heads, head size)."""
FLOW: dict[Key, Flow | None] = {
    ("heads", 4096, 2048, 16, 2): Flow(128, 2, 8),
    ("add", 2048, 2048, 16, 2): Flow(128, 4, 5, True),
    ("add", 2048, 6144, 16, 2): Flow(128, 3, 5, True),
    ("gated", 6144, 2048, 16, 2): Flow(128, 1, 5, rows=48),
    ("heads", 4096, 2048, 32, 2): Flow(64, 2, 10),
    ("add", 2048, 2048, 32, 2): Flow(128, 4, 4, True),
    ("add", 2048, 6144, 32, 2): Flow(128, 4, 8, True),
    ("gated", 6144, 2048, 32, 2): Flow(128, 1, 5, True),
    ("heads", 4096, 2048, 64, 2): Flow(128, 2, 6),
    ("add", 2048, 2048, 64, 2): None,
    ("add", 2048, 6144, 64, 2): Flow(128, 4, 6),
    ("gated", 6144, 2048, 64, 2): Flow(128, 1, 4, True, rows=48),
    ("heads", 4096, 2048, 128, 2): Flow(64, 2, 4, True, 8),
    ("heads", 4096, 2048, 16, 1): Flow(256, 2, 5),
    ("add", 2048, 2048, 16, 1): Flow(128, 4, 5, True),
    ("add", 2048, 6144, 16, 1): Flow(256, 6, 4, True),
    ("gated", 6144, 2048, 16, 1): Flow(128, 2, 5, True),
    ("heads", 4096, 2048, 32, 1): Flow(256, 2, 5),
    ("add", 2048, 2048, 32, 1): None,
    ("add", 2048, 6144, 32, 1): Flow(256, 6, 3, True),
    ("gated", 6144, 2048, 32, 1): Flow(128, 1, 4, True),
    ("heads", 4096, 2048, 64, 1): Flow(256, 2, 4),
    ("add", 2048, 2048, 64, 1): Flow(128, 4, 5, True),
    ("add", 2048, 6144, 64, 1): Flow(256, 4, 4),
    ("gated", 6144, 2048, 64, 1): Flow(128, 1, 6, rows=48),
    ("heads", 4096, 2048, 128, 1): Flow(128, 2, 5, False, 8),
    ("add", 2048, 2048, 128, 1): Flow(128, 4, 5, True, 8),
    ("add", 2048, 6144, 128, 1): Flow(128, 4, 5, True, 8),
    ("gated", 6144, 2048, 128, 1): Flow(128, 1, 4, True, 8, 48),
}
"""Cuts of products whose weights come in ahead, measured in steps of 28 or 10 layers: `benchmarks/engine_step_tune.py`.

None: slower than the plain kernel. Others go by a rule, see `flow_of`.
"""
_FLOW_SHARED = 200 * 1024
GLUON = ("3.6",)
"""Releases of Triton with which products that take weights ahead have run on a GPU."""
MOST_SPLITS = 16
"""What scratch is made for. Those of attention are powers of two."""


def dependent(arch: int) -> bool:
    """Whether kernels are launched dependent on one another (TritonOps, pdl) on a GPU of this architecture."""
    return arch >= 90


def why_no_flow(arch: int, triton: str) -> str | None:
    """Why products take no weights ahead on a GPU of this architecture with this release of Triton; None: they do."""
    if arch // 10 != 9:
        return "they are made for Hopper's tensor cores"
    if not triton.startswith(tuple(f"{one}." for one in GLUON)):
        known = ", ".join(GLUON)
        return f"they are made for Gluon of triton {known}, which changes from release to release; found {triton}"
    return None


def bucket_of(tokens: int) -> int:
    """Smallest bucket that holds so many tokens; the largest one for more."""
    return next((size for size in BUCKETS if tokens <= size), BUCKETS[-1])


def tiles_of(
    kind: str, outputs: int, inputs: int, bucket: int, weight_bytes: int, value_bytes: int = 2,
    shared: int = HOPPER_SHARED, fixed_n: int = 0,
) -> Tiles:  # fmt: skip
    """The cut of a product: measured if the table has it, derived if not. The table is for Hopper and bfloat16.

    fixed_n: block_n that the kernel asks for (kind heads: half a head), 0: none.
    """
    found = TABLE.get((kind, outputs, inputs, bucket, weight_bytes))
    if found is not None and value_bytes == 2 and shared >= HOPPER_SHARED:
        return found
    return derive(kind, outputs, inputs, bucket, weight_bytes, value_bytes, shared, fixed_n)


def flow_of(kind: str, outputs: int, inputs: int, bucket: int, weight_bytes: int = 2) -> Flow | None:
    """The cut of a product whose weights come in ahead; None: not made for these sizes."""
    key = (kind, outputs, inputs, bucket, weight_bytes)
    if key in FLOW:
        return FLOW[key]
    # Where these cuts were slower than the plain kernels: with many tokens there is no room for weights ahead (at the
    # sizes of Qwen3-VL-2B); 8-bit ones for gate, up and down with few tokens (at 4B's).
    slower = bucket > 64 if weight_bytes > 1 else bucket <= 32 and kind != "heads"
    # Two 8-bit numbers that share a word lie 64 inputs apart.
    rows, block_k, splits = 2 if kind == "gated" else 1, 128, 1
    if outputs % 64 or inputs % block_k or kind == "choose" or slower:
        return None
    while outputs // 64 * splits * 2 <= _PROCESSORS and inputs // (splits * 2) >= 4 * block_k:
        splits *= 2
    if inputs % (splits * block_k):
        return None
    turns = inputs // (splits * block_k)
    stages = min(10, _FLOW_SHARED // (block_k * (64 * rows * weight_bytes + 2 * bucket)), turns)
    return Flow(block_k, splits, stages, kind != "heads", warps=8 if bucket == 128 else 4) if stages >= 3 else None


def derive(
    kind: str, outputs: int, inputs: int, bucket: int, weight_bytes: int, value_bytes: int = 2,
    shared: int = HOPPER_SHARED, fixed_n: int = 0,
) -> Tiles:  # fmt: skip
    """Enough programs for all processors, at least four turns of the loop for each, as much in flight as fits.

    Outputs lie along the tensor cores' tall side wherever there are 64 of them: on an H200 up to twice as fast.
    """
    rows = 2 if kind == "gated" else 1
    if value_bytes == 4:  # no tensor cores: small blocks, or the registers overflow
        block_n, block_k = 32 // rows, 32
    else:
        block_n, block_k = 128 if kind == "choose" else 64, 128 if bucket <= 32 or weight_bytes == 1 else 64
    block_n = fixed_n or min(block_n, max(16, 1 << (outputs - 1).bit_length()))
    block_k = min(block_k, max(16, 1 << (inputs - 1).bit_length()))
    tiles = -(-outputs // block_n)
    splits = 1
    if kind != "choose":
        while tiles * splits * 2 <= _PROCESSORS and inputs // (splits * 2) >= 4 * block_k:
            splits *= 2
    large = 128 * 64 if weight_bytes == 1 else 128 * 128  # 8-bit weights pass through registers
    warps = 8 if bucket * block_n * rows >= large or (kind == "heads" and bucket == 128) else 4
    turn = block_k * (rows * block_n * weight_bytes + bucket * value_bytes)
    stages = max(1, min(5, (shared - _SPARE) // turn, -(-inputs // (splits * block_k)) + 1))
    return Tiles(block_n, block_k, splits, warps, stages, flip=value_bytes == 2 and block_n >= 64)


def chunks_of(
    rows: int, width: int, group: int, kv_heads: int, places: int, head_dim: int, splitting: bool,
    value_bytes: int = 2, shared: int = HOPPER_SHARED,
) -> Chunks:  # fmt: skip
    """The cut of attention for `rows` rows of `width` tokens that may see up to `places` places.

    It hangs on shapes alone: one graph serves every length. splitting: False where no scratch is kept for it.
    """
    queries = width * group
    found = ATTEND.get((rows, queries, kv_heads, head_dim))
    if found is not None and splitting and value_bytes == 2 and shared >= HOPPER_SHARED:
        return found
    block_m, block_k = 128 if queries > 64 and splitting else 64, 64
    if value_bytes == 4:
        block_m, block_k = 32, 32
    block_m = min(block_m, max(16, 1 << (queries - 1).bit_length()))
    tiles = -(-queries // block_m)
    programs = rows * kv_heads * tiles
    splits = 1
    most = -(-places // block_k)
    # Sums of a split are as large as its queries: many queries want few splits.
    limit = MOST_SPLITS if block_m <= 32 else 8
    while splitting and splits * 2 <= limit and splits < most and programs * splits * 2 <= 2 * _PROCESSORS:
        splits *= 2
    # One program that adds up many queries is slow, a second kernel is not; but that one wants whole groups in a tile.
    fused = splits * block_m <= 256 or block_m % group != 0
    turn = 2 * block_k * head_dim * value_bytes
    stages = max(1, min(3, (shared - _SPARE - block_m * head_dim * value_bytes) // turn))
    return Chunks(block_m, block_k, splits, 8 if block_m == 128 else 4, min(stages, 2 if head_dim >= 128 else 3), fused)
