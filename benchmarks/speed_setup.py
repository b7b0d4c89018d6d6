"""What the rows of engine_speed share: random weights, engines, prompts, timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.real_shapes import TEXT, Ids, random_model
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.model.checkpoint import LoadedModel

Grid = tuple[int, int, int]
PLAN = 84  # tokens of a plan in the paper's format


@dataclass(frozen=True)
class Sizes:
    """What is measured. prefixes: tokens; tokens: of a long answer; frames: (t, h, w) patches of each camera."""

    shape: str
    prefixes: tuple[int, ...]
    text: int
    tokens: int
    slow_tokens: int
    frames: dict[str, tuple[Grid, ...]]
    max_length: int


# 1920 x 1080 in 2,006 visual tokens, 600 tokens a camera, and the demo's rig with another three behind it.
_DEMO: tuple[Grid, ...] = ((1, 12, 20), (1, 6, 10), (1, 6, 10), (1, 12, 20), (1, 6, 10), (1, 6, 10))
REAL = Sizes(
    "2b", (1024, 2112), 96, 256, 16,
    {"1 camera, 2006 tokens": ((1, 68, 118),), "3 cameras of 600": ((1, 40, 60),) * 3, "6 cameras, demo size": _DEMO},
    2560,
)  # fmt: skip
TINY = Sizes(
    "micro", (48, 80), 12, 64, 4,
    {"1 camera, 2006 tokens": ((1, 8, 12),), "3 cameras of 600": ((1, 4, 6),) * 3, "6 cameras, demo size": _DEMO[:2]},
    256,
)  # fmt: skip


@dataclass
class Setup:
    """seconds: that a row may repeat its calls. kernels, lookahead: see kernel_set, EngineConfig."""

    device: torch.device
    sizes: Sizes
    kernels: str = "auto"
    lookahead: int | None = None
    seconds: float = 12.0
    checkpoint: Path = Path("checkpoints/tiny")

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.cuda else torch.float32

    @cached_property
    def loaded(self) -> LoadedModel:
        """The shape with random weights. Its end token's row is zero: some other id is always more probable."""
        model = random_model(self.sizes.shape, self.device, self.dtype, 0).eval()
        ids = Ids.of(TEXT[self.sizes.shape]["vocab_size"])
        with torch.no_grad():
            model.lm_head.weight[ids.end] = 0
        return LoadedModel(model, model.config, "wamdiff2", ids.mask, (ids.end,), "next", "causal")

    @cached_property
    def config(self) -> EngineConfig:
        return EngineConfig(
            rows=(1, 3), max_length=self.sizes.max_length, max_answer=self.sizes.tokens, lookahead=self.lookahead
        )

    @cached_property
    def trained_config(self) -> EngineConfig:
        return EngineConfig(rows=(1,), max_length=1024, max_answer=128, lookahead=self.lookahead)

    @cached_property
    def engine(self) -> EngineDecoder:
        return EngineDecoder(self.loaded, self.config, self.kernels)

    @cached_property
    def engine_fp8(self) -> EngineDecoder:
        plain = self.engine.engine.kernels.name.removesuffix("_fp8")
        return EngineDecoder(self.loaded, self.config, f"{plain}_fp8")

    def ids(self, count: int, seed: int = 0) -> Tensor:
        """Prompt tokens of no meaning; none of them is a control token."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, TEXT[self.sizes.shape]["vocab_size"] // 2, (count,), generator=generator)

    def images(self, grids: tuple[Grid, ...]) -> tuple[Tensor, Tensor]:
        """Patches of noise on the host, (patches, C * T * P * P) and (images, 3); pinned where there is a GPU."""
        vision = self.loaded.config.vision_config
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randn(sum(t * h * w for t, h, w in grids), width, generator=generator).to(self.dtype)
        return pixels.pin_memory() if self.cuda else pixels, torch.tensor(grids)

    def frame_ids(self, grids: tuple[Grid, ...]) -> Tensor:
        """A prompt of images first and text last."""
        ids = Ids.of(TEXT[self.sizes.shape]["vocab_size"])
        parts = [self.ids(4)]
        for _, h, w in grids:
            parts.append(torch.tensor([ids.image_begin, *[ids.image] * (h * w // 4), ids.image_end]))
        return torch.cat([*parts, self.ids(self.sizes.text)])

    def step_bytes(self, prefix: int, tokens: int, weight_bytes: int = 0) -> int:
        """Bytes that one pass of a row must read: text weights (output matrix once) and the cache."""
        each = weight_bytes or self.dtype.itemsize
        return self.text_weights * each + self._cache_values() * (prefix + tokens) * self.dtype.itemsize

    def step_flops(self, prefix: int, tokens: int, predicted: int | None = None) -> int:
        """Multiplications and additions of one pass; predicted: tokens whose logits are computed, default all."""
        text, head = TEXT[self.sizes.shape], self.loaded.model.lm_head.weight.numel()
        seen = 4 * text["layers"] * text["heads"] * text["head_dim"] * (prefix + tokens) * tokens
        return 2 * (self.text_weights - head) * tokens + 2 * head * (tokens if predicted is None else predicted) + seen

    @cached_property
    def text_weights(self) -> int:
        """Numbers in the layers and the output matrix."""
        model = self.loaded.model
        return sum(w.numel() for w in model.model.language_model.layers.parameters()) + model.lm_head.weight.numel()

    def _cache_values(self) -> int:
        text = TEXT[self.sizes.shape]
        return 2 * text["layers"] * text["kv_heads"] * text["head_dim"]

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def repeat(self, call: Callable[[], Any], seconds: float, least: int = 3, most: int = 200) -> list[Any]:
        """Results of `call` until the time is over; one call before that does not count."""
        call()
        self.sync()
        found: list[Any] = []
        began = time.perf_counter()
        while len(found) < least or (len(found) < most and time.perf_counter() - began < seconds):
            found.append(call())
        return found

    def wall_ms(self, call: Callable[[], Any]) -> float:
        """Milliseconds of one call, the device's work included."""
        began = time.perf_counter()
        call()
        self.sync()
        return (time.perf_counter() - began) * 1e3


def fixed(block_size: int, steps: int, tokens: int) -> DecodingConfig:
    """So many steps for every block, whatever the model says."""
    return DecodingConfig(block_size, steps, "static", max_new_tokens=tokens)


def median(values: list[float]) -> float:
    return statistics.median(values)


def quantile(values: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)]
