"""Weights in 8 bits (e4m3 with a scale for each output): half the bytes that a step must read.

Activations and the cache keep their type; a weight is widened next to the tensor cores. The plain twin widens it before
an ordinary product, so both compute the same numbers up to rounding.

Kernels read two numbers as one 16-bit word: bytes alone would be copied and passed to the tensor cores one by one. The
two lie `half` inputs apart, so that the low bytes of a run of words belong to a run of inputs, and the high bytes too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import Choice, LayerWeights, TorchOps

DTYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(DTYPE).max


@dataclass(frozen=True)
class Fp8Weight:
    """data (O, I) e4m3 times scale (O,) fp32. Stands where a weight (O, I) stands.

    Of every 2 half inputs of an output, those k and k + half, k < half, lie side by side; half: see `half_of`.
    """

    data: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def half(self) -> int:
        return half_of(self.data.shape[1])

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The same weight as a plain tensor (O, I)."""
        return (_apart(self.data.view(torch.uint8)).view(DTYPE).float() * self.scale[:, None]).to(dtype)


def half_of(inputs: int) -> int:
    """How far the two numbers of a word lie apart: 64, or less where a row of inputs is no multiple of 128."""
    half = 64
    while inputs % (2 * half):
        half //= 2
    if not half:
        raise ValueError(f"fp8: expected an even number of inputs, got {inputs}")
    return half


def _together(data: Tensor) -> Tensor:
    """Rows (O, I) in the kernels' order."""
    half = half_of(data.shape[1])
    return data.view(len(data), -1, 2, half).transpose(2, 3).reshape(data.shape).contiguous()


def _apart(data: Tensor) -> Tensor:
    """Rows (O, I) in the order of the inputs again."""
    half = half_of(data.shape[1])
    return data.view(len(data), -1, half, 2).transpose(2, 3).reshape(data.shape)


def quantise(weight: Tensor) -> Fp8Weight:
    """weight (O, I) with each output's largest magnitude at the largest e4m3 number; an output of zeros stays zero."""
    wide = weight.float()
    if not wide.isfinite().all():
        raise ValueError("fp8: expected finite weights")
    scale = (wide.abs().amax(1) / _LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    data = (wide / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(DTYPE)
    return Fp8Weight(_together(data.view(torch.uint8)).view(DTYPE), scale)


def quantise_layer(layer: LayerWeights) -> LayerWeights:
    """The layer with its four matrices in 8 bits; norms stay as they are."""
    return replace(
        layer,
        qkv=quantise(layer.qkv),
        out=quantise(layer.out),
        gate_up=quantise(layer.gate_up),
        down=quantise(layer.down),
    )


class Fp8TorchOps(TorchOps):
    """Plain twin of the 8-bit weights: every weight is widened to the activations' type before its product."""

    name = "torch_fp8"

    def norm_linear(self, x: Tensor, weight: Tensor | Fp8Weight, eps: float) -> Tensor:
        return super().norm_linear(x, _plain(weight, x), eps)

    def linear_add(self, x: Tensor, weight: Tensor | Fp8Weight, residual: Tensor) -> Tensor:
        return super().linear_add(x, _plain(weight, x), residual)

    def choose(self, x: Tensor, head: Tensor | Fp8Weight, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        return super().choose(x, _plain(head, x), allowed, forbidden, eps)


def _plain(weight: Tensor | Fp8Weight, like: Tensor) -> Tensor:
    return weight.widened(like.dtype) if isinstance(weight, Fp8Weight) else weight
