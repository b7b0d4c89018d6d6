"""Step 3: one differentiable pass of transformers' Qwen3-VL over packed tokens, without a host synchronisation.

The weights and layers are transformers'; the loop over them is ours because a training step needs images encoded once,
our own attention mask, and scatter by index instead of by boolean mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wamdiff2_core.distill.attention import Mask, attend, prepared
from wamdiff2_core.distill.layout import Packed
from wamdiff2_core.model.vision import encode_batch

Layer = Callable[[nn.Module, Tensor, Tensor, Tensor, Mask], Tensor]


@dataclass(frozen=True)
class Visual:
    """Features of all image tokens of a batch: merged (M, H) and one (M, H) per deepstack level, image after image."""

    merged: Tensor
    deepstack: tuple[Tensor, ...]

    @classmethod
    def of(cls, features: Tensor) -> Visual:
        """features (1 + levels, M, H)."""
        return cls(features[0], tuple(features[1:]))


def text_layer(layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
    """One text layer with few passes over memory. hidden (S, L, H) stays fp32, products run in the mask's dtype.

    cos, sin (S, L, 1, D); mask: see attention.prepared.
    """
    query, key, value = projected(layer, hidden, cos, sin, mask.cast)
    return mixed_in(layer, hidden, attend(query, key, value, mask, layer.self_attn.scaling))


def projected(
    layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, cast: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (S, heads, L, D), keys and values (S, KV heads, L, D) of a text layer."""
    attention = layer.self_attn
    x = _normed(layer.input_layernorm, hidden).to(cast)
    heads = (*hidden.shape[:2], -1, attention.head_dim)
    query = _turned(_normed(attention.q_norm, attention.q_proj(x).view(heads)), cos, sin).to(cast).transpose(1, 2)
    key = _turned(_normed(attention.k_norm, attention.k_proj(x).view(heads)), cos, sin).to(cast).transpose(1, 2)
    return query, key, attention.v_proj(x).view(heads).transpose(1, 2).to(cast)


def mixed_in(layer: nn.Module, hidden: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a text layer: what attention found, mixed (S, heads, L, D), and the feed-forward part."""
    mlp = layer.mlp
    hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
    x = _normed(layer.post_attention_layernorm, hidden).to(mixed.dtype)
    return hidden + mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))


@dataclass(frozen=True)
class Pass:
    """How a pass is made. cast: dtype of attention; layer: `text_layer` or something that ends in it (compiled,
    sharded);
    encode: likewise for a batch of equal images; checkpointing: keep only layer inputs for the backward pass."""

    cast: torch.dtype = torch.float32
    layer: Layer = text_layer
    encode: Callable[..., Tensor] = encode_batch
    checkpointing: bool = False


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """transformers' RMS norm in one fused pass, fp32 inside; the result has the dtype of x."""
    return F.rms_norm(x, x.shape[-1:], norm.weight.to(x.dtype), norm.variance_epsilon)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (R, L, heads, D), half-split layout."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def encode_frames(
    visual: nn.Module,
    groups: list[tuple[Tensor, int, int]],
    order: tuple[tuple[int, int], ...],
    encode: Callable[..., Tensor] = encode_batch,
) -> Visual:
    """Encode F frames of several cameras. groups: (patches (K * F, n, values), grid height, grid width), K cameras
    of one
    size stacked camera after camera; order: (group, camera in group) of each camera in prompt order."""
    views = []
    for number, (patches, height, width) in enumerate(groups):
        cameras = max(camera for group, camera in order if group == number) + 1
        features = encode(visual, patches, (1, height, width))  # (1 + levels, K * F, n, H)
        views.append(features.unflatten(1, (cameras, -1)))
    joined = torch.cat([views[group][:, camera] for group, camera in order], 2)  # (1 + levels, F, N, H)
    return Visual.of(joined.flatten(1, 2))


def hidden_states(model: nn.Module, packed: Packed, visual: Visual | None, how: Pass) -> Tensor:
    """(S, L, H) fp32 after the final norm."""
    text = model.model.language_model
    hidden, deep = embedded(text, packed, visual)
    cos, sin = turns(text, hidden, packed.positions, how.cast)
    mask = prepared(packed.mask, how.cast)
    for number, layer in enumerate(text.layers):
        if how.checkpointing and torch.is_grad_enabled():
            hidden = checkpoint(how.layer, layer, hidden, cos, sin, mask, use_reentrant=False)
        else:
            hidden = how.layer(layer, hidden, cos, sin, mask)
        if number < len(deep):
            hidden = hidden + deep[number].to(hidden.dtype)
    return last_norm(text, hidden)


def embedded(text: nn.Module, packed: Packed, visual: Visual | None) -> tuple[Tensor, list[Tensor]]:
    """(S, L, H) fp32 of tokens and images, and what is added behind the first layers, one (S, L, H) each."""
    hidden = text.embed_tokens(packed.ids)
    deep: list[Tensor] = []
    if visual is not None:
        is_image = (packed.image_at >= 0)[..., None]
        hidden = torch.where(is_image, placed(visual.merged, packed.image_at).to(hidden.dtype), hidden)
        deep = [placed(level, packed.image_at) for level in visual.deepstack]
    return hidden.float(), deep


def turns(text: nn.Module, hidden: Tensor, positions: Tensor, cast: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin (S, L, 1, D) of rotary positions (3, S, L)."""
    cos, sin = text.rotary_emb(hidden, positions)
    return cos.to(cast)[:, :, None], sin.to(cast)[:, :, None]


def last_norm(text: nn.Module, hidden: Tensor) -> Tensor:
    return _normed(text.norm, hidden)


def placed(table: Tensor, at: Tensor) -> Tensor:
    """(S, L, H): rows `at` (S, L) of a table (M, H), zeros where `at` is -1.

    As an embedding with a padding row: indexing's gradient would add up all text tokens of a batch one after the other.
    """
    count = table.shape[0]
    return F.embedding(torch.where(at < 0, count, at), F.pad(table, (0, 0, 0, 1)), padding_idx=count)


def taken(hidden: Tensor, at: Tensor) -> Tensor:
    """(R, C, H): rows of hidden (S, L, H) at flat places `at` (R, C)."""
    return hidden.flatten(0, 1).index_select(0, at.flatten()).unflatten(0, at.shape)
