"""Attention of the Triton kernels against the plain twin in fp32."""

from __future__ import annotations

import pytest
import torch
from triton_cases import BF16, DEVICE, FP32, Paged, make_ops, near, paged, plain_attention, random

import triton  # isort: skip  (behind triton_cases, which asks for the interpreter)
import triton.language as tl  # isort: skip

from wamdiff2_core.decode.engine import triton_attend, triton_ops
from wamdiff2_core.decode.engine.ops import LayerWeights
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, quantise, quantise_layer
from wamdiff2_core.decode.engine.triton_table import Chunks

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, at infinities

DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
CUTS = pytest.mark.parametrize(
    "cut",
    [
        Chunks(16, 16, 1, 4, 2, False),
        Chunks(16, 16, 4, 4, 2, True),
        Chunks(32, 16, 8, 4, 2, False),
        Chunks(16, 16, 4, 4, 2, False, True),
    ],
    ids=["whole", "fused", "combined", "ahead"],
)
PAGE = 4


def attend(case: Paged, dtype: torch.dtype, page: int = PAGE, ops=None) -> torch.Tensor:
    shape = case.shape
    ops = ops or make_ops(page, dtype, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    got = ops.attend(case.q, case.keys, case.values, case.pages, case.limit, shape)
    assert got.dtype == case.q.dtype and not ops._counter.any()
    return got


def close(got: torch.Tensor, case: Paged, dtype: torch.dtype) -> None:
    """The twin in fp32 on the same rounded inputs, up to the rounding of `dtype`."""
    near(got, plain_attention(case, PAGE).to(dtype), dtype)


@triton.jit
def least_new(limits, out, width, ROW: tl.constexpr):
    tl.store(out, triton_attend.first_new(limits, width, ROW))


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("kind", ["narrow", "wide", "first"])
def test_what_is_read_ahead_is_older_than_the_pass(kind: str, by_block: bool) -> None:
    """The bound lies before all places that a pass appends to, however its tokens see one another; 0 if none counts."""
    for size, held, begin, prompt, rolled in ((1, 9, 0, 3, True), (4, 40, 8, 5, True), (8, 100, 16, 8, False)):
        noisy = [held + begin + size] * size  # limits, see Moves.take
        places = list(range(held + begin, held + begin + size))
        if kind == "wide":
            clean = [held + begin - size + at for at in range(size)]
            sees = [held + begin if by_block else one + 1 for one in clean]
            noisy, places = ((sees if rolled else [0] * size) + noisy, (clean if rolled else []) + places)
        if kind == "first":  # PromptBuffers.tokens: padded by two
            fresh = list(range(held, held + prompt))
            seen = [min((one // size + 1) * size, held + prompt) if by_block else one + 1 for one in fresh]
            noisy, places = [*seen, 0, 0, *([held + prompt + size] * size)], fresh
        limits = torch.tensor(noisy, dtype=torch.int32, device=DEVICE)
        out = torch.full((1,), -1, dtype=torch.int32, device=DEVICE)
        row = 1 << (len(noisy) - 1).bit_length()
        least_new[(1,)](limits, out, len(noisy), ROW=row)
        assert 0 <= int(out) <= min(places) and int(out) > min(places) - 2 * len(noisy)
        least_new[(1,)](limits * 0, out, len(noisy), ROW=row)
        assert int(out) == 0


@pytest.fixture
def cut_by(monkeypatch):
    def use(cut: Chunks) -> None:
        monkeypatch.setattr(triton_ops, "chunks_of", lambda *_, **__: cut)

    return use


@DTYPES
@CUTS
@pytest.mark.parametrize(
    "limits",
    [
        [[1]],
        [[0]],
        [[4]],
        [[33]],
        [[3, 4, 5, 8, 9]],
        [[64] * 8],
        [[65, 66, 67, 68, 70, 70, 70]],
        [[5, 0, 9], [0, 0, 0], [17, 40, 1]],
    ],
    ids=["one", "none", "page", "single", "edges", "block", "commit", "rows"],
)
def test_limits(dtype, cut, limits, cut_by) -> None:
    cut_by(cut)
    case = paged(limits, 4, 2, 16, PAGE, dtype)
    got = attend(case, dtype)
    if case.limit.any():
        close(got, case, dtype)
    unseen = case.limit == 0
    assert not got[unseen].any()
    assert got[~unseen].isfinite().all()


@CUTS
@pytest.mark.parametrize("heads, kv_heads", [(3, 3), (4, 2), (4, 1), (8, 1)])
def test_groups(cut, heads: int, kv_heads: int, cut_by) -> None:
    cut_by(cut)
    case = paged([[20, 21, 22], [7, 8, 11]], heads, kv_heads, 32, PAGE, FP32)
    near(attend(case, FP32), plain_attention(case, PAGE), FP32)


def test_a_group_that_no_tile_holds_whole() -> None:
    case = paged([[90 + token for token in range(11)]], 6, 2, 16, PAGE, FP32)
    near(attend(case, FP32), plain_attention(case, PAGE), FP32)


@CUTS
@pytest.mark.parametrize("page", [1, 16, 12])
def test_page_sizes(cut, page: int, cut_by) -> None:
    cut_by(cut)
    case = paged([[page, page + 1], [2 * page, 3 * page - 1]], 4, 2, 16, page, FP32)
    near(attend(case, FP32, page), plain_attention(case, page), FP32)


@CUTS
def test_a_table_with_room_gives_the_same_bits(cut, cut_by) -> None:
    """One graph serves all lengths: places behind the limits change nothing, nor do other rows."""
    cut_by(cut)
    limits = [[30, 31, 32], [5, 6, 7]]
    tight, roomy = paged(limits, 4, 2, 16, PAGE, FP32), paged(limits, 4, 2, 16, PAGE, FP32, capacity=200)
    got = attend(tight, FP32).clone()
    assert torch.equal(got, attend(roomy, FP32))
    alone = paged(limits[:1], 4, 2, 16, PAGE, FP32, capacity=200)
    assert torch.equal(got[:3], attend(alone, FP32))


@CUTS
def test_the_order_of_pages_does_not_matter(cut, cut_by) -> None:
    cut_by(cut)
    limits = [[30, 31, 32], [5, 6, 7]]
    one, other = (paged(limits, 4, 2, 16, PAGE, FP32, seed=seed) for seed in (0, 0))
    order = torch.randperm(len(one.keys) // PAGE, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    where = torch.argsort(order)
    for cache in (other.keys, other.values):
        cache.copy_(cache.view(len(order), PAGE, 2, 16)[order].view_as(cache))
    other.pages.copy_(where[other.pages.long()])
    assert not torch.equal(one.pages, other.pages)
    assert torch.equal(attend(one, FP32), attend(other, FP32))


@CUTS
def test_what_is_seen_counts(cut, cut_by) -> None:
    """Other keys or values within the limit change the answer, those behind it do not."""
    cut_by(cut)
    case = paged([[30, 30]], 4, 2, 16, PAGE, FP32, capacity=40)
    got = attend(case, FP32).clone()
    places = [int(case.pages[0, place // PAGE]) * PAGE + place % PAGE for place in range(40)]
    for cache in (case.keys, case.values):
        cache[places[31]] = 5.0
        assert torch.equal(attend(case, FP32), got)
        cache[places[29]] += 1.0
        changed = attend(case, FP32).clone()
        assert not torch.equal(changed, got)
        got = changed


@CUTS
def test_a_broken_key_shows(cut, cut_by) -> None:
    """What is not a number and is seen is never hidden."""
    cut_by(cut)
    case = paged([[30, 12], [9, 9]], 4, 2, 16, PAGE, FP32)
    case.keys[int(case.pages[0, 5]) * PAGE] = torch.nan  # place 20
    got = attend(case, FP32)
    assert got[0].isnan().all() and got[1:].isfinite().all()


@DTYPES
def test_a_prompt(dtype) -> None:
    """More tokens than a step: causal limits, no scratch."""
    case = paged([list(range(1, 81))], 4, 2, 16, PAGE, dtype)
    ops = make_ops(PAGE, dtype, tokens=16)
    close(attend(case, dtype, ops=ops), case, dtype)


def test_large_scores_do_not_overflow() -> None:
    case = paged([[30, 31, 32]], 4, 2, 16, PAGE, FP32)
    case.q.mul_(300.0)
    near(attend(case, FP32), plain_attention(case, PAGE), FP32)


def test_a_part_of_a_page_table() -> None:
    """The first columns of a wider table, rows as far apart as there."""
    case = paged([[30, 31, 32], [5, 6, 7]], 4, 2, 16, PAGE, FP32, capacity=200)
    got = attend(case, FP32).clone()
    case.pages = case.pages[:, :8]
    assert not case.pages.is_contiguous()
    assert torch.equal(attend(case, FP32), got)
    with pytest.raises(ValueError, match="rows of pages"):
        case.pages = case.pages.T.contiguous().T
        attend(case, FP32)


def test_a_strided_cache_is_refused() -> None:
    case = paged([[3]], 4, 2, 16, PAGE, FP32)
    with pytest.raises(ValueError, match="cache"):
        make_ops(PAGE).attend(case.q, case.keys[:, :, :8], case.values, case.pages, case.limit, case.shape)


@DTYPES
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
def test_a_layer_and_the_choice_at_the_size_of_the_tiny_checkpoint(dtype, fp8: bool) -> None:
    """All functions one after another as the engine calls them, cut as the table says; three rows of two blocks."""
    limits = [[20, 20, 24, 24], [7, 7, 11, 11], [0, 0, 5, 5]]
    case = paged(limits, 4, 2, 64, PAGE, dtype, capacity=48)
    shape, tokens = case.shape, 12
    keys, values = (one.nan_to_num() for one in (case.keys, case.values))
    layer = LayerWeights(
        qkv=random(512, 256, seed=1, scale=0.06, dtype=dtype),
        out=random(256, 256, seed=2, scale=0.06, dtype=dtype),
        gate_up=random(2048, 256, seed=3, scale=0.06, dtype=dtype),
        down=random(256, 1024, seed=4, scale=0.03, dtype=dtype),
        head_norm=1 + random(6, 64, seed=5, scale=0.1, dtype=dtype),
    )
    head, x = random(1152, 256, seed=6, scale=0.2), random(tokens, 256, dtype=dtype, seed=7)
    if fp8:
        layer, head = quantise_layer(layer), quantise(head)
    else:
        head = head.to(dtype)
    angle = random(tokens, 32, seed=8)
    cos, sin = (one.repeat(1, 2).to(dtype) for one in (angle.cos(), angle.sin()))
    at = (case.limit.long() - 1).clamp_min(0).view(3, 4)
    slot = torch.where(case.limit.view(3, 4) > 0, case.pages.long().gather(1, at // PAGE) * PAGE + at % PAGE, 0)
    # Of two tokens with one limit the first writes where nobody looks: both would take the same slot.
    slot = torch.where(torch.arange(4, device=DEVICE) % 2 == 0, 0, slot)
    small = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 1024, "vocab": 1152}
    found = []
    for ops in (make_ops(PAGE, dtype, fp8, places=48, **small), Fp8TorchOps(PAGE)):
        cache = keys.clone(), values.clone()
        q = ops.project(x, layer.qkv, layer.head_norm, cos, sin, slot.view(-1), cache[0], cache[1], shape)
        seen = ops.attend(q.contiguous(), cache[0], cache[1], case.pages, case.limit, shape)
        hidden = ops.linear_add(seen, layer.out, x)
        hidden = ops.linear_add(ops.gated(hidden, layer.gate_up, 1e-6), layer.down, hidden)
        choice = ops.choose(hidden, head, None, 3, 1e-6)
        found.append((hidden.clone(), choice.tokens.clone(), choice.certainty.clone()))
    (hidden, tokens_found, certainty), (plain, tokens_plain, certainty_plain) = found
    near(hidden, plain, dtype)
    if dtype == FP32:
        assert torch.equal(tokens_found, tokens_plain)
        assert torch.allclose(certainty, certainty_plain, rtol=1e-4)


@triton.jit
def order(out, tiles):
    number = tl.program_id(0)
    tl.store(out + number, triton_attend.paired(number, tiles))


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 7, 34])
def test_tiles_are_paired_long_with_short(tiles: int) -> None:
    """Every tile once; of two programs half of all apart, the tiles lie as far from one end as from the other."""
    out = torch.full((tiles,), -1, dtype=torch.int32, device=DEVICE)
    order[(tiles,)](out, tiles)
    found, half = out.tolist(), tiles - tiles // 2
    assert sorted(found) == list(range(tiles))
    assert {found[k] + found[k + half] for k in range(tiles // 2)} <= {tiles - 1}
    assert found[0] == tiles - 1


@pytest.mark.parametrize("rows, tokens", [(1, 40), (2, 23)])
def test_a_prompt_of_many_tiles(rows: int, tokens: int, cut_by) -> None:
    cut_by(Chunks(16, 16, 1, 4, 2, False))
    case = paged([list(range(1, tokens + 1))] * rows, 4, 2, 16, PAGE, FP32)
    close(attend(case, FP32), case, FP32)
