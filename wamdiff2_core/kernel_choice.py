"""Which decoder a checkpoint gets on a device, and the sizes of its engine: from its JSON files, without weights.

`Driver` asks the same functions, so that what commands and `wamdiff2 doctor` say beforehand is what happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.pick import Choice, TextModel, decide
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import (
    CheckpointFacts,
    LoadedModel,
    prompts_of,
    read_facts,
    text_skeleton,
    torch_device,
    torch_dtype,
)
from wamdiff2_core.model.images import ImageFormat
from wamdiff2_core.model.prompt import chat_prompt
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.readiness import engine_config, longest_prompt, longest_texts
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_core.tasks.checks import MAX_INSTRUCTION, MAX_QUESTION

UPSTREAM_TOKENS = {"plan": 96, "detect": 512, "ask": 128}
_MODULES: tuple[Any, ...] = (plan, detect, ask)


@dataclass(frozen=True)
class Foreseen:
    """choice: what will decode, and why; sizes: of an engine, if it is one."""

    choice: Choice
    sizes: EngineConfig

    def check_candidates(self, count: int, what: str = "candidates") -> None:
        """ConfigError if so many answers at once are more than the engine is made for; others have no end."""
        most = self.sizes.rows[-1]
        if self.choice.kernels.startswith("engine") and count > most:
            raise ConfigError(
                f"{what}: kernels {self.choice.kernels} decode at most {most} at once, got {count}; "
                "ask for fewer, or take kernels lean"
            )


def foresee(
    folder: Path | str,
    device: str = "cpu",
    dtype: str = "float32",
    kernels: str = "auto",
    block_sizes: Sequence[int] = (),
) -> Foreseen:
    """What `Driver.from_checkpoint` with these arguments will decode with, in a moment and without its weights.

    Raises CheckpointError for a folder or a device that is none, ConfigError for kernels that cannot run there.
    """
    place = torch_device(device)
    model = text_model(folder, block_sizes)
    return Foreseen(decide(kernels, place, torch_dtype(dtype, place), model), model.sizes)


def text_model(folder: Path | str, block_sizes: Sequence[int] = ()) -> TextModel:
    """A checkpoint's text model without contents, and the sizes of a driver's engine for it. CheckpointError."""
    folder = Path(folder)
    facts = read_facts(folder)
    sizes = engine_sizes(facts, TextTokenizer.from_folder(folder), ImageFormat.from_folder(folder), block_sizes, folder)
    return TextModel(text_skeleton(facts.config, folder), facts.config.text_config, sizes)


def engine_sizes(
    facts: CheckpointFacts | LoadedModel,
    tokenizer: TextTokenizer,
    image_format: ImageFormat,
    block_sizes: Iterable[int] = (),
    folder: Path | None = None,
) -> EngineConfig:
    """Sizes of an engine that all fits into that a driver of the checkpoint can be asked, texts at their longest.

    block_sizes: beside 1, 4, 8, 16, 32 and the checkpoint's own.
    """
    entry = facts.block_diffusion
    ours = prompts_of(facts.kind, entry, folder) == "wamdiff2-1"
    counts = [image_format.max_pixels // image_format.unit**2]
    if ours:
        counts = [image_format.tokens((int(w), int(h))) for w, h in entry.get("image_sizes", {}).values()]
    scene = longest_texts(MAX_INSTRUCTION, MAX_QUESTION)
    texts = [module.prompt if ours else module.upstream_prompt for module in _MODULES]
    lengths = [len(chat_prompt(tokenizer, text(scene), ()).ids) for text in texts]
    prefixes = 3 if facts.context == "block_causal" else 2  # candidates: one for each block size in turn
    known = map(int, (*block_sizes, *entry.get("block_sizes", ())))
    return engine_config(longest_prompt(counts, lengths), answer_tokens(entry), known, prefixes)


def answer_tokens(entry: dict[str, Any]) -> dict[str, int]:
    """Most tokens of an answer by task; entry: a checkpoint's `block_diffusion`."""
    return {**UPSTREAM_TOKENS, **entry.get("max_new_tokens", {})}
