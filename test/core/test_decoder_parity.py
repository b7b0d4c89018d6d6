"""The fast decoder against three truths: transformers' own generate, a cache-free recomputation, and its rows alone."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from tiny_models import EOS, IMAGE, MASK, config_dict, loaded, prompt, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.reference import reference_generate
from wamdiff2_core.decode.scaffold import Scaffold

KINDS = list(product(("next", "same"), ("causal", "block_causal")))
B = 4


@pytest.mark.parametrize("kernels", ["lean", "plain"])
@pytest.mark.parametrize("images", [0, 1, 3])
def test_block_size_one_is_autoregressive_generate(tmp_path, images: int, kernels: str) -> None:
    """Plain Qwen3-VL, no mask token: the very tokens of transformers' greedy generate."""
    said: set[int] = set()
    for seed in range(3):
        config = config_dict(tie_word_embeddings=bool(seed % 2), attention_bias=seed == 2)
        model = load_model(save(tmp_path / str(seed), config, random_model(config, seed)))
        assert (model.kind, model.mask_token_id) == ("qwen3_vl", None)
        ids, pixels, grids = prompt(11 + seed, seed, images)
        inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        if images:
            inputs |= {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": (ids[None] == IMAGE).int()}
        want = model.model.generate(**inputs, max_new_tokens=40, do_sample=False, eos_token_id=EOS, pad_token_id=0)
        want = want[0, len(ids) :].tolist()
        out = BlockDecoder(model, kernels).generate(
            ids, pixels, grids, config=DecodingConfig(block_size=1, steps=1, max_new_tokens=40)
        )
        ended = EOS in want
        assert out.tokens == (want[: want.index(EOS)] if ended else want)
        said |= set(out.tokens)
        assert out.status == ("complete" if ended else "truncated")
        assert out.forwards == len(want)  # the last token is never committed
        assert out.steps_per_block == [1] * len(want)
    assert len(said) > 5  # the random models say something


@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_cache_equals_recomputation_for_every_prompt_length(prediction: str, context: str) -> None:
    model = loaded(prediction, context)
    decoders = [BlockDecoder(model, name) for name in ("lean", "plain")]
    for length in range(1, 2 * B + 1):
        for rule, steps in (("dynamic", 3), ("static", 2)):
            config = DecodingConfig(block_size=B, steps=steps, rule=rule, threshold=0.3, max_new_tokens=2 * B + 3)
            ids, _, _ = prompt(length, seed=length)
            want = reference_generate(model, ids, config=config)
            for decoder in decoders:
                same(decoder.generate(ids, config=config), want)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("block_size", [1, 3, 8, 33])
def test_cache_equals_recomputation_with_images(prediction: str, context: str, block_size: int) -> None:
    model = loaded(prediction, context)
    config = DecodingConfig(block_size=block_size, steps=5, rule="sequential", max_new_tokens=35)
    for images in (1, 3):
        ids, pixels, grids = prompt(9, images=images)
        want = reference_generate(model, ids, pixels, grids, config)
        same(BlockDecoder(model).generate(ids, pixels, grids, config=config), want)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_batch_equals_its_rows_alone(prediction: str, context: str) -> None:
    """Different lengths, different images, different ends."""
    model = loaded(prediction, context)
    decoder = BlockDecoder(model)
    config = DecodingConfig(block_size=B, steps=3, rule="dynamic", threshold=0.4, max_new_tokens=30)
    prompts = [prompt(7, images=1), prompt(13), prompt(2, images=3), prompt(5), prompt(21)]
    pixels = torch.cat([pixels for _, pixels, _ in prompts if pixels is not None])
    grids = torch.cat([grids for _, _, grids in prompts if grids is not None])
    batch = decoder.generate([ids for ids, _, _ in prompts], pixels, grids, config=config)
    assert len(batch) == len(prompts) and batch.tokens == [one.tokens for one in batch]
    for row, one in zip(batch, prompts, strict=True):
        same(row, decoder.generate(*one, config=config))


def test_batch_with_limits_and_scaffolds_per_row() -> None:
    model = loaded()
    decoder = BlockDecoder(model)
    config = DecodingConfig(block_size=B, steps=2)
    rows = [prompt(6)[0], prompt(9)[0], prompt(4)[0]]
    scaffolds = [
        None,
        Scaffold(((7,), None, (3, 4, 5), (8,), (9,), (9,), (9,), (9,), (1, 2))),
        Scaffold(((5,), (EOS,))),
    ]
    limits = [5, 11, 8]
    batch = decoder.generate(rows, config=config, scaffold=scaffolds, max_new_tokens=limits)
    for row, ids, scaffold, limit in zip(batch, rows, scaffolds, limits, strict=True):
        alone = DecodingConfig(block_size=B, steps=2, max_new_tokens=limit)
        same(row, decoder.generate(ids, config=alone, scaffold=scaffold))
        same(row, reference_generate(model, ids, config=alone, scaffold=scaffold))
        assert len(row.tokens) <= limit
    assert batch[1].tokens[0] == 7 and batch[1].tokens[2] in (3, 4, 5) and batch[1].tokens[4:8] == [9] * 4
    assert batch[1].steps_per_block[1] == 0  # a block that is given whole costs nothing
    assert batch[2].tokens == [5] and batch[2].forwards == 0


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("cut", [1, 5, 8, 13])
def test_prefix_equals_whole_prompt(prediction: str, context: str, cut: int) -> None:
    """Several endings on one prefix, images in the prefix or behind it; the prefix is not used up."""
    model = loaded(prediction, context)
    decoder = BlockDecoder(model)
    config = DecodingConfig(block_size=B, steps=3, max_new_tokens=14)
    ids, pixels, grids = prompt(10, images=1)  # 5 text tokens, 8 for the image, 5 more
    seen = cut == 13
    prefix = (
        decoder.prefill(ids[:cut], *((pixels, grids) if seen else (None, None)), block_size=B) if cut != 8 else None
    )
    if prefix is None:
        prefix = decoder.prefill(ids[:4], block_size=B)
        cut = 4
    endings = [torch.cat((ids[cut:], prompt(n, seed=n)[0])) for n in (1, 4, 7)]
    for _ in range(2):
        for ending in endings:
            rest = (None, None) if seen else (pixels, grids)
            got = decoder.generate(ending, *rest, config=config, prefix=prefix)
            same(got, decoder.generate(torch.cat((ids[:cut], ending)), pixels, grids, config=config))
    if seen:
        batch = decoder.generate(endings, config=config, prefix=prefix)
        for row, ending in zip(batch, endings, strict=True):
            same(row, decoder.generate(ending, config=config, prefix=prefix))


def test_one_causal_prefix_serves_every_block_size() -> None:
    model = loaded("next", "causal")
    decoder = BlockDecoder(model)
    ids, pixels, grids = prompt(10, images=3)
    prefix = decoder.prefill(ids[:-5], pixels, grids)
    for block_size in (1, 2, 8, 32):
        config = DecodingConfig(block_size=block_size, steps=4, max_new_tokens=16)
        same(
            decoder.generate(ids[-5:], config=config, prefix=prefix),
            decoder.generate(ids, pixels, grids, config=config),
        )


def test_committing_shares_a_forward_with_the_next_step() -> None:
    model = loaded()
    config = DecodingConfig(block_size=8, steps=4, rule="static", max_new_tokens=32)
    out = BlockDecoder(model).generate(prompt(6)[0], config=config)
    assert out.status == "truncated"
    assert out.forwards == sum(out.steps_per_block) == 16  # prompt and commits cost no pass of their own


def test_the_mask_token_is_never_an_answer() -> None:
    """But for upstream checkpoints, a mask token is not among the candidates."""
    for prediction, context in KINDS:
        model = loaded(prediction, context)
        for seed in range(4):
            out = BlockDecoder(model).generate(
                prompt(6, seed)[0], config=DecodingConfig(block_size=8, max_new_tokens=40)
            )
            assert MASK not in out.tokens


def same(got, want) -> None:
    """Equal answers; probabilities within rounding."""
    assert got.tokens == want.tokens
    assert got.status == want.status
    assert got.steps_per_block == want.steps_per_block
    assert torch.allclose(torch.tensor(got.confidences), torch.tensor(want.confidences), atol=2e-4)
