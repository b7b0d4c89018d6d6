"""Several draws of noise in one pass are as many passes with one draw each, and share what they can."""

from __future__ import annotations

import pytest
import torch
from micro import SIZES, micro_recipe
from test_agreement import lively  # noqa: F401 - a fixture

from wamdiff2_core.distill import step as step_module
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.corruption import Corruption, corrupt, later_ranks
from wamdiff2_core.distill.data import Feeder, Ring, wait_for
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.layout import Layout, copies_apart
from wamdiff2_core.distill.samples import DataSpec
from wamdiff2_core.distill.step import BlockSizes, Method, block_losses
from wamdiff2_core.distill.teacher import Teacher
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.tasks import detect, plan


@pytest.fixture(scope="module")
def batch(micro_folder, shard_root) -> RingBatch:
    spec = DataSpec(
        str(micro_folder),
        tuple(tuple(size) for size in SIZES.values()),
        prompt_room={"plan": 80, "detect": 32, "ask": 48},
    )
    ring = Ring(spec, 8, torch.device("cpu"))
    wait_for(ring, Feeder([shard_root], spec, workers=0).start(), 8, 60)
    return RingBatch(ring.batch(torch.arange(8)), spec.order())


@pytest.mark.parametrize("prediction", ["next", "same"])
@pytest.mark.parametrize("teacher_block", [None, 4, 1])
def test_copies_equal_passes_of_their_own(lively, batch, monkeypatch, prediction, teacher_block):  # noqa: F811
    """Losses and gradients of three draws at once are the sums of the three alone, with and without a teacher."""
    layout = Layout(prediction, "causal", lively.config.image_token_id, 6)
    values = {"max_steps": 1, "ar_weight": 0.0, "phases": [{"until": 1.0, "blocks": {8: 1.0}}]}
    if teacher_block is not None:
        values |= {"teacher": "t", "distill_weight": 1.0, "teacher_block_size": teacher_block}
    model = lively.model
    teacher = None if teacher_block is None else Teacher(model, layout, Pass(), teacher_block)
    visual = batch.encoded(model.model.visual, Pass().encode)
    blocks = BlockSizes.of({8: 1.0}, torch.device("cpu"))
    draws: list[Corruption] = []

    def remember(*args, **keywords) -> Corruption:
        draws.append(corrupt(*args, **keywords))
        return draws[-1]

    def losses(copies: int):
        recipe = micro_recipe(**values, noisy_copies=copies)
        method = Method(lively.mask_token_id, layout, Pass(), recipe)
        model.zero_grad(set_to_none=True)
        found = block_losses(model, batch.parts["plan"], visual, method, blocks, None, teacher, visual)
        sum(share.total.sum() for share in found.values()).backward(retain_graph=True)
        return {kind: (s.total.detach(), s.count.detach()) for kind, s in found.items()}, _gradient(model)

    monkeypatch.setattr(step_module, "corrupt", remember)
    together, slope = losses(3)
    kept, sums, slopes = list(draws), {}, 0.0
    assert len(kept) == 3
    for one in kept:
        monkeypatch.setattr(step_module, "corrupt", lambda *args, one=one, **keywords: one)
        found, gradient = losses(1)
        slopes = slopes + gradient
        for kind, (total, count) in found.items():
            before = sums.get(kind, (0.0, 0.0))
            sums[kind] = (before[0] + total, before[1] + count)
    for kind, (total, count) in sums.items():
        torch.testing.assert_close(together[kind][0], total, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together[kind][1], count)
    torch.testing.assert_close(slope, slopes, rtol=1e-3, atol=1e-3)
    assert slope.abs().max() > 0.1


def _gradient(model) -> torch.Tensor:
    return model.model.language_model.layers[0].mlp.up_proj.weight.grad.clone()


def test_copies_do_not_see_each_other():
    apart = copies_apart(prompt=3, answer=2, copies=2, device=torch.device("cpu"))
    assert apart.shape == (9, 9)
    assert apart[:, :5].all()  # prompt and clean answer are there for all
    assert apart[5:7, 5:7].all() and apart[7:, 7:].all()
    assert not apart[5:7, 7:].any() and not apart[7:, 5:7].any() and not apart[:5, 5:].any()


@pytest.mark.parametrize("module", [plan, detect])
def test_draws_together_meet_every_step_of_the_ordered_rule(module):
    """With as many draws as ranks each block is seen once before each of its steps."""
    ranks = torch.tensor(module.ranks()[:96])[None].expand(50, -1)
    levels = int(ranks.max()) + 1
    block = torch.full((50,), 32)
    torch.manual_seed(0)
    open_ranks = [later_ranks(ranks, block, part=(k, levels))[1][:, ::32] for k in range(levels)]
    expected = torch.tensor([(levels - k) / levels for k in range(levels)])[:, None, None].expand(-1, 50, 3)
    torch.testing.assert_close(torch.stack(open_ranks), expected)


def test_streams_refuse_copies():
    with pytest.raises(ConfigError, match="noisy_copies"):
        micro_recipe(init="a", out="b", max_steps=1, noisy_copies=2, source="stream", files=["x.json"])
    with pytest.raises(ConfigError, match="noisy_copies"):
        micro_recipe(init="a", out="b", max_steps=1, noisy_copies=0)
