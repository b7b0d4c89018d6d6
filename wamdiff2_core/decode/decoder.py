"""The block-diffusion decoder with a KV cache: any block size, batched rows, images, shared prefixes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.cache import KVCache, new_cache
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.kernels import choose
from wamdiff2_core.decode.result import BatchResult, DecodeResult
from wamdiff2_core.decode.run import Run
from wamdiff2_core.decode.sampling import sampler_of
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.decode.segment import Segment, encode, join, prompt_segment
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokens import InputIds, as_rows
from wamdiff2_core.model.vision import ImageFeatures


@dataclass(frozen=True)
class Prefix:
    """The computed beginning of a prompt, to be shared by several answers; not changed by using it.

    Of one row, which any number of answers share, or of several rows of equal length (different images), one an answer.
    length: tokens. block_size: of a block-causal prefix, which fits that block size only; None = fits all.
    tail: tokens of an unfinished block of a block-causal prompt, run again with what follows.
    forwards, vision_ms, prefill_ms: what making it took (not counted again in the answers).
    """

    cache: KVCache
    tail: Segment | None
    length: int
    next_position: int
    block_size: int | None
    forwards: int = 1
    vision_ms: float = 0.0
    prefill_ms: float = 0.0

    @property
    def count(self) -> int:
        """Rows."""
        return self.cache.keys.shape[1]

    def rows(self, index: Sequence[int]) -> Prefix:
        """A copy of these rows, in this order; a row may stand there more than once."""
        at = torch.tensor(index, dtype=torch.int64, device=self.cache.keys.device)
        return replace(self, cache=self.cache.rows(at), tail=None if self.tail is None else self.tail.rows(at))


class Generation(Protocol):
    """A `generate` call with its inputs embedded and its buffers allocated, nothing computed yet."""

    scaffolds: list[Scaffold | None]

    def clock(self, started: float, vision_ms: float, prefill_from: float) -> None:
        """When the call began (for the time limit) and when the prompt's own work began."""
        ...

    def finish(self) -> list[DecodeResult]:
        """Run to the end; a result per row."""
        ...


class BlockDecoder:
    """Decodes answers with one model. kernels: "auto" (= "lean"), "lean" or "plain", chosen here, once.

    The lean kernel set copies weights: make a new decoder after the model's weights have changed.
    """

    def __init__(self, model: LoadedModel, kernels: str = "auto") -> None:
        self.loaded = model
        self._kernels = choose(kernels, model)

    @property
    def kernels(self) -> str:
        """Name of the kernel set in use."""
        return self._kernels.name

    @torch.inference_mode()
    def prefill(
        self,
        input_ids: InputIds,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        block_size: int | None = None,
    ) -> Prefix:
        """Run the beginning of a prompt once, for any number of `generate(rest, prefix=...)` calls.

        Several rows must have one length and end at one position, as prompts with images of equal sizes do.
        block_size is needed for checkpoints with block-causal context only: there the prefix depends on it.
        """
        rows = self._prefix_rows(input_ids, block_size)
        blocked = self.loaded.context == "block_causal"
        started = time.perf_counter()
        features = self._encode(pixel_values, image_grid_thw)
        seen = time.perf_counter()
        segment, next_position = self._prefix_segment(rows, features, image_grid_thw, block_size)
        length = segment.width
        kept = length - length % block_size if blocked and block_size else length
        cache = self._cache(len(rows), kept)
        if kept:
            head = segment.cut(0, kept)
            self._kernels.forward(head, cache, cache.mask(head, self.loaded.context))
            cache.commit(head)
        return Prefix(
            cache=cache,
            tail=segment.cut(kept, length) if kept < length else None,
            length=length,
            next_position=next_position,
            block_size=block_size if blocked else None,
            forwards=1 if kept else 0,
            vision_ms=(seen - started) * 1e3,
            prefill_ms=(time.perf_counter() - seen) * 1e3,
        )

    def _prefix_rows(self, input_ids: InputIds, block_size: int | None) -> list[Tensor]:
        """Rows of a prefix, checked."""
        rows, _ = as_rows(input_ids)
        if len({len(row) for row in rows}) > 1:
            raise ConfigError(f"prefill: expected rows of one length, got {sorted({len(row) for row in rows})}")
        if self.loaded.context == "block_causal" and block_size is None:
            raise ConfigError("prefill: this checkpoint's context is block_causal: expected a block_size, got None")
        return rows

    def _prefix_segment(
        self,
        rows: Sequence[Tensor],
        features: ImageFeatures | None,
        image_grid_thw: Tensor | None,
        block_size: int | None,
    ) -> tuple[Segment, int]:
        """A prefix as tokens of the text model, and the position behind it."""
        prompt = prompt_segment(self.loaded, rows, features, image_grid_thw, block_size or 1)
        ends = sorted(set(prompt.ends))
        if len(ends) > 1:
            raise ConfigError(f"prefill: expected rows that end at one position, got {ends}: images of several sizes")
        return prompt.segment, ends[0]

    def _encode(self, pixel_values: Tensor | None, image_grid_thw: Tensor | None) -> ImageFeatures | None:
        """Image features of a prompt."""
        return encode(self.loaded, pixel_values, image_grid_thw)

    def forward(self, segment: Segment, cache: KVCache) -> Tensor:
        """Hidden states (R, Q, H) of a segment behind what a cache holds; the cache keeps nothing of it."""
        return self._kernels.forward(segment, cache, cache.mask(segment, self.loaded.context))

    @torch.inference_mode()
    def prompt_logits(
        self,
        input_ids: InputIds,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        block_size: int = 1,
    ) -> Tensor:
        """Logits (N, V) at every token of one prompt, for comparisons; block_size matters to block-causal context."""
        rows, _ = as_rows(input_ids)
        features = encode(self.loaded, pixel_values, image_grid_thw)
        segment = prompt_segment(self.loaded, rows[:1], features, image_grid_thw, block_size).segment
        cache = self._cache(1, segment.width)
        hidden = self._kernels.forward(segment, cache, cache.mask(segment, self.loaded.context))
        return self.loaded.model.lm_head(hidden)[0].float()

    @torch.inference_mode()
    def generate(
        self,
        input_ids: InputIds,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        config: DecodingConfig | None = None,
        scaffold: Scaffold | Sequence[Scaffold | None] | None = None,
        prefix: Prefix | None = None,
        max_new_tokens: Sequence[int] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> DecodeResult | BatchResult:
        """Answer one prompt (1-D ids, or one row: a DecodeResult) or several (a BatchResult).

        pixel_values, image_grid_thw: the images of all rows, in order; each row takes as many as it has image tokens.
        scaffold: one for all rows, or one per row. prefix: what stands before every row (then input_ids hold only the
        rest of the prompt). max_new_tokens, temperatures: one per row instead of the config's.
        With a temperature, row i draws as it would alone with the seed `row_seed(config.seed, i)`.
        Raises ConfigError or DataError for settings and inputs that do not fit the model.
        """
        started = time.perf_counter()
        config = config or DecodingConfig()
        rows, single = as_rows(input_ids)
        self._check(config, prefix, len(rows))
        features = self._encode(pixel_values, image_grid_thw)
        seen = time.perf_counter()
        limits, heat = _limits(max_new_tokens, config, len(rows)), _temperatures(temperatures, config, len(rows))
        run = self._start(rows, features, image_grid_thw, config, prefix, limits, heat)
        run.scaffolds = _scaffolds(scaffold, len(rows))
        run.clock(started, vision_ms=(seen - started) * 1e3, prefill_from=seen)
        results = run.finish()
        return results[0] if single else BatchResult(results)

    def _start(self, rows, features, image_grid_thw, config, prefix, limits, heat) -> Generation:  # type: ignore[no-untyped-def]
        """A run over these rows: prompt embedded, cache allocated, nothing computed yet."""
        order = prefix.length if prefix else 0
        position = prefix.next_position if prefix else 0
        prompt = prompt_segment(self.loaded, rows, features, image_grid_thw, config.block_size, order, position)
        pending = prompt.segment
        tail = 0
        if prefix and prefix.tail:
            tail = prefix.tail.width
            shared = prefix.count == 1
            which = torch.zeros(len(rows), dtype=torch.int64) if shared else torch.arange(len(rows))
            pending = join([prefix.tail.rows(which), pending])
        blocks = -(-max(limits) // config.block_size)
        capacity = (prefix.cache.length if prefix else 0) + pending.width + blocks * config.block_size
        cache = prefix.cache.grown(capacity, len(rows)) if prefix else self._cache(len(rows), capacity)
        return Run(
            loaded=self.loaded,
            kernels=self._kernels,
            config=config,
            vocabulary=Vocabulary.of(self.loaded),
            cache=cache,
            pending=[pending],
            last=prompt.lengths - 1 + tail,
            next_position=prompt.next_position,
            limits=limits,
            temperature=torch.tensor(heat, dtype=torch.float64, device=self.loaded.device),
            sampler=sampler_of(config, heat),
        )

    def _cache(self, rows: int, capacity: int) -> KVCache:
        dtype = self.loaded.model.model.language_model.embed_tokens.weight.dtype
        return new_cache(self.loaded.config.text_config, rows, capacity, self.loaded.device, dtype)

    def _check(self, config: DecodingConfig, prefix: Prefix | None, rows: int) -> None:
        """Settings and rows against the model and the prefix."""
        if self.loaded.mask_token_id is None and not (config.block_size == 1 and self.loaded.prediction == "next"):
            raise ConfigError(
                f"block_size {config.block_size} needs a mask token, and checkpoint {self.loaded.folder} names none: "
                "expected load_model(..., mask_token_id=ID), or block_size=1"
            )
        if prefix and prefix.block_size not in (None, config.block_size):
            raise ConfigError(f"prefix: made for block size {prefix.block_size}, got block size {config.block_size}")
        if prefix and prefix.count not in (1, rows):
            raise ConfigError(f"prefix: expected one row or {rows} of them, got {prefix.count}")


def _limits(max_new_tokens: Sequence[int] | None, config: DecodingConfig, rows: int) -> list[int]:
    if max_new_tokens is None:
        return [config.max_new_tokens] * rows
    if len(max_new_tokens) != rows or min(max_new_tokens) < 1:
        raise ConfigError(f"max_new_tokens: expected {rows} integers >= 1, got {list(max_new_tokens)}")
    return list(max_new_tokens)


def _temperatures(temperatures: Sequence[float] | None, config: DecodingConfig, rows: int) -> list[float]:
    if temperatures is None:
        return [config.temperature] * rows
    if len(temperatures) != rows:
        raise ConfigError(f"temperatures: expected one for each of {rows} rows, got {len(temperatures)}")
    return [replace(config, temperature=float(one)).temperature for one in temperatures]


def _scaffolds(scaffold: Scaffold | Sequence[Scaffold | None] | None, rows: int) -> list[Scaffold | None]:
    if scaffold is None or isinstance(scaffold, Scaffold):
        return [scaffold] * rows
    if len(scaffold) != rows:
        raise ConfigError(f"scaffold: expected one for each of {rows} rows, got {len(scaffold)}")
    return list(scaffold)
