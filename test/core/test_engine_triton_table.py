"""How kernels cut their work: entries of the tables fit their sizes and a Hopper processor, and so does the rule."""

from __future__ import annotations

import re
from itertools import product

import pytest

from wamdiff2_core.decode.engine.triton_table import (
    ATTEND,
    BUCKETS,
    FLOW,
    HOPPER_SHARED,
    MOST_SPLITS,
    TABLE,
    Flow,
    Key,
    chunks_of,
    flow_of,
    why_no_flow,
)

SHAPES = {  # hidden, query heads, ffn of Qwen3-VL-2B, 4B, 8B, and of a model that fits no tile
    "2b": (2048, 16, 6144), "4b": (2560, 32, 9728), "8b": (4096, 32, 12_288), "odd": (1000, 5, 2776),
}  # fmt: skip


def check(key: Key, cut: Flow) -> None:
    kind, outputs, inputs, bucket, nbytes = key
    assert outputs % cut.rows == 0 and 16 <= cut.rows <= 64 and (kind != "heads" or cut.rows == 64)
    assert inputs % (cut.splits * cut.block_k) == 0
    turns = inputs // (cut.splits * cut.block_k)
    # All stages but one are filled before the loop begins: there must be as many turns.
    assert 2 <= cut.stages <= turns + 1
    pairs = 2 if kind == "gated" else 1
    shared = cut.stages * cut.block_k * (64 * pairs * nbytes + 2 * bucket)
    assert shared <= HOPPER_SHARED - 16 * 1024
    # Four warps share the outputs; more of them share tokens, of which each takes at least 8.
    assert cut.warps == (8 if bucket == 128 else 4)
    # Two 8-bit numbers of a word lie 64 inputs apart.
    assert nbytes == 2 or cut.block_k % 128 == 0


@pytest.mark.parametrize(
    ("arch", "release", "told"),
    [
        (90, "3.6.0", None), (90, "3.6.1+git", None), (90, "3.60.0", "found 3.60.0"),
        (90, "3.7.1", "triton 3.6, .*3.7.1"), (90, "3.5.1", "found 3.5.1"), (80, "3.6.0", "Hopper"),
        (100, "3.6.0", "Hopper"),
    ],
)  # fmt: skip
def test_weights_come_in_ahead_only_where_they_were_seen_to(arch: int, release: str, told: str | None) -> None:
    problem = why_no_flow(arch, release)
    assert problem is None if told is None else re.search(told, problem or "")


@pytest.mark.parametrize("key", FLOW, ids=str)
def test_measured_cuts_of_weights_that_come_in_ahead(key: Key) -> None:
    cut = FLOW[key]
    assert key[3] in BUCKETS and key[4] in (1, 2) and flow_of(*key) == cut
    if cut is not None:
        check(key, cut)


@pytest.mark.parametrize("name", SHAPES)
def test_the_rule_for_weights_that_come_in_ahead(name: str) -> None:
    hidden, heads, ffn = SHAPES[name]
    products = [
        ("heads", (heads + 16) * 128, hidden), ("add", hidden, heads * 128), ("gated", ffn, hidden),
        ("add", hidden, ffn), ("choose", 151_936, hidden),
    ]  # fmt: skip
    found = 0
    for (kind, outputs, inputs), bucket, nbytes in product(products, BUCKETS, (1, 2)):
        cut = flow_of(kind, outputs, inputs, bucket, nbytes)
        if cut is not None:
            found += 1
            check((kind, outputs, inputs, bucket, nbytes), cut)
    assert (found == 0) == (name == "odd")
    assert flow_of("choose", 151_936, hidden, 32) is None


def test_measured_cuts_of_attention_and_products() -> None:
    for (rows, queries, kv_heads, size), cut in ATTEND.items():
        assert cut.splits <= MOST_SPLITS and cut.splits & (cut.splits - 1) == 0
        assert 2 * size * (cut.block_m + 2 * cut.stages * cut.block_k) <= HOPPER_SHARED
        assert chunks_of(rows, queries // 2, 2, kv_heads, 2560, size, True) == cut
        # A second kernel adds up, a token's heads of a group in one tile.
        assert cut.fused or cut.block_m % 2 == 0
    for (kind, outputs, _, bucket, nbytes), tiles in TABLE.items():
        turn = tiles.block_k * ((2 if kind == "gated" else 1) * tiles.block_n * nbytes + 2 * bucket)
        assert turn * (tiles.stages - 1) <= HOPPER_SHARED and (kind != "choose" or tiles.splits == 1)
        assert outputs >= tiles.block_n and bucket in BUCKETS


def test_prompts_take_tiles_of_64_queries_and_share_no_places() -> None:
    cut = chunks_of(1, 1952, 2, 8, 2560, 128, False)
    assert (cut.block_m, cut.splits, cut.warps, cut.ahead) == (64, 1, 4, False)
