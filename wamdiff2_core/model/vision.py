"""Image encoding with transformers' weights: images of equal size run as one batch, position tables cached by grid.

transformers attends image by image in a loop and rebuilds its tables on every call; on a small model that costs more
than the arithmetic. Differentiable: training uses it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.errors import DataError
from wamdiff2_core.model.tokens import Grid, grids_of, image_tokens

Turn = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""See `turned_heads`."""
Layer = Callable[..., Tensor]
"""See `vision_block`."""


@dataclass(frozen=True)
class ImageFeatures:
    """Merged image tokens: embeds (M, H); deepstack (L, M, H), to be added after the first L text layers."""

    embeds: Tensor
    deepstack: Tensor


@dataclass(frozen=True)
class _Tables:
    """Of one grid with n patches: bilinear taps into the learned position grid (n, 4), and row and column (n, 2)."""

    taps: Tensor
    weights: Tensor
    place: Tensor


def encode_images(
    visual: Any, pixel_values: Tensor, grid_thw: Tensor | Sequence[Grid], layer: Layer | None = None
) -> ImageFeatures:
    """Encode images. `visual`: transformers' Qwen3-VL vision module; pixel_values (patches, C * T * P * P).

    grid_thw: (images, 3) patches in time, height, width. Tokens come in the order of the images. layer: see
    `encode_batch`.
    """
    grids = grids_of(grid_thw) if isinstance(grid_thw, Tensor) else list(grid_thw)
    tokens = [image_tokens(grid, visual.spatial_merge_size) for grid in grids]
    counts = [t * h * w for t, h, w in grids]
    width = visual.patch_embed.proj.weight[0].numel()
    if pixel_values.dim() != 2 or pixel_values.shape[1] != width:
        raise DataError(f"pixel_values: expected shape (patches, {width}), got {tuple(pixel_values.shape)}")
    if pixel_values.shape[0] != sum(counts):
        raise DataError(f"pixel_values: expected {sum(counts)} patches for grids {grids}, got {pixel_values.shape[0]}")
    patches = pixel_values.split(counts)
    groups: dict[Grid, list[int]] = {}
    for index, grid in enumerate(grids):
        groups.setdefault(grid, []).append(index)
    outputs: list[Tensor] = [pixel_values] * len(grids)
    for grid, members in groups.items():
        batch = torch.stack([patches[index] for index in members])
        features = encode_batch(visual, batch, grid, layer or vision_block)  # (1 + L, G, m, H)
        for row, index in enumerate(members):
            outputs[index] = features[:, row]
    joined = torch.cat(outputs, dim=1)
    assert joined.shape[1] == sum(tokens)
    return ImageFeatures(joined[0], joined[1:])


def turned_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys (G, heads, n, d) of qkv (G, n, 3, heads, d); cos, sin (n, d) fp32."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def vision_block(block: Any, hidden: Tensor, cos: Tensor, sin: Tensor, turn: Turn = turned_heads) -> Tensor:
    """One layer of the encoder on rows of patches, hidden (G, n, width). turn: `turned_heads`, or a kernel for it."""
    hidden = hidden + attention(block.attn, block.norm1(hidden), cos, sin, turn)
    return hidden + block.mlp(block.norm2(hidden))


def encode_batch(visual: Any, batch: Tensor, grid: Grid, layer: Layer = vision_block) -> Tensor:
    """Features (1 + L, G, m, H) of G images (G, n, C * T * P * P) with the same grid.

    layer: `vision_block`, or something that ends in it (compiled, sharded, with a kernel).
    """
    t, h, w = grid
    proj = visual.patch_embed.proj
    weight = proj.weight.flatten(1)
    tables = tables_of(visual, grid)
    hidden = F.linear(batch.to(weight.dtype), weight, proj.bias)
    position = (visual.pos_embed(tables.taps) * tables.weights[..., None].to(weight.dtype)).sum(1)
    hidden = hidden + position.repeat(t, 1)
    # Every frame attends to itself only: frames are rows of the batch, as equal images are.
    images, width = hidden.shape[0], hidden.shape[-1]
    hidden = hidden.reshape(images * t, h * w, width)
    cos, sin = _rope(visual, tables.place)
    deepstack: dict[int, Tensor] = {}
    indexes = list(visual.deepstack_visual_indexes)
    for number, block in enumerate(visual.blocks):
        hidden = layer(block, hidden, cos, sin)
        if number in indexes:
            slot = indexes.index(number)
            deepstack[slot] = visual.deepstack_merger_list[slot](hidden.reshape(-1, width))
    merged = [visual.merger(hidden.reshape(-1, width))] + [deepstack[slot] for slot in range(len(indexes))]
    return torch.stack(merged).reshape(len(merged), images, -1, merged[0].shape[-1])


def tables_of(visual: Any, grid: Grid) -> _Tables:
    """The position tables of a grid as `encode_batch` takes them. Who captures it as a graph must keep them alive."""
    _, h, w = grid
    return _tables(
        h, w, visual.spatial_merge_size, visual.num_grid_per_side, str(visual.patch_embed.proj.weight.device)
    )


def attention(attn: Any, hidden: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> Tensor:
    """Full attention inside each row of hidden (G, n, width), projected: (G, n, width)."""
    rows, n, width = hidden.shape
    qkv = attn.qkv(hidden).view(rows, n, 3, attn.num_heads, -1)
    q, k = turn(qkv, cos, sin)
    v = qkv[:, :, 2].transpose(1, 2)  # every kind of attention reads it where it lies: the heads' numbers are together
    out = F.scaled_dot_product_attention(q, k, v, scale=attn.scaling)
    return attn.proj(out.transpose(1, 2).reshape(rows, n, width))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (..., n, d) in float32, half-split layout."""
    wide = x.float()
    half = x.shape[-1] // 2
    turned = torch.cat((-wide[..., half:], wide[..., :half]), -1)
    return (wide * cos + turned * sin).to(x.dtype)


def _rope(visual: Any, place: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin (n, head_dim) of patches at `place` (n, 2): rows turn the first half of the pairs."""
    angles = (place[..., None].float() * visual.rotary_pos_emb.inv_freq.float()).flatten(1)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the first caller may be the decoder, the next one training, under autograd
def _tables(h: int, w: int, merge: int, side: int, device: str) -> _Tables:
    """Tables of an h x w patch grid, patches ordered by merge x merge cell, as the image processor orders them."""
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    cells = (h // merge, merge, w // merge, merge)
    row, column = (axis.reshape(cells).transpose(1, 2).flatten() for axis in (rows, columns))
    row_tap, row_weight = _axis_taps(row, h, side)
    column_tap, column_weight = _axis_taps(column, w, side)
    taps = (row_tap[:, :, None] * side + column_tap[:, None, :]).flatten(1)
    weights = (row_weight[:, :, None] * column_weight[:, None, :]).flatten(1)
    return _Tables(taps.to(device), weights.to(device), torch.stack((row, column), -1).to(device))


def _axis_taps(index: Tensor, size: int, side: int) -> tuple[Tensor, Tensor]:
    """Two neighbours in a table of `side` entries, and weights, for `index` (n,) on an axis of `size`; corners meet."""
    source = index.float() * (side - 1) / max(size - 1, 1)
    low = source.floor().long()
    share = source - low
    return torch.stack((low, (low + 1).clamp(max=side - 1)), -1), torch.stack((1 - share, share), -1)
