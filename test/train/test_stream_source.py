"""A packed stream as the trainer's source: whole steps learn from it, and a saved place is a small plain dict."""

from __future__ import annotations

import json

import pytest
import torch
from micro import micro_config, micro_recipe
from stream_files import as_kind, mixed_file
from transformers import Qwen3VLForConditionalGeneration

from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.sources import Source
from wamdiff2_core.distill.step import BlockSizes, Method, batch_losses
from wamdiff2_core.distill.stream.source import StreamSource
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def recipe(micro_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("source")
    folder = as_kind(micro_folder, "qwen3_vl", root / "plain")
    file = mixed_file(root, 12)
    return micro_recipe(
        init=str(folder), out=str(root / "run"), files=[str(file)], source="stream", max_tokens=512, max_steps=1,
        phases=[{"until": 1.0, "blocks": {4: 1.0, 8: 1.0}}], task_weights={"plan": 1.0, "detect": 1.0, "ask": 1.0},
    )  # fmt: skip


def test_room_follows_the_stage(recipe):
    source: Source = StreamSource.start(recipe)
    batch = source.draw()
    assert isinstance(source, StreamSource) and (batch.copies, source.reader.spec.fill) == (2, 8)
    assert source.seen == len(batch.names) > 0 and source.filled == 12 and not source.bad
    state = json.loads(json.dumps(source.state()))
    following = source.draw().names
    source.restore(state)
    assert source.draw().names == following
    source.begin(micro_recipe(**{**vars_of(recipe), "phases": [], "seed": 3}))
    assert (source.draw().copies, source.reader.spec.fill, source.reader.spec.seed) == (1, 1, 3)
    source.close()
    with pytest.raises(ConfigError, match="files must be set"):
        StreamSource.start(micro_recipe(**{**vars_of(recipe), "files": [], "source": "ring"}))


def vars_of(recipe) -> dict:
    return {**vars(recipe), "phases": [vars(phase) for phase in recipe.phases]}


def set_up(recipe, attention: str, phases: list):
    """A batch, a fresh model and what a step needs."""
    changed = micro_recipe(**{**vars_of(recipe), "attention": attention, "phases": phases})
    source = StreamSource.start(changed)
    batch = source.draw()
    source.close()
    tokenizer = TextTokenizer.from_folder(recipe.init)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(micro_config(tokenizer)).float().train()
    layout = Layout("next", "causal", tokenizer.control("<|image_pad|>"), 0)
    return batch, model, Method(tokenizer.control("<|mask|>"), layout, Pass(), changed)


BLOCKS = {4: 1.0, 8: 1.0}


@pytest.mark.parametrize("blocks", [BLOCKS, None])
def test_steps_learn(recipe, blocks):
    batch, model, method = set_up(recipe, "flex", [{"until": 1.0, "blocks": blocks}] if blocks else [])
    sizes = BlockSizes.of(blocks, torch.device("cpu")) if blocks else None
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(25):
        found = batch_losses(model, batch, method, sizes, torch.Generator().manual_seed(1))
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        losses.append(float(found.loss.detach()))
    assert set(found.shares["answers"]) == ({"ar", "diffusion"} if blocks else {"ar"}) and float(found.tokens) > 0
    assert losses[-1] < 0.7 * losses[0]
    assert model.model.visual.patch_embed.proj.weight.grad.abs().max() > 0


def test_both_kinds_of_mask_give_the_same_loss(recipe):
    losses = []
    for attention in ("dense", "flex"):
        batch, model, method = set_up(recipe, attention, [{"until": 1.0, "blocks": BLOCKS}])
        sizes = BlockSizes.of(BLOCKS, torch.device("cpu"))
        losses.append(batch_losses(model, batch, method, sizes, torch.Generator().manual_seed(1)).loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
