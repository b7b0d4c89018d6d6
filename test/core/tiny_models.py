"""Random tiny Qwen3-VL models, saved as checkpoint folders, and prompts for them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wamdiff2_core.model.checkpoint import LoadedModel, load_model

VOCAB, EOS, IMAGE, VISION_START, VISION_END, VIDEO, MASK = 96, 90, 91, 92, 93, 94, 95
GRIDS = ((1, 4, 6), (1, 4, 4), (1, 4, 6))  # patches; merged by 2: 6, 4 and 6 tokens
GOLDEN = Path(__file__).parent.parent / "golden" / "upstream_tiny"


def config_dict(**text: Any) -> dict[str, Any]:
    """config.json of a tiny plain Qwen3-VL."""
    text_config = {
        "model_type": "qwen3_vl_text",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
        "tie_word_embeddings": True,
        **text,
    }
    vision_config = {
        "model_type": "qwen3_vl",
        "depth": 3,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
        "out_hidden_size": text_config["hidden_size"],
    }
    return {
        "model_type": "qwen3_vl",
        "text_config": text_config,
        "vision_config": vision_config,
        "image_token_id": IMAGE,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "video_token_id": VIDEO,
        "eos_token_id": EOS,
        "tie_word_embeddings": text_config["tie_word_embeddings"],
    }


def block_diffusion(prediction: str = "next", context: str = "causal", mask: int = MASK) -> dict[str, Any]:
    return {"mask_token_id": mask, "prediction": prediction, "context": context, "block_sizes": [1, 4, 8]}


def random_model(config: dict[str, Any], seed: int = 0) -> Qwen3VLForConditionalGeneration:
    """Weights wide enough that attention is not flat and tokens differ."""
    torch.manual_seed(seed)
    plain = {key: value for key, value in config.items() if key not in ("block_diffusion", "model_type")}
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**plain))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.35 if "embed_tokens" in name else 1.6 / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            else:
                parameter.uniform_(0.7, 1.3)
    return model.eval()


def save(folder: Path, config: dict[str, Any], model: Qwen3VLForConditionalGeneration, head: bool = False) -> Path:
    """Write a checkpoint folder; `head`: store lm_head even if it is tied."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    if config["tie_word_embeddings"] and not head:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    return folder


@lru_cache(maxsize=16)
def loaded(prediction: str = "next", context: str = "causal", seed: int = 0) -> LoadedModel:
    """A random model of our kind."""
    import tempfile

    config = {**config_dict(), "block_diffusion": block_diffusion(prediction, context)}
    with tempfile.TemporaryDirectory() as folder:
        return load_model(save(Path(folder), config, random_model(config, seed)))


def prompt(length: int, seed: int = 0, images: int = 0) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A prompt with `length` text tokens and the first images of GRIDS: ids (N,), pixel values, grids."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    text = torch.randint(0, EOS, (length,), generator=generator)
    if not images:
        return text, None, None
    pieces = []
    for _, h, w in GRIDS[:images]:
        pieces += [VISION_START, *[IMAGE] * (h * w // 4), VISION_END]
    pixels = torch.randn(sum(h * w for _, h, w in GRIDS[:images]), 3 * 2 * 4 * 4, generator=generator)
    middle = length // 2
    ids = torch.cat((text[:middle], torch.tensor(pieces), text[middle:]))
    return ids, pixels, torch.tensor(GRIDS[:images])
