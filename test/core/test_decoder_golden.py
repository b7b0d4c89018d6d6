"""The released upstream code's own outputs, reproduced."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import GOLDEN

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.reference import full_logits, reference_generate
from wamdiff2_core.model.masks import Part, label
from wamdiff2_core.model.tokens import grids_of, mrope_positions

CASES = json.loads(gzip.decompress((GOLDEN / "cases.json.gz").read_bytes()))
RULES = {"low_confidence_static": "static", "low_confidence_dynamic": "dynamic", "sequential": "sequential"}
INPUTS = load_file(GOLDEN / "inputs.safetensors")


@pytest.fixture(scope="module")
def model():
    return load_model(GOLDEN)


def arguments(number: int):
    return (
        INPUTS[f"p{number}.input_ids"][0],
        INPUTS.get(f"p{number}.pixel_values"),
        INPUTS.get(f"p{number}.image_grid_thw"),
    )


def config_of(case) -> DecodingConfig:
    return DecodingConfig(
        block_size=case["block_size"],
        steps=case["denoising_steps"],
        rule=RULES[case["strategy"]],
        threshold=case["confidence_threshold"],
        max_new_tokens=case["max_new_tokens"],
    )


@pytest.mark.parametrize("kernels", ["lean", "plain"])
@pytest.mark.parametrize("number", range(6))
def test_all_sequences_of_a_prompt(model, number: int, kernels: str) -> None:
    decoder = BlockDecoder(model, kernels)
    cases = [case for case in CASES["cases"] if case["prompt"] == number]
    assert len(cases) == 7
    for case in cases:
        out = decoder.generate(*arguments(number), config=config_of(case))
        assert out.tokens == case["tokens"], case
        assert out.steps_per_block == case["steps_per_block"], case


@pytest.mark.parametrize("index", [2, 10, 18, 34, 40])
def test_reference_gives_the_same_sequences(model, index: int) -> None:
    case = CASES["cases"][index]
    out = reference_generate(model, *arguments(case["prompt"]), config=config_of(case))
    assert out.tokens == case["tokens"]
    assert out.steps_per_block == case["steps_per_block"]


@pytest.mark.parametrize("number", range(6))
def test_prefill_logits_and_positions(model, number: int) -> None:
    ids, pixels, grids = arguments(number)
    labels = label(Part.PROMPT, torch.arange(len(ids)), 8)
    logits = full_logits(model, ids, labels, pixels, grids)[-8:]
    assert (logits - INPUTS[f"p{number}.prefill_logits_block8"]).abs().max() < 1e-3
    positions, free = mrope_positions(ids, grids_of(grids), model.config.image_token_id, 2)
    assert torch.equal(positions, INPUTS[f"p{number}.position_ids"][:, 0])
    assert free == int(positions.max()) + 1


@pytest.mark.parametrize("kernels", ["lean", "plain"])
@pytest.mark.parametrize("number", range(6))
def test_prefill_logits_of_the_decoder(model, number: int, kernels: str) -> None:
    """The decoder's own pass over the prompt, through its cache and kernels."""
    decoder = BlockDecoder(model, kernels)
    logits = decoder.prompt_logits(*arguments(number), block_size=8)[-8:]
    assert (logits - INPUTS[f"p{number}.prefill_logits_block8"]).abs().max() < 1e-3
