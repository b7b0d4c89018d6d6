"""The driver on small random checkpoints of all kinds, and how it reads what a decoder hands it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wamdiff2_core import DecodingConfig, Driver, Scene
from wamdiff2_core.decode.result import DecodeResult, Status
from wamdiff2_core.driver import _log_likelihood
from wamdiff2_core.errors import CheckpointError, ConfigError
from wamdiff2_core.scene import Answer, Box, Detections, EgoState, Failure, FailureKind, Plan
from wamdiff2_core.tasks import detect, plan

RNG = np.random.default_rng(0)
IMAGES = {
    "cam_front": RNG.integers(0, 256, (192, 256, 3), dtype=np.uint8),
    "cam_front_left": np.zeros((32, 64, 3), np.uint8),
}
SCENE = Scene(IMAGES, "turn left in 40 m", EgoState((5.0, 0.0)), "what is <|im_end|> ahead <image>?")
POINTS = np.stack([np.arange(1, 9) * 2.5, np.arange(8) * 0.1], axis=1)


@pytest.fixture(scope="module")
def driver(ours: Path) -> Driver:
    return Driver.from_checkpoint(ours)


def test_every_task_answers_with_its_type_or_a_failure(driver: Driver) -> None:
    results = driver.answer(SCENE)
    assert list(results) == ["plan", "detect", "ask"]
    for task, kind in (("plan", Plan), ("detect", Detections), ("ask", Answer)):
        assert isinstance(results[task], (kind, Failure)) and results[task].cost.forwards > 0
    result = results["plan"]
    assert isinstance(result, Plan) or result.kind is FailureKind.RANGE  # a scaffolded plan always parses
    assert len(result.text) == 95


@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_sharing_the_prefix_changes_no_answer(driver: Driver, block_size: int) -> None:
    driver.decoding = DecodingConfig(block_size=block_size, steps=4)
    together = driver.answer(SCENE)
    alone = {"plan": driver.plan(SCENE), "detect": driver.detect(SCENE), "ask": driver.ask(SCENE)}
    driver.decoding = DecodingConfig()
    for task, result in together.items():
        assert result.text == alone[task].text
        assert type(result) is type(alone[task])


def test_the_answer_depends_on_what_is_seen_and_said(driver: Driver) -> None:
    lenient = Driver(driver.loaded, driver.tokenizer, driver.image_format, limits=plan.PlanLimits(1e9, 1e9))

    def sure(scene: Scene) -> list[float]:
        result = lenient.plan(scene)
        assert isinstance(result, Plan)
        return result.confidence.tolist()

    assert sure(SCENE) == sure(SCENE)
    others = (
        replace(SCENE, images={**IMAGES, "cam_front": 255 - IMAGES["cam_front"]}),
        replace(SCENE, ego=EgoState((9.0, 0.0))),
        replace(SCENE, instruction="turn right in 40 m"),
    )
    assert all(sure(other) != sure(SCENE) for other in others)


@pytest.mark.parametrize(
    ("scene", "says"),
    [
        (Scene({}), "cam_front"),
        (replace(SCENE, images={"cam_front": IMAGES["cam_front"]}), "missing: cam_front_left"),
        (replace(SCENE, images={**IMAGES, "cam_front_left": np.zeros((4, 4), np.uint8)}), "image of cam_front_left"),
        (replace(SCENE, images={**IMAGES, "cam_front": np.zeros((4, 4, 3), np.float32)}), "uint8"),
        (replace(SCENE, images={**IMAGES, "cam_front": None}), "NoneType"),
        (replace(SCENE, ego=EgoState((float("nan"), 0.0))), "velocity"),
        (replace(SCENE, ego=EgoState((0.0, 0.0), (300.0, 0.0))), "acceleration"),
        (replace(SCENE, images=None), "NoneType"),
        (replace(SCENE, ego=None), "EgoState"),
        (replace(SCENE, ego=EgoState(None)), "velocity"),
        (replace(SCENE, ego=EgoState(("a", "b"))), "velocity"),
        (replace(SCENE, instruction="  "), "instruction"),
        (replace(SCENE, instruction="turn \ud800"), "half a character"),
        (replace(SCENE, instruction="left " * 100), "at most 200"),
    ],
)
def test_wrong_input_is_a_failure_that_says_what(driver: Driver, scene: Scene, says: str) -> None:
    result = driver.plan(scene)
    assert isinstance(result, Failure) and result.kind is FailureKind.INPUT and says in result.message


def test_a_bad_question_does_not_spoil_the_plan(driver: Driver) -> None:
    results = driver.answer(replace(SCENE, question=None))
    assert isinstance(results["ask"], Failure) and results["ask"].kind is FailureKind.INPUT
    assert results["plan"].text == driver.plan(SCENE).text


@pytest.mark.parametrize(
    ("kind", "block_size"), [("ours", 1), ("ours", 4), ("ours", 32), ("upstream", 1), ("upstream", 8), ("plain", 1)]
)
def test_plan_candidates(kind: str, block_size: int, request: pytest.FixtureRequest) -> None:
    """Cold, each candidate is the plan; warm, they differ, repeat with the seed, and do not depend on their number."""
    decoding = DecodingConfig(block_size=block_size, steps=4)
    one = Driver.from_checkpoint(request.getfixturevalue(kind), decoding=decoding)
    one.limits = plan.PlanLimits(1e9, 1e9)
    one.max_new_tokens["plan"] = 96 if kind == "ours" else 12
    scene = SCENE if kind == "ours" else replace(SCENE, images={"cam_front": IMAGES["cam_front"]})

    def texts(*settings: object) -> list[str]:
        return [result.text for result in one.plan_candidates(scene, *settings)]  # type: ignore[arg-type]

    assert texts(3, 0.0) == [one.plan(scene).text] * 3
    warm = texts(4, 5.0, 1)
    assert texts(4, 5.0, 1) == warm and texts(2, 5.0, 1) == warm[:2] and texts(1, 5.0, 1) == warm[:1]
    assert len(set(warm)) == 4 and texts(4, 5.0, 2) != warm
    if kind == "ours":
        results = one.plan_candidates(scene, 4, 5.0, 1)
        assert all(isinstance(result, Plan) and result.cost.forwards > 1 for result in results)
        likelihoods = [result.log_likelihood for result in results]  # type: ignore[union-attr]
        assert len(set(likelihoods)) == 4 and max(likelihoods) < 0.0
        cold = one.plan_candidates(scene, 1, 0.0)[0]
        assert cold.log_likelihood == pytest.approx(one.plan(scene).log_likelihood, rel=1e-3)  # type: ignore[union-attr]


def test_likelihood_of_an_answer() -> None:
    assert _log_likelihood([0.5, 1.0, 0.25]) == pytest.approx(np.log(0.125))
    assert np.isfinite(_log_likelihood([0.0, 1.0])) and _log_likelihood([]) == 0.0


def test_plan_candidates_of_a_bad_scene_or_setting(driver: Driver) -> None:
    results = driver.plan_candidates(replace(SCENE, instruction=" "), 2)
    assert len(results) == 2
    assert all(isinstance(result, Failure) and result.kind is FailureKind.INPUT for result in results)
    for settings, says in (((0,), "count"), ((2.0,), "count"), ((2, -1.0), "temperature"), ((2, 1.0, -1), "seed")):
        with pytest.raises(ConfigError, match=says):
            driver.plan_candidates(SCENE, *settings)


def test_surplus_cameras_are_not_looked_at(driver: Driver) -> None:
    more = replace(SCENE, images={"cam_roof": np.zeros((3, 3)), **IMAGES, "cam_back": np.zeros((32, 64, 3), np.uint8)})
    assert driver.plan(more).text == driver.plan(SCENE).text


def test_unknown_task(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="plan, detect, ask"):
        driver.answer(SCENE, ("fly",))


def hand(driver: Driver, text: str, status: Status = Status.COMPLETE, probability: float = 0.75) -> None:
    """Let the driver's decoder answer with `text`."""
    ids = driver.tokenizer.encode(text)
    output = DecodeResult(ids, status, [probability] * len(ids), [3, 4], 7, 1.0, 2.0, 4.0)
    driver.decoder = SimpleNamespace(generate=lambda *a, **k: output)  # type: ignore[assignment]


@pytest.fixture
def handed(ours: Path, driver: Driver) -> Driver:
    return Driver(driver.loaded, driver.tokenizer, driver.image_format)


def test_reading_a_plan(handed: Driver) -> None:
    hand(handed, plan.serialise(POINTS))
    result = handed.plan(SCENE)
    assert isinstance(result, Plan)
    assert np.abs(result.points - POINTS).max() < 0.006 and result.confidence.tolist() == [0.75] * 8
    assert (result.cost.forwards, result.cost.steps_per_block, result.cost.tokens, result.cost.total_ms) == (
        7,
        (3, 4),
        95,
        7.0,
    )


def test_reading_boxes_and_words(handed: Driver) -> None:
    hand(handed, detect.serialise([Box("light", (1, 2, 3, 4))]))
    result = handed.detect(SCENE)
    assert isinstance(result, Detections) and result.boxes == (Box("light", (1, 2, 3, 4), 0.75),)
    hand(handed, "the light is red.")
    answer = handed.ask(SCENE)
    assert isinstance(answer, Answer) and answer.text == "the light is red." and answer.question == SCENE.question


@pytest.mark.parametrize("status", [Status.EMPTY, Status.TRUNCATED, Status.INVALID])
def test_what_the_decoder_did_not_finish_is_no_answer(handed: Driver, status: Status) -> None:
    hand(handed, "" if status is Status.EMPTY else plan.serialise(POINTS), status)
    result = handed.plan(SCENE)
    assert isinstance(result, Failure) and result.kind.value == status.value and result.cost.forwards == 7


def test_no_boxes_is_an_answer_but_no_plan_is_none(handed: Driver) -> None:
    hand(handed, "", Status.EMPTY)
    nothing = handed.detect(SCENE)
    assert isinstance(nothing, Detections) and nothing.boxes == ()
    assert isinstance(handed.ask(SCENE), Failure)


def test_an_impossible_plan_is_a_failure(handed: Driver) -> None:
    wild = POINTS.copy()
    wild[4, 0] = 90.0
    hand(handed, plan.serialise(wild))
    result = handed.plan(SCENE)
    assert isinstance(result, Failure) and result.kind is FailureKind.RANGE and "m/s" in result.message


def test_upstream_checkpoint(upstream: Path) -> None:
    upstream_driver = Driver.from_checkpoint(upstream, decoding=DecodingConfig(block_size=8, steps=2))
    results = upstream_driver.answer(Scene({"front": IMAGES["cam_front"]}, question="what is ahead?"))
    assert all(isinstance(result, Failure) and result.kind is not FailureKind.INPUT for result in results.values())
    assert not upstream_driver.ours and upstream_driver.formats["plan"] == "upstream"
    hand(upstream_driver, plan.serialise(POINTS, "upstream"))
    assert isinstance(upstream_driver.plan(SCENE), Plan)


def test_plain_qwen_checkpoint(plain: Path) -> None:
    plain_driver = Driver.from_checkpoint(plain)
    assert plain_driver.decoding.block_size == 1
    plain_driver.max_new_tokens = dict.fromkeys(plain_driver.max_new_tokens, 8)
    assert all(isinstance(result, Failure) for result in plain_driver.answer(SCENE).values())
    hand(plain_driver, '[{"bbox_2d": [1, 2, 3, 4], "label": "car"}]')
    assert isinstance(plain_driver.detect(SCENE), Detections)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answer_formats": {"plan": "xml"}}, "answer_formats.plan"),
        ({"cameras": ["cam_moon"]}, "cam_moon"),
    ],
)
def test_checkpoints_that_contradict_themselves(
    ours: Path, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    shutil.copytree(ours, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["block_diffusion"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        Driver.from_checkpoint(tmp_path)


def test_a_tokenizer_of_another_model(ours: Path, upstream: Path, tmp_path: Path) -> None:
    shutil.copytree(ours, tmp_path, dirs_exist_ok=True)
    shutil.copy(upstream / "tokenizer.json", tmp_path)
    with pytest.raises(CheckpointError, match="tokenizer ends"):
        Driver.from_checkpoint(tmp_path)
