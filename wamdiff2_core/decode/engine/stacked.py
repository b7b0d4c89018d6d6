"""The weights of all layers behind one another, a tensor for each kind: a kernel finds a layer by its number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from wamdiff2_core.decode.engine.ops import LayerWeights
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight


@dataclass(frozen=True)
class StackedLayers:
    """`LayerWeights` of L layers, with the layer in front of every shape: qkv (L, (Hq + 2 Hkv) D, H) and so on.

    In 8 bits the four matrices are Fp8Weight with data (L, O, I) and scale (L, O).
    """

    qkv: Tensor | Fp8Weight
    out: Tensor | Fp8Weight
    gate_up: Tensor | Fp8Weight
    down: Tensor | Fp8Weight
    head_norm: Tensor

    @property
    def count(self) -> int:
        return self.head_norm.shape[0]

    def layer(self, number: int) -> LayerWeights:
        """Views of one layer's weights."""
        return LayerWeights(**{field.name: _at(getattr(self, field.name), number) for field in fields(self)})


def stack(layers: Iterable[LayerWeights], count: int) -> StackedLayers:
    """Copy `count` layers, as they come, to where they belong: beside the result only one layer is held at a time.

    Raises ValueError for another number of layers.
    """
    stacked, number = None, 0
    for number, layer in enumerate(layers, 1):
        if stacked is None:
            stacked = StackedLayers(**{field.name: _room(getattr(layer, field.name), count) for field in fields(layer)})
        if number <= count:
            for field in fields(layer):
                _put(getattr(layer, field.name), _at(getattr(stacked, field.name), number - 1))
    if stacked is None or number != count:
        raise ValueError(f"layers: expected {count}, got {number}")
    return stacked


def _room(one: Tensor | Fp8Weight, count: int) -> Tensor | Fp8Weight:
    if isinstance(one, Fp8Weight):
        return Fp8Weight(*(_tensor_room(part, count) for part in (one.data, one.scale)))
    return _tensor_room(one, count)


def _tensor_room(one: Tensor, count: int) -> Tensor:
    return torch.empty(count, *one.shape, dtype=one.dtype, device=one.device)


def _at(stacked: Tensor | Fp8Weight, number: int) -> Tensor | Fp8Weight:
    if isinstance(stacked, Fp8Weight):
        return Fp8Weight(stacked.data[number], stacked.scale[number])
    return stacked[number]


def _put(one: Tensor | Fp8Weight, room: Tensor | Fp8Weight) -> None:
    if isinstance(one, Fp8Weight) and isinstance(room, Fp8Weight):
        room.data.copy_(one.data)
        room.scale.copy_(one.scale)
    elif isinstance(one, Tensor) and isinstance(room, Tensor):
        room.copy_(one)
    else:
        raise ValueError("layers: expected all of them in 8 bits, or none")
