"""Settings that change how a step is computed do not change what it computes; a frozen teacher stays as it is."""

from dataclasses import replace

import pytest
import torch
from micro import build_micro
from stream_files import as_kind, mixed_file
from team_run import frames_of, gradients, recipe_of
from torch import nn

from wamdiff2_core.distill import teacher as teacher_module
from wamdiff2_core.distill.corruption import corrupt
from wamdiff2_core.distill.sources import RingSource
from wamdiff2_core.distill.trainer import Trainer
from wamdiff2_core.errors import ConfigError


@pytest.fixture(scope="module")
def frames(micro_folder, shard_root, tmp_path_factory):
    """Always the same two frames."""
    source = frames_of(recipe_of(micro_folder, shard_root, tmp_path_factory.mktemp("out")), [0, 1])
    yield source
    source.source.close()


@pytest.fixture(scope="module")
def run(frames, micro_folder, shard_root, tmp_path_factory):
    """Losses of four steps, and the trainer, with these settings."""
    teacher, out = build_micro(tmp_path_factory.mktemp("teacher"), seed=1), tmp_path_factory.mktemp("out")

    def train(**values):
        taught = {"teacher": str(teacher), "distill_weight": 1.0}
        trainer = Trainer(recipe_of(micro_folder, shard_root, out, **{**taught, **values}), frames)
        return [float(trainer.train_step().loss.detach()) for _ in range(4)], trainer

    return train


@pytest.fixture(scope="module")
def plain(run):
    losses, _ = run()
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize("values", [
    {"gradient_checkpointing": True}, {"chunk_tokens": 5}, {"accumulate": 3},
    {"accumulate": 2, "gradient_checkpointing": True, "chunk_tokens": 1000},
])  # fmt: skip
def test_losses_are_the_same(run, plain, values):
    assert run(**values)[0] == pytest.approx(plain, rel=2e-4)


def test_checkpointing_computes_layers_again(run):
    def calls(wanted: bool) -> int:
        _, trainer = run(gradient_checkpointing=wanted)
        counted, layer = [], trainer.how.layer
        how = replace(trainer.how, layer=lambda *args: counted.append(1) or layer(*args))
        trainer.method = replace(trainer.method, how=how)
        trainer.backward()
        return len(counted)

    assert calls(True) == 2 * calls(False) > 0


@pytest.mark.parametrize("master", [True, False])
def test_bf16_is_near(run, plain, master):
    losses, trainer = run(bf16=True, master_weights=master)
    assert losses == pytest.approx(plain, rel=0.03) and losses != plain
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32 if master else torch.bfloat16}
    assert {weight.dtype for weight in trainer.teacher.model.parameters()} == {torch.bfloat16}


def test_accumulation_is_the_mean_over_batches(frames, run):
    """Two different batches: the gradient is the mean of their gradients."""
    _, trainer = run(accumulate=1)
    single = []
    for frame in (0, 1):
        frames.chosen = [frame]
        single.append(gradients(trainer)["gradients"])
    trainer.recipe = replace(trainer.recipe, accumulate=2)
    order = iter(([0], [1]))
    trainer.source = _Switching(frames, order)
    both = gradients(trainer)["gradients"]
    frames.chosen = [0, 1]
    for name, value in both.items():
        assert torch.allclose(value, (single[0][name] + single[1][name]) / 2, atol=1e-6), name


class _Switching:
    def __init__(self, frames, order) -> None:
        self.frames, self.order = frames, order

    def draw(self):
        self.frames.chosen = next(self.order)
        return self.frames.draw()


def test_rates_of_the_parts(run):
    _, trainer = run(lr=1e-3, vision_lr=2e-3, merger_lr=3e-3)
    rates = {id(weight): group["base"] for group in trainer.optimiser.param_groups for weight in group["params"]}
    found = {name: rates[id(weight)] for name, weight in trainer.model.named_parameters()}
    assert found["model.language_model.norm.weight"] == 1e-3
    assert found["model.visual.pos_embed.weight"] == 2e-3
    assert found["model.visual.merger.norm.weight"] == found["model.visual.deepstack_merger_list.0.norm.weight"] == 3e-3


def test_flex_and_dense_streams(micro_folder, shard_root, tmp_path):
    init, file = as_kind(micro_folder, "wam_diff2", tmp_path / "init"), mixed_file(tmp_path, 20)
    losses = []
    for attention in ("dense", "flex"):
        recipe = recipe_of(
            init, shard_root, tmp_path / "run", source="stream", files=[str(file)], max_tokens=512, workers=0,
            attention=attention, ar_weight=0.0, phases=[{"until": 1.0, "blocks": {4: 1.0}}],
        )  # fmt: skip
        trainer = Trainer(recipe)
        losses.append([float(trainer.train_step().loss.detach()) for _ in range(3)])
        trainer.source.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][0] > 1.0
    with pytest.raises(ConfigError, match="packed streams"):
        RingSource.start(recipe_of(init, shard_root, tmp_path, attention="flex"), {})


def test_a_teacher_with_dropout_says_the_same_twice(run, monkeypatch):
    load = teacher_module.load_model

    def with_dropout(*args, **more):
        loaded = load(*args, **more)
        for layer in loaded.model.model.language_model.layers:
            layer.mlp.act_fn = nn.Sequential(layer.mlp.act_fn, nn.Dropout(0.5))
        return loaded

    monkeypatch.setattr(teacher_module, "load_model", with_dropout)
    _, trainer = run()
    teacher, batch = trainer.teacher, trainer.source.draw()
    rows = batch.parts["plan"]
    block = torch.full_like(rows.answer_length, 4)
    live = rows.live_length(block)
    noise = corrupt(rows.answer, live, rows.given, block, trainer.student.mask_token_id)

    def hidden():
        with torch.no_grad():
            return teacher.hidden(
                rows, batch.encoded(teacher.model.model.visual, teacher.how.encode), live, block, noise
            )

    first = hidden()
    trainer.train_step()
    assert trainer.model.training and torch.equal(hidden(), first)
    assert not any(weight.requires_grad or weight.grad is not None for weight in teacher.model.parameters())
    teacher.model.train()
    assert not torch.equal(hidden(), first)  # what the teacher would be without eval()
