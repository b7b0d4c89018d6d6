"""Step 3: one differentiable pass of transformers' Qwen3-VL over packed rows, without a host synchronisation.

The weights and layers are transformers'; the loop over them is ours because a training step needs images encoded
once per
frame (and shared by the frame's rows), our own attention mask, and scatter by index instead of by boolean mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wamdiff2_core.distill.layout import Packed, Rows
from wamdiff2_core.model.vision import encode_batch


@dataclass(frozen=True)
class Visual:
    """Embeddings of F frames: merged (F, N, H) and one (F, N, H) per deepstack level, images in prompt order."""

    merged: Tensor
    deepstack: tuple[Tensor, ...]


def encode_frames(
    visual: nn.Module, groups: list[tuple[Tensor, int, int]], order: tuple[tuple[int, int], ...]
) -> Visual:
    """Encode F frames of several cameras. groups: (patches (K * F, n, values), grid height, grid width), K cameras
    of one
    size stacked camera after camera; order: (group, camera in group) of each camera in prompt order."""
    views = []
    for number, (patches, height, width) in enumerate(groups):
        cameras = max(camera for group, camera in order if group == number) + 1
        features = encode_batch(visual, patches, (1, height, width))  # (1 + levels, K * F, n, H)
        views.append(features.unflatten(1, (cameras, -1)))
    joined = torch.cat([views[group][:, camera] for group, camera in order], 2)  # (1 + levels, F, N, H)
    return Visual(joined[0], tuple(joined[1:]))


def image_slots(ids: Tensor, image_token_id: int) -> tuple[Tensor, Tensor]:
    """is_image (R, L) and the running number (R, L) of each image token in its row (0 elsewhere)."""
    is_image = ids == image_token_id
    return is_image, (is_image.cumsum(1) - 1).clamp(min=0) * is_image


def text_layer(layer: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
    """One text layer with few passes over memory. hidden (R, L, H) stays fp32, the products run in the dtype of the
    mask.

    cos, sin (R, L, 1, D) fp32; mask (R, 1, L, L) is added to the attention scores.
    """
    attention, mlp, cast = layer.self_attn, layer.mlp, mask.dtype
    rows, length, _ = hidden.shape
    x = _normed(layer.input_layernorm, hidden).to(cast)
    heads = (rows, length, -1, attention.head_dim)
    query = _turned(_normed(attention.q_norm, attention.q_proj(x).view(heads)), cos, sin).to(cast).transpose(1, 2)
    key = _turned(_normed(attention.k_norm, attention.k_proj(x).view(heads)), cos, sin).to(cast).transpose(1, 2)
    value = attention.v_proj(x).view(heads).transpose(1, 2)
    key, value = (part.repeat_interleave(attention.num_key_value_groups, 1) for part in (key, value))
    mixed = F.scaled_dot_product_attention(query, key, value.to(cast), attn_mask=mask, scale=attention.scaling)
    hidden = hidden + attention.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
    x = _normed(layer.post_attention_layernorm, hidden).to(cast)
    return hidden + mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """transformers' RMS norm in one fused fp32 pass."""
    return F.rms_norm(x.float(), x.shape[-1:], norm.weight.float(), norm.variance_epsilon)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (R, L, heads, D), half-split layout."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def hidden_states(model: nn.Module, packed: Packed, rows: Rows, visual: Visual | None, cast: torch.dtype) -> Tensor:
    """(R, L, H) after the final norm. `cast`: dtype that attention runs in (the mask is made in it)."""
    text = model.model.language_model
    hidden = text.embed_tokens(packed.ids)
    deep: list[Tensor] = []
    if visual is not None:
        is_image, slot = image_slots(packed.ids[:, : packed.prompt], model.config.image_token_id)

        def spread(features: Tensor) -> Tensor:
            """(F, N, H) -> (R, P, H): each image token's feature, zero elsewhere."""
            flat = (rows.frame[:, None] * features.shape[1] + slot).clamp(max=features.shape[0] * features.shape[1] - 1)
            return features.flatten(0, 1)[flat] * is_image[..., None]

        prompt = torch.where(is_image[..., None], spread(visual.merged).to(hidden.dtype), hidden[:, : packed.prompt])
        hidden = torch.cat([prompt, hidden[:, packed.prompt :]], 1)
        rest = packed.ids.shape[1] - packed.prompt
        deep = [F.pad(spread(level), (0, 0, 0, rest)) for level in visual.deepstack]
    cos, sin = (part.float()[:, :, None] for part in text.rotary_emb(hidden, packed.positions))
    floor = torch.finfo(cast).min
    mask = torch.zeros(packed.mask.shape, dtype=cast, device=hidden.device).masked_fill_(~packed.mask, floor)[:, None]
    for number, layer in enumerate(text.layers):
        hidden = text_layer(layer, hidden, cos, sin, mask)
        if number < len(deep):
            hidden = hidden + deep[number].to(hidden.dtype)
    return _normed(text.norm, hidden)


def answer_logits(model: nn.Module, packed: Packed, hidden: Tensor, prediction: str) -> tuple[Tensor, Tensor | None]:
    """Logits (R, C, V) for each answer position: from the clean stream, and from the noisy one if there is one.

    Clean: position i - 1 predicts i (the last prompt token predicts the first). Noisy "next": likewise inside the noisy
    copy, so index 0 has nothing before it and repeats the copy's first position (never used in a loss); "same":
    position i.
    """
    start, count = packed.prompt, packed.answer
    clean = model.lm_head(hidden[:, start - 1 : start + count - 1])
    if hidden.shape[1] == start + count:
        return clean, None
    noisy = hidden[:, start + count :]
    if prediction == "next":
        noisy = torch.cat([noisy[:, :1], noisy[:, :-1]], 1)
    return clean, model.lm_head(noisy)
