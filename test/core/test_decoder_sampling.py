"""Drawing tokens: the exact distribution, rows independent of their batch, and the cache against recomputation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from test_decoder_parity import same
from tiny_models import EOS, MASK, VOCAB, loaded, prompt
from torch import Tensor

from wamdiff2_core import BlockDecoder, DecodingConfig
from wamdiff2_core.decode.reference import clean_labels, full_logits, reference_generate
from wamdiff2_core.decode.sampling import draw, row_seed
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.masks import concat

KINDS = list(product(("next", "same"), ("causal", "block_causal")))
DRAWS = 3000


def excess(counts: Tensor, probability: Tensor) -> float:
    """Pearson's statistic in standard deviations above what chance gives; bins expected fewer than 5 times as one."""
    expected = probability.double() * counts.sum()
    rare = expected < 5.0
    seen = torch.cat((counts[~rare].double(), counts[rare].sum()[None].double()))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None]))
    statistic = float(((seen - wanted) ** 2 / wanted.clamp(min=1e-9)).sum())
    freedom = len(seen) - 1
    return (statistic - freedom) / (2.0 * freedom) ** 0.5


def counted(tokens: list[int]) -> Tensor:
    return torch.bincount(torch.tensor(tokens), minlength=VOCAB)


def answers(config: DecodingConfig, ids: Tensor, rows: int = DRAWS) -> list[list[int]]:
    """Tokens of many samples of one prompt, the end token put back where an answer is shorter than its limit."""
    decoder = BlockDecoder(loaded("next", "causal"))
    prefix = decoder.prefill(ids[:-1])
    batch = decoder.generate([ids[-1:]] * rows, config=config, prefix=prefix)
    return [(row.tokens + [EOS] * config.max_new_tokens)[: config.max_new_tokens] for row in batch]


def true_distribution(ids: Tensor, temperature: float) -> Tensor:
    """Of the token behind `ids` in an autoregressive model, without the mask token."""
    logits = full_logits(loaded("next", "causal"), ids, concat(clean_labels(len(ids), 0, 1)))[-1].clone()
    logits[MASK] = -torch.inf
    return torch.softmax(logits.double() / temperature, -1)


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_block_size_one_is_ancestral_sampling(temperature: float) -> None:
    """First tokens follow the model's distribution, second tokens the one behind the first that was drawn."""
    ids = prompt(7)[0]
    config = DecodingConfig(block_size=1, steps=1, max_new_tokens=2, temperature=temperature, seed=1)
    drawn = answers(config, ids)
    first = counted([row[0] for row in drawn])
    assert excess(first, true_distribution(ids, temperature)) < 4.0
    assert excess(first, true_distribution(ids, temperature * 1.5)) > 8.0  # the test sees a wrong temperature
    common = [token for token in first.argsort(descending=True).tolist() if token != EOS][:2]
    for token in common:
        behind = [row[1] for row in drawn if row[0] == token]
        assert excess(counted(behind), true_distribution(torch.cat((ids, torch.tensor([token]))), temperature)) < 4.0


def test_a_block_does_not_favour_probable_tokens() -> None:
    """The first token of a block depends on the prompt alone: its distribution is the same for every rule and block.

    It would not be if what a step keeps depended on the token that was drawn.
    """
    ids = prompt(7)[0]
    want = true_distribution(ids, 1.0)
    for rule in ("dynamic", "static", "sequential"):
        config = DecodingConfig(
            block_size=4, steps=4, rule=rule, threshold=0.5, max_new_tokens=4, temperature=1.0, seed=2
        )
        assert excess(counted([row[0] for row in answers(config, ids)]), want) < 4.0


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_cache_equals_recomputation(prediction: str, context: str, block_size: int) -> None:
    model = loaded(prediction, context)
    decoders = [BlockDecoder(model, name) for name in ("lean", "plain")]
    said = set()
    for seed, (rule, images) in enumerate(product(("dynamic", "static"), (0, 1))):
        ids, pixels, grids = prompt(5 + seed, seed, images)
        config = DecodingConfig(
            block_size=block_size, steps=4, rule=rule, threshold=0.3, max_new_tokens=35, temperature=0.8, seed=seed
        )
        want = reference_generate(model, ids, pixels, grids, config)
        for decoder in decoders:
            same(decoder.generate(ids, pixels, grids, config=config), want)
        said.add(tuple(want.tokens))
        assert want.status in ("complete", "truncated", "empty") and MASK not in want.tokens
    assert len(said) > 1


@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_a_row_draws_as_it_would_alone(prediction: str, context: str) -> None:
    """Rows that end early, rows with other limits, and a row whose block is given must not move the others' draws."""
    model = loaded(prediction, context)
    decoder = BlockDecoder(model)
    config = DecodingConfig(block_size=4, steps=3, threshold=0.2, max_new_tokens=18, temperature=1.5, seed=7)
    rows = [prompt(6)[0], prompt(6)[0], prompt(9)[0], prompt(3)[0], prompt(6)[0]]
    limits = [18, 3, 11, 18, 18]
    scaffolds = [None, None, Scaffold(((7,), (8,), (9,), (5,), None, (1, 2, 3))), Scaffold(((5,), (EOS,))), None]
    batch = decoder.generate(rows, config=config, scaffold=scaffolds, max_new_tokens=limits)
    for number, (got, ids, scaffold, limit) in enumerate(zip(batch, rows, scaffolds, limits, strict=True)):
        alone = replace(config, seed=row_seed(7, number), max_new_tokens=limit)
        same(got, decoder.generate(ids, config=alone, scaffold=scaffold))
        same(got, reference_generate(model, ids, config=alone, scaffold=scaffold))
    assert batch[0].tokens != batch[4].tokens  # equal prompts, other draws


def test_seeds() -> None:
    decoder = BlockDecoder(loaded())
    ids = prompt(8)[0]
    config = DecodingConfig(block_size=8, steps=4, max_new_tokens=24, temperature=1.0, seed=3)
    first = decoder.generate(ids, config=config)
    same(decoder.generate(ids, config=config), first)
    assert decoder.generate(ids, config=replace(config, seed=4)).tokens != first.tokens
    unseeded = replace(config, seed=None)
    assert decoder.generate(ids, config=unseeded).tokens != decoder.generate(ids, config=unseeded).tokens
    assert len({row_seed(2**32 - 1, row) for row in range(1000)}) == 1000


def test_cold_draws_are_greedy() -> None:
    decoder = BlockDecoder(loaded())
    for block_size in (1, 8):
        config = DecodingConfig(block_size=block_size, steps=4, threshold=0.4, max_new_tokens=24)
        greedy = decoder.generate(prompt(8)[0], config=replace(config, seed=5))
        same(decoder.generate(prompt(8)[0], config=replace(config, temperature=1e-30, seed=5)), greedy)


def test_only_allowed_tokens_are_drawn() -> None:
    decoder = BlockDecoder(loaded())
    digits = tuple(range(10, 20))
    scaffold = Scaffold((digits, digits, (33,), digits, (EOS,)))
    for block_size, seed in product((1, 4, 32), range(8)):
        config = DecodingConfig(block_size=block_size, steps=4, max_new_tokens=12, temperature=50.0, seed=seed)
        out = decoder.generate(prompt(5)[0], config=config, scaffold=scaffold)
        assert out.status == "complete" and len(out.tokens) == 4 and out.tokens[2] == 33
        assert all(token in digits for place, token in enumerate(out.tokens) if place != 2)
        assert all(0.0 < confidence <= 1.0 for confidence in out.confidences)


def test_draw_takes_the_token_at_the_uniform_number() -> None:
    logits = torch.tensor([0.2, 0.0, 0.3, 0.5, 0.0]).log().expand(1, 5, 5)
    uniforms = torch.tensor([[0.0, 0.1999, 0.2001, 0.4999, 1.0 - 2.0**-53]], dtype=torch.float64)
    assert draw(logits, uniforms, torch.ones(1)).tolist() == [[0, 0, 2, 2, 3]]  # tokens 1 and 4 are impossible
    assert draw(logits, uniforms, torch.tensor([1e-4])).tolist() == [[3] * 5]
    pair = draw(logits.expand(2, 5, 5), uniforms.expand(2, 5), torch.tensor([0.0, 1.0]))
    assert pair.tolist() == [[3] * 5, [0, 0, 2, 2, 3]]


def test_greedy_and_drawn_rows_of_one_batch_are_those_of_calls_of_their_own() -> None:
    decoder, ids = BlockDecoder(loaded("next", "causal")), prompt(5)[0]
    config = DecodingConfig(block_size=4, steps=2, max_new_tokens=12, seed=5)
    prefix = decoder.prefill(ids[:-1])
    rows = [ids[-1:]] * 3
    mixed = decoder.generate(rows, config=config, prefix=prefix, temperatures=[0.0, 1.0, 0.0])
    greedy = decoder.generate(ids, config=config)
    drawn = decoder.generate(rows, config=replace(config, temperature=1.0), prefix=prefix)
    assert [mixed[0].tokens, mixed[2].tokens] == [greedy.tokens] * 2
    assert mixed[1].tokens == drawn[1].tokens != greedy.tokens
    with pytest.raises(ConfigError, match="expected one for each of 3 rows, got 2"):
        decoder.generate(rows, config=config, prefix=prefix, temperatures=[0.0, 1.0])
    with pytest.raises(ConfigError, match="temperature"):
        decoder.generate(rows, config=config, prefix=prefix, temperatures=[0.0, 1.0, float("nan")])
