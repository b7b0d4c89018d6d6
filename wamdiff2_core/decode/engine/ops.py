"""What a forward pass of the engine is made of, and its plain PyTorch twin.

Tokens of all rows lie behind one another: T = rows x tokens a row. A token writes its key and value at one slot of a
paged cache and sees the first `limit` logical places of its row, through the row's page table. Every mask of this
project is such a limit: causal prompt and clean tokens see up to themselves, a block's tokens up to the block's end.
Slot 0 .. page_size - 1 (page 0) belongs to nobody: tokens that count for nothing write there and have limit 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one text layer; the weight of the norm before qkv and gate_up is multiplied into them.

    qkv ((Hq + 2 Hkv) D, H), out (H, Hq D), gate_up (2 I, H) gate first, down (H, I), head_norm (Hq + Hkv, D): the
    weight of each query and key head's norm.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    head_norm: Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes that all layers share. scale: of attention scores. eps: of every norm."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float


@dataclass(frozen=True)
class Choice:
    """tokens (T,) int64: most probable allowed id; certainty (T,) fp32: its probability among the allowed ones;

    usable (T,) bool: all logits of the token are numbers.
    """

    tokens: Tensor
    certainty: Tensor
    usable: Tensor


class Ops(Protocol):
    """One set of kernels. Everything runs on the device and never waits for it; outputs may be reused buffers."""

    name: str

    def norm_linear(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm of x (T, H) without weight, then weight (O, H): (T, O)."""
        ...

    def rotate_append(
        self, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor, values: Tensor,
        shape: Shape,
    ) -> Tensor:  # fmt: skip
        """Norm the heads of qkv (T, (Hq + 2 Hkv) D), rotate them by cos, sin (T, D); write keys, values (slots, Hkv, D)

        at slot (T,) int64; return the queries (T, Hq, D).
        """
        ...

    def project(
        self, x: Tensor, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor,
        values: Tensor, shape: Shape,
    ) -> Tensor:  # fmt: skip
        """`norm_linear` of x (T, H) with qkv, then `rotate_append`: the queries (T, Hq, D)."""
        ...

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, limit: Tensor, shape: Shape) -> Tensor:
        """Attention of q (T, Hq, D) over keys, values (slots, Hkv, D): (T, Hq D).

        pages (R, P) int32: page numbers of each row's logical places, page_size = what `attend` was made for. limit
        (T,) int32: how many logical places a token sees; 0: none, the output is zero. What lies behind the places that
        some token of the row sees is left over from others and may be anything, NaN too: it must not show. (Ops with a
        Planner are given numbers there, see KernelSet.)
        """
        ...

    def linear_add(self, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """residual (T, O) + x (T, I) times weight (O, I).

        What it returns is nobody's to write to: kernels may know more about that very tensor, its norm for one. Given
        as a residual it is used up: what comes back may lie in its place.
        """
        ...

    def gated(self, x: Tensor, gate_up: Tensor, eps: float) -> Tensor:
        """silu(gate) * up of the normed x (T, H): (T, I)."""
        ...

    def choose(self, x: Tensor, head: Tensor, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        """Most probable ids of the normed x (T, H) under head (V, H), the final norm's weight multiplied in.

        allowed (T, ceil(V / 32)) int32: bit v % 32 of word v // 32 says whether id v may be chosen; None: all.
        forbidden: an id that is never chosen and takes no probability, -1: none.
        """
        ...


class Planner(Protocol):
    """What the engine asks of ops whose attention is planned on the host; others have none.

    Passes have forms: so many rows, so many tokens a row. A pass, captured or not, does what its form's last plan says.
    Limits move on the device, so a plan knows a row's pages only, and a pass begins by saying what its tokens see.
    """

    def plan_passes(self, rows: int, pages: Sequence[Sequence[int]], widths: Sequence[int]) -> None:
        """Plan the passes of `rows` rows and each of `widths` tokens a row. On the host, outside of a capture.

        pages: of each row, in order; rows behind the given ones have none. The first plan of a form makes its buffers;
        one that would change nothing does nothing.
        """
        ...

    def begin(self, limit: Tensor) -> None:
        """A pass begins whose tokens see limit (R, W) int32 places, see Ops.attend: of all layers. On the device."""
        ...


class TorchOps:
    """Plain PyTorch, on any device: the twin that kernels are tested against."""

    name = "torch"

    def __init__(self, page_size: int, act: str = "silu") -> None:
        if act != "silu":
            raise ValueError(f"activation: expected silu, got {act}")
        self.page_size = page_size

    def norm_linear(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.linear(F.rms_norm(x, (x.shape[-1],), eps=eps), weight)

    def rotate_append(
        self, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor, values: Tensor,
        shape: Shape,
    ) -> Tensor:  # fmt: skip
        size, turning = shape.head_dim, shape.heads + shape.kv_heads
        heads = qkv.view(len(qkv), -1, size)
        qk = F.rms_norm(heads[:, :turning], (size,), eps=shape.eps) * head_norm
        half = torch.cat((-qk[..., size // 2 :], qk[..., : size // 2]), -1)
        qk = qk * cos[:, None] + half * sin[:, None]
        keys.index_copy_(0, slot, qk[:, shape.heads :].to(keys.dtype))
        values.index_copy_(0, slot, heads[:, turning:].to(values.dtype))
        return qk[:, : shape.heads]

    def project(
        self, x: Tensor, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor,
        values: Tensor, shape: Shape,
    ) -> Tensor:  # fmt: skip
        return self.rotate_append(self.norm_linear(x, qkv, shape.eps), head_norm, cos, sin, slot, keys, values, shape)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, limit: Tensor, shape: Shape) -> Tensor:
        rows, width = len(pages), len(q) // len(pages)
        places = pages.long()[:, :, None] * self.page_size + torch.arange(self.page_size, device=q.device)
        index = places.view(rows, -1)  # (R, K)
        group = shape.heads // shape.kv_heads
        order = torch.arange(index.shape[1], device=q.device)
        stale = (order >= limit.view(rows, width).amax(1, keepdim=True))[:, :, None, None]
        # A probability of zero times NaN is NaN: masking the scores is not enough.
        key = keys[index].masked_fill(stale, 0.0).transpose(1, 2).repeat_interleave(group, 1)  # (R, Hq, K, D)
        value = values[index].masked_fill(stale, 0.0).transpose(1, 2).repeat_interleave(group, 1)
        query = q.view(rows, width, shape.heads, shape.head_dim).transpose(1, 2)
        seen = order < limit.view(rows, 1, width, 1)
        none = ~seen.any(-1, keepdim=True)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen | none, scale=shape.scale)
        return out.masked_fill(none, 0.0).transpose(1, 2).reshape(len(q), -1)

    def linear_add(self, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return residual + F.linear(x, weight)

    def gated(self, x: Tensor, gate_up: Tensor, eps: float) -> Tensor:
        gate, up = self.norm_linear(x, gate_up, eps).chunk(2, -1)
        return F.silu(gate) * up

    def choose(self, x: Tensor, head: Tensor, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        logits = self.norm_linear(x, head, eps).float()
        usable = logits.isfinite().all(-1)
        if forbidden >= 0:
            logits[:, forbidden] = -torch.inf
        if allowed is not None:
            ids = torch.arange(logits.shape[1], device=x.device)
            bits = allowed[:, ids // 32] >> (ids % 32).to(allowed.dtype) & 1
            logits = logits.masked_fill(bits == 0, -torch.inf)
        best, tokens = logits.max(-1)
        certainty = torch.exp(best - logits.logsumexp(-1))
        return Choice(tokens, certainty, usable & certainty.isfinite())
