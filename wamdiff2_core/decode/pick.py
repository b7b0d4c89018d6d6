"""Which decoder runs under a driver: one word, decided once, when the driver is made, with the reason in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import KERNEL_SETS, triton_sizes, why_not_triton
from wamdiff2_core.decode.engine.weights import check_model
from wamdiff2_core.decode.kernels import KERNEL_SETS as BLOCK_SETS
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel

WORDS = ("auto", *BLOCK_SETS, "engine", *KERNEL_SETS)


@dataclass(frozen=True)
class Choice:
    """word: "lean" or "plain" (BlockDecoder), "engine", or the name of an engine's kernel set. reason: why this one."""

    word: str
    reason: str


def check_word(word: str) -> None:
    """ConfigError unless it is one of WORDS."""
    if word not in WORDS:
        raise ConfigError(f"kernels: expected one of {', '.join(WORDS)}; got {word!r}")


def choose(word: str, loaded: LoadedModel, config: EngineConfig) -> Choice:
    """What the word stands for with this model, where it lives. ConfigError for an unknown word."""
    check_word(word)
    if word != "auto":
        return Choice(word, "asked for")

    def fits() -> None:
        check_model(loaded.model.model.language_model, loaded.config.text_config)
        triton_sizes(loaded.config.text_config, config)

    return automatic(loaded.device, loaded.model.model.language_model.embed_tokens.weight.dtype, fits)


def automatic(device: torch.device, dtype: torch.dtype, fits: Callable[[], None]) -> Choice:
    """What "auto" stands for: the engine with Triton's kernels where they can run the model, else the lean kernels.

    fits: raises ConfigError for a model that they are not made for; asked only where there is a GPU.
    """
    problem = why_not_triton(device, dtype)
    if problem is None:
        try:
            fits()
        except ConfigError as error:
            problem = str(error)
    if problem is None:
        return Choice("triton", f"auto: {device} and the package triton")
    return Choice("lean", f"auto: no engine: {problem}")


def make_decoder(choice: Choice, loaded: LoadedModel, config: EngineConfig) -> BlockDecoder:
    """The decoder that was chosen; config: of an engine. ConfigError for a model that it cannot run."""
    if choice.word in BLOCK_SETS:
        return BlockDecoder(loaded, choice.word)
    return EngineDecoder(loaded, config, "auto" if choice.word == "engine" else choice.word)
