"""The lean kernel set against its plain twin; and both on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import GOLDEN, block_diffusion, config_dict, prompt, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.kernels import KERNEL_SETS

SHAPES = [
    {},
    {"num_attention_heads": 4, "num_key_value_heads": 4},
    {"num_attention_heads": 8, "num_key_value_heads": 1, "attention_bias": True},
    {"hidden_size": 48, "head_dim": 32, "hidden_act": "gelu", "num_hidden_layers": 5},
]


def make(folder: Path, dtype: str = "float32", device: str = "cpu", **text):
    text.setdefault("rope_scaling", {"rope_type": "default", "mrope_interleaved": True})
    half = text.get("head_dim", 16) // 2
    text["rope_scaling"] = {**text["rope_scaling"], "mrope_section": [half - 2 * (half // 4), half // 4, half // 4]}
    config = {**config_dict(**text), "block_diffusion": block_diffusion()}
    return load_model(save(folder, config, random_model(config, 3)), device=device, dtype=dtype)


def test_the_choice_is_named(tmp_path) -> None:
    model = make(tmp_path)
    assert BlockDecoder(model).kernels == "lean"
    assert [BlockDecoder(model, name).kernels for name in KERNEL_SETS] == list(KERNEL_SETS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("images", [0, 3])
def test_lean_equals_plain(tmp_path, shape, images: int) -> None:
    model = make(tmp_path, **shape)
    ids, pixels, grids = prompt(9, images=images)
    lean, plain = (BlockDecoder(model, name).prompt_logits(ids, pixels, grids) for name in KERNEL_SETS)
    assert (lean - plain).abs().max() < 1e-4 * plain.abs().max()


def test_lean_equals_plain_in_bfloat16(tmp_path) -> None:
    """Both round differently; each is as near to float32 as the other."""
    ids, pixels, grids = prompt(9, images=1)
    exact = BlockDecoder(make(tmp_path / "a")).prompt_logits(ids, pixels, grids)
    model = make(tmp_path / "b", "bfloat16")
    errors = [
        (BlockDecoder(model, name).prompt_logits(ids, pixels, grids) - exact).pow(2).mean().sqrt()
        for name in KERNEL_SETS
    ]
    assert max(errors) < 0.1 * exact.pow(2).mean().sqrt()
    assert max(errors) < 2.0 * min(errors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernels", KERNEL_SETS)
def test_gpu_gives_the_tokens_of_the_cpu(tmp_path, kernels: str) -> None:
    for folder in (GOLDEN, None):
        models = [
            load_model(folder, device=device) if folder else make(tmp_path / device, device=device)
            for device in ("cpu", "cuda")
        ]
        ids = [prompt(n)[0] for n in (3, 9)]
        for config in (DecodingConfig(block_size=4, steps=4), DecodingConfig(block_size=8, steps=4, rule="static")):
            cpu, cuda = (BlockDecoder(model, kernels).generate(ids, config=config) for model in models)
            assert cpu.tokens == cuda.tokens and cpu.status == cuda.status
