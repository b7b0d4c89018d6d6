"""Products, rotation and choice of the Triton kernels against their plain twins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton_cases import BF16, DEVICE, FP32, make_ops, near, random

from wamdiff2_core.decode.engine import triton_ops
from wamdiff2_core.decode.engine.ops import Shape, TorchOps
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, quantise
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps
from wamdiff2_core.decode.engine.triton_table import Tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, at infinities

EPS = 1e-6
TWIN = TorchOps(4)
DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
CUTS = pytest.mark.parametrize(
    "cut",
    [Tiles(16, 16, 1, 4, 2), Tiles(32, 16, 3, 4, 2), Tiles(64, 32, 2, 4, 3, True), Tiles(16, 64, 4, 4, 2)],
    ids=["whole", "three", "flipped", "idle"],
)
"""idle: more splits than there are inputs for, so some programs add nothing."""


@pytest.fixture
def cut_by(monkeypatch):
    """Let every product be cut in one way."""

    def use(cut: Tiles) -> None:
        monkeypatch.setattr(triton_ops, "tiles_of", lambda *_: cut)

    return use


@DTYPES
@CUTS
@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
def test_norm_linear(dtype, cut, tokens: int, cut_by) -> None:
    cut_by(cut)
    x, weight = random(tokens, 72, dtype=dtype, scale=3.0), random(88, 72, dtype=dtype, seed=1)
    ops = make_ops(dtype=dtype, hidden=72)
    ops._known.add(("norm", 88, 72))  # smaller than the model's own, so their scratch holds it
    near(ops.norm_linear(x, weight, EPS), TWIN.norm_linear(x, weight, EPS), dtype)


@DTYPES
@CUTS
@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_gated(dtype, cut, tokens: int, cut_by) -> None:
    cut_by(cut)
    x, weight = random(tokens, 64, dtype=dtype), random(2 * 96, 64, dtype=dtype, seed=1, scale=0.3)
    near(make_ops(dtype=dtype).gated(x, weight, EPS), TWIN.gated(x, weight, EPS), dtype)


@DTYPES
@CUTS
@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_linear_add(dtype, cut, tokens: int, cut_by) -> None:
    cut_by(cut)
    x, weight, residual = (
        random(tokens, 96, dtype=dtype),
        random(64, 96, dtype=dtype, seed=1),
        random(tokens, 64, dtype=dtype),
    )
    ops = make_ops(dtype=dtype)
    got = ops.linear_add(x, weight, residual)
    near(got, TWIN.linear_add(x, weight, residual), dtype)
    again = ops.linear_add(x, weight, got)  # what was returned may be the next residual
    near(again, TWIN.linear_add(x, weight, TWIN.linear_add(x, weight, residual)), dtype)


@DTYPES
def test_the_sums_of_a_prompt_lie_in_one_place(dtype) -> None:
    """The first residual belongs to the caller; what was returned is used up by the next sum, a copy of it is not."""
    x, weight, residual = random(70, 96, dtype=dtype), random(64, 96, dtype=dtype, seed=1), random(70, 64, dtype=dtype)
    ops, kept, want = make_ops(dtype=dtype), residual.clone(), TWIN.linear_add(x, weight, residual)
    one = ops.linear_add(x, weight, residual)
    near(one, want, dtype)
    assert torch.equal(residual, kept) and one.data_ptr() != residual.data_ptr()
    copy = one.clone()
    two = ops.linear_add(x, weight, one)
    assert two.data_ptr() == one.data_ptr()
    near(two, TWIN.linear_add(x, weight, want), dtype)
    three = ops.linear_add(x, weight, copy)
    assert three.data_ptr() != copy.data_ptr()
    near(three, two, dtype)


@CUTS
def test_counters_are_left_at_zero_and_results_repeat(cut, cut_by) -> None:
    cut_by(cut)
    ops, x, weight = make_ops(), random(7, 64), random(128, 64, seed=1)
    first = ops.norm_linear(x, weight, EPS).clone()
    for _ in range(3):
        assert torch.equal(ops.norm_linear(x, weight, EPS), first)
    assert not ops._counter.any()


def test_a_row_without_size_and_a_large_one_keep_to_themselves() -> None:
    """A zero row gives zeros (no division by zero), a large one does not lose the others."""
    x = random(4, 64)
    x[1], x[2] = 0.0, x[2] * 1e4
    got = make_ops().norm_linear(x, weight := random(128, 64, seed=1), EPS)
    near(got, TWIN.norm_linear(x, weight, EPS), FP32)
    assert not got[1].any()


def test_not_a_number_stays_in_its_row() -> None:
    x, weight = random(5, 64), random(128, 64, seed=1)
    x[3, 7] = torch.nan
    got = make_ops().norm_linear(x, weight, EPS)
    assert got[3].isnan().all() and got[[0, 1, 2, 4]].isfinite().all()


@DTYPES
def test_more_tokens_than_a_step_has(dtype) -> None:
    ops = make_ops(dtype=dtype, tokens=16)
    x, weight = random(40, 64, dtype=dtype), random(128, 64, dtype=dtype, seed=1)
    assert torch.equal(ops.norm_linear(x, weight, EPS), TWIN.norm_linear(x, weight, EPS))
    gate_up, down = random(192, 64, dtype=dtype, seed=2), random(64, 96, dtype=dtype, seed=3)
    inner = ops.gated(x, gate_up, EPS)
    near(inner, TWIN.gated(x, gate_up, EPS), dtype)
    near(ops.linear_add(inner, down, x), TWIN.linear_add(inner, down, x), dtype)


@DTYPES
@pytest.mark.parametrize("heads, kv_heads, size", [(4, 2, 16), (3, 3, 32), (8, 1, 64), (8, 2, 16)])
def test_rotate_append(dtype, heads: int, kv_heads: int, size: int) -> None:
    tokens, slots = 7, 40
    shape = Shape(heads, kv_heads, size, size**-0.5, EPS)
    qkv = random(tokens, (heads + 2 * kv_heads) * size, dtype=dtype)
    norm = random(heads + kv_heads, size, dtype=dtype, seed=1)
    cos, sin = random(tokens, size, dtype=dtype, seed=2), random(tokens, size, dtype=dtype, seed=3)
    slot = torch.tensor([9, 3, 39, 8, 17, 21, 20], device=DEVICE)
    caches = [[random(slots, kv_heads, size, dtype=dtype, seed=4) for _ in range(2)] for _ in range(2)]
    ops = make_ops(dtype=dtype, heads=heads, kv_heads=kv_heads, head_dim=size)
    got = ops.rotate_append(qkv, norm, cos, sin, slot, caches[0][0], caches[0][1], shape)
    plain = TWIN.rotate_append(qkv, norm, cos, sin, slot, caches[1][0], caches[1][1], shape)
    near(got, plain, dtype)
    near(caches[0][0], caches[1][0], dtype)
    assert torch.equal(caches[0][1], caches[1][1])
    untouched = [number for number in range(slots) if number not in slot.tolist()]
    assert torch.equal(caches[0][0][untouched], caches[1][0][untouched])


def words(allowed: list[list[int]], vocab: int) -> torch.Tensor:
    """Bit masks (T, ceil(vocab / 32)) int32 of lists of ids."""
    bits = torch.zeros(len(allowed), -(-vocab // 32) * 32, dtype=torch.int64)
    for row, ids in enumerate(allowed):
        bits[row, ids] = 1
    packed = (bits.view(len(allowed), -1, 32) << torch.arange(32)).sum(-1)
    return packed.to(torch.uint32).view(torch.int32).to(DEVICE)


def same_choice(got, plain, tolerance: float = 1e-5) -> None:
    assert torch.equal(got.usable, plain.usable)
    sound = plain.usable
    assert torch.equal(got.tokens[sound], plain.tokens[sound])
    assert torch.allclose(got.certainty[sound], plain.certainty[sound], atol=tolerance, rtol=tolerance)


@CUTS
@pytest.mark.parametrize("vocab", [200, 256, 77])
@pytest.mark.parametrize("forbidden", [-1, 3])
def test_choose(cut, vocab: int, forbidden: int, cut_by) -> None:
    cut_by(replace(cut, splits=1))
    ops, x, head = make_ops(vocab=vocab), random(6, 64, scale=2.0), random(vocab, 64, seed=1, scale=0.2)
    same_choice(ops.choose(x, head, None, forbidden, EPS), TWIN.choose(x, head, None, forbidden, EPS))
    best = int(TWIN.choose(x, head, None, -1, EPS).tokens[2])
    same_choice(ops.choose(x, head, None, best, EPS), TWIN.choose(x, head, None, best, EPS))
    lists = [[0], [31, 32, 76], list(range(vocab)), list(range(40, 72)), [3, 4], [vocab - 1]]
    allowed = words(lists, vocab)
    same_choice(ops.choose(x, head, allowed, forbidden, EPS), TWIN.choose(x, head, allowed, forbidden, EPS))


def test_choose_in_bfloat16_is_as_near_to_fp32_as_the_twin() -> None:
    x, head = random(16, 64, dtype=BF16), random(200, 64, dtype=BF16, seed=1, scale=0.2)
    got = make_ops(dtype=BF16).choose(x, head, None, -1, EPS)
    exact, plain = TWIN.choose(x.float(), head.float(), None, -1, EPS), TWIN.choose(x, head, None, -1, EPS)
    errors = [(one.certainty - exact.certainty).abs().mean() for one in (got, plain)]
    assert errors[0] <= errors[1]  # no rounding of logits
    assert torch.equal(got.tokens, exact.tokens)


def test_ties_take_the_lowest_id() -> None:
    """Inside a tile, across tiles, and where every logit is the same."""
    ops, x = make_ops(), random(3, 64)
    head = random(200, 64, seed=1, scale=0.01)
    for equals in ([5, 9], [70, 190], [2, 150, 199], [63, 64]):
        tied = head.clone()
        tied[equals] = x.sum(0) * 0.1  # the same row, so the same logit to the bit
        got, plain = ops.choose(x, tied, None, -1, EPS), TWIN.choose(x, tied, None, -1, EPS)
        assert (plain.tokens == equals[0]).any()
        same_choice(got, plain)
    flat = ops.choose(x, torch.zeros_like(head), None, -1, EPS)
    assert flat.tokens.tolist() == [0, 0, 0]
    assert torch.allclose(flat.certainty, torch.full((3,), 1 / 200, device=DEVICE))
    flat = ops.choose(x, torch.zeros_like(head), None, 0, EPS)
    assert flat.tokens.tolist() == [1, 1, 1]
    assert torch.allclose(flat.certainty, torch.full((3,), 1 / 199, device=DEVICE))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", [0, 100, 199])
def test_logits_that_are_no_numbers(bad: float, where: int) -> None:
    """One weight out of all numbers breaks every token, a token's own input only itself."""
    ops, x, head = make_ops(), random(4, 64).abs(), random(200, 64, seed=1)
    head[where] = bad
    got, plain = ops.choose(x, head, None, -1, EPS), TWIN.choose(x, head, None, -1, EPS)
    assert not plain.usable.any() and not got.usable.any()
    assert not ops.choose(x, head, None, where, EPS).usable.any()  # forbidden or not
    assert ((got.tokens >= 0) & (got.tokens < 200)).all()
    head, x[2, 5] = random(200, 64, seed=1), bad
    got, plain = ops.choose(x, head, None, -1, EPS), TWIN.choose(x, head, None, -1, EPS)
    assert plain.usable.tolist() == [True, True, False, True]
    same_choice(got, plain)
    assert ((got.tokens >= 0) & (got.tokens < 200)).all()


def test_nothing_allowed_is_not_usable() -> None:
    ops, x, head = make_ops(), random(3, 64), random(200, 64, seed=1)
    allowed = words([[7], [], [7, 8]], 200)
    got = ops.choose(x, head, allowed, 7, EPS)
    same_choice(got, TWIN.choose(x, head, allowed, 7, EPS))
    assert got.usable.tolist() == [False, False, True]
    assert not (got.certainty[:2] > 0).any()  # a threshold is never passed


@DTYPES
@CUTS
def test_eight_bit_weights(dtype, cut, cut_by) -> None:
    cut_by(replace(cut, block_k=max(32, cut.block_k)))
    twin, ops = Fp8TorchOps(4), make_ops(dtype=dtype, fp8=True)
    x, inner = random(5, 64, dtype=dtype), random(5, 96, dtype=dtype, seed=8)
    qkv, gate_up = quantise(random(128, 64, seed=1)), quantise(random(192, 64, seed=2))
    down, head = quantise(random(64, 96, seed=3)), quantise(random(200, 64, seed=4))
    near(ops.norm_linear(x, qkv, EPS), twin.norm_linear(x, qkv, EPS), dtype)
    near(ops.gated(x, gate_up, EPS), twin.gated(x, gate_up, EPS), dtype)
    near(ops.linear_add(inner, down, x), twin.linear_add(inner, down, x), dtype)
    cut_by(replace(cut, splits=1, block_k=max(32, cut.block_k)))
    got, exact = ops.choose(x, head, None, -1, EPS), twin.choose(x.float(), head, None, -1, EPS)
    same_choice(got, exact, 1e-5 if dtype == FP32 else 1e-3)


@DTYPES
def test_eight_bit_weights_and_a_whole_prompt(dtype) -> None:
    ops, x, weight = make_ops(dtype=dtype, fp8=True, tokens=16), random(40, 64, dtype=dtype), quantise(random(128, 64))
    near(ops.norm_linear(x, weight, EPS), Fp8TorchOps(4).norm_linear(x, weight, EPS), dtype)


def test_quantised_weights() -> None:
    weight = random(6, 64, scale=0.02)
    weight[2], weight[3, 5] = 0.0, 7.0
    small = quantise(weight)
    wide = small.widened(FP32)
    assert not wide[2].any() and torch.allclose(wide[3, 5], weight[3, 5])
    relative = (wide - weight).abs() / weight.abs().amax(1, keepdim=True).clamp_min(1e-9)
    assert float(relative.max()) <= 1 / 28  # half a step of three bits, at the top of the range
    with pytest.raises(ValueError, match="finite"):
        quantise(torch.full((2, 2), torch.nan))


@pytest.mark.parametrize("tokens", [1, 40, 128])
@pytest.mark.parametrize("fp8", [False, True])
def test_scratch_holds_every_step(tokens: int, fp8: bool) -> None:
    """At the sizes of Qwen3-VL-2B, whatever the table says: what the kernels will write fits what was made."""
    qwen = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "vocab": 151_936}
    ops = TritonOps(16, Sizes(tokens=tokens, rows=4, places=2560, **qwen), dtype=BF16, device=DEVICE, fp8=fp8)
    shape = Shape(16, 8, 128, 0.1, EPS)
    for count in range(1, tokens + 1):
        for kind, outputs, inputs in ops.sizes.products.values():
            block_m, cut = ops._cut(kind, count, outputs, inputs)
            tiles = -(-outputs // cut.block_n)
            if kind == "choose":
                assert cut.splits == 1 and tiles * count <= ops._best.numel()
            if kind == "add":
                assert tiles * count <= ops._squares.numel()
            if cut.splits > 1:
                assert tiles <= ops._counter.numel()
                area = block_m * cut.block_n * (2 if kind == "gated" else 1)
                assert tiles * cut.splits * area <= ops._partial.numel()
        for rows in (1, 2, 3, 4):
            chunks = ops._chunks(rows, max(1, count // rows), 2, 160, shape)
            if chunks.splits > 1 and count >= rows:
                used = rows * (count // rows) * 16 * chunks.splits
                assert used <= ops._logs.numel() and used * 128 <= ops._partial.numel()
                assert rows * 8 * -(-2 * (count // rows) // chunks.block_m) <= ops._counter.numel()


@pytest.mark.parametrize(
    "change, message",
    [({"tokens": 129}, "128"), ({"head_dim": 48}, "48"), ({"heads": 5}, "5 query"), ({"ffn": 100}, "100")],
)
def test_sizes_that_the_kernels_cannot_do_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_ops(**change)


@DTYPES
def test_a_product_that_is_none_of_the_models(dtype, cut_by) -> None:
    """All logits at once: no scratch is kept for them, so no splits, and the output is a new one."""
    cut_by(Tiles(16, 16, 4, 4, 2))
    ops, x, head = make_ops(dtype=dtype), random(5, 64, dtype=dtype), random(200, 64, dtype=dtype, seed=1)
    got = ops.norm_linear(x, head, EPS)
    near(got, TWIN.norm_linear(x, head, EPS), dtype)
    assert ops.norm_linear(x, head, EPS).data_ptr() != got.data_ptr()


def test_inputs_that_do_not_fit_are_refused() -> None:
    ops, x, weight = make_ops(), random(4, 64), random(128, 64)
    with pytest.raises(TypeError, match="bfloat16"):
        ops.norm_linear(x.bfloat16(), weight, EPS)
    with pytest.raises(ValueError, match="fit"):
        ops.norm_linear(x, random(128, 72), EPS)
    with pytest.raises(ValueError, match="fit"):
        ops.norm_linear(x, random(64, 128).T, EPS)
    with pytest.raises(ValueError, match="residual"):
        ops.linear_add(random(4, 96), random(64, 96), random(5, 64))
    with pytest.raises(ValueError, match="scratch"):
        ops.choose(random(65, 64), random(200, 64), None, -1, EPS)
    with pytest.raises(ValueError, match="dependent launches"):
        TritonOps(4, Sizes(16, 1, 64, 64, 4, 2, 16, 96, 200), device="cpu", pdl=True)
    with pytest.raises(ValueError, match="gelu"):
        TritonOps(4, Sizes(16, 1, 64, 64, 4, 2, 16, 96, 200), device=DEVICE, act="gelu")


def test_the_norm_is_of_the_tensor_that_comes(cut_by) -> None:
    """linear_add leaves sums of squares for what it returns, and for nothing else: not for a copy that was changed."""
    cut_by(Tiles(16, 16, 2, 4, 2))
    ops, x = make_ops(), random(5, 64)
    qkv, down, inner = random(128, 64, seed=1), random(64, 96, seed=2), random(5, 96, seed=3)
    hidden = ops.linear_add(inner, down, x)
    plain = TWIN.linear_add(inner, down, x)
    near(ops.norm_linear(hidden, qkv, EPS), TWIN.norm_linear(plain, qkv, EPS), FP32)
    near(ops.norm_linear(3 * hidden + x, qkv, EPS), TWIN.norm_linear(3 * plain + x, qkv, EPS), FP32)
    near(ops.norm_linear(hidden, qkv, EPS), TWIN.norm_linear(plain, qkv, EPS), FP32)
    same_choice(ops.choose(hidden, qkv, None, -1, EPS), TWIN.choose(plain, qkv, None, -1, EPS))
    huge = random(100, 96, seed=4)  # a product that is none of the model's
    near(
        ops.norm_linear(ops.linear_add(inner, huge, random(5, 100)), random(64, 100, seed=5), EPS),
        TWIN.norm_linear(TWIN.linear_add(inner, huge, random(5, 100)), random(64, 100, seed=5), EPS),
        FP32,
    )
