"""Load a checkpoint folder of any of the three kinds into transformers' Qwen3-VL. Sizes and ids come from its files.

Kinds: plain "qwen3_vl" (autoregressive), upstream "wam_diff2", and ours ("wamdiff2": Qwen3-VL with a `block_diffusion`
entry in config.json). Weights are safetensors only; nothing in a folder is executed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.masks import CONTEXTS
from wamdiff2_core.model.weights import check_weights, read_weights

if TYPE_CHECKING:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

KINDS = ("qwen3_vl", "wam_diff2", "wamdiff2")
PREDICTIONS = ("next", "same")
PROMPTS = ("wamdiff2-1", "upstream")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Upstream's format does not store the mask token. Its released models use this row of the 151,936-row vocabulary;
# copies with a smaller vocabulary use their last row.
UPSTREAM_MASK_TOKEN_ID = 151671

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint folder says about itself beside its weights; see LoadedModel."""

    config: Qwen3VLConfig
    kind: str
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]
    prediction: str
    context: str
    block_diffusion: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedModel:
    """A model and what its folder says about how to use it.

    prediction: "next" (logits of token i-1 predict token i, as in the autoregressive model) or "same" (logits of a
    masked token predict it). context: how clean tokens see each other, "causal" or "block_causal". mask_token_id: None
    when the folder names none (a plain Qwen3-VL): such a model decodes with block size 1 only.
    """

    model: Qwen3VLForConditionalGeneration
    config: Qwen3VLConfig
    kind: str
    mask_token_id: int | None
    eos_token_ids: tuple[int, ...]
    prediction: str
    context: str
    block_diffusion: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def eos_token_id(self) -> int:
        """The end token to write; `eos_token_ids` are all that end an answer."""
        return self.eos_token_ids[0]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def vocab_size(self) -> int:
        return self.config.text_config.vocab_size


def read_facts(folder: str | Path, mask_token_id: int | None = None) -> CheckpointFacts:
    """Read a folder's JSON files, no weights. Raises CheckpointError, see `load_model`."""
    folder = Path(folder)
    raw = read_json(folder / "config.json")
    kind = kind_of(raw, folder)
    block_diffusion = block_diffusion_of(raw, kind, folder)
    config = qwen3_vl_config(raw, folder)
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    if mask_token_id is None:
        mask_token_id = _mask_token_id(kind, raw, generation, block_diffusion, config)
    facts = CheckpointFacts(
        config=config,
        kind=kind,
        mask_token_id=mask_token_id,
        eos_token_ids=_eos_token_ids(raw, generation, folder),
        prediction=block_diffusion["prediction"],
        context=block_diffusion["context"],
        block_diffusion=block_diffusion,
    )
    _check_ids(facts, folder)
    return facts


def load_model(
    folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    mask_token_id: int | None = None,
) -> LoadedModel:
    """Load a checkpoint folder, in eval mode. `mask_token_id` overrides what the folder says (or does not say).

    dtype: "float32", "bfloat16", "float16", or "auto" (the faster one on `device`).

    Raises CheckpointError, with expected and actual, for: no config, unknown kind, pickle-only weights, missing or
    surplus tensors, wrong shapes, ids outside the vocabulary, a malformed `block_diffusion` entry.
    """
    folder = Path(folder)
    device = torch_device(device)
    facts = read_facts(folder, mask_token_id)
    config = facts.config
    weights = read_weights(folder)
    check_weights(weights, expected_shapes(config, folder), tied=config.tie_word_embeddings, folder=folder)
    model = build(config, weights, torch_dtype(dtype, device)).to(device)
    return LoadedModel(model=model, folder=folder, **vars(facts))


def kind_of(raw: Mapping[str, Any], folder: Path) -> str:
    """Which of KINDS a config.json describes."""
    model_type = raw.get("model_type")
    if model_type == "wam_diff2":
        return "wam_diff2"
    if model_type == "qwen3_vl":
        return "wamdiff2" if "block_diffusion" in raw else "qwen3_vl"
    raise CheckpointError(f"{folder}: expected model_type 'qwen3_vl' or 'wam_diff2' in config.json, got {model_type!r}")


def block_diffusion_of(raw: Mapping[str, Any], kind: str, folder: Path) -> dict[str, Any]:
    """The `block_diffusion` entry, with prediction and context as the kind implies them where there is none."""
    if kind == "qwen3_vl":
        return {"prediction": "next", "context": "causal"}
    entry = raw.get("block_diffusion", {})
    if not isinstance(entry, dict):
        raise CheckpointError(f"{folder}: expected block_diffusion to be an object, got {entry!r}")
    if kind == "wam_diff2":
        entry = {"prediction": "same", "context": "block_causal", **entry}
    for name, choices in (("prediction", PREDICTIONS), ("context", CONTEXTS)):
        if entry.get(name) not in choices:
            actual = entry.get(name)
            raise CheckpointError(f"{folder}: block_diffusion.{name}: expected one of {choices}, got {actual!r}")
    mask = entry.get("mask_token_id")
    if kind == "wamdiff2" and (isinstance(mask, bool) or not isinstance(mask, int)):
        raise CheckpointError(f"{folder}: block_diffusion.mask_token_id: expected an integer, got {mask!r}")
    return dict(entry)


def prompts_of(kind: str, block_diffusion: Mapping[str, Any], folder: Path | None = None) -> str:
    """Whose prompts and images a checkpoint knows, one of PROMPTS: what its `prompt` entry says; without one, ours if
    it names image sizes, and upstream's (one picture of any size) otherwise.
    """
    ours = kind == "wamdiff2" and bool(block_diffusion.get("image_sizes"))
    prompts = block_diffusion.get("prompt", PROMPTS[0] if ours else PROMPTS[1])
    if prompts not in PROMPTS:
        raise CheckpointError(f"{folder}: block_diffusion.prompt: expected one of {PROMPTS}, got {prompts!r}")
    return prompts


def qwen3_vl_config(raw: Mapping[str, Any], folder: Path) -> Qwen3VLConfig:
    """transformers' config of any of the three kinds; only the names of upstream's model types differ."""
    from transformers import Qwen3VLConfig

    for part in ("text_config", "vision_config"):
        if not isinstance(raw.get(part), dict):
            raise CheckpointError(f"{folder}: expected {part} to be an object in config.json, got {raw.get(part)!r}")
    plain = {key: value for key, value in raw.items() if key not in ("architectures", "auto_map")}
    plain["model_type"] = "qwen3_vl"
    plain["text_config"] = {**raw["text_config"], "model_type": "qwen3_vl_text"}
    plain["vision_config"] = {**raw["vision_config"], "model_type": "qwen3_vl"}
    plain.setdefault("tie_word_embeddings", bool(raw["text_config"].get("tie_word_embeddings", False)))
    try:
        return Qwen3VLConfig(**plain)
    except Exception as error:  # transformers' validators have no common error type
        raise CheckpointError(f"{folder}: expected the settings of a Qwen3-VL in config.json, got {error}") from error


def expected_shapes(config: Qwen3VLConfig, folder: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the architecture of `config` (of `folder`) has."""
    from transformers import Qwen3VLForConditionalGeneration

    try:
        with torch.device("meta"):
            skeleton = Qwen3VLForConditionalGeneration(config)
    except Exception as error:  # whatever a layer says about sizes and names that it does not know
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder}: expected config.json to describe a Qwen3-VL, got {what}") from error
    return {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}


def text_skeleton(config: Qwen3VLConfig, folder: Path | None = None) -> Any:
    """The text model of `config` (of `folder`) without contents, on "meta": what can be known before weights are read.

    Raises CheckpointError as `expected_shapes` does.
    """
    from transformers import Qwen3VLTextModel

    try:
        with torch.device("meta"):
            return Qwen3VLTextModel(config.text_config)
    except Exception as error:  # as above
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder}: expected config.json to describe a Qwen3-VL, got {what}") from error


def build(config: Qwen3VLConfig, weights: dict[str, Tensor], dtype: torch.dtype) -> Qwen3VLForConditionalGeneration:
    """transformers' model with these weights, in eval mode; no random initialisation, no copy of the modeling code."""
    from transformers import Qwen3VLForConditionalGeneration
    from transformers.utils import logging as transformers_logging

    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model = Qwen3VLForConditionalGeneration.from_pretrained(
            None, config=config, state_dict=weights, dtype=dtype, attn_implementation="sdpa"
        )
    finally:
        if bar:
            transformers_logging.enable_progress_bar()
    return model.eval()


def torch_device(device: str | torch.device) -> torch.device:
    """A torch device from its name. CheckpointError for no name of one, or a GPU that is not there."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise CheckpointError(f"device: expected cpu, cuda, cuda:1 or the like, got {device!r}") from error
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            raise CheckpointError(f"device: {str(device)!r} is not there: torch {torch.__version__} sees {count} GPUs")
    return chosen


def torch_dtype(dtype: str | torch.dtype, device: str | torch.device = "cpu") -> torch.dtype:
    """A torch dtype from its name. "auto": bfloat16 where the hardware multiplies it faster than float32."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" or has_amx() else torch.float32
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype: expected one of {(*DTYPES, 'auto')}, got {dtype!r}")
    return DTYPES[dtype]


def has_amx() -> bool:
    """Whether this processor has bfloat16 matrix tiles (Intel AMX); without them bfloat16 is slower than float32."""
    return bool(torch.cpu._is_amx_tile_supported())


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file of a checkpoint."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: expected a checkpoint folder with this file, but there is none") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _mask_token_id(
    kind: str,
    raw: Mapping[str, Any],
    generation: Mapping[str, Any],
    block_diffusion: Mapping[str, Any],
    config: Qwen3VLConfig,
) -> int | None:
    """The mask token a folder names; upstream's convention where its format leaves it out; None for a plain model."""
    for source in (block_diffusion, raw, raw["text_config"], generation):
        if isinstance(source.get("mask_token_id"), int):
            return int(source["mask_token_id"])
    if kind != "wam_diff2":
        return None
    rows = config.text_config.vocab_size
    chosen = UPSTREAM_MASK_TOKEN_ID if rows > UPSTREAM_MASK_TOKEN_ID else rows - 1
    log.info("upstream checkpoint without a mask_token_id: using %d of %d rows", chosen, rows)
    return chosen


def _eos_token_ids(raw: Mapping[str, Any], generation: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """End tokens: generation_config.json first (as transformers' generate does), then config.json."""
    for source in (generation, raw, raw["text_config"]):
        value = source.get("eos_token_id")
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            return tuple(value)
    raise CheckpointError(f"{folder}: expected eos_token_id in generation_config.json or config.json, got none")


def _check_ids(facts: CheckpointFacts, folder: Path) -> None:
    """Every token id must be a row of the embedding."""
    ids = {f"eos_token_id {i}": one for i, one in enumerate(facts.eos_token_ids)}
    ids["image_token_id"] = facts.config.image_token_id
    if facts.mask_token_id is not None:
        ids["mask_token_id"] = facts.mask_token_id
    rows = facts.config.text_config.vocab_size
    for name, value in ids.items():
        if not 0 <= value < rows:
            raise CheckpointError(f"{folder}: {name}: expected 0 to {rows - 1}, got {value}")
    if facts.mask_token_id in facts.eos_token_ids:
        raise CheckpointError(f"{folder}: mask_token_id {facts.mask_token_id} is also an end token")
