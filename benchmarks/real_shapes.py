"""Models of a published shape with random weights, made where they will live: nothing is read and nothing is copied."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wamdiff2_core.errors import ConfigError

# Sizes of Qwen3-VL as its public configurations give them; "micro" and "small" are for tests on a CPU.
_REAL: dict[str, Any] = {"vocab_size": 151_936, "head_dim": 128}
_MICRO: dict[str, Any] = {"vocab_size": 256, "head_dim": 32}
TEXT: dict[str, dict[str, Any]] = {
    "2b": _REAL | {"hidden": 2048, "mlp": 6144, "layers": 28, "heads": 16, "kv_heads": 8, "tied": True},
    "8b": _REAL | {"hidden": 4096, "mlp": 12_288, "layers": 36, "heads": 32, "kv_heads": 8, "tied": False},
    "micro": _MICRO | {"hidden": 64, "mlp": 128, "layers": 2, "heads": 2, "kv_heads": 1, "tied": True},
    "small": _MICRO | {"hidden": 96, "mlp": 192, "layers": 3, "heads": 3, "kv_heads": 1, "tied": False},
}
VISION: dict[str, dict[str, Any]] = {
    "2b": {"hidden": 1024, "mlp": 4096, "depth": 24, "heads": 16, "levels": (5, 11, 17)},
    "8b": {"hidden": 1152, "mlp": 4304, "depth": 27, "heads": 16, "levels": (8, 16, 24)},
    "micro": {"hidden": 32, "mlp": 64, "depth": 2, "heads": 2, "levels": (0,)},
    "small": {"hidden": 48, "mlp": 64, "depth": 3, "heads": 2, "levels": (0, 1)},
}
SHAPES = tuple(TEXT)
TABLE = 2304  # entries of the learned position table of images, 48 x 48


@dataclass(frozen=True)
class Ids:
    """Control tokens: Qwen's rows of its vocabulary, or the last rows of a smaller one."""

    turn: int
    end: int
    image_begin: int
    image_end: int
    image: int
    mask: int

    @classmethod
    def of(cls, vocabulary: int) -> Ids:
        if vocabulary == _REAL["vocab_size"]:
            return cls(151_644, 151_645, 151_652, 151_653, 151_655, 151_671)
        last = vocabulary - 1
        return cls(last - 5, last - 4, last - 3, last - 2, last - 1, last)


def shape_config(name: str) -> Qwen3VLConfig:
    """transformers' configuration of a shape. ConfigError for an unknown name."""
    if name not in SHAPES:
        raise ConfigError(f"shape: expected one of {', '.join(SHAPES)}; got {name!r}")
    text, vision = TEXT[name], VISION[name]
    ids = Ids.of(text["vocab_size"])
    pairs = text["head_dim"] // 2
    section = [pairs - 2 * (pairs * 5 // 16), pairs * 5 // 16, pairs * 5 // 16]  # 24, 20, 20 of 64
    return Qwen3VLConfig(
        text_config={
            "vocab_size": text["vocab_size"],
            "hidden_size": text["hidden"],
            "intermediate_size": text["mlp"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "num_key_value_heads": text["kv_heads"],
            "head_dim": text["head_dim"],
            "hidden_act": "silu",
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "tie_word_embeddings": text["tied"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": section,
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": vision["depth"],
            "hidden_size": vision["hidden"],
            "intermediate_size": vision["mlp"],
            "num_heads": vision["heads"],
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden"],
            "num_position_embeddings": TABLE,
            "deepstack_visual_indexes": list(vision["levels"]),
            "hidden_act": "gelu_pytorch_tanh",
        },
        tie_word_embeddings=text["tied"],
        image_token_id=ids.image,
        vision_start_token_id=ids.image_begin,
        vision_end_token_id=ids.image_end,
        eos_token_id=ids.end,
    )


def random_model(name: str, device: torch.device, dtype: torch.dtype, seed: int) -> Qwen3VLForConditionalGeneration:
    """Weights drawn on `device` in `dtype`; outputs of residual branches small, so that depth does not hurt early.

    The same seed gives the same weights on every device of one kind. Raises ConfigError if any weight came out
    elsewhere or in another dtype.
    """
    config = copy.deepcopy(shape_config(name))
    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(before)
    scale = (2 * config.text_config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dtype != dtype or weight.device.type != device.type:
                raise ConfigError(f"{key}: expected {dtype} on {device}, got {weight.dtype} on {weight.device}")
            if key.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(scale)
    return model


@torch.no_grad()
def sharpen(model: Qwen3VLForConditionalGeneration, spread: float) -> None:
    """Scale the output matrix so that logits have a standard deviation of about `spread`.

    With the usual initial weights every distribution is nearly uniform, and there is little to learn from a teacher.
    """
    weight = model.lm_head.weight
    weight.mul_(spread / (weight.float().std() * weight.shape[1] ** 0.5))


def billions(model: torch.nn.Module) -> float:
    """Weights in 10^9, tied ones once."""
    return sum(weight.numel() for weight in model.parameters()) / 1e9
