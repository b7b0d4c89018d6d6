"""The engine against the plain decoder, fp32: same tokens, steps, status, passes; confidences within rounding."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import pytest
import torch
from test_decoder_parity import same
from tiny_models import EOS, config_dict, loaded, prompt, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.config import RULES
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.scaffold import Scaffold

KINDS = list(product(("next", "same"), ("causal", "block_causal")))
SIZES = (1, 4, 8, 16, 32)
# Both ways to read the flags, each with every kind of model and every block size, never all of them at once.
CASES = [(*kind, size, (at + number) % 2) for at, kind in enumerate(KINDS) for number, size in enumerate(SIZES)]
SMALL = {"max_length": 448, "max_answer": 64, "rows": (1, 2, 4)}
DIGITS = tuple(range(10))
SCAFFOLDS = (
    None,
    Scaffold(((1, 2, 3), (4, 5, 6), (7,), (8, 9, 10), (11, 12, 13)) * 4, (0, 1, 0, 2, 2) * 4),
    Scaffold((*((7,),) * 8, DIGITS, (10,), DIGITS, DIGITS, (EOS,))),  # with B = 4 two blocks are given whole
    Scaffold(((5,), (EOS,))),
)


@lru_cache(maxsize=32)
def engine(prediction: str = "next", context: str = "causal", seed: int = 0, lookahead: int = 0) -> EngineDecoder:
    """One engine per model, used by many tests one after the other: what one call leaves must not show in the next."""
    return EngineDecoder(loaded(prediction, context, seed), EngineConfig(**SMALL, lookahead=lookahead))


@lru_cache(maxsize=16)
def plain(prediction: str = "next", context: str = "causal", seed: int = 0) -> BlockDecoder:
    return BlockDecoder(loaded(prediction, context, seed), "plain")


def alike(got, want, batch: bool = False) -> None:
    """Equal answers. Rows of the plain decoder's batches wait for one another, so only `alone` compares there."""
    same(got, want)
    assert got.alone == want.alone
    assert got.forwards == (want.alone if batch else want.forwards)


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_every_rule(prediction: str, context: str, block_size: int, lookahead: int) -> None:
    settings = product(RULES, ((1, 0.9), (3, 0.0), (4, 0.25), (100, 1.0)))
    for number, (rule, (steps, threshold)) in enumerate(settings):
        config = DecodingConfig(block_size, steps, rule, threshold, max_new_tokens=block_size + 5)
        seed, ids = (0, prompt(9)) if number % 2 else (1, prompt(5, images=2))
        want = plain(prediction, context, seed).generate(*ids, config=config)
        alike(engine(prediction, context, seed, lookahead).generate(*ids, config=config), want)


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_scaffolds(prediction: str, context: str, block_size: int, lookahead: int) -> None:
    """Given places, allowed sets, ranks, blocks that are given whole, answers that are given whole."""
    ids, _, _ = prompt(7)
    for scaffold, rule in product(SCAFFOLDS[1:], RULES):
        config = DecodingConfig(block_size, 3, rule, 0.4, max_new_tokens=24)
        want = plain(prediction, context).generate(ids, config=config, scaffold=scaffold)
        alike(engine(prediction, context, 0, lookahead).generate(ids, config=config, scaffold=scaffold), want)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_prompt_lengths_on_and_off_the_edges_of_pages_and_buckets(prediction: str, context: str) -> None:
    """A short prompt behind a long one, too: nothing of what lies in the pages may show."""
    for length in (15, 16, 17, 63, 64, 65, 300, 1, 2):
        for block_size in (1, 8):
            config = DecodingConfig(block_size, 3, threshold=0.3, max_new_tokens=12)
            ids, _, _ = prompt(length)
            want = plain(prediction, context).generate(ids, config=config)
            alike(engine(prediction, context).generate(ids, config=config), want)


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_batches(prediction: str, context: str, block_size: int, lookahead: int) -> None:
    """1 to 4 rows with different prompts, images, limits, scaffolds; each is what it is alone."""
    prompts = [prompt(7, images=1), prompt(33), prompt(2, images=2), prompt(16)]
    limits = [5, 40, 24, 33]
    mine, theirs = engine(prediction, context, 0, lookahead), plain(prediction, context)
    for count, rule in zip((1, 2, 3, 4), RULES, strict=True):
        chosen = prompts[:count]
        pixels = torch.cat([one for _, one, _ in chosen if one is not None])
        grids = torch.cat([one for _, _, one in chosen if one is not None])
        config = DecodingConfig(block_size, 3, rule, 0.3, max_new_tokens=64)
        arguments = {
            "config": config,
            "scaffold": [SCAFFOLDS[(row + count) % 4] for row in range(count)],
            "max_new_tokens": limits[:count],
        }
        ids = [one for one, _, _ in chosen]
        got, want = (one.generate(ids, pixels, grids, **arguments) for one in (mine, theirs))
        for a, b in zip(got, want, strict=True) if count > 1 else [(got, want)]:
            alike(a, b, batch=count > 1)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("cut", [4, 13, 16, 17, 31, 64])
def test_shared_prefixes(prediction: str, context: str, cut: int) -> None:
    """One prefix, several answers, twice: full pages are shared, the last one is copied, nothing is used up."""
    mine, theirs = engine(prediction, context), plain(prediction, context)
    ids, pixels, grids = prompt(70, images=1)
    if cut > 34:  # the image's 8 tokens stand from place 35 on
        front, behind = (pixels, grids), (None, None)
    else:
        front, behind = (None, None), (pixels, grids)
    for block_size in (4, 8):
        prefixes = [one.prefill(ids[:cut], *front, block_size=block_size) for one in (mine, theirs)]
        config = DecodingConfig(block_size, 3, threshold=0.3, max_new_tokens=20)
        for _ in range(2):
            rest = ids[cut:]
            got, want = (
                one.generate(rest, *behind, config=config, prefix=prefix)
                for one, prefix in zip((mine, theirs), prefixes, strict=True)
            )
            alike(got, want)
            endings = [prompt(n, seed=n)[0] for n in (1, 4, 17)]
            got, want = (
                one.generate(endings, config=config, prefix=prefix)
                for one, prefix in zip((mine, theirs), prefixes, strict=True)
            )
            for a, b in zip(got, want, strict=True):
                alike(a, b, batch=True)


@pytest.mark.parametrize(("prediction", "context"), [("next", "causal"), ("same", "block_causal")])
def test_prefix_lengths_on_and_off_the_edges_of_pages_and_buckets(prediction: str, context: str) -> None:
    mine, theirs = engine(prediction, context), plain(prediction, context)
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=12)
    for length in (15, 16, 17, 63, 64, 65, 300, 1, 8):
        ids, _, _ = prompt(length)
        rests = [prompt(n, seed=n)[0] for n in (2, 1 + length % 17)]
        got, want = (
            one.generate(rests, config=config, prefix=one.prefill(ids, block_size=8)) for one in (mine, theirs)
        )  # fmt: skip
        for a, b in zip(got, want, strict=True):
            alike(a, b, batch=True)


def test_a_prefix_of_several_rows_and_its_copies() -> None:
    mine, theirs = engine(), plain()
    ids, pixels, grids = prompt(21, images=1)
    other = pixels.flip(0)
    fronts = [one.prefill([ids, ids], torch.cat((pixels, other)), grids.repeat(2, 1)) for one in (mine, theirs)]
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=20)
    endings = [prompt(n, seed=n)[0] for n in (3, 9, 20)]
    got, want = (
        one.generate(endings, config=config, prefix=front.rows([1, 0, 1]))
        for one, front in zip((mine, theirs), fronts, strict=True)
    )
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)
    keys = [front.cache.keys for front in fronts]
    assert keys[0].shape == keys[1].shape and torch.allclose(*keys, atol=1e-4)
    assert torch.allclose(*(front.cache.values for front in fronts), atol=1e-4)


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_drawn_tokens_are_those_of_the_plain_decoder(
    prediction: str, context: str, block_size: int, lookahead: int
) -> None:
    config = DecodingConfig(block_size, 4, "dynamic", 0.3, max_new_tokens=40, temperature=0.8, seed=7)
    rows = [prompt(7)[0], prompt(12)[0], prompt(3)[0]]
    heat = [0.8, 0.0, 1.5]
    got, want = (
        one.generate(rows, config=config, temperatures=heat, scaffold=[None, SCAFFOLDS[1], SCAFFOLDS[2]])
        for one in (engine(prediction, context, 0, lookahead), plain(prediction, context))
    )
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)
    assert got[0].tokens != engine(prediction, context).generate(rows[0], config=DecodingConfig(block_size)).tokens


@pytest.mark.parametrize("shape", [
    {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32,
     "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 4, 4]}},
    {"hidden_size": 48, "num_hidden_layers": 5},
])  # fmt: skip
def test_other_models(tmp_path, shape) -> None:
    """Grouped heads, an output layer of its own, and no mask token at B = 1."""
    said: set[int] = set()
    for seed in range(3):
        config = config_dict(**shape)
        model = load_model(save(tmp_path / str(seed), config, random_model(config, seed)))
        ids = prompt(11, images=3)
        config = DecodingConfig(1, 1, max_new_tokens=40)
        want = BlockDecoder(model, "plain").generate(*ids, config=config)
        got = EngineDecoder(model, EngineConfig(**SMALL)).generate(*ids, config=config)
        alike(got, want)
        said |= set(got.tokens)
    assert len(said) > 3
