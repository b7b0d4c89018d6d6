"""Norm of query and key heads, rotation and the append to the paged cache, as one Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from wamdiff2_core.decode.engine.triton_product import let_next_begin, wait_for_inputs


@triton.jit
def rotate_append(
    qkv, head_norm, cos, sin, slot, queries, keys, values, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (T, head blocks). A program turns BLOCK_H heads of one token; value heads are only copied."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    HALF: tl.constexpr = D // 2
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    at = tl.arange(0, HALF)
    turning = heads[:, None] < HQ + HKV
    inside = heads[:, None] < HQ + 2 * HKV
    base = qkv + (token * (HQ + 2 * HKV) + heads[:, None]) * D + at[None, :]
    left = tl.load(base, inside, other=0.0).to(tl.float32)
    right = tl.load(base + HALF, inside, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)
    weight = head_norm + heads[:, None] * D + at[None, :]
    a = left * factor[:, None] * tl.load(weight, turning, other=0.0).to(tl.float32)
    b = right * factor[:, None] * tl.load(weight + HALF, turning, other=0.0).to(tl.float32)
    angle = token * D + at
    cos_a = tl.load(cos + angle).to(tl.float32)[None, :]
    cos_b = tl.load(cos + angle + HALF).to(tl.float32)[None, :]
    sin_a = tl.load(sin + angle).to(tl.float32)[None, :]
    sin_b = tl.load(sin + angle + HALF).to(tl.float32)[None, :]
    new_a = a * cos_a - b * sin_a
    new_b = b * cos_b + a * sin_b
    is_query = heads[:, None] < HQ
    to_query = queries + (token * HQ + heads[:, None]) * D + at[None, :]
    tl.store(to_query, new_a.to(queries.dtype.element_ty), is_query)
    tl.store(to_query + HALF, new_b.to(queries.dtype.element_ty), is_query)
    place = tl.load(slot + token).to(tl.int64) * HKV
    to_key = keys + (place + heads[:, None] - HQ) * D + at[None, :]
    tl.store(to_key, new_a.to(keys.dtype.element_ty), turning & (heads[:, None] >= HQ))
    tl.store(to_key + HALF, new_b.to(keys.dtype.element_ty), turning & (heads[:, None] >= HQ))
    to_value = values + (place + heads[:, None] - HQ - HKV) * D + at[None, :]
    tl.store(to_value, left.to(values.dtype.element_ty), inside & (heads[:, None] >= HQ + HKV))
    tl.store(to_value + HALF, right.to(values.dtype.element_ty), inside & (heads[:, None] >= HQ + HKV))
