"""Shared by the tests of the Triton kernels: where they run, and random inputs of the engine's functions.

With a GPU the kernels are compiled; without one Triton's interpreter runs them on the processor, which has to be asked
for before Triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
HAS_TRITON = importlib.util.find_spec("triton") is not None
if not HAS_TRITON:
    pytest.skip("triton is not installed: `pip install --no-deps triton`", allow_module_level=True)

from wamdiff2_core.decode.engine.ops import Shape, TorchOps  # noqa: E402
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps  # noqa: E402

if not GPU:
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_with_index(tensor, scope) -> None:
        """Since NumPy 2.4 an array of one is no int; the interpreter takes its loop bounds for one."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_with_index

FP32, BF16 = torch.float32, torch.bfloat16


def make_ops(page_size: int = 4, dtype: torch.dtype = FP32, fp8: bool = False, **sizes: int) -> TritonOps:
    """A small kernel set."""
    plain = {"tokens": 64, "rows": 4, "places": 512, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}
    known = {**plain, "ffn": 96, "vocab": 200, **sizes}
    return TritonOps(page_size, Sizes(**known), dtype=dtype, device=DEVICE, fp8=fp8)


def random(*shape: int, dtype: torch.dtype = FP32, seed: int = 0, scale: float = 1.0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, dtype)


def near(got: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    """Equal up to the rounding of `dtype`, measured against the largest value."""
    assert got.shape == plain.shape and got.dtype == plain.dtype
    assert plain.float().isfinite().all()
    bound = (1e-5 if dtype == FP32 else 2e-2) * max(float(plain.float().abs().max()), 1e-3)
    assert float((got.float() - plain.float()).abs().max()) <= bound


@dataclass
class Paged:
    """A paged cache with rows whose pages lie in random order; slots nobody wrote hold NaN."""

    keys: Tensor
    values: Tensor
    pages: Tensor
    limit: Tensor
    q: Tensor
    shape: Shape


def paged(
    limits: list[list[int]], heads: int, kv_heads: int, size: int, page: int, dtype: torch.dtype, seed: int = 0,
    capacity: int = 0,
) -> Paged:  # fmt: skip
    """limits: of each row's tokens. A row has keys up to its largest limit."""
    rows, width = len(limits), len(limits[0])
    per_row = -(-max(capacity, max(max(row) for row in limits), 1) // page)
    order = torch.randperm(rows * per_row, generator=torch.Generator().manual_seed(seed)) + 1
    pages = order.view(rows, per_row).to(torch.int32)
    slots = (rows * per_row + 1) * page
    keys = torch.full((slots, kv_heads, size), torch.nan)
    values = torch.full((slots, kv_heads, size), torch.nan)
    for row, seen in enumerate(limits):
        for place in range(max(seen)):
            slot = int(pages[row, place // page]) * page + place % page
            keys[slot] = random(kv_heads, size, seed=seed + 7 * place + 1).cpu()
            values[slot] = random(kv_heads, size, seed=seed + 7 * place + 2).cpu()
    return Paged(
        keys.to(DEVICE, dtype), values.to(DEVICE, dtype), pages.to(DEVICE),
        torch.tensor(limits, dtype=torch.int32, device=DEVICE).view(-1),
        random(rows * width, heads, size, dtype=dtype, seed=seed + 5),
        Shape(heads, kv_heads, size, size**-0.5, 1e-6),
    )  # fmt: skip


def plain_attention(case: Paged, page: int) -> Tensor:
    """The twin's answer in fp32; unused slots zeroed, since 0 times NaN is no number in a plain product."""
    keys, values = (one.float().nan_to_num() for one in (case.keys, case.values))
    return TorchOps(page).attend(case.q.float(), keys, values, case.pages, case.limit, case.shape)
