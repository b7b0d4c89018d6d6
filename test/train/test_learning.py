"""The proof that corruption, layout, shift, masks, losses and decoder fit together: what was learnt is decoded
exactly.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from micro import micro_recipe
from PIL import Image
from shards import write_shard

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.trainer import run_recipe
from wamdiff2_core.model.images import ImageFormat, preprocess
from wamdiff2_core.model.prompt import answer_ids, chat_prompt
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.tasks import detect, plan

STEPS = 450
FRAMES = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("few")
    write_shard(root, 1, FRAMES)
    return root


@pytest.fixture(scope="module")
def learnt(micro_folder, few, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("learnt")
    phases = [{"until": 0.1, "blocks": {4: 1.0}}, {"until": 1.0, "blocks": {4: 0.3, 8: 0.1, 32: 0.6}}]
    recipe = micro_recipe(
        init=str(micro_folder),
        data=[str(few)],
        frames_per_step=FRAMES,
        ring_frames=FRAMES,
        out=str(out),
        phases=phases,
        max_steps=STEPS,
        fill_weight=0.3,
        ar_weight=1.0,
    )
    return run_recipe(recipe)


def conversations(root: Path) -> list[tuple[dict, list[np.ndarray]]]:
    folder = root / "shard_00001"
    samples = json.loads((folder / "samples.json").read_text())
    return [(sample, [np.asarray(Image.open(folder / name)) for name in sample["image"]]) for sample in samples]


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_what_was_learnt_is_decoded_exactly(learnt, few, block_size):
    loaded = load_model(learnt)
    tokenizer, form = TextTokenizer.from_folder(learnt), ImageFormat.from_folder(learnt)
    decoder = BlockDecoder(loaded)
    sizes = [tuple(size) for size in loaded.block_diffusion["image_sizes"].values()]
    config = DecodingConfig(block_size=block_size, steps=block_size, rule="dynamic", threshold=0.9, max_new_tokens=96)
    allowed = {"plan": Scaffold(plan.allowed(tokenizer)), "detect": Scaffold(detect.allowed(tokenizer)), "ask": None}
    wrong = []
    for sample, images in conversations(few):
        human, answer = (turn["value"] for turn in sample["conversations"])
        pixels, grid = preprocess(images, sizes, form)
        prompt = chat_prompt(tokenizer, human, [form.tokens(size) for size in sizes])
        out = decoder.generate(torch.tensor(prompt.ids), pixels, grid, config, allowed[sample["task"]])
        if out.tokens != answer_ids(tokenizer, answer)[:-1]:
            wrong.append((sample["task"], answer, tokenizer.decode(out.tokens)))
    assert not wrong, f"{len(wrong)} differ, e.g. {wrong[:3]}"


def test_the_loss_went_to_almost_nothing(learnt):
    lines = (learnt.parent / "log.csv").read_text().splitlines()
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert float(last["plan_ar"]) < 0.05 and float(last["ask_ar"]) < 0.1
    assert float(last["plan_diffusion"]) < 0.2
