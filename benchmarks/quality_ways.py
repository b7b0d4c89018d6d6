"""The ways to decode that engine_quality compares: plain or engine, fp32 or bfloat16, 16-bit weights or 8-bit ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import plain_set
from wamdiff2_core.decode.engine.ops import Choice, TorchOps
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, Fp8Weight
from wamdiff2_core.driver import Driver
from wamdiff2_core.model.checkpoint import LoadedModel

SIZES = EngineConfig(rows=(1,), max_length=512, max_answer=128, prefixes=0)
PLAIN = "plain fp32"
WAYS: dict[str, tuple[str, str]] = {
    PLAIN: ("float32", ""),
    "engine fp32": ("float32", "torch"),
    "engine 8 bits, fp32": ("float32", "torch_fp8"),
    "plain bf16": ("bfloat16", ""),
    "engine bf16": ("bfloat16", "torch"),
    "engine 8 bits, bf16": ("bfloat16", "torch_fp8"),
}
PAIRS = (
    *((PLAIN, name) for name in list(WAYS)[1:]),
    ("plain bf16", "engine bf16"),
    ("engine bf16", "engine 8 bits, bf16"),
)


def decoders(checkpoint: Path) -> tuple[Driver, dict[str, BlockDecoder]]:
    """The driver in fp32, and a decoder for each of WAYS."""
    drivers = {dtype: Driver.from_checkpoint(checkpoint, "cpu", dtype) for dtype in ("float32", "bfloat16")}
    made: dict[str, BlockDecoder] = {}
    for name, (dtype, kernels) in WAYS.items():
        loaded = drivers[dtype].loaded
        if kernels == "torch_fp8":
            made[name] = eight_bits(loaded)
        else:
            made[name] = EngineDecoder(loaded, SIZES, kernels) if kernels else drivers[dtype].decoder
    return drivers["float32"], made


def eight_bits(loaded: LoadedModel, config: EngineConfig = SIZES) -> EngineDecoder:
    """The engine with the numbers of `torch_fp8`, five times as fast: see WidenedOps."""
    return EngineDecoder(loaded, config, replace(plain_set(loaded, config, WidenedOps(config.page_size)), fp8=True))


class WidenedOps(Fp8TorchOps):
    """Fp8TorchOps that keeps a widened weight in place of widening it in every pass. The memory is no matter here."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._kept: dict[int, tuple[Fp8Weight, Tensor]] = {}  # the weight too, so that its id stays its own

    def norm_linear(self, x: Tensor, weight: Tensor | Fp8Weight, eps: float) -> Tensor:
        return TorchOps.norm_linear(self, x, self._wide(weight, x), eps)

    def linear_add(self, x: Tensor, weight: Tensor | Fp8Weight, residual: Tensor) -> Tensor:
        return TorchOps.linear_add(self, x, self._wide(weight, x), residual)

    def choose(self, x: Tensor, head: Tensor | Fp8Weight, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        return TorchOps.choose(self, x, self._wide(head, x), allowed, forbidden, eps)

    def _wide(self, weight: Tensor | Fp8Weight, like: Tensor) -> Tensor:
        if not isinstance(weight, Fp8Weight):
            return weight
        if id(weight) not in self._kept:
            self._kept[id(weight)] = weight, weight.widened(like.dtype)
        return self._kept[id(weight)][1]
