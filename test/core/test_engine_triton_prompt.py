"""Kernels for prompts and images against their plain twins; images through an encoder whose heads a kernel turns."""

from __future__ import annotations

from triton_cases import BF16, DEVICE, FP32, near, random  # isort: skip  (before anything imports Triton)

import gc
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import config_dict, loaded, prompt, random_model
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from wamdiff2_core.decode.engine.graphs import GraphSet
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight, quantise
from wamdiff2_core.decode.engine.triton_prompt import silu_gate, turned_heads, widened
from wamdiff2_core.decode.engine.vision import VisionPasses
from wamdiff2_core.model import vision
from wamdiff2_core.model.vision import encode_images, vision_block

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, at infinities

DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
LAYER = partial(vision_block, turn=turned_heads)


def rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp32 as the kernels store it. Triton's interpreter cuts off what bfloat16 has no room for."""
    if dtype == BF16 and DEVICE == "cpu":
        exact = torch.where(exact.isnan(), exact, (exact.view(torch.int32) & -(2**16)).view(FP32))
    return exact.to(dtype)


def same(got: torch.Tensor, plain: torch.Tensor) -> None:
    """To the bit, and no number where none is."""
    assert got.dtype == plain.dtype and torch.equal(got.isnan(), plain.isnan())
    assert torch.equal(got.nan_to_num(7.0), plain.nan_to_num(7.0))


def twins(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries and keys of the plain encoder; the kernel's are these to the bit."""
    exact = vision.turned_heads(qkv.float(), cos, sin)
    if DEVICE != "cpu":
        for one, own in zip(exact, vision.turned_heads(qkv, cos, sin), strict=True):
            same(own, one.to(qkv.dtype))
    return tuple(rounded(one, qkv.dtype) for one in exact)


@DTYPES
@pytest.mark.parametrize("rows, n, heads", [(1, 1, 1), (3, 7, 2), (2, 12, 5)])
@pytest.mark.parametrize("size", [2, 16, 64, 72, 80])
def test_turned_heads_are_the_twins_to_the_bit(dtype, rows: int, n: int, heads: int, size: int) -> None:
    qkv = random(rows, n, 3, heads, size, dtype=dtype)
    cos, sin = random(n, size, seed=1), random(n, size, seed=2)
    for got, want in zip(turned_heads(qkv, cos, sin), twins(qkv, cos, sin), strict=True):
        assert got.shape == (rows, heads, n, size)
        same(got, want)
        assert got.transpose(1, 2).is_contiguous()  # so is attention's output, and then nothing has to be copied


def test_heads_of_many_blocks() -> None:
    """More than one program a patch: 2 x 40 heads of 64 pairs."""
    qkv, cos, sin = random(1, 3, 3, 40, 128), random(3, 128, seed=1), random(3, 128, seed=2)
    for got, want in zip(turned_heads(qkv, cos, sin), twins(qkv, cos, sin), strict=True):
        same(got, want)


@DTYPES
def test_no_number_stays_in_its_pair(dtype) -> None:
    qkv, cos, sin = random(2, 5, 3, 3, 16, dtype=dtype), random(5, 16, seed=1), random(5, 16, seed=2)
    qkv[1, 2, 0, 1, 3], qkv[0, 4, 1, 2, 15] = torch.nan, torch.inf
    qkv[:, :, 2] = torch.nan  # values are not turned
    q, k = turned_heads(qkv, cos, sin)
    assert q.isnan().nonzero().tolist() == [[1, 1, 2, 3], [1, 1, 2, 11]]
    assert (~k.isfinite()).nonzero().tolist() == [[0, 2, 4, 7], [0, 2, 4, 15]]
    for got, want in zip((q, k), twins(qkv, cos, sin), strict=True):
        same(got, want)


@pytest.mark.parametrize("size", [64, 72])
def test_nothing_is_copied_around_attention(size: int) -> None:
    """Queries, keys and values are read where they lie, and what comes out is in the order that is needed next."""
    qkv = random(2, 24, 3, 4, size, dtype=BF16)
    q, k = turned_heads(qkv, random(24, size, seed=1), random(24, size, seed=2))
    v = qkv[:, :, 2].transpose(1, 2)
    F.scaled_dot_product_attention(q, k, v)  # the first call may make a plan
    with torch.profiler.profile() as profile:
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 24, 4 * size)
    done = {event.key for event in profile.key_averages()}
    assert "aten::scaled_dot_product_attention" in done
    assert not done & {"aten::copy_", "aten::clone", "aten::contiguous", "aten::pad", "aten::constant_pad_nd"}
    near(out, F.scaled_dot_product_attention(*(one.contiguous() for one in (q, k, v))).transpose(1, 2).flatten(2), BF16)


def test_heads_that_the_kernel_cannot_read_are_refused() -> None:
    qkv, cos, sin = random(1, 4, 3, 2, 16), random(4, 16), random(4, 16)
    with pytest.raises(TypeError, match="float16"):
        turned_heads(qkv.half(), cos, sin)
    with pytest.raises(TypeError, match="angles in float32"):
        turned_heads(qkv, cos.bfloat16(), sin)
    for broken in ((qkv, cos[:3], sin), (qkv, cos, sin[:, :8]), (qkv[:, :, :2], cos, sin)):
        with pytest.raises(ValueError, match="do not fit"):
            turned_heads(*broken)
    with pytest.raises(ValueError, match="do not fit"):
        turned_heads(random(1, 4, 3, 2, 15), random(4, 15), random(4, 15))
    with pytest.raises(ValueError, match="contiguous"):
        turned_heads(random(1, 4, 3, 16, 2).transpose(3, 4), cos, sin)
    with pytest.raises(ValueError, match="gradient"):
        turned_heads(qkv.requires_grad_(), cos, sin)


def plain_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """In float32, rounded once."""
    opened, up = gate_up.float().chunk(2, -1)
    return rounded(F.silu(opened) * up, gate_up.dtype)


@DTYPES
@pytest.mark.parametrize("tokens", [1, 5, 33])
@pytest.mark.parametrize("width", [1, 7, 96, 1024, 1100])
def test_gate(dtype, tokens: int, width: int) -> None:
    gate_up = random(tokens, 2 * width, dtype=dtype, scale=3.0)
    near(silu_gate(gate_up), plain_gate(gate_up), dtype)


def test_a_gate_is_rounded_once() -> None:
    """Nearly all results are the rounded ones; with a rounding before the product many are not."""
    gate_up = random(16, 512, dtype=BF16, scale=2.0)
    once, (opened, up) = plain_gate(gate_up), gate_up.chunk(2, -1)
    twice = rounded(rounded(F.silu(opened.float()), BF16).float() * up.float(), BF16)
    assert (silu_gate(gate_up) == once).float().mean() > 0.99 > 0.8 > (twice == once).float().mean()


@DTYPES
def test_gates_far_out(dtype) -> None:
    """Closed, open, and no numbers: each as in PyTorch, at its own place."""
    opened = torch.tensor([-3e38, -1e4, -100.0, -0.0, 0.0, 100.0, 1e4, torch.inf, -torch.inf, torch.nan, 1.0, 1.0, 2.0])
    up = torch.tensor([2.0, 2.0, 2.0, 2.0, torch.inf, 2.0, 2.0, 2.0, 2.0, 2.0, torch.nan, -torch.inf, 3.0])
    gate_up = torch.stack([torch.cat((opened, up)), torch.ones(26)]).to(DEVICE, dtype)
    got, plain = silu_gate(gate_up), plain_gate(gate_up)
    assert torch.equal(got.isnan(), plain.isnan()) and plain[0].isnan().sum() == 4 and not plain[1].isnan().any()
    assert torch.allclose(got.float(), plain.float(), rtol=1e-2 if dtype == BF16 else 1e-6, equal_nan=True)


def test_gates_that_the_kernel_cannot_read_are_refused() -> None:
    with pytest.raises(TypeError, match="float16"):
        silu_gate(random(2, 4).half())
    for shape in ((2, 5), (2, 2, 4)):
        with pytest.raises(ValueError, match="expected \\(T, 2 I\\)"):
            silu_gate(random(*shape))
    with pytest.raises(ValueError, match="contiguous"):
        silu_gate(random(4, 2).T)
    with pytest.raises(ValueError, match="gradient"):
        silu_gate(random(2, 4).requires_grad_())


@torch.inference_mode()
@DTYPES
def test_images_are_encoded_the_same(dtype) -> None:
    """Several sizes, equal images as one batch, two frames of one image."""
    visual = random_model(config_dict()).model.visual.to(DEVICE, dtype)
    for grids in ([(1, 4, 6)], [(1, 4, 6), (1, 4, 4), (1, 4, 6)], [(2, 4, 4), (1, 2, 2)]):
        pixels = random(sum(t * h * w for t, h, w in grids), 96, dtype=dtype)
        got, plain = encode_images(visual, pixels, grids, LAYER), encode_images(visual, pixels, grids)
        near(got.embeds, plain.embeds, dtype)
        near(got.deepstack, plain.deepstack, dtype)


@torch.inference_mode()
@pytest.mark.skipif(DEVICE != "cpu", reason="with a GPU, the passes are captured below, at their size")
def test_passes_with_fixed_buffers_run_the_layers_they_are_given() -> None:
    model = loaded()
    passes = VisionPasses(model, GraphSet(model.device), LAYER)
    for seed in (0, 1):
        _, pixels, grids = prompt(9, seed, images=3)
        assert pixels is not None and grids is not None
        got, plain = passes(model, pixels, grids), encode_images(model.model.model.visual, pixels, grids)
        assert got is not None
        near(got.embeds, plain.embeds, FP32)
        near(got.deepstack, plain.deepstack, FP32)


SCRIPT = """
import dataclasses, json, sys
from types import SimpleNamespace
import torch
from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
from wamdiff2_core.decode.engine.triton_beside import compile_moves, compile_prompt

arch, ffn, heads, width = json.loads(sys.argv[1])
device = AbsentDevice(arch).install()
for dtype in (torch.bfloat16, torch.float32):
    compile_prompt(ffn, SimpleNamespace(hidden_size=width, num_heads=heads), dtype)
vocabulary = Vocabulary(151_669, torch.tensor([151_645, 151_643]), 151_936, False)
for rows, block_size in ((1, 1), (1, 32), (4, 8)):
    for mask, following in ((151_669, True), (None, False)):
        known = dataclasses.replace(vocabulary, mask=mask)
        text = SimpleNamespace(hidden_size=2 * width, head_dim=128)
        compile_moves(EngineConfig(), rows, block_size, known, following, not following, text, arch >= 90)
print(json.dumps([dataclasses.astuple(one) for one in device.built]))
"""
SIZES = {
    "2b": (90, 6144, 16, 1024),
    "8b": (90, 12_288, 16, 1152),
    "tiny": (90, 1024, 4, 64),
    "2b, Ada": (89, 6144, 16, 1024),
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_kernels_compile(sizes, tmp_path) -> None:
    """For GPUs that are not here, without a spilled register or any shared memory to speak of."""
    root = Path(__file__).resolve().parents[2]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(sizes)], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built = json.loads(done.stdout)
    assert {one[0] for one in built} == {"gate", "turn_heads", "sum_and_norm", "take", "look_up", "line_up", "step"}
    assert not [one for one in built if one[3]]
    assert all(shared <= 48 * 1024 for _, shared, _, _ in built)


# On a GPU: the sizes of Qwen3-VL-2B's encoder, captured.

GRIDS = ((1, 16, 24), (1, 10, 18), (1, 16, 24))


@pytest.fixture(scope="module", params=[1024, 1152], ids=["2b", "8b"])
def tower(request) -> Iterator[Any]:
    """An encoder with random weights, two layers of the real width: heads of 64 and of 72."""
    torch.manual_seed(0)
    config = Qwen3VLVisionConfig(
        depth=2, hidden_size=request.param, intermediate_size=4096, num_heads=16, out_hidden_size=2048,
        deepstack_visual_indexes=[0, 1],
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    visual = Qwen3VLVisionModel(config).to(DEVICE, BF16).eval()
    yield SimpleNamespace(model=SimpleNamespace(model=SimpleNamespace(visual=visual)), device=torch.device(DEVICE))
    del visual
    gc.collect()
    torch.cuda.empty_cache()


def images(seed: int, grids=GRIDS) -> tuple[torch.Tensor, torch.Tensor]:
    return random(sum(t * h * w for t, h, w in grids), 1536, dtype=BF16, seed=seed), torch.tensor(grids)


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize(
    "rows, n, heads, size", [(3, 2006, 16, 64), (1, 8024, 16, 72), (2, 77, 16, 72), (5, 33, 4, 16)]
)
def test_turned_heads_at_their_size(dtype, rows: int, n: int, heads: int, size: int) -> None:
    qkv = random(rows, n, 3, heads, size, dtype=dtype)
    cos, sin = random(n, size, seed=1), random(n, size, seed=2)
    for got, want in zip(turned_heads(qkv, cos, sin), twins(qkv, cos, sin), strict=True):
        same(got, want)


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("tokens, width", [(2112, 6144), (129, 12_288), (4096, 1001)])
def test_gate_at_its_size(dtype, tokens: int, width: int) -> None:
    gate_up = random(tokens, 2 * width, dtype=dtype, scale=3.0)
    near(silu_gate(gate_up), plain_gate(gate_up), dtype)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_encoder_is_the_plain_one(tower) -> None:
    """Other images, other features; the same over replays; sizes that come between change nothing."""
    passes = VisionPasses(tower, GraphSet(tower.device), LAYER)
    seen = []
    for seed in (0, 1, 0):
        pixels, grids = images(seed)
        got = passes(tower, pixels, grids)
        assert got is not None
        plain = encode_images(tower.model.model.visual, pixels, grids)
        near(got.embeds, plain.embeds, BF16)
        near(got.deepstack, plain.deepstack, BF16)
        seen.append((got.embeds.clone(), got.deepstack.clone()))
        passes(tower, *images(5, GRIDS[:1]))
    assert not torch.equal(seen[0][0], seen[1][0]) and not torch.equal(seen[0][1], seen[1][1])
    assert all(torch.equal(*pair) for pair in zip(seen[0], seen[2], strict=True))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_every_8_bit_number(dtype) -> None:
    """Each finite e4m3 byte, in both halves of a word, is the number that PyTorch takes it for; scales are applied."""
    data = torch.arange(256, dtype=torch.uint8).repeat(3, 2)
    data[data & 0x7F == 0x7F] = 0  # no number
    weight = Fp8Weight(data.to(DEVICE).view(torch.float8_e4m3fn), torch.tensor([1.0, 0.25, 3.0], device=DEVICE))
    got = widened(weight, dtype)
    assert torch.equal(got, weight.widened(dtype))
    assert got.float().unique().numel() > 250


@pytest.mark.parametrize("inputs", [8, 64, 96, 128, 256, 384])
def test_weights_in_8_bits_keep_their_order(inputs: int) -> None:
    """Two numbers of a word lie apart, and every input is its own again when widened."""
    plain = random(5, inputs, seed=1)
    small = quantise(plain)
    near(widened(small, FP32), small.widened(FP32), FP32)
    assert ((small.widened(FP32) - plain).abs() <= 0.07 * plain.abs() + 0.01).all()
    words = small.data.view(torch.uint8).view(5, -1, small.half, 2)
    scaled = (plain / small.scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8).view(5, -1, 2, small.half)
    assert torch.equal(words[..., 1], scaled[:, :, 1])
