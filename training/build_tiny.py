"""Write a tiny Qwen3-VL checkpoint folder with random weights: `python -m training.build_tiny --out DIR`.

The folder has everything a trained one has (config with the `block_diffusion` entry, tokenizer, image preprocessing,
generation settings, bf16 safetensors in shards small enough for git), so it loads wherever a real one loads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wamdiff2_core.distill.checkpoint import save_weights
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model import build_tokenizer
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.model.weights import read_weights

VOCAB_SIZE = 1152
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500000.0,
        "mrope_section": [12, 10, 10],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 5,
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_heads": 3,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 256,
    "num_position_embeddings": 400,
    "deepstack_visual_indexes": [1, 3],
    "hidden_act": "gelu_pytorch_tanh",
}
CAMERAS = ("cam_front", "cam_front_left", "cam_front_right")
IMAGE_SIZES = {
    "cam_front": [320, 192],
    "cam_front_left": [160, 96],
    "cam_front_right": [160, 96],
}


def block_diffusion_entry(mask_token_id: int) -> dict:
    """What config.json says about block diffusion, answers and images of this checkpoint."""
    return {
        "mask_token_id": mask_token_id,
        "prediction": "next",
        "context": "causal",
        "block_sizes": [1, 4, 8, 16, 32],
        "answer_formats": {"plan": "fixed", "detect": "fixed", "ask": "text"},
        "cameras": list(CAMERAS),
        "image_sizes": IMAGE_SIZES,
        "max_new_tokens": {"plan": 96, "detect": 97, "ask": 32},
        "prompt": "wamdiff2-1",
    }


def tiny_config(tokenizer: TextTokenizer) -> Qwen3VLConfig:
    """The model's shape (about 13 M weights) with the ids of this tokenizer."""
    if tokenizer.vocab_size > VOCAB_SIZE:
        raise CheckpointError(f"tokenizer: expected at most {VOCAB_SIZE} entries, got {tokenizer.vocab_size}")
    ids = tokenizer.special
    return Qwen3VLConfig(
        text_config={
            **TEXT,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config=VISION,
        tie_word_embeddings=True,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        block_diffusion=block_diffusion_entry(ids["<|mask|>"]),
    )


def write_side_files(folder: Path, config: Qwen3VLConfig) -> None:
    """preprocessor_config.json and generation_config.json, as Qwen3-VL folders have them."""
    vision = config.vision_config
    pixels = (vision.patch_size * vision.spatial_merge_size) ** 2
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "processor_class": "Qwen3VLProcessor",
                "patch_size": vision.patch_size,
                "temporal_patch_size": vision.temporal_patch_size,
                "merge_size": vision.spatial_merge_size,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "size": {"shortest_edge": pixels, "longest_edge": pixels * 4096},
            },
            indent=2,
        )
        + "\n"
    )
    (folder / "generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": config.text_config.eos_token_id,
                "pad_token_id": config.text_config.pad_token_id,
                "do_sample": False,
                "max_new_tokens": 97,
            },
            indent=2,
        )
        + "\n"
    )


def build(
    folder: Path, seed: int = 0, texts: Path | None = None, vision_from: Path | None = None
) -> Qwen3VLForConditionalGeneration:
    """Write the folder and return the fp32 model. Residual outputs start small, so that depth does not hurt early.

    `texts`: folder of dataset shards whose texts the tokenizer learns from, beside the texts of the tasks themselves.
    `vision_from`: checkpoint whose vision tower is taken over; what has another shape there (the way into a larger text
    model) stays random.
    """
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer.build(build_tokenizer.read_samples(texts) if texts else (), folder)
    config = tiny_config(tokenizer)
    model = Qwen3VLForConditionalGeneration(config).float()
    scale = (2 * config.text_config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(scale)
    if vision_from is not None:
        take_vision(model, vision_from)
    write_side_files(folder, config)
    save_weights(model, folder)
    return model


def take_vision(model: Qwen3VLForConditionalGeneration, folder: Path) -> int:
    """Copy the vision weights of a checkpoint that fit; how many tensors. CheckpointError if none does."""
    mine = model.state_dict()
    given = {name: weight for name, weight in read_weights(folder).items() if ".visual." in name}
    fitting = {name: weight for name, weight in given.items() if name in mine and mine[name].shape == weight.shape}
    if not fitting:
        raise CheckpointError(f"{folder}: none of its {len(given)} vision tensors fits this model")
    model.load_state_dict({name: weight.float() for name, weight in fitting.items()}, strict=False)
    return len(fitting)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vision-from", type=Path, help="checkpoint whose vision tower is taken over")
    parser.add_argument("--texts", type=Path, help="dataset shards for the tokenizer to learn from, too")
    options = parser.parse_args(arguments)
    model = build(options.out, options.seed, options.texts, options.vision_from)
    size = sum(file.stat().st_size for file in options.out.iterdir()) / 1e6
    print(f"{options.out}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M weights, {size:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
