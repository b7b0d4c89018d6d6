"""Small random checkpoints of the three kinds, each a folder as it would be on a disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from wamdiff2_core.model.build_tokenizer import build
from wamdiff2_core.model.images import ImageFormat
from wamdiff2_core.model.tokenizer import TextTokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "upstream_tiny"
TEXT = {
    "vocab_size": 640,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}


def write_model(folder: Path, tokenizer: TextTokenizer, **extra: object) -> None:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = tokenizer.special
    config = Qwen3VLConfig(
        text_config={**TEXT, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]},
        vision_config=dict(VISION),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_id=ids["<|im_end|>"],
        tie_word_embeddings=True,
        **extra,
    )
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(config).float().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(ImageFormat().preprocessor_config()))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    build((), folder)
    return folder


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A checkpoint of our own kind: two cameras, fixed answers."""
    folder = tmp_path_factory.mktemp("ours")
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    tokenizer = TextTokenizer.from_folder(folder)
    entry = {
        "mask_token_id": tokenizer.control("<|mask|>"),
        "prediction": "next",
        "context": "causal",
        "block_sizes": [1, 32],
        "answer_formats": {"plan": "fixed", "detect": "fixed", "ask": "text"},
        "cameras": ["cam_front", "cam_front_left"],
        "image_sizes": {"cam_front": [128, 96], "cam_front_left": [64, 32], "cam_back": [64, 32]},
        "max_new_tokens": {"plan": 96, "detect": 97, "ask": 32},
    }
    write_model(folder, tokenizer, block_diffusion=entry)
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A plain autoregressive Qwen3-VL."""
    folder = tmp_path_factory.mktemp("plain")
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    write_model(folder, TextTokenizer.from_folder(folder))
    return folder


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Upstream's tiny checkpoint with a tokenizer whose control tokens sit where its config says."""
    folder = tmp_path_factory.mktemp("upstream")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, folder)
    build((), folder, 560)
    definition = json.loads((folder / "tokenizer.json").read_text())
    places = {
        "<|im_end|>": 590,
        "<|image_pad|>": 591,
        "<|vision_start|>": 592,
        "<|vision_end|>": 593,
        "<|video_pad|>": 594,
        "<|im_start|>": 595,
        "<|endoftext|>": 596,
        "<|mask|>": 599,
    }
    for token in definition["added_tokens"]:
        token["id"] = places[token["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return folder
