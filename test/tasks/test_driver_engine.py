"""The driver on the captured engine: answers as on the lean kernels, and nothing left to capture once it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from wamdiff2_core import DecodingConfig, Driver, Scene
from wamdiff2_core.decode import pick
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import KERNEL_SETS, why_not_triton
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.expected import Expected
from wamdiff2_core.readiness import BLOCK_SIZES, call_shapes, engine_config
from wamdiff2_core.scene import EgoState, Failure, FailureKind, Plan
from wamdiff2_core.select.choose import Selector
from wamdiff2_core.select.propose import ProposalConfig
from wamdiff2_core.tasks.plan import PlanLimits

RNG = np.random.default_rng(3)
IMAGES = {
    "cam_front": RNG.integers(0, 256, (96, 128, 3), dtype=np.uint8),
    "cam_front_left": RNG.integers(0, 256, (32, 64, 3), dtype=np.uint8),
}
SCENE = Scene(IMAGES, "turn left in 40 m", EgoState((5.0, 0.0)), "what is ahead?")
TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"


def made(folder: Path, kernels: str, block_size: int = 32) -> Driver:
    decoding = DecodingConfig(block_size=block_size, steps=4, threshold=0.5)
    driver = Driver.from_checkpoint(folder, decoding=decoding, kernels=kernels)
    driver.limits = PlanLimits(1e9, 1e9)  # random weights plan nothing that a car could drive
    return driver


@pytest.fixture(scope="module")
def pair(ours: Path) -> tuple[Driver, Driver]:
    return made(ours, "torch"), made(ours, "lean")


@pytest.fixture(autouse=True)
def as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pair" in request.fixturenames:
        for driver in request.getfixturevalue("pair"):
            driver.decoding = DecodingConfig(block_size=32, steps=4, threshold=0.5)


def passes(driver: Driver) -> int:
    assert isinstance(driver.decoder, EngineDecoder)
    return len(driver.decoder.engine.graphs)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("rule", ["dynamic", "ordered"])
def test_every_task_alone_and_in_one_batch_as_on_the_lean_kernels(
    pair: tuple[Driver, Driver], block_size: int, rule: str
) -> None:
    told = []
    for driver in pair:
        driver.decoding = DecodingConfig(block_size=block_size, steps=min(4, block_size), rule=rule, threshold=0.5)
        together = driver.answer(SCENE)
        alone = [driver.answer(SCENE, (task,))[task] for task in together]
        assert [one.text for one in alone] == [one.text for one in together.values()]
        told.append([(type(one), one.text) for one in together.values()])
        assert isinstance(together["plan"], Plan)
        told[-1].append(together["plan"].points.tolist())
    assert told[0] == told[1]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_candidates_drawn_with_a_seed_as_on_the_lean_kernels(pair: tuple[Driver, Driver], count: int) -> None:
    engine, lean = ([one.text for one in driver.plan_candidates(SCENE, count, 1.0, 11)] for driver in pair)
    assert engine == lean and len(set(engine)) == count


@pytest.mark.parametrize("scorer", ["likelihood", "remasked", "learned"])
def test_a_scorer_chooses_the_same_plan(pair: tuple[Driver, Driver], scorer: str) -> None:
    config = ProposalConfig(4, (1.0,), ("follow the road",), (8,), (0.7,), seed=5)
    engine, lean = (Selector(scorer, config).plan(driver, SCENE) for driver in pair)
    assert engine.plan.text == lean.plan.text and engine.index == lean.index
    assert engine.scores == pytest.approx(lean.scores, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("kind", "block_size"), [("upstream", 8), ("plain", 1)])
def test_other_checkpoints_see_one_picture_at_its_own_size(
    kind: str, block_size: int, request: pytest.FixtureRequest
) -> None:
    told = []
    for kernels in ("torch", "lean"):
        driver = made(request.getfixturevalue(kind), kernels, block_size)
        driver.max_new_tokens = dict.fromkeys(driver.max_new_tokens, 12)
        driver.get_ready()
        scene = replace(SCENE, images={"cam_front": RNG.integers(90, 91, (256, 320, 3), dtype=np.uint8)})
        told.append([one.text for one in driver.answer(scene).values()])
    assert told[0] == told[1]


def test_once_ready_the_dial_captures_nothing(ours: Path) -> None:
    driver = made(ours, "engine")
    assert driver.kernels == "engine torch" and driver.choice.word == "torch" and "no Triton" in driver.choice.reason
    assert passes(driver) == 0
    seconds = driver.get_ready(Expected(candidates=5, scored=True))
    ready = passes(driver)
    assert seconds > 0.0 and ready > 10 * len(BLOCK_SIZES)
    longest = replace(SCENE, instruction=("turn left in 40 m, then " * 9)[:200].strip(), question="what is it " * 27)
    for block_size in BLOCK_SIZES:
        driver.decoding = DecodingConfig(block_size=block_size, steps=2, threshold=0.5)
        for scene in (SCENE, longest):
            driver.answer(scene)
            driver.answer(scene, ("plan", "detect"))
            for task in ("plan", "detect", "ask"):
                driver.answer(scene, (task,))
            Selector("likelihood", ProposalConfig(5)).plan(driver, scene)
    assert passes(driver) == ready
    driver.plan_candidates(SCENE, 20)  # more at once than was expected: made ready now, and right
    assert passes(driver) > ready


def test_block_causal_context_gets_ready_for_what_it_runs_again(ours: Path) -> None:
    driver = made(ours, "lean")
    driver.loaded = replace(driver.loaded, context="block_causal")
    expected = Expected(block_sizes=(8,), instruction=20, question=20)
    shapes = [one for one in call_shapes(driver, expected, engine_config(512, driver.max_new_tokens)) if one.prefix]
    end = driver.prompt(SCENE, "plan", driver.pixels(SCENE)[1]).images_end
    assert end % 8 > 0 and len(shapes) == 1
    assert shapes[0].prefix == end - end % 8 and shapes[0].images and shapes[0].prompt > end % 8


def test_cameras_that_may_be_missing_have_passes_of_their_own(ours: Path) -> None:
    driver = made(ours, "lean")
    driver.optional_cameras = ("cam_front_left",)
    shapes = call_shapes(driver, Expected(may_lack=("cam_front_left",)), engine_config(512, driver.max_new_tokens))
    assert {len(shape.grids) for shape in shapes} == {1, 2}


def test_what_does_not_fit_is_an_error_that_says_so_and_the_next_call_runs(ours: Path) -> None:
    driver = made(ours, "torch")
    before = driver.plan(SCENE).text
    decoding = driver.decoding
    driver.decoding = replace(decoding, block_size=24)
    with pytest.raises(ConfigError, match="block_size.*24"):
        driver.answer(SCENE)
    driver.decoding = decoding
    assert driver.plan(SCENE).text == before
    with pytest.raises(ConfigError, match="candidates"):
        driver.plan_candidates(SCENE, 65)
    assert driver.plan(SCENE).text == before
    free = driver.decoder.engine.pool  # type: ignore[attr-defined]
    assert len(free.free) == free.total


def test_a_text_with_too_many_tokens_fails_alone_and_the_others_of_its_batch_are_answered(ours: Path) -> None:
    driver = made(ours, "torch")
    before = {task: one.text for task, one in driver.answer(SCENE).items()}  # type: ignore[union-attr]
    for batch in (("ask",), ("plan", "detect", "ask")):
        results = driver.answer(replace(SCENE, question="\N{SNOWMAN}" * 2000), batch)
        asked = results.pop("ask")
        assert isinstance(asked, Failure) and asked.kind is FailureKind.INPUT and "max_length" in asked.message
        assert [one.text for one in results.values()] == [before[task] for task in batch if task != "ask"]  # type: ignore[union-attr]
    driver.max_new_tokens["plan"] = 4000  # as if the instruction had left no room
    selected = Selector("likelihood", ProposalConfig(2)).plan(driver, SCENE)
    for failed in (driver.plan(SCENE), *driver.plan_candidates(SCENE, 2), selected.plan):
        assert isinstance(failed, Failure) and failed.kind is FailureKind.INPUT and "max_length" in failed.message
    assert driver.ask(SCENE).text == before["ask"]  # type: ignore[union-attr]


def test_as_many_candidates_as_can_be_asked_for_fit(ours: Path) -> None:
    driver = made(ours, "torch")
    assert len({one.text for one in driver.plan_candidates(SCENE, 64, 2.0, 1)}) > 32


def test_block_sizes_of_the_caller_the_checkpoint_and_the_dial_are_allowed(ours: Path) -> None:
    driver = Driver.from_checkpoint(ours, decoding=DecodingConfig(12, 2), kernels="torch", block_sizes=(64, 3))
    assert driver.decoder.engine.config.block_sizes == (1, 3, 4, 8, 12, 16, 32, 64)  # type: ignore[attr-defined]
    texts = [driver.plan(SCENE).text]
    lean = Driver(driver.loaded, driver.tokenizer, driver.image_format, DecodingConfig(12, 2), kernels="lean")
    assert texts == [lean.plan(SCENE).text]


def test_words(ours: Path) -> None:
    assert {"auto", "lean", "plain", "engine", *KERNEL_SETS} == set(pick.WORDS)
    assert made(ours, "plain").kernels == "plain"
    assert made(ours, "torch_fp8").kernels == "engine torch_fp8"
    with pytest.raises(ConfigError, match="kernels: expected one of auto, .*triton_fp8.*; got 'fast'"):
        Driver.from_checkpoint("no folder", kernels="fast")  # said before anything is read
    for word in ("triton", "triton_fp8", "flashinfer"):
        with pytest.raises(ConfigError, match="CUDA device"):
            made(ours, word)


def test_auto_on_a_cpu_is_lean_and_says_why(ours: Path) -> None:
    driver = Driver.from_checkpoint(ours)
    assert driver.kernels == "lean" and "CUDA device" in driver.choice.reason
    assert driver.get_ready() >= 0.0 and driver.block_sizes is None and driver.too_long("ask", 10**6) is None


def test_an_engine_that_cannot_run_the_model_raises_at_start(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = made(ours, "lean")
    driver.loaded.config.text_config.hidden_act = "gelu"
    try:
        with pytest.raises(ConfigError, match="silu"):
            Driver(driver.loaded, driver.tokenizer, driver.image_format, kernels="engine")
    finally:
        driver.loaded.config.text_config.hidden_act = "silu"


@pytest.mark.gpu
@pytest.mark.skipif(why_not_triton(torch.device("cuda", 0), torch.float32) is not None, reason="needs Triton")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_takes_the_engine_on_a_gpu_and_the_dial_captures_nothing() -> None:
    driver = Driver.from_checkpoint(TINY, "cuda", "bfloat16")
    assert driver.kernels == "engine triton" and "cuda" in driver.kernels_reason
    driver.get_ready(Expected(candidates=8))
    ready = passes(driver)
    images = {name: np.full((high, wide, 3), 120, np.uint8) for name, (wide, high) in driver.image_sizes.items()}
    scene = replace(SCENE, images=images)
    for block_size in BLOCK_SIZES:
        driver.decoding = DecodingConfig(block_size=block_size, steps=4, rule="ordered")
        assert all(one.cost.forwards > 0 for one in driver.answer(scene).values())
        assert driver.plan(scene).cost.forwards > 0
        assert len(driver.plan_candidates(scene, 8, 1.0, 3)) == 8
    assert passes(driver) == ready


@pytest.mark.slow
def test_the_shipped_checkpoint_plans_the_same() -> None:
    drivers = [made(TINY, kernels) for kernels in ("engine", "lean")]
    sizes = drivers[0].image_sizes
    images = {name: RNG.integers(0, 255, (high, wide, 3), dtype=np.uint8) for name, (wide, high) in sizes.items()}
    scene = replace(SCENE, images=images)
    engine, lean = ([(type(one), one.text) for one in driver.answer(scene).values()] for driver in drivers)
    assert engine == lean
    assert passes(drivers[0]) > 0
