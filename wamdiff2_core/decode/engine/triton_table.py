"""How the Triton kernels cut their work: a table of measured choices, and a rule for shapes nobody measured.

Nothing is tuned at run time. `python benchmarks/engine_kernels.py --tune` measures on a GPU and prints the entries of
TABLE; shapes that are not in it go by `derive`.
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

    splits: programs along the places. fused: the last of them to finish adds up, else a second kernel does.
    """

    block_m: int
    block_k: int
    splits: int
    warps: int
    stages: int
    fused: bool


Key = tuple[str, int, int, int, int]
"""(kind, outputs N, inputs K, bucket, bytes of a weight); kind: norm, gated, add, choose."""

TABLE: dict[Key, Tiles] = {}

ATTEND: dict[tuple[int, int, int, int], Chunks] = {}
"""Measured cuts of attention: (rows, queries of a row and key head, key heads, head size)."""
MOST_SPLITS = 16
"""What scratch is made for; splits are powers of two."""


def bucket_of(tokens: int) -> int:
    """Smallest bucket that holds so many tokens; the largest one for more."""
    return next((size for size in BUCKETS if tokens <= size), BUCKETS[-1])


def tiles_of(
    kind: str, outputs: int, inputs: int, bucket: int, weight_bytes: int, value_bytes: int = 2,
    shared: int = HOPPER_SHARED,
) -> Tiles:  # fmt: skip
    """The cut of a product: measured if the table has it, derived if not. The table is for Hopper and bfloat16."""
    found = TABLE.get((kind, outputs, inputs, bucket, weight_bytes))
    if found is not None and value_bytes == 2 and shared >= HOPPER_SHARED:
        return found
    return derive(kind, outputs, inputs, bucket, weight_bytes, value_bytes, shared)


def derive(
    kind: str, outputs: int, inputs: int, bucket: int, weight_bytes: int, value_bytes: int = 2,
    shared: int = HOPPER_SHARED,
) -> Tiles:  # fmt: skip
    """Enough programs for all processors, at least four turns of the loop for each, as much in flight as fits."""
    rows = 2 if kind == "gated" else 1
    block_n = 128 if kind == "choose" or bucket == 128 else 64
    block_k = 128 if weight_bytes * block_n <= 128 else 64
    if value_bytes == 4:  # no tensor cores: small blocks, or the registers overflow
        block_n, block_k = 32, 32
    block_n = min(block_n // rows, max(16, 1 << (outputs - 1).bit_length()))
    block_k = min(block_k, max(16, 1 << (inputs - 1).bit_length()))
    tiles = -(-outputs // block_n)
    splits = 1
    if kind != "choose":
        while tiles * splits * 2 <= _PROCESSORS and inputs // (splits * 2) >= 4 * block_k:
            splits *= 2
    warps = 8 if bucket * block_n * rows >= 128 * 128 else 4
    turn = block_k * (rows * block_n * weight_bytes + bucket * value_bytes)
    stages = max(1, min(5, (shared - _SPARE) // turn, -(-inputs // (splits * block_k)) + 1))
    return Tiles(block_n, block_k, splits, warps, stages)


def wide(weight_bytes: int, value_bytes: int, gated: bool, shared: int = HOPPER_SHARED) -> Tiles:
    """The cut of products of more tokens than the largest bucket (the prompt): no splits, so no scratch."""
    if value_bytes == 4:
        return Tiles(16 if gated else 32, 32, 1, 4, 2)
    stages = 3 if weight_bytes == 1 else 4
    return Tiles(64 if gated else 128, 64, 1, 8, stages if shared >= HOPPER_SHARED else 2)


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
    block_m, block_k = 128 if queries > 64 else 64, 64
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
