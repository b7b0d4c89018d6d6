"""What is wrong in a shard costs the sample or frame alone, which is counted and named."""

from __future__ import annotations

import json
import os

import pytest
from micro import SIZES
from shards import write_shard

from wamdiff2_core.distill.samples import DataSpec, Encoder, read_shard


@pytest.fixture
def encoder(micro_folder):
    rooms = {"plan": 64, "detect": 32, "ask": 48}
    return Encoder(DataSpec(str(micro_folder), tuple((w, h) for w, h in SIZES.values()), prompt_room=rooms))


def outside(shard, first):
    (shard.parent / "else.jpg").write_bytes((shard / first["image"][0]).read_bytes())
    return {**first, "image": ["../else.jpg", *first["image"][1:]]}


def pipe(shard, first):
    os.mkfifo(shard / "pipe.jpg")  # opening it would wait for ever
    return {**first, "image": ["pipe.jpg", *first["image"][1:]]}


def answered(text):
    def edit(shard, first):
        return {**first, "conversations": [first["conversations"][0], {"from": "gpt", "value": text}]}

    return edit


@pytest.mark.parametrize(("edit", "reason"), [
    (outside, "image outside the shard"),
    (pipe, "unreadable image (no regular file)"),
    (lambda shard, first: {**first, "image": first["image"][:2]}, "2 images, expected 3"),
    (lambda shard, first: {**first, "image": [1, 2, 3]}, "no image list"),
    (lambda shard, first: {**first, "image": []}, "0 images, expected 3"),
    (lambda shard, first: 5, "no image list"),
    (answered("nan,nan"), "DataError: plan answer not in the fixed format"),
    (answered("\ud800"), "text is not UTF-8"),
])  # fmt: skip
def test_faults(encoder, tmp_path, edit, reason):
    shard = write_shard(tmp_path, 1, 2)
    samples = json.loads((shard / "samples.json").read_text())
    samples[0] = edit(shard, samples[0])
    (shard / "samples.json").write_text(json.dumps(samples))
    found = read_shard(shard, encoder)
    assert found.bad.total() == 1 and found.bad_names[0].startswith("shard_00001/")
    assert reason in found.bad_names[0]
    assert found.count == 2 and int(found.tasks["plan"].rows[:2].sum()) == 3  # the other frame's plan, three times
