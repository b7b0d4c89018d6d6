"""The rule "ordered": a scaffold's ranks are decided one after the other, leading digits before the ones behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from test_decoder_parity import same
from tiny_models import loaded, prompt

from wamdiff2_core import BlockDecoder, DecodingConfig
from wamdiff2_core.decode.accept import ordered
from wamdiff2_core.decode.reference import reference_generate
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.tasks import ask, detect, plan

KINDS = list(product(("next", "same"), ("causal", "block_causal")))
SHAPE = Scaffold(((1, 2, 3), (4, 5, 6), (7,), (8, 9, 10), (11, 12, 13)) * 4, (0, 1, 0, 2, 2) * 4)


def test_the_lowest_rank_that_is_left_comes_first():
    rank = torch.tensor([[0, 1, 0, 2], [0, 1, 0, 2], [-1, -1, -1, -1]])
    masked = torch.tensor([[True, True, False, True], [False, True, False, True], [True, True, True, False]])
    probability = torch.tensor([[0.1, 0.9, 0.9, 0.9], [0.9, 0.1, 0.9, 0.9], [0.2, 0.95, 0.3, 0.99]])
    kept = ordered(probability, masked, rank, 0.9)
    assert kept.tolist() == [[True, False, False, False], [False, True, False, False], [False, True, False, False]]


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("block_size", [1, 4, 8, 32])
def test_cache_and_recomputation_agree(prediction, context, block_size):
    model = loaded(prediction, context)
    config = DecodingConfig(block_size=block_size, steps=3, rule="ordered", threshold=0.3, max_new_tokens=20)
    for ids, pixels, grid in (prompt(9), prompt(40, images=1)):
        for scaffold in (SHAPE, None):
            want = reference_generate(model, ids, pixels, grid, config, scaffold)
            same(BlockDecoder(model).generate(ids, pixels, grid, config, scaffold), want)


def test_steps_are_ranks_and_the_last_step_takes_the_rest():
    model, (ids, _, _) = loaded("next", "causal"), prompt(9)
    config = DecodingConfig(block_size=20, steps=8, rule="ordered", max_new_tokens=20)
    out = BlockDecoder(model).generate(ids, config=config, scaffold=SHAPE)
    assert out.steps_per_block == [3] and len(out.tokens) == 20
    out = BlockDecoder(model).generate(ids, config=replace(config, steps=2), scaffold=SHAPE)
    assert out.steps_per_block == [2] and all(t in SHAPE.allowed[i] for i, t in enumerate(out.tokens))


def test_free_text_takes_the_dynamic_rule_also_beside_ordered_rows():
    model, (ids, _, _) = loaded("next", "causal"), prompt(9)
    config = DecodingConfig(block_size=8, steps=4, rule="ordered", threshold=0.2, max_new_tokens=16)
    alone = BlockDecoder(model).generate(ids, config=replace(config, rule="dynamic"))
    both = BlockDecoder(model).generate([ids, ids], config=config, scaffold=[None, SHAPE])
    assert both[0].tokens == alone.tokens and both[0].steps_per_block == alone.steps_per_block
    assert both[1].tokens == BlockDecoder(model).generate(ids, config=config, scaffold=SHAPE).tokens


def test_ranks_fit_the_answers_of_the_tasks():
    class Letters:
        eos_id = 0

        def single(self, text: str) -> int:
            return 1 + hash(text) % 1000

    for task in (plan, detect):
        assert len(task.ranks()) == len(task.allowed(Letters()))
    assert plan.ranks("upstream") is None and detect.ranks("qwen3vl_json") is None and ask.ranks() is None
    text = "02.26-00.17 04.43-00.70"
    assert "".join(str(rank) for rank in plan.ranks()[: len(text)]) == "010220010220" + "01022001022"
    assert plan.ranks()[:11] == (0, 1, 0, 2, 2, 0, 0, 1, 0, 2, 2)
    assert detect.ranks()[:16] == (0, 0, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0)
    with pytest.raises(ConfigError, match="ranks"):
        Scaffold(((1, 2),), (0, 1))
