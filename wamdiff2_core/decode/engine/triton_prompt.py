"""What a prompt and its images need beside products and attention, as Triton kernels: for any number of tokens.

All are bound by memory: everything is read once and written once, where plain operations write each intermediate
result. Allocate their outputs. Inference only: no gradient passes through.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight
from wamdiff2_core.decode.engine.triton_product import unpack

_PAIRS = 1024  # of numbers that turn together, most a program
_TYPES = (torch.bfloat16, torch.float32)


@triton.jit(do_not_specialize=["n", "total"])
def turn_heads(
    qkv, cos, sin, out, n, total, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Grid: (n, rows, head blocks). A program turns BLOCK_H query and key heads of one patch. total: rows * n."""
    HALF: tl.constexpr = D // 2
    place = tl.program_id(0).to(tl.int64)
    patch = tl.program_id(1).to(tl.int64) * n + place
    head = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    at = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < 2 * HEADS) & (at < HALF)
    source = qkv + patch * (3 * HEADS * D) + head * D + at
    left = tl.load(source, inside, other=0.0).to(tl.float32)
    right = tl.load(source + HALF, inside, other=0.0).to(tl.float32)
    angle = place * D + at
    cos_left = tl.load(cos + angle, at < HALF, other=0.0)
    cos_right = tl.load(cos + angle + HALF, at < HALF, other=0.0)
    sin_left = tl.load(sin + angle, at < HALF, other=0.0)
    sin_right = tl.load(sin + angle + HALF, at < HALF, other=0.0)
    which = (head // HEADS).to(tl.int64)  # 0: a query, 1: a key
    target = out + (which * total + patch) * (HEADS * D) + head % HEADS * D + at
    tl.store(target, (left * cos_left - right * sin_left).to(out.dtype.element_ty), inside)
    tl.store(target + HALF, (right * cos_right + left * sin_right).to(out.dtype.element_ty), inside)


@triton.jit
def gate(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: (T, blocks of outputs)."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    source = gate_up + token * (2 * WIDTH) + at
    opened = tl.load(source, inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, inside, other=0.0).to(tl.float32)
    tl.store(out + token * WIDTH + at, (opened / (1.0 + tl.exp(-opened)) * up).to(out.dtype.element_ty), inside)


def turned_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`model.vision.turned_heads` in one launch, to the bit: qkv (G, n, 3, heads, d); cos, sin (n, d) fp32.

    Rotated queries and keys (G, heads, n, d) that lie in memory as (G, n, heads, d): attention gives its output in the
    order of its queries, and its heads are put side by side next. TypeError, ValueError: what the kernel cannot read.
    """
    rows, n, _, heads, size = qkv.shape
    if qkv.dtype not in _TYPES or (cos.dtype, sin.dtype) != (torch.float32, torch.float32):
        raise TypeError(f"turned heads: expected {_TYPES} and angles in float32, got {qkv.dtype} and {cos.dtype}")
    if qkv.shape[2] != 3 or size % 2 or cos.shape != (n, size) or sin.shape != (n, size):
        raise ValueError(f"turned heads: qkv {tuple(qkv.shape)} and angles {tuple(cos.shape)} do not fit")
    check_inputs(qkv, cos, sin)
    out = torch.empty(2, rows, n, heads, size, dtype=qkv.dtype, device=qkv.device)
    block_d = triton.next_power_of_2(size // 2)
    block_h = min(triton.next_power_of_2(2 * heads), max(1, _PAIRS // block_d))
    # Products and sum are rounded one by one, as the plain twin does it.
    turn_heads[(n, rows, triton.cdiv(2 * heads, block_h))](
        qkv, cos, sin, out, n, rows * n, HEADS=heads, D=size, BLOCK_H=block_h, BLOCK_D=block_d,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    q, k = out.transpose(2, 3)
    return q, k


@triton.jit
def widen(words, scale, out, K: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """Grid: (outputs, blocks of words). words (O, K / 2) as in `Fp8Weight`, out (O, K) in the order of the inputs."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < K // 2
    low, high = unpack(tl.load(words + row * (K // 2) + at, inside, other=0), WIDEN)
    factor = tl.load(scale + row)
    target = out + row * K + at // HALF * (2 * HALF) + at % HALF
    tl.store(target, (low.to(tl.float32) * factor).to(out.dtype.element_ty), inside)
    tl.store(target + HALF, (high.to(tl.float32) * factor).to(out.dtype.element_ty), inside)


def widened(weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """`Fp8Weight.widened` in one pass over the memory."""
    outputs, inputs = weight.shape
    out = torch.empty(outputs, inputs, dtype=dtype, device=weight.data.device)
    block = min(1024, triton.next_power_of_2(inputs // 2))
    whole = dtype == torch.float32 or out.device.type == "cpu"  # the interpreter knows no assembly
    widen[(outputs, triton.cdiv(inputs // 2, block))](
        weight.data.view(torch.int16), weight.scale, out, K=inputs, HALF=weight.half, BLOCK=block, WIDEN=whole,
        num_warps=4,
    )  # fmt: skip
    return out


def silu_gate(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (T, I) of gate_up (T, 2 I), gates first, in float32 and rounded once.

    TypeError, ValueError: what the kernel cannot read.
    """
    if gate_up.dtype not in _TYPES:
        raise TypeError(f"gate: expected {_TYPES}, got {gate_up.dtype}")
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate: expected (T, 2 I), got {tuple(gate_up.shape)}")
    check_inputs(gate_up)
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    gate[(tokens, triton.cdiv(width, block))](gate_up, out, WIDTH=width, BLOCK=block, num_warps=4)
    return out


def check_inputs(*tensors: Tensor) -> None:
    """The kernels take addresses on trust, and know no gradient."""
    if not all(one.is_contiguous() and one.device == tensors[0].device for one in tensors):
        raise ValueError("triton kernels: expected contiguous tensors of one device")
    if any(one.requires_grad for one in tensors):
        raise ValueError("triton kernels: expected inference, got a tensor that wants a gradient")
