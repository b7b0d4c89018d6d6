"""Images through passes with fixed buffers, and choices in several parts."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_engine_parity import SMALL, alike
from tiny_models import (
    IMAGE,
    VISION_END,
    VISION_START,
    block_diffusion,
    config_dict,
    loaded,
    prompt,
    random_model,
    save,
)

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import kernel_set, plain_set
from wamdiff2_core.decode.engine.ops import TorchOps
from wamdiff2_core.decode.engine.vision import MOST_SIZES
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.vision import encode_images, vision_block

CONFIG = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=20)


def picture(h: int, w: int, seed: int):
    """A prompt with one image of h x w patches."""
    ids = torch.tensor([5, VISION_START, *[IMAGE] * (h * w // 4), VISION_END, 7 + seed])
    pixels = torch.randn(h * w, 96, generator=torch.Generator().manual_seed(seed))
    return ids, pixels, torch.tensor([[1, h, w]])


@pytest.fixture
def decoder() -> EngineDecoder:
    return EngineDecoder(loaded(), EngineConfig(**SMALL, capture_images=True))


def test_answers_do_not_depend_on_how_images_are_encoded(decoder) -> None:
    plain = BlockDecoder(loaded(), "plain")
    for images, seed in ((1, 0), (3, 0), (1, 1), (0, 0), (3, 1)):
        ids = prompt(9, seed, images)
        alike(decoder.generate(*ids, config=CONFIG), plain.generate(*ids, config=CONFIG))
        pair = [one.prefill(*ids) for one in (decoder, plain)]
        got, want = (one.generate([4, 5], config=CONFIG, prefix=p) for one, p in zip((decoder, plain), pair))
        alike(got, want)


def test_a_prefix_keeps_its_images_when_others_take_their_buffers() -> None:
    """With a block-causal prompt the last image tokens wait in the prefix until the rest comes."""
    model = loaded("same", "block_causal")
    mine = EngineDecoder(model, EngineConfig(**SMALL, capture_images=True))
    plain = BlockDecoder(model, "plain")
    ids, pixels, grids = picture(4, 6, 0)
    outs = []
    for one in (mine, plain):
        prefix = one.prefill(ids[:-1], pixels, grids, block_size=8)
        assert prefix.tail is not None
        one.prefill(*picture(4, 6, 1), block_size=8)
        outs.append(one.generate(ids[-1:], config=CONFIG, prefix=prefix))
    alike(*outs)


def test_sizes_that_were_not_used_for_long_give_way(decoder) -> None:
    plain = BlockDecoder(loaded(), "plain")
    sizes = [(2 * h, 2 * w) for h in (1, 2, 3) for w in (1, 2, 3, 4)]
    assert len(sizes) > MOST_SIZES
    for turn in range(2):
        for h, w in sizes:
            decoder.generate(*picture(4, 6, 5), config=CONFIG)  # used all the time
            ids = picture(h, w, turn)
            alike(decoder.generate(*ids, config=CONFIG), plain.generate(*ids, config=CONFIG))
            assert len(decoder.engine.vision._buffers) <= MOST_SIZES
    kept = [key for key in decoder.engine.graphs._passes if key[0] == "vision"]
    assert len(kept) == MOST_SIZES and ("vision", ((1, 4, 6),)) in kept


def test_warming_up_prepares_images(decoder) -> None:
    decoder.engine.warm_up([CallShape(prompt=32, block_size=8, images=True, grids=((1, 4, 6),))])
    passes = len(decoder.engine.graphs)
    decoder.generate(*prompt(9, images=1), config=CONFIG)
    assert len(decoder.engine.graphs) == passes


def test_a_kernel_set_says_what_runs_the_encoders_layers() -> None:
    model, config, called = loaded(), EngineConfig(**SMALL, capture_images=True), []

    def layer(*arguments):
        called.append(len(arguments))
        return vision_block(*arguments)

    decoder = EngineDecoder(model, config, replace(plain_set(model, config), image_layer=layer))
    ids = prompt(9, images=3)
    alike(decoder.generate(*ids, config=CONFIG), BlockDecoder(model, "plain").generate(*ids, config=CONFIG))
    assert len(called) >= 2 * len(model.model.model.visual.blocks)  # two sizes of images, each by all layers
    assert plain_set(model, config).image_layer is vision_block


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("name", ["torch", "triton", "triton_fp8"])
def test_triton_sets_run_the_encoders_layers_by_their_kernels(name: str) -> None:
    config, one = {**config_dict(), "block_diffusion": block_diffusion()}, EngineConfig(**SMALL)
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(save(Path(folder), config, random_model(config)), device="cuda")
    decoder, layer = EngineDecoder(model, one, name), kernel_set(name, model, one).image_layer
    assert layer.__module__.endswith("triton_vision" if name != "torch" else "model.vision")
    ids, pixels, grids = prompt(9, images=3)
    got = decoder.engine.encode(model, pixels.to("cuda"), grids)
    plain = encode_images(model.model.model.visual, pixels.to("cuda"), grids)
    assert torch.allclose(got.embeds, plain.embeds, atol=1e-3) and torch.allclose(
        got.deepstack, plain.deepstack, atol=1e-3
    )


def test_wrong_pixels_are_refused(decoder) -> None:
    ids, pixels, grids = prompt(9, images=1)
    for arguments in (
        (pixels[:-1], grids),
        (pixels[:, :-1], grids),
        (pixels, None),
        (None, grids),
        (pixels, grids * 0),
    ):
        with pytest.raises(DataError):
            decoder.generate(ids, *arguments, config=CONFIG)


class Reusing(TorchOps):
    """Chooses for three tokens at most, and gives the same memory back each time."""

    def choose(self, x, head, allowed, forbidden, eps):
        assert len(x) <= 3
        choice = super().choose(x, head, allowed, forbidden, eps)
        if not hasattr(self, "kept"):
            self.kept = [torch.zeros(3, dtype=one.dtype) for one in (choice.tokens, choice.certainty, choice.usable)]
        parts = [kept[: len(x)] for kept in self.kept]
        for kept, one in zip(parts, (choice.tokens, choice.certainty, choice.usable), strict=True):
            kept.copy_(one)
        return type(choice)(*parts)


def test_choices_in_parts() -> None:
    model, config = loaded(), EngineConfig(**SMALL)
    kernels = replace(plain_set(model, config, Reusing(config.page_size)), choices=3)
    got = EngineDecoder(model, config, kernels).generate([prompt(5)[0], prompt(9)[0]], config=CONFIG)
    want = BlockDecoder(model, "plain").generate([prompt(5)[0], prompt(9)[0]], config=CONFIG)
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)
