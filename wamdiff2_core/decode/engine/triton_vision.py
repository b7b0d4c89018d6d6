"""A layer of the image encoder with as few passes over the patches as products and attention leave.

Plain operations read and write all patches for each sum, each norm and each activation. Here norms take the sum before
them along, the activation is part of its product, and the last sum is part of the second one. Inference only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from wamdiff2_core.decode.engine.triton_prompt import check_inputs, turned_heads
from wamdiff2_core.model.vision import attention

ACTIVATION = "gelu_pytorch_tanh"
"""What the encoder's config must name for `image_layer`."""


EPS = 1e-6
"""Of the norms of a Qwen3-VL encoder."""


@triton.jit
def sum_and_norm(
    x, update, weight, bias, later, total, normed, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    """Grid: (patches,). See `added_norm`; without ADD the norm of x alone."""
    patch = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    one = tl.load(x + patch + at, inside, other=0.0).to(tl.float32)
    if ADD:
        one += tl.load(update + patch + at, inside, other=0.0).to(tl.float32)
        one = one.to(total.dtype.element_ty).to(tl.float32)  # rounded, as the plain sum is before its norm
        added = one + tl.load(later + at, inside, other=0.0).to(tl.float32)
        tl.store(total + patch + at, added.to(total.dtype.element_ty), inside)
    apart = tl.where(inside, one - tl.sum(one, 0) / WIDTH, 0.0)
    apart *= 1.0 / tl.sqrt(tl.sum(apart * apart, 0) / WIDTH + eps)
    scaled = apart * tl.load(weight + at, inside, other=0.0).to(tl.float32)
    scaled += tl.load(bias + at, inside, other=0.0).to(tl.float32)
    tl.store(normed + patch + at, scaled.to(normed.dtype.element_ty), inside)


def normed(x: Tensor, norm: Any) -> Tensor:
    """Layer norm of x (N, width). ValueError: what the kernel cannot read."""
    return _launch(x, None, norm, x)[1]


def added_norm(x: Tensor, update: Tensor, norm: Any, later: Tensor) -> tuple[Tensor, Tensor]:
    """x + update + later, and the layer norm of x + update: x, update (N, width), later (width,): a bias to come."""
    return _launch(x, update, norm, later)


def _launch(x: Tensor, update: Tensor | None, norm: Any, later: Tensor) -> tuple[Tensor, Tensor]:
    patches, width = x.shape
    if norm.weight.shape != (width,) or (update is not None and (update.shape != x.shape or later.shape != (width,))):
        raise ValueError(f"norm of patches: expected a width of {tuple(norm.weight.shape)}, got {tuple(x.shape)}")
    check_inputs(x, norm.weight.detach(), norm.bias.detach(), later.detach(), x if update is None else update)
    out = torch.empty_like(x)
    total = out if update is None else torch.empty_like(x)
    sum_and_norm[(patches,)](
        x, x if update is None else update, norm.weight, norm.bias, later, total, out, norm.eps, WIDTH=width,
        BLOCK=triton.next_power_of_2(width), ADD=update is not None, num_warps=4,
    )  # fmt: skip
    return total, out


def image_layer(block: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`model.vision.vision_block` for hidden (G, n, width), up to rounding. The encoder's activation is ACTIVATION."""
    images, n, width = hidden.shape
    flat, first, second = hidden.reshape(-1, width), block.mlp.linear_fc1, block.mlp.linear_fc2
    seen = attention(block.attn, normed(flat, block.norm1).view(images, n, width), cos, sin, turned_heads)
    # The second product adds to the sum, so its bias has to be there before.
    total, inner = added_norm(flat, seen.reshape(-1, width), block.norm2, second.bias)
    return total.addmm_(gelu_linear(inner, first), second.weight.T).view(images, n, width)


def gelu_linear(x: Tensor, linear: Any) -> Tensor:
    """gelu (tanh form) of a linear layer of x (N, in): (N, out). On a CUDA device in the product's own last step."""
    if x.device.type == "cuda":
        return torch._addmm_activation(linear.bias, x, linear.weight.T, use_gelu=True)
    return F.gelu(linear(x), approximate="tanh")
