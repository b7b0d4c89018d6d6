"""From an upstream checkpoint and a conversation file to a checkpoint that the driver asks as it was trained."""

from __future__ import annotations

import numpy as np
import pytest
from micro import micro_recipe
from PIL import Image
from stream_files import as_kind, picture, talk, write

from wamdiff2_core.distill.stream.conversations import Conversations
from wamdiff2_core.distill.stream.encode import Encoder
from wamdiff2_core.distill.trainer import Trainer
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.checkpoint import prompts_of
from wamdiff2_core.scene import EgoState, Failure, FailureKind, Scene
from wamdiff2_core.tasks import plan


@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_a_trained_upstream_checkpoint_drives(micro_folder, tmp_path, attention):
    folder = as_kind(micro_folder, "wam_diff2", tmp_path / "upstream")
    name = picture(tmp_path / "front.png", (300, 180))
    scene = Scene({"cam_front": np.array(Image.open(tmp_path / name))}, "turn left now", EgoState((4.0, 0.0)))
    answer = plan.serialise(np.stack([2.0 * np.arange(1, 9), np.zeros(8)], 1), "upstream")
    file = write(tmp_path / "x.json", [talk(plan.upstream_prompt(scene), answer, image=[name])] * 3)
    recipe = micro_recipe(
        init=str(folder), out=str(tmp_path / "run"), source="stream", files=[str(file)], max_tokens=1024, max_steps=2,
        phases=[{"until": 1.0, "blocks": {8: 1.0}}], prediction="next", context="causal", attention=attention,
        tensorboard=False,
    )  # fmt: skip
    checkpoint = Trainer(recipe).run()
    driver = Driver.from_checkpoint(checkpoint)
    assert driver.loaded.kind == "wamdiff2" and not driver.ours and driver.loaded.prediction == "next"
    pixels, grid = driver.pixels(scene)
    asked = driver._prompt(scene, "plan", (grid.prod(1) // 4).tolist())
    for trained in (folder, checkpoint):
        sample = Encoder(trained, 1024)(Conversations([file])[0])
        assert sample.prompt.tolist() == list(asked.ids) and list(sample.grids) == [tuple(g) for g in grid.tolist()]
    result = driver.plan(scene)
    assert not (isinstance(result, Failure) and result.kind is FailureKind.INPUT)


def test_whose_prompts_a_checkpoint_knows():
    sizes = {"image_sizes": {"cam_front": [64, 64]}}
    assert prompts_of("wamdiff2", sizes) == "wamdiff2-1"
    assert prompts_of("wamdiff2", {}) == prompts_of("qwen3_vl", sizes) == prompts_of("wam_diff2", {}) == "upstream"
    assert prompts_of("wamdiff2", {**sizes, "prompt": "upstream"}) == "upstream"
    with pytest.raises(CheckpointError, match=r"block_diffusion.prompt: expected one of .*, got 'mine'"):
        prompts_of("wamdiff2", {"prompt": "mine"})
