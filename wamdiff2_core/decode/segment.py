"""A run of tokens on its way through the text model, and how a prompt becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wamdiff2_core.errors import DataError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.masks import Labels, Part, concat, padded_label
from wamdiff2_core.model.tokens import deal_images, grids_of, mrope_positions
from wamdiff2_core.model.vision import ImageFeatures, encode_images


@dataclass(frozen=True)
class Segment:
    """Tokens of R rows: embeds (R, Q, H), rotary cos and sin (R, Q, D), labels (R, Q), deepstack (L, R, Q, H) or None.

    sees_all: without padding, every token sees everything committed and the whole segment. padded: some labels are PAD.
    """

    embeds: Tensor
    cos: Tensor
    sin: Tensor
    labels: Labels
    deepstack: Tensor | None = None
    sees_all: bool = False
    padded: bool = False

    @property
    def width(self) -> int:
        return self.embeds.shape[1]

    def rows(self, index: Tensor) -> Segment:
        """Only these rows."""
        return replace(
            self,
            embeds=self.embeds[index],
            cos=self.cos[index],
            sin=self.sin[index],
            labels=self.labels[index],
            deepstack=None if self.deepstack is None else self.deepstack[:, index],
        )

    def cut(self, start: int, end: int) -> Segment:
        """Tokens [start, end) of every row."""
        part = slice(start, end)
        return replace(
            self,
            embeds=self.embeds[:, part],
            cos=self.cos[:, part],
            sin=self.sin[:, part],
            labels=self.labels[:, part],
            deepstack=None if self.deepstack is None else self.deepstack[:, :, part],
            sees_all=False,
        )


def join(segments: Sequence[Segment]) -> Segment:
    """One segment behind the other."""
    if len(segments) == 1:
        return segments[0]
    return Segment(
        torch.cat([one.embeds for one in segments], 1),
        torch.cat([one.cos for one in segments], 1),
        torch.cat([one.sin for one in segments], 1),
        concat([one.labels for one in segments]),
        _join_deepstack(segments),
        False,
        any(one.padded for one in segments),
    )


def _join_deepstack(segments: Sequence[Segment]) -> Tensor | None:
    """Deepstack features of joined segments, zero where a segment has none."""
    layers = next((one.deepstack.shape[0] for one in segments if one.deepstack is not None), 0)
    if not layers:
        return None
    zeros = [one.embeds.new_zeros(1).expand(layers, *one.embeds.shape) for one in segments]
    return torch.cat([z if one.deepstack is None else one.deepstack for z, one in zip(zeros, segments, strict=True)], 2)


@dataclass(frozen=True)
class Prompt:
    """Prompts of R rows, right-padded: lengths (R,), next_position (R,), and per token what a Segment needs.

    ends: next_position on the host.
    """

    segment: Segment
    lengths: Tensor
    next_position: Tensor
    ends: tuple[int, ...]


def encode(loaded: LoadedModel, pixel_values: Tensor | None, image_grid_thw: Tensor | None) -> ImageFeatures | None:
    """Image features of a prompt, None without images."""
    if (pixel_values is None) != (image_grid_thw is None):
        raise DataError("expected pixel_values and image_grid_thw together, got only one of them")
    if pixel_values is None or image_grid_thw is None:
        return None
    return encode_images(loaded.model.model.visual, pixel_values.to(loaded.device), image_grid_thw)


def prompt_segment(
    loaded: LoadedModel,
    rows: Sequence[Tensor],
    features: ImageFeatures | None,
    image_grid_thw: Tensor | None,
    block_size: int,
    order: int = 0,
    position: int = 0,
) -> Prompt:
    """Embed prompts of several rows that begin at `order` tokens and position `position` (after a shared prefix)."""
    config, device = loaded.config, loaded.device
    merge = config.vision_config.spatial_merge_size
    dealt = deal_images(rows, grids_of(image_grid_thw), config.image_token_id, merge)
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), loaded.eos_token_id)
    positions = torch.zeros(3, *ids.shape, dtype=torch.int64)
    after: list[int] = []
    for number, (row, grids) in enumerate(zip(rows, dealt, strict=True)):
        _check_ids(row, loaded.vocab_size)
        ids[number, : len(row)] = row
        places, free = mrope_positions(row.cpu(), grids, config.image_token_id, merge, position)
        positions[:, number, : len(row)] = places
        after.append(free)
    padded = bool((lengths != ids.shape[1]).any())
    ids, positions, lengths, ends = (_sent(one, device) for one in (ids, positions, lengths, torch.tensor(after)))
    text = loaded.model.model.language_model
    embeds = text.embed_tokens(ids)
    deepstack = None
    if features is not None:
        embeds, deepstack = _place_images(embeds, ids == config.image_token_id, features)
    cos, sin = text.rotary_emb(embeds, positions)
    labels = padded_label(Part.PROMPT, lengths, ids.shape[1], block_size)
    if order:
        labels = Labels(labels.part, (labels.order + order) // block_size, labels.order + order)
    segment = Segment(embeds, cos, sin, labels, deepstack, sees_all=ids.shape[1] == 1, padded=padded)
    return Prompt(segment, lengths, ends, tuple(after))


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting for what the device is doing, images mostly."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _place_images(embeds: Tensor, where: Tensor, features: ImageFeatures) -> tuple[Tensor, Tensor]:
    """Put image features at the image tokens `where` (R, N): embeds (R, N, H) and deepstack (L, R, N, H)."""
    embeds = embeds.masked_scatter(where[..., None], features.embeds.to(embeds.dtype))
    deepstack = embeds.new_zeros(len(features.deepstack), *embeds.shape)
    return embeds, deepstack.masked_scatter(where[..., None], features.deepstack.to(embeds.dtype))


def _check_ids(row: Tensor, vocab_size: int) -> None:
    low, high = int(row.min()), int(row.max())
    if low < 0 or high >= vocab_size:
        raise DataError(f"input_ids: expected 0 to {vocab_size - 1}, got {low} to {high}")
