"""Rows that a pass begins and ends with, as Triton kernels: what was taken, and what is predicted from.

Each copies rows that lie apart, in one launch where plain operations take three or four. Nothing is computed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wamdiff2_core.decode.engine.triton_product import let_next_begin, wait_for_inputs


@triton.jit
def _copy(source, target, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, at < WIDTH, other=0), at < WIDTH)


@triton.jit
def look_up(
    embed, cos, sin, ids, turn, embeds, to_cos, to_sin, H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (T,). Rows `ids` of embed (V, H) and `turn` of cos, sin (P, D)."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    row, angle = tl.load(ids + token), tl.load(turn + token)
    _copy(embed + row * H, embeds + token * H, H, BLOCK_H)
    _copy(cos + angle * D, to_cos + token * D, D, BLOCK_D)
    _copy(sin + angle * D, to_sin + token * D, D, BLOCK_D)


@triton.jit(do_not_specialize=["row_stride"])
def line_up(
    carry, hidden, rolled, bits, sets, x, allowed, row_stride, SIZE: tl.constexpr, H: tl.constexpr,
    WORDS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr, FOLLOWING: tl.constexpr, WIDE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (rows * SIZE,). See Moves.line_up. hidden: rows row_stride apart, their tokens behind one another."""
    wait_for_inputs(PDL)
    let_next_begin(PDL)
    place = tl.program_id(0).to(tl.int64)
    row, at = place // SIZE, place % SIZE
    mine = hidden + row * row_stride + (at + SIZE * WIDE - FOLLOWING) * H  # the token that tells what comes here
    width = tl.arange(0, BLOCK_H)
    inside = width < H
    if FOLLOWING:
        if at == 0:
            fresh = False
            if WIDE:
                fresh = tl.load(rolled + row) != 0
            kept = tl.load(carry + row * H + width, inside, other=0.0)
            if WIDE:
                kept = tl.where(fresh, tl.load(mine + width, inside, other=0.0), kept)
                tl.store(carry + row * H + width, kept, inside)
            tl.store(x + place * H + width, kept, inside)
        else:
            _copy(mine, x + place * H, H, BLOCK_H)
    else:
        _copy(mine, x + place * H, H, BLOCK_H)
    _copy(bits + tl.load(sets + place) * WORDS, allowed + place * WORDS, WORDS, BLOCK_W)


def looked_up(
    embed: Tensor, cos: Tensor, sin: Tensor, ids: Tensor, turn: Tensor, pdl: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ids (R, W) of embed, and turn (R, W) of cos and sin: (R, W, H), twice (R, W, D). ValueError: strided."""
    _check(embed, cos, sin, ids, turn)
    (rows, width), hidden, size = ids.shape, embed.shape[1], cos.shape[1]
    embeds = torch.empty(rows, width, hidden, dtype=embed.dtype, device=embed.device)
    to_cos, to_sin = (torch.empty(rows, width, size, dtype=one.dtype, device=embed.device) for one in (cos, sin))
    look_up[(rows * width,)](
        embed, cos, sin, ids, turn, embeds, to_cos, to_sin, H=hidden, D=size, BLOCK_H=triton.next_power_of_2(hidden),
        BLOCK_D=triton.next_power_of_2(size), PDL=pdl, num_warps=4, **_launch(pdl),
    )  # fmt: skip
    return embeds, to_cos, to_sin


def lined_up(
    carry: Tensor, hidden: Tensor, rolled: Tensor, bits: Tensor, sets: Tensor, following: bool, wide: bool, pdl: bool
) -> tuple[Tensor, Tensor]:
    """See Moves.line_up; sets (R, B). ValueError: strided, or too few tokens a row."""
    _check(carry, rolled, bits, sets, hidden[0])
    (rows, size), (_, width, inner), words = sets.shape, hidden.shape, bits.shape[1]
    if width < size * (1 + wide) and not (following and width == size * wide):
        raise ValueError(f"line up: expected {size * (1 + wide)} tokens a row, got {width}")
    x = torch.empty(rows * size, inner, dtype=hidden.dtype, device=hidden.device)
    allowed = torch.empty(rows * size, words, dtype=bits.dtype, device=hidden.device)
    line_up[(rows * size,)](
        carry, hidden, rolled.view(torch.uint8), bits, sets, x, allowed, hidden.stride(0), SIZE=size, H=inner,
        WORDS=words, BLOCK_H=triton.next_power_of_2(inner), BLOCK_W=triton.next_power_of_2(words),
        FOLLOWING=int(following), WIDE=int(wide), PDL=pdl, num_warps=4, **_launch(pdl),
    )  # fmt: skip
    return x, allowed


def _launch(pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if pdl else {}


def _check(*tensors: Tensor) -> None:
    """The kernels take addresses on trust."""
    if not all(one.is_contiguous() for one in tensors):
        raise ValueError("moves: expected contiguous tables and rows")
