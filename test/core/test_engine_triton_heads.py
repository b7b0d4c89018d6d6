"""Product, head norms, rotation and append as one kernel, against the plain twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton_cases import BF16, DEVICE, FP32, make_ops, near, random

from wamdiff2_core.decode.engine import triton_ops
from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, quantise

EPS = 1e-6
TWIN = Fp8TorchOps(4)
SIZES = {"hidden": 96, "heads": 4, "kv_heads": 2}


def inputs(tokens: int, size: int, dtype: torch.dtype, seed: int = 0) -> tuple:
    """(x, qkv, head_norm, cos, sin, slot): every token at a slot of its own."""
    angle = random(tokens, size // 2, seed=seed + 3)
    cos, sin = (one.repeat(1, 2).to(dtype) for one in (angle.cos(), angle.sin()))
    slot = torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:tokens].to(DEVICE)
    return (
        random(tokens, 96, dtype=dtype, seed=seed), random(8 * size, 96, dtype=dtype, seed=seed + 1, scale=0.2),
        1 + random(6, size, dtype=dtype, seed=seed + 2, scale=0.1), cos, sin, slot,
    )  # fmt: skip


def caches(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return random(200, 2, size, dtype=dtype, seed=8), random(200, 2, size, dtype=dtype, seed=9)


def check(ops, held: tuple, size: int, dtype: torch.dtype, twin=TWIN) -> None:
    shape = Shape(4, 2, size, size**-0.5, EPS)
    mine, plain = caches(size, dtype), caches(size, dtype)
    got, want = ops.project(*held, *mine, shape), twin.project(*held, *plain, shape)
    near(got, want.contiguous(), dtype)
    for one, other in zip(mine, plain, strict=True):
        near(one, other, dtype)
        untouched = torch.ones(200, dtype=torch.bool, device=DEVICE)
        untouched[held[-1]] = False
        assert torch.equal(one[untouched], other[untouched])
    assert not ops._counter.any()


@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 33])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_heads(dtype, tokens: int, splits: int, monkeypatch) -> None:
    tiles = triton_ops.tiles_of
    monkeypatch.setattr(triton_ops, "tiles_of", lambda *given: replace(tiles(*given), splits=splits, block_k=16))
    ops = make_ops(dtype=dtype, head_dim=32, **SIZES)
    check(ops, inputs(tokens, 32, dtype), 32, dtype)
    check(ops, inputs(tokens, 32, dtype, seed=50), 32, dtype)  # scratch as the first call left it


@pytest.mark.parametrize("size", [16, 64, 128])
def test_head_sizes(size: int) -> None:
    """16 is too small for the kernel: the product and the rotation apart."""
    ops = make_ops(head_dim=size, **SIZES)
    assert ops._turned == (size > 16)
    check(ops, inputs(5, size, FP32), size, FP32)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_weights_in_8_bits(dtype) -> None:
    x, qkv, *rest = inputs(9, 32, dtype)
    check(make_ops(dtype=dtype, fp8=True, head_dim=32, **SIZES), (x, quantise(qkv), *rest), 32, dtype)


def test_many_tokens() -> None:
    check(make_ops(head_dim=32, **SIZES), inputs(70, 32, FP32), 32, FP32)


def test_the_norm_comes_with_the_hidden_state() -> None:
    ops, (_, qkv, *rest) = make_ops(head_dim=32, **SIZES), inputs(6, 32, FP32)
    down, inner, before = random(96, 96, seed=20), random(6, 96, seed=21), random(6, 96, seed=22)
    shape = Shape(4, 2, 32, 0.2, EPS)
    got = ops.project(ops.linear_add(inner, down, before), qkv, *rest, *caches(32, FP32), shape)
    near(
        got, TWIN.project(TWIN.linear_add(inner, down, before), qkv, *rest, *caches(32, FP32), shape).contiguous(), FP32
    )


def test_a_broken_token_breaks_no_other() -> None:
    x, *rest = inputs(6, 32, FP32)
    ops, shape = make_ops(head_dim=32, **SIZES), Shape(4, 2, 32, 0.2, EPS)
    whole = ops.project(x, *rest, *caches(32, FP32), shape).clone()
    x[2] = torch.nan
    broken = ops.project(x, *rest, *caches(32, FP32), shape)
    assert broken[2].isnan().all() and torch.equal(broken[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])


def test_what_does_not_fit_is_refused() -> None:
    x, qkv, *rest = inputs(4, 32, FP32)
    ops, shape = make_ops(head_dim=32, **SIZES), Shape(4, 2, 32, 0.2, EPS)
    with pytest.raises(ValueError, match="256"):
        ops.project(x, qkv[:128], *rest, *caches(32, FP32), shape)
    with pytest.raises(ValueError, match="cache"):
        ops.project(x, qkv, *rest, *caches(64, FP32), shape)
    head_norm, cos, sin, slot = rest
    with pytest.raises(ValueError, match="contiguous"):
        ops.project(x, qkv, head_norm, cos.T.contiguous().T, sin, slot, *caches(32, FP32), shape)
