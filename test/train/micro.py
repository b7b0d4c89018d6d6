"""A micro model (0.2 M weights) that learns a handful of samples by heart within seconds on a CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from training.build_tiny import tiny_config, write_side_files
from wamdiff2_core.distill.checkpoint import save_weights
from wamdiff2_core.distill.recipe import Recipe, make_recipe
from wamdiff2_core.model import build_tokenizer

SIZES = {"cam_front": [64, 64], "cam_front_left": [32, 32], "cam_front_right": [32, 32]}


def micro_config(tokenizer) -> Qwen3VLConfig:
    config = tiny_config(tokenizer).to_dict()
    config["text_config"] |= {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
    config["text_config"]["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    }
    config["vision_config"] |= {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    config["block_diffusion"]["image_sizes"] = SIZES
    return Qwen3VLConfig(**config)


def build_micro(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = micro_config(build_tokenizer.build((), folder))
    write_side_files(folder, config)
    save_weights(Qwen3VLForConditionalGeneration(config).float(), folder, dtype=torch.float32)
    return folder


def micro_recipe(**values) -> Recipe:
    base = {
        "name": "micro",
        "frames_per_step": 8,
        "ring_frames": 8,
        "workers": 0,
        "augment": 0.0,
        "lr": 4e-3,
        "vision_lr": 4e-3,
        "warmup_steps": 20,
        "ema": 0.0,
        "weight_decay": 0.0,
        "prompt_room": {"plan": 64, "detect": 32, "ask": 48},
        "log_every": 50,
        "threads": 1,
        "task_weights": {"plan": 1.0, "detect": 1.0, "ask": 1.0},
        "final_lr": 0.02,
    }
    return make_recipe(base | values)
