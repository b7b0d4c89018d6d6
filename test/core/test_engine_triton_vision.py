"""A layer of the image encoder on kernels of its own, against the plain one."""

from __future__ import annotations

from triton_cases import BF16, DEVICE, FP32, near, random  # isort: skip  (before anything imports Triton)

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import config_dict, random_model
from torch import nn
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from wamdiff2_core.decode.engine.triton_vision import ACTIVATION, added_norm, gelu_linear, image_layer, normed
from wamdiff2_core.model.vision import encode_images, vision_block

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, at infinities
DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])


def norm_of(width: int, dtype: torch.dtype) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-6, device=DEVICE, dtype=dtype).requires_grad_(False)
    norm.weight.copy_(random(width, dtype=dtype, seed=7))
    norm.bias.copy_(random(width, dtype=dtype, seed=8))
    return norm


@DTYPES
@pytest.mark.parametrize("width", [1, 8, 64, 100, 1024, 1152])
def test_norms(dtype, width: int) -> None:
    norm = norm_of(width, dtype)
    x = random(5, width, dtype=dtype, scale=3.0) + 2.0
    update, later = random(5, width, dtype=dtype, seed=1), random(width, dtype=dtype, seed=2)
    near(normed(x, norm), norm(x), dtype)
    total, seen = added_norm(x, update, norm, later)
    near(total, x + update + later, dtype)
    near(seen, norm(x + update), dtype)


def test_a_bias_to_come_is_not_seen_by_the_norm() -> None:
    norm, x, update = norm_of(16, FP32), random(3, 16), random(3, 16, seed=1)
    later = random(16, seed=2, scale=50.0)
    near(added_norm(x, update, norm, later)[1], norm(x + update), FP32)
    near(added_norm(x, update, norm, later)[0] - later, x + update, BF16)


def test_no_number_stays_in_its_patch() -> None:
    norm, x, update = norm_of(16, FP32), random(4, 16), random(4, 16, seed=1)
    x[1, 3], update[2, 5] = torch.nan, torch.inf
    total, seen = added_norm(x, update, norm, norm.bias)
    assert seen.isnan().any(1).tolist() == [False, True, True, False]
    assert (~total.isfinite()).nonzero().tolist() == [[1, 3], [2, 5]]


def test_what_the_kernel_cannot_read_is_refused() -> None:
    norm, x = norm_of(16, FP32), random(4, 16)
    with pytest.raises(ValueError, match="width"):
        normed(random(4, 8), norm)
    with pytest.raises(ValueError, match="width"):
        added_norm(x, x[:3], norm, norm.bias)
    with pytest.raises(ValueError, match="contiguous"):
        added_norm(x, random(16, 4).T, norm, norm.bias)
    with pytest.raises(ValueError, match="gradient"):
        normed(x.requires_grad_(), norm)


@torch.inference_mode()
@DTYPES
def test_the_gate_of_the_encoder_is_the_tanh_form(dtype) -> None:
    linear = nn.Linear(64, 96, device=DEVICE, dtype=dtype)
    x = random(33, 64, dtype=dtype, scale=3.0)
    near(gelu_linear(x, linear), F.gelu(linear(x), approximate="tanh"), dtype)


@torch.inference_mode()
@DTYPES
def test_images_are_encoded_the_same(dtype) -> None:
    """Several sizes, equal images as one batch, two frames of one image."""
    model = random_model(config_dict())
    assert model.config.vision_config.hidden_act == ACTIVATION
    visual = model.model.visual.to(DEVICE, dtype)
    for grids in ([(1, 4, 6)], [(1, 4, 6), (1, 4, 4), (1, 4, 6)], [(2, 4, 4), (1, 2, 2)]):
        pixels = random(sum(t * h * w for t, h, w in grids), 96, dtype=dtype)
        kept = pixels.clone()
        got, plain = encode_images(visual, pixels, grids, image_layer), encode_images(visual, pixels, grids)
        near(got.embeds, plain.embeds, dtype)
        near(got.deepstack, plain.deepstack, dtype)
        assert torch.equal(pixels, kept)


@torch.inference_mode()
def test_a_layer_leaves_its_input_alone() -> None:
    """Deepstack features are taken from what a layer returned; the next layer works on it."""
    visual = random_model(config_dict()).model.visual.to(DEVICE)
    block, size = visual.blocks[0], visual.config.hidden_size // visual.config.num_heads
    hidden, (cos, sin) = random(2, 6, visual.config.hidden_size), (random(6, size, seed=1), random(6, size, seed=2))
    kept = hidden.clone()
    near(image_layer(block, hidden, cos, sin), vision_block(block, hidden, cos, sin), FP32)
    assert torch.equal(hidden, kept)


@pytest.fixture(scope="module", params=[1024, 1152], ids=["2b", "8b"])
def tower(request) -> Iterator[Any]:
    """An encoder with random weights, two layers of the real width: heads of 64 and of 72."""
    torch.manual_seed(0)
    config = Qwen3VLVisionConfig(
        depth=2, hidden_size=request.param, intermediate_size=4096, num_heads=16, out_hidden_size=2048,
        deepstack_visual_indexes=[0, 1],
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    yield Qwen3VLVisionModel(config).to(DEVICE).eval()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.gpu
@torch.inference_mode()
@DTYPES
@pytest.mark.parametrize("grids", [[(1, 16, 24), (1, 10, 18), (1, 16, 24)], [(1, 68, 118)]], ids=["small", "2006"])
def test_an_encoder_at_its_size(tower, dtype, grids) -> None:
    visual = tower.to(dtype)
    pixels = random(sum(t * h * w for t, h, w in grids), 1536, dtype=dtype)
    got, plain = encode_images(visual, pixels, grids, image_layer), encode_images(visual, pixels, grids)
    near(got.embeds, plain.embeds, dtype)
    near(got.deepstack, plain.deepstack, dtype)
