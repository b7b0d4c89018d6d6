"""A teacher's answers are those of the decoder with B = 1, and stand for the truth where they can be used."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from micro import SIZES, micro_recipe
from test_agreement import lively  # noqa: F401 - a fixture

from wamdiff2_core.distill.answers import Answerer, greedy
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.data import Feeder, Ring, Taught, wait_for
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.lessons import Lessons
from wamdiff2_core.distill.on_policy import own_answers
from wamdiff2_core.distill.samples import DataSpec
from wamdiff2_core.distill.sources import RingSource
from wamdiff2_core.distill.trainer import run_recipe
from wamdiff2_core.errors import ConfigError


@pytest.fixture
def ring(micro_folder, shard_root) -> Ring:
    spec = DataSpec(
        str(micro_folder),
        tuple(tuple(size) for size in SIZES.values()),
        prompt_room={"plan": 80, "detect": 32, "ask": 48},
    )
    ring = Ring(spec, 8, torch.device("cpu"))
    wait_for(ring, Feeder([shard_root], spec, workers=0).start(), 8, 60)
    return ring


@pytest.fixture
def answerer(lively) -> Answerer:  # noqa: F811
    image_tokens = 4 + 1 + 1
    layout = Layout("next", "causal", lively.config.image_token_id, image_tokens)
    return Answerer(lively, layout, Pass())


@pytest.mark.parametrize("task", ["plan", "detect", "ask"])
def test_answers_are_those_of_the_decoder(lively, answerer, ring, task):  # noqa: F811
    batch = RingBatch(ring.batch(torch.arange(8)), ring.spec.order())
    theirs = own_answers(lively, batch, 1).parts[task]
    answer, length, _ = answerer.answers(task, batch, answerer.look(batch))
    there = batch.parts[task].prompt_length > 0
    assert there.sum() >= 6 and len(answer[there].unique(dim=0)) > 1  # answers differ from frame to frame
    torch.testing.assert_close(answer[there], theirs.answer[there])
    torch.testing.assert_close(length[there], theirs.answer_length[there])


def test_padding_of_prompts_changes_nothing(lively, answerer, ring):  # noqa: F811
    """A row alone, with nothing to fill up, gets the answer that it gets among longer prompts."""
    rows = ring.batch(torch.arange(8)).rows["ask"]
    batch = RingBatch(ring.batch(torch.arange(8)), ring.spec.order())
    visual = batch.encoded(lively.model.model.visual, Pass().encode)
    whole, _ = greedy(lively.model, rows, visual, answerer.layout, Pass(), None, 1)
    row = int(rows.prompt_length.argmin())
    short = int(rows.prompt_length[row])
    assert 0 < short < rows.prompt.shape[1]
    one = rows.select(torch.tensor([row]))
    cut = replace(one, prompt=one.prompt[:, -short:], prompt_positions=one.prompt_positions[:, :, -short:])
    alone, _ = greedy(lively.model, cut, visual, answerer.layout, Pass(), None, 1)
    torch.testing.assert_close(alone[0], whole[row])


def test_usable_answers_replace_the_truth_in_every_row_of_their_task(ring):
    truth = ring.batch(torch.arange(8)).rows
    taught = Taught(ring, ["plan"])
    answer = torch.full((2, 96), 7)
    taught.put("plan", torch.tensor([1, 3]), answer, torch.tensor([50, 60]), torch.tensor([True, False]))
    ring.taught = taught
    for row in range(3):
        rows = ring.batch(torch.arange(8), row).rows
        assert (rows["plan"].answer[1] == 7).all() and rows["plan"].answer_length[1] == 50
    now = ring.batch(torch.arange(8)).rows
    torch.testing.assert_close(now["plan"].answer[3], truth["plan"].answer[3])  # refused: the truth
    torch.testing.assert_close(now["detect"].answer, truth["detect"].answer)
    taught.forget(slice(0, 2))  # other frames were written there
    torch.testing.assert_close(ring.batch(torch.arange(8)).rows["plan"].answer[1], truth["plan"].answer[1])


def test_a_run_trains_on_the_teachers_answers(micro_folder, shard_root, tmp_path, capsys, monkeypatch):
    """Every frame is asked once; with an answer that cannot be read the truth stays."""
    seen = []

    def answers(self, task, batch, visual):
        rows = batch.parts[task]
        seen.append((task, rows.answer.shape[0]))
        usable = torch.arange(len(rows.answer)) % 2 == 0
        return rows.answer.roll(1, 0), rows.answer_length.roll(1, 0), usable

    monkeypatch.setattr(Answerer, "answers", answers)
    values = {"init": str(micro_folder), "data": [str(shard_root)], "out": str(tmp_path / "run")}
    run_recipe(micro_recipe(**values, max_steps=2, answers=str(micro_folder)))
    assert sorted(seen) == [("detect", 8), ("plan", 8)]
    assert "8 frames" in capsys.readouterr().out


def test_another_recipe_on_the_same_frames_goes_back_to_the_truth(micro_folder, shard_root):
    values = {"init": str(micro_folder), "data": [str(shard_root)], "out": "unused", "max_steps": 1}
    taught = micro_recipe(**values, answers=str(micro_folder))
    plain = micro_recipe(**values)
    source = RingSource.start(taught, micro_entry(micro_folder))
    try:
        source.fill()
        lessons = source.lessons
        assert isinstance(lessons, Lessons) and source.ring.taught is lessons.taught
        source.begin(plain)
        assert source.ring.taught is None
        source.begin(taught)
        assert source.lessons is lessons and source.ring.taught is lessons.taught  # not asked again
        assert len(lessons.taught.open_frames(source.ring.filled)) == 0
    finally:
        source.close()


def micro_entry(folder) -> dict:
    return json.loads((folder / "config.json").read_text())["block_diffusion"]


def test_recipes_refuse_what_has_no_answers():
    with pytest.raises(ConfigError, match="answer_tasks"):
        micro_recipe(init="a", out="b", max_steps=1, answers="c", answer_tasks=["dance"])
    with pytest.raises(ConfigError, match="ring"):
        micro_recipe(init="a", out="b", max_steps=1, answers="c", source="stream", files=["x.json"])
