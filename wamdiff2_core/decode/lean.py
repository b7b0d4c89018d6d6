"""The lean kernel set: the text model's arithmetic with few calls per layer and little memory traffic.

transformers' layers cost more in Python and small operations than in arithmetic when 32 tokens run through a small
model. Here q, k, v are one product, gate and up are one product, the weights of the norms before them are folded in,
and grouped queries go to attention as they are (no repeated keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.decode.cache import KVCache
from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.model.checkpoint import LoadedModel


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; qkv and gate_up have the weight of the norm before them multiplied in.

    q and k heads share one rotation: norm (q_heads + kv_heads, D) is the weight of their norm, turned is the same with
    its halves swapped and the first one negated, as rotation needs it.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    norm: Tensor
    turned: Tensor


class LeanKernels:
    """Own forward pass of the Qwen3 text layers; same numbers as the plain set up to rounding."""

    name = "lean"

    def __init__(self, loaded: LoadedModel) -> None:
        text, config = loaded.model.model.language_model, loaded.config.text_config
        attention = text.layers[0].self_attn
        self._norm = text.norm
        self._act = text.layers[0].mlp.act_fn
        self._eps = config.rms_norm_eps
        self._size = attention.head_dim
        self._kv_heads = config.num_key_value_heads
        self._heads = config.num_attention_heads
        self._group = self._heads // self._kv_heads
        self._scale = attention.scaling
        with torch.no_grad():
            self._layers = [self._pack(layer) for layer in text.layers]

    def _pack(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        qkv = torch.cat([one.weight for one in projections])
        bias = torch.cat([one.bias for one in projections]) if attention.q_proj.bias is not None else None
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        norm = torch.cat(
            (
                attention.q_norm.weight.expand(self._heads, -1),
                attention.k_norm.weight.expand(self._kv_heads, -1),
            )
        )
        half = self._size // 2
        return _Layer(
            qkv=_folded(qkv, layer.input_layernorm.weight),
            qkv_bias=bias,
            out=attention.o_proj.weight,
            out_bias=attention.o_proj.bias,
            gate_up=_folded(gate_up, layer.post_attention_layernorm.weight),
            down=mlp.down_proj.weight,
            norm=norm.contiguous(),
            turned=torch.cat((-norm[:, half:], norm[:, :half]), -1).contiguous(),
        )

    def forward(self, segment: Segment, cache: KVCache, mask: Tensor | None) -> Tensor:
        """See Kernels.forward."""
        hidden = segment.embeds
        at, width = cache.length, segment.width
        cos, sin = segment.cos[:, :, None], segment.sin[:, :, None]
        if mask is not None:  # (R, 1, group * Q, K): the queries of a group lie behind one another
            mask = mask.repeat(1, self._group, 1)[:, None]
        for number, layer in enumerate(self._layers):
            keys, values = cache.keys[number], cache.values[number]
            hidden = self._attend(layer, hidden, cos, sin, keys, values, at, mask)
            hidden = self._feed(layer, hidden)
            if segment.deepstack is not None and number < len(segment.deepstack):
                hidden = hidden + segment.deepstack[number]
        assert hidden.shape[1] == width
        return self._norm(hidden)

    def _attend(
        self,
        layer: _Layer,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        at: int,
        mask: Tensor | None,
    ) -> Tensor:
        """Attention with residual; writes keys and values (R, kv_heads, capacity, D) from slot `at` on."""
        rows, width, _ = hidden.shape
        turning = self._heads + self._kv_heads
        qkv = F.linear(_normed(hidden, self._eps), layer.qkv, layer.qkv_bias).view(rows, width, -1, self._size)
        qk = _normed(qkv[:, :, :turning], self._eps)
        half = self._size // 2
        swapped = torch.cat((qk[..., half:], qk[..., :half]), -1)
        qk = torch.addcmul(qk * (layer.norm * cos), swapped, layer.turned * sin).transpose(1, 2)
        end = at + width
        keys[:, :, at:end] = qk[:, self._heads :]
        values[:, :, at:end] = qkv[:, :, turning:].transpose(1, 2)
        query = qk[:, : self._heads].reshape(rows, self._kv_heads, self._group * width, self._size)
        out = F.scaled_dot_product_attention(
            query, keys[:, :, :end], values[:, :, :end], attn_mask=mask, scale=self._scale
        )
        out = out.reshape(rows, self._heads, width, self._size).transpose(1, 2).reshape(rows, width, -1)
        return hidden + F.linear(out, layer.out, layer.out_bias)

    def _feed(self, layer: _Layer, hidden: Tensor) -> Tensor:
        """Feed-forward with residual."""
        gate, up = F.linear(_normed(hidden, self._eps), layer.gate_up).chunk(2, -1)
        return hidden + F.linear(self._act(gate) * up, layer.down)


def _folded(weight: Tensor, norm: Tensor) -> Tensor:
    """A linear weight (O, I) that takes the place of `norm` (I,) and itself."""
    return (weight.float() * norm.float()).to(weight.dtype)


def _normed(x: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, without weight."""
    return F.rms_norm(x, (x.shape[-1],), eps=eps)
