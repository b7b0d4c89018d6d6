"""Images to features through captured passes: one for each combination of image sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.graphs import GraphSet
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokens import Grid, grids_of
from wamdiff2_core.model.vision import ImageFeatures, Layer, encode_images, tables_of, vision_block

MOST_SIZES = 8  # combinations of image sizes that are kept; the one that was used longest ago gives way


@dataclass(frozen=True)
class _Buffers:
    """Of one combination: pixels (patches, C * T * P * P), features (1 + L, M, H). tables: the graph reads them."""

    pixels: Tensor
    features: Tensor
    tables: tuple[object, ...]


class VisionPasses:
    """Fixed buffers for the pixels and the features of each tuple of grids that was seen.

    Features are valid until the next images of the same sizes are encoded; a call has put them into its prompt by then.
    """

    def __init__(self, loaded: LoadedModel, graphs: GraphSet, layer: Layer = vision_block) -> None:
        """layer: what runs each layer of the encoder, see `encode_batch`."""
        self._layer = layer
        self._visual, self._graphs, self._device = loaded.model.model.visual, graphs, loaded.device
        self._buffers: dict[tuple[Grid, ...], _Buffers] = {}  # the one used last stands last

    def prepare(self, grids: Sequence[Grid]) -> None:
        """Get ready for images of these (t, h, w) patches, in this order."""
        self._ready(tuple(grids))

    def __call__(
        self, loaded: LoadedModel, pixel_values: Tensor | None, image_grid_thw: Tensor | None
    ) -> ImageFeatures | None:
        """See `segment.encode`; None without images."""
        if (pixel_values is None) != (image_grid_thw is None):
            raise DataError("expected pixel_values and image_grid_thw together, got only one of them")
        if pixel_values is None or image_grid_thw is None:
            return None
        grids = tuple(grids_of(image_grid_thw))
        count, width = sum(t * h * w for t, h, w in grids), self._visual.patch_embed.proj.weight[0].numel()
        if pixel_values.shape != (count, width):
            raise DataError(f"pixel_values: expected shape {(count, width)}, got {tuple(pixel_values.shape)}")
        buffers = self._ready(grids)
        buffers.pixels.copy_(pixel_values, non_blocking=True)
        self._graphs.run(("vision", grids))
        return ImageFeatures(buffers.features[0], buffers.features[1:])

    def _ready(self, grids: tuple[Grid, ...]) -> _Buffers:
        buffers = self._buffers.pop(grids, None)
        if buffers is None:
            while len(self._buffers) >= MOST_SIZES:
                oldest = next(iter(self._buffers))
                self._graphs.drop(("vision", oldest))
                del self._buffers[oldest]
            buffers = self._made(grids)
        self._buffers[grids] = buffers
        return buffers

    def _made(self, grids: tuple[Grid, ...]) -> _Buffers:
        weight = self._visual.patch_embed.proj.weight
        shape = (sum(t * h * w for t, h, w in grids), weight[0].numel())
        pixels = torch.zeros(shape, device=self._device, dtype=weight.dtype)
        tables = tuple(tables_of(self._visual, grid) for grid in grids)  # no capture could make them
        one = encode_images(self._visual, pixels, grids, self._layer)
        features = torch.zeros(1 + len(one.deepstack), *one.embeds.shape, device=self._device, dtype=weight.dtype)
        self._graphs.prepare(("vision", grids), partial(self._encode, grids, pixels, features))
        return _Buffers(pixels, features, tables)

    def _encode(self, grids: tuple[Grid, ...], pixels: Tensor, features: Tensor) -> None:
        seen = encode_images(self._visual, pixels, grids, self._layer)
        features[0].copy_(seen.embeds)
        features[1:].copy_(seen.deepstack)
