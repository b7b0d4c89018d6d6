"""A step as one CUDA graph does what the same step does kernel by kernel, also when what it reads changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from micro import micro_recipe

from wamdiff2_core.distill.trainer import Trainer

PHASES = [{"until": 0.5, "blocks": {4: 1.0}}, {"until": 1.0, "blocks": {8: 0.5, 32: 0.5}}]


def losses(recipe, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Loss of each step (the random numbers are those of the recipe's seed), and the weights at the end."""
    trainer = Trainer(recipe)
    trainer.source.fill()
    found = [float(trainer.train_step().loss) for _ in range(steps)]
    weights = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.source.close()
    return found, weights


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ar", "blocks", "teacher"])
def test_captured_equals_eager(kind, micro_folder, shard_root, tmp_path):
    taught = {"teacher": str(micro_folder), "distill_weight": 2.0, "teacher_block_size": 4}
    recipe = micro_recipe(
        init=str(micro_folder),
        data=[str(shard_root)],
        out=str(tmp_path / "run"),
        max_steps=16,
        device="cuda",
        ema=0.99,
        augment=1.0,
        free_share=0.3,
        ordered_share=0.5,
        tensorboard=False,
        **({} if kind == "ar" else {"phases": PHASES}),
        **(taught if kind == "teacher" else {}),
    )
    eager, plain = losses(recipe, 16)
    captured, graphed = losses(replace(recipe, capture=True), 16)
    assert captured == pytest.approx(eager, rel=2e-3)
    assert len(set(captured)) == 16  # a replay that read nothing anew would repeat itself
    for one, other in zip(plain, graphed, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-3)
