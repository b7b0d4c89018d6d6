"""The released upstream code's own outputs, and our trained checkpoint's, from the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_decoder_golden import CASES, arguments, config_of
from tiny_models import GOLDEN

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.likelihood import remasked_log_likelihood
from wamdiff2_core.driver import Driver
from wamdiff2_core.scene import EgoState, Scene

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"


@pytest.fixture(scope="module", params=[0, 1])
def upstream(request) -> EngineDecoder:
    sizes = sorted({case["block_size"] for case in CASES["cases"]})
    config = EngineConfig(block_sizes=tuple(sizes), max_length=768, max_answer=64, lookahead=request.param)
    return EngineDecoder(load_model(GOLDEN), config)


@pytest.mark.parametrize("number", range(6))
def test_all_sequences_of_a_prompt(upstream, number: int) -> None:
    cases = [case for case in CASES["cases"] if case["prompt"] == number]
    assert len(cases) == 7
    for case in cases:
        out = upstream.generate(*arguments(number), config=config_of(case))
        assert out.tokens == case["tokens"], case
        assert out.steps_per_block == case["steps_per_block"], case


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver.from_checkpoint(TINY, dtype="float32")


def scene(seed: int) -> Scene:
    random = np.random.default_rng(seed)
    shades = {"cam_front": (192, 320), "cam_front_left": (96, 160), "cam_front_right": (96, 160)}
    images = {name: random.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in shades.items()}
    return Scene(images, "turn left in 40 m", EgoState((2.0 + 3.0 * seed, 0.0)), "is the light red?")


@pytest.fixture(scope="module")
def decoders(driver) -> list[BlockDecoder]:
    config = EngineConfig(max_length=320, max_answer=128, lookahead=1)
    return [BlockDecoder(driver.loaded, "plain"), EngineDecoder(driver.loaded, config)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block_size", "rule", "tasks"),
    [
        (1, "dynamic", ("ask",)),
        (4, "dynamic", ("plan", "ask")),
        (8, "ordered", ("plan", "detect", "ask")),
        (16, "static", ("plan", "ask")),
        (32, "ordered", ("plan", "detect", "ask")),
    ],
)
def test_the_trained_checkpoint(driver, decoders, block_size: int, rule: str, tasks: tuple[str, ...]) -> None:
    """Tasks on one scene as one batch."""
    driver.decoding = DecodingConfig(block_size, 4, rule, 0.6)
    found = []
    for driver.decoder in decoders:
        answers = driver.answer(scene(block_size), tasks)
        found.append([(task, type(one), one.text, one.cost.steps_per_block) for task, one in answers.items()])
    assert found[0] == found[1]


@pytest.mark.slow
def test_plans_drawn_from_the_trained_checkpoint(driver, decoders) -> None:
    driver.decoding = DecodingConfig(32, 4, "ordered")
    drawn = []
    for driver.decoder in decoders:
        drawn.append([one.text for one in driver.plan_candidates(scene(1), 4, temperature=1.0, seed=3)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 1


def test_the_likelihood_of_an_answer_behind_a_paged_prefix(driver) -> None:
    """What other parts ask of a decoder and its prefix beside `generate`."""
    decoders = [BlockDecoder(driver.loaded, "plain"), EngineDecoder(driver.loaded, EngineConfig(max_length=256))]
    ids = torch.arange(40) + 5
    found = [
        remasked_log_likelihood(one, one.prefill(ids[:33]), [ids[33:]] * 2, [[9, 8, 7, 6], [5, 6, 7, 8]], 4)
        for one in decoders
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4) and found[0][0] != found[0][1]
