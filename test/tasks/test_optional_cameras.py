"""A checkpoint says which cameras a scene may lack; all others must be there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core import Driver, Scene
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.scene import Answer, Failure, FailureKind

IMAGES = {"cam_front": np.full((96, 128, 3), 90, np.uint8), "cam_front_left": np.zeros((32, 64, 3), np.uint8)}
SCENE = Scene({"cam_front": IMAGES["cam_front"]}, question="what is ahead")


@pytest.fixture(scope="module")
def driver(ours: Path) -> Driver:
    return Driver.from_checkpoint(ours)


def with_optional(driver: Driver, *cameras: object) -> Driver:
    entry = {**driver.loaded.block_diffusion, "optional_cameras": list(cameras)}
    loaded: LoadedModel = replace(driver.loaded, block_diffusion=entry)
    return Driver(loaded, driver.tokenizer, driver.image_format)


def test_an_optional_camera_may_be_missing_and_is_used_when_there(driver: Driver) -> None:
    lenient = with_optional(driver, "cam_front_left")
    without, complete = lenient.ask(SCENE), lenient.ask(replace(SCENE, images=IMAGES))
    assert isinstance(without, Answer) or without.kind is not FailureKind.INPUT
    assert complete.text == driver.ask(replace(SCENE, images=IMAGES)).text
    assert without.cost.tokens and len(lenient.required(SCENE)) == 1


def test_without_the_entry_every_camera_is_needed(driver: Driver) -> None:
    result = driver.ask(SCENE)
    assert isinstance(result, Failure) and "missing: cam_front_left" in result.message


@pytest.mark.parametrize("wrong", ["cam_front", "cam_back", "cam_nowhere"])
def test_only_cameras_beside_the_front_one_can_be_optional(driver: Driver, wrong: str) -> None:
    with pytest.raises(CheckpointError, match="optional_cameras"):
        with_optional(driver, wrong)
