"""Kernel sets: how tokens run through the text model. Chosen once, when a decoder is made."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from torch import Tensor

from wamdiff2_core.decode.cache import KVCache
from wamdiff2_core.decode.segment import Segment
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel

KERNEL_SETS = ("lean", "plain")


class Kernels(Protocol):
    """A forward pass of the text model over new tokens behind cached ones."""

    name: str

    def forward(self, segment: Segment, cache: KVCache, mask: Tensor | None) -> Tensor:
        """Final hidden states (R, Q, H); writes keys and values at slots [cache.length, cache.length + Q).

        mask: (R, Q, cache.length + Q) bool, None = everything is visible.
        """
        ...


def choose(name: str, loaded: LoadedModel) -> Kernels:
    """The kernel set of that name ("auto": lean)."""
    from wamdiff2_core.decode.lean import LeanKernels

    if name in ("auto", "lean"):
        return LeanKernels(loaded)
    if name == "plain":
        return PlainKernels(loaded)
    raise ConfigError(f"kernels: expected 'auto' or one of {KERNEL_SETS}, got {name!r}")


class PlainKernels:
    """transformers' own decoder layers on our cache: the twin that faster sets are tested against."""

    name = "plain"

    def __init__(self, loaded: LoadedModel) -> None:
        self._text = loaded.model.model.language_model
        # transformers 5.24 renamed the argument.
        parameters = inspect.signature(self._text.layers[0].self_attn.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def forward(self, segment: Segment, cache: KVCache, mask: Tensor | None) -> Tensor:
        hidden = segment.embeds
        arguments: dict[str, Any] = {self._cache_argument: _Slots(cache, cache.length)}
        for number, layer in enumerate(self._text.layers):
            hidden = layer(
                hidden,
                position_embeddings=(segment.cos, segment.sin),
                attention_mask=None if mask is None else mask[:, None],
                is_causal=False,  # without a mask, attention is full
                **arguments,
            )
            if segment.deepstack is not None and number < len(segment.deepstack):
                hidden = hidden + segment.deepstack[number]
        return self._text.norm(hidden)


class _Slots:
    """What transformers' attention needs of a cache: write the new keys and values, hand back all of them."""

    def __init__(self, cache: KVCache, at: int) -> None:
        self._cache, self._at = cache, at

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        end = self._at + keys.shape[2]
        self._cache.keys[layer, :, :, self._at : end] = keys
        self._cache.values[layer, :, :, self._at : end] = values
        return self._cache.keys[layer, :, :, :end], self._cache.values[layer, :, :, :end]
