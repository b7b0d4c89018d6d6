"""BlockDecoder on the captured engine: same calls, same answers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.decoder import BlockDecoder, Generation, Prefix
from wamdiff2_core.decode.engine.call import Call
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.engine import Engine
from wamdiff2_core.decode.engine.kernel_sets import KernelSet
from wamdiff2_core.decode.engine.prefix import PagedPrefix
from wamdiff2_core.decode.result import BatchResult, DecodeResult
from wamdiff2_core.decode.sampling import sampler_of
from wamdiff2_core.decode.segment import Segment, join, prompt_segment
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokens import InputIds
from wamdiff2_core.model.vision import ImageFeatures


class EngineDecoder(BlockDecoder):
    """Decodes through an Engine: static buffers, paged cache, on a GPU one captured graph per shape.

    Differs from BlockDecoder in what is counted, not in what is said: rows of a batch do not wait for one another, so
    `forwards` are those the row would take alone. `forward` and `prompt_logits` run the plain kernel set.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig | None = None,
        kernels: str | KernelSet = "auto",
    ) -> None:
        """See Engine. Raises ConfigError for a model that the engine cannot run."""
        super().__init__(model, "plain")
        self.engine = Engine(model, config, kernels)

    @property
    def kernels(self) -> str:
        return f"engine {self.engine.kernels.name}"

    @torch.inference_mode()
    def prefill(
        self,
        input_ids: InputIds,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        block_size: int | None = None,
    ) -> PagedPrefix:
        """See BlockDecoder.prefill. The prefix holds pages of the engine as long as it lives."""
        with self.engine.turn():
            return self._prefill(input_ids, pixel_values, image_grid_thw, block_size)

    def generate(self, *args: Any, **kwargs: Any) -> DecodeResult | BatchResult:
        """See BlockDecoder.generate. One call at a time: what images become lies in buffers that all calls share."""
        with self.engine.turn():
            return super().generate(*args, **kwargs)

    def _prefill(
        self,
        input_ids: InputIds,
        pixel_values: Tensor | None,
        image_grid_thw: Tensor | None,
        block_size: int | None,
    ) -> PagedPrefix:
        rows = self._prefix_rows(input_ids, block_size)
        started = time.perf_counter()
        features = self._encode(pixel_values, image_grid_thw)
        seen = time.perf_counter()
        segment, next_position = self._prefix_segment(rows, features, image_grid_thw, block_size)
        blocked = self.loaded.context == "block_causal"
        length = segment.width
        kept = length - length % block_size if blocked and block_size else length
        return PagedPrefix(
            pool=self.engine.pool,
            **self._fill(segment.cut(0, kept), block_size or 1),
            kept=kept,
            tail=segment.cut(kept, length) if kept < length else None,
            length=length,
            next_position=next_position,
            block_size=block_size if blocked else None,
            forwards=1 if kept else 0,
            vision_ms=(seen - started) * 1e3,
            prefill_ms=(time.perf_counter() - seen) * 1e3,
        )

    def _fill(self, segment: Segment, block_size: int) -> dict:
        """Run a prefix's tokens (R, Q) into pages of its own: its lease and its pages."""
        engine, rows = self.engine, len(segment.embeds)
        each = engine.pool.pages_for(segment.width)
        if segment.width > engine.config.max_length:
            raise ConfigError(f"max_length: expected at most {engine.config.max_length} tokens, got {segment.width}")
        lease = engine.pool.lease(rows * each)
        pages = [lease.pages[row * each : (row + 1) * each] for row in range(rows)]
        if segment.width:
            most = engine.config.rows[-1]
            for first in range(0, rows, most):
                part = torch.arange(first, min(first + most, rows), device=segment.embeds.device)
                taken = segment if rows <= most else segment.rows(part)
                engine.prefill(taken, pages[first : first + len(part)], block_size)
        return {"lease": lease, "pages": pages}

    def _start(  # type: ignore[no-untyped-def]
        self, rows, features, image_grid_thw, config: DecodingConfig, prefix, limits, heat
    ) -> Generation:
        paged = _paged(prefix, self.engine)
        order, position = (paged.length, paged.next_position) if paged else (0, 0)
        prompt = prompt_segment(self.loaded, rows, features, image_grid_thw, config.block_size, order, position)
        segment, tail = prompt.segment, 0
        if paged and paged.tail:
            tail = paged.tail.width
            which = torch.zeros(len(rows), dtype=torch.int64) if paged.count == 1 else torch.arange(len(rows))
            segment = join([paged.tail.rows(which), segment])
        return Call(
            engine=self.engine,
            config=config,
            segment=segment,
            lengths=[len(row) + tail for row in rows],
            positions=list(prompt.ends),
            limits=list(limits),
            temperature=list(heat),
            prefix=paged,
            sampler=sampler_of(config, heat),
        )

    def _encode(self, pixel_values: Tensor | None, image_grid_thw: Tensor | None) -> ImageFeatures | None:
        return self.engine.encode(self.loaded, pixel_values, image_grid_thw)


def _paged(prefix: Prefix | None, engine: Engine) -> PagedPrefix | None:
    if prefix is None or (isinstance(prefix, PagedPrefix) and prefix.pool is engine.pool):
        return prefix
    raise ConfigError(f"prefix: expected one that this decoder's prefill made, got a {type(prefix).__name__}")
