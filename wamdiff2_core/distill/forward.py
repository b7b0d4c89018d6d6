"""Step 3: one differentiable pass of transformers' Qwen3-VL over packed rows, without a host synchronisation.

The weights and layers are transformers'; the loop over them is ours because a training step needs images encoded once per
frame (and shared by the frame's rows), our own attention mask, and scatter by index instead of by boolean mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wamdiff2_core.distill.layout import Packed, Rows


@dataclass(frozen=True)
class Visual:
    """Embeddings of F frames: merged (F, N, H) and one (F, N, H) per deepstack level, images in prompt order."""

    merged: Tensor
    deepstack: tuple[Tensor, ...]


@lru_cache(maxsize=32)
def _patch_order(height: int, width: int, merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch in Qwen's order: merge x merge windows, row by row. Each (height * width,)."""
    at = torch.arange(height * width).view(height // merge, merge, width // merge, merge).permute(0, 2, 1, 3).reshape(-1)
    return at // width, at % width


def _position_embedding(visual: nn.Module, height: int, width: int) -> Tensor:
    """(patches, hidden): the learned square grid, bilinearly resampled with aligned corners."""
    side = int(visual.pos_embed.num_embeddings**0.5)
    grid = visual.pos_embed.weight.view(1, side, side, -1).permute(0, 3, 1, 2)
    size = F.interpolate(grid.float(), (height, width), mode="bilinear", align_corners=True)[0].flatten(1).t()
    rows, columns = _patch_order(height, width, visual.config.spatial_merge_size)
    return size[(rows * width + columns).to(size.device)]


def _rotary(visual: nn.Module, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin (patches, head_dim): half of the frequencies turn with the row, half with the column."""
    dim = visual.config.hidden_size // visual.config.num_heads // 2
    parameters = getattr(visual.config, "rope_parameters", None) or {}
    theta = float(parameters.get("rope_theta", 10000.0))
    inverse = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    rows, columns = _patch_order(height, width, visual.config.spatial_merge_size)
    angles = torch.cat([rows[:, None] * inverse, columns[:, None] * inverse], 1)
    angles = torch.cat([angles, angles], 1)
    return angles.cos().to(device, non_blocking=True), angles.sin().to(device, non_blocking=True)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def _vision_block(block: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(M images, patches, hidden) -> the same; every image attends to itself."""
    images, patches, width = hidden.shape
    attention = block.attn
    qkv = attention.qkv(block.norm1(hidden)).view(images, patches, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    query, key, value = qkv[0], qkv[1], qkv[2]
    query, key = _turn(query, cos, sin).to(value.dtype), _turn(key, cos, sin).to(value.dtype)
    mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(images, patches, width)
    hidden = hidden + attention.proj(mixed)
    return hidden + block.mlp(block.norm2(hidden))


def encode_group(visual: nn.Module, patches: Tensor, height: int, width: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """M images of one grid: patches (M, height * width, values) -> merged (M, tokens, H) and the deepstack levels."""
    images = patches.shape[0]
    projection = visual.patch_embed.proj
    hidden = F.linear(patches, projection.weight.flatten(1), projection.bias)
    hidden = hidden + _position_embedding(visual, height, width).to(hidden.dtype)
    cos, sin = _rotary(visual, height, width, patches.device)
    levels = []
    for number, block in enumerate(visual.blocks):
        hidden = _vision_block(block, hidden, cos, sin)
        if number in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[list(visual.deepstack_visual_indexes).index(number)]
            levels.append(merger(hidden.flatten(0, 1)).view(images, -1, visual.config.out_hidden_size))
    merged = visual.merger(hidden.flatten(0, 1)).view(images, -1, visual.config.out_hidden_size)
    return merged, tuple(levels)


def encode_frames(visual: nn.Module, groups: list[tuple[Tensor, int, int]], order: tuple[tuple[int, int], ...]) -> Visual:
    """Encode F frames of several cameras. groups: (patches (K * F, n, values), grid height, grid width), K cameras of one
    size stacked camera after camera; order: (group, camera in group) of each camera in prompt order."""
    encoded = [encode_group(visual, *group) for group in groups]

    def join(pick: list[Tensor], frames: list[int]) -> Tensor:
        views = [tensor.view(-1, count, *tensor.shape[1:]) for tensor, count in zip(pick, frames, strict=True)]
        return torch.cat([views[group][camera] for group, camera in order], 1)

    cameras = [max(camera for g, camera in order if g == group) + 1 for group in range(len(groups))]
    frames = [group[0].shape[0] // count for group, count in zip(groups, cameras, strict=True)]
    merged = join([merged for merged, _ in encoded], frames)
    levels = range(len(encoded[0][1]))
    return Visual(merged, tuple(join([deep[level] for _, deep in encoded], frames) for level in levels))


def image_slots(ids: Tensor, image_token_id: int) -> tuple[Tensor, Tensor]:
    """is_image (R, L) and the running number (R, L) of each image token in its row (0 elsewhere)."""
    is_image = ids == image_token_id
    return is_image, (is_image.cumsum(1) - 1).clamp(min=0) * is_image


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
    turn = text.rotary_emb(hidden, packed.positions)
    floor = torch.finfo(cast).min
    mask = torch.zeros(packed.mask.shape, dtype=cast, device=hidden.device).masked_fill_(~packed.mask, floor)[:, None]
    for number, layer in enumerate(text.layers):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=turn)
        if number < len(deep):
            hidden = hidden + deep[number].to(hidden.dtype)
    return text.norm(hidden)


def answer_logits(model: nn.Module, packed: Packed, hidden: Tensor, prediction: str) -> tuple[Tensor, Tensor | None]:
    """Logits (R, C, V) for each answer position: from the clean stream, and from the noisy one if there is one.

    Clean: position i - 1 predicts i (the last prompt token predicts the first). Noisy "next": likewise inside the noisy
    copy, so index 0 has nothing before it and repeats the copy's first position (never used in a loss); "same": position i.
    """
    start, count = packed.prompt, packed.answer
    clean = model.lm_head(hidden[:, start - 1 : start + count - 1])
    if hidden.shape[1] == start + count:
        return clean, None
    noisy = hidden[:, start + count :]
    if prediction == "next":
        noisy = torch.cat([noisy[:, :1], noisy[:, :-1]], 1)
    return clean, model.lm_head(noisy)
