"""Which decoder runs under a driver: one word, decided once, when the driver is made, with the reason in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wamdiff2_core.decode.decoder import BlockDecoder
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import (
    KERNEL_SETS,
    slower_here,
    triton_sizes,
    why_not_flashinfer,
    why_not_triton,
)
from wamdiff2_core.decode.engine.weights import check_model, shape_of
from wamdiff2_core.decode.kernels import KERNEL_SETS as BLOCK_SETS
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel

WORDS = ("auto", *BLOCK_SETS, "engine", *KERNEL_SETS)


@dataclass(frozen=True)
class Choice:
    """word: "lean" or "plain" (BlockDecoder), or the name of an engine's kernel set. reason: why this one."""

    word: str
    reason: str

    @property
    def kernels(self) -> str:
        """As a decoder names itself: "lean", "plain", or "engine" and the name of its kernel set."""
        return named(self.word)


@dataclass(frozen=True)
class TextModel:
    """What is to decode. text: transformers' text model, whose weights may lie on "meta"; config: its text_config;

    sizes: of an engine for it.
    """

    text: Any
    config: Any
    sizes: EngineConfig


def check_word(word: str) -> None:
    """ConfigError unless it is one of WORDS."""
    if word not in WORDS:
        raise ConfigError(f"kernels: expected one of {', '.join(WORDS)}; got {word!r}")


def named(word: str) -> str:
    """How a decoder made for the word of a Choice names itself."""
    return word if word in BLOCK_SETS else f"engine {word}"


def needs_an_engine(word: str) -> bool:
    """Whether the word asks for an engine whatever is there: then it may be refused."""
    return word not in ("auto", *BLOCK_SETS)


def choose(word: str, loaded: LoadedModel, config: EngineConfig) -> Choice:
    """What the word stands for with this model, where it lives; see `decide`."""
    text = loaded.model.model.language_model
    model = TextModel(text, loaded.config.text_config, config)
    return decide(word, loaded.device, text.embed_tokens.weight.dtype, model)


def decide(word: str, device: torch.device, dtype: torch.dtype, model: TextModel | None) -> Choice:
    """What the word stands for with such a model on the device: the one place where that is decided.

    "auto": the engine with Triton's kernels where they can run the model, else the lean kernels; "engine": the engine
    with Triton's kernels on a device that has them, else with plain PyTorch. model: None where none is known yet.
    Raises ConfigError, with a way out, for an unknown word and for an engine that cannot run.
    """
    check_word(word)
    if word in BLOCK_SETS:
        return Choice(word, "asked for")
    elsewhere = why_not_triton(device, dtype)
    if word == "auto":
        problem = elsewhere or why_not("triton", model)
        if problem:
            return Choice("lean", f"auto: no engine: {problem}")
        return Choice("triton", _with_lack(f"auto: {device} and the package triton", device))
    chosen, reason = word, "asked for"
    if word == "engine":
        chosen, reason = ("torch", f"engine: no Triton: {elsewhere}") if elsewhere else ("triton", "engine")
    problem = (elsewhere if chosen.startswith("triton") else None) or why_not(chosen, model)
    if problem is None and chosen == "flashinfer":
        shape, page_size = None, EngineConfig.page_size
        if model is not None:
            shape, page_size = shape_of(model.text, model.config), model.sizes.page_size
        problem = why_not_flashinfer(device, dtype, shape, page_size)
    if problem:
        raise ConfigError(f"kernels {word}: {problem}{_way_out(device)}")
    return Choice(chosen, _with_lack(reason, device) if chosen.startswith("triton") else reason)


def why_not(kernel_set: str, model: TextModel | None) -> str | None:
    """Why an engine with that set cannot run the model on a device that runs the set; None: it can."""
    if model is None:
        return None
    problem = _refusal(lambda: check_model(model.text, model.config))
    if problem is None and kernel_set.startswith("triton"):
        problem = _refusal(lambda: triton_sizes(model.config, model.sizes))
    return problem


def make_decoder(choice: Choice, loaded: LoadedModel, config: EngineConfig) -> BlockDecoder:
    """The decoder that was chosen; config: of an engine. ConfigError for a model that it cannot run."""
    if choice.word in BLOCK_SETS:
        return BlockDecoder(loaded, choice.word)
    return EngineDecoder(loaded, config, choice.word)


def _with_lack(reason: str, device: torch.device) -> str:
    """The reason for Triton's kernels, and what they have to do without on the device."""
    lack = slower_here(device)
    return f"{reason}; {lack}" if lack else reason


def _way_out(device: torch.device) -> str:
    """What to do about kernels that cannot run there."""
    if device.type == "cuda":
        return "; kernels auto takes what can run"
    if torch.cuda.is_available():
        return "; a GPU is here: name device cuda, or kernels auto, which takes what can run"
    return "; torch sees no GPU here: kernels auto takes what can run"


def _refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ConfigError as error:
        return str(error)
    return None
