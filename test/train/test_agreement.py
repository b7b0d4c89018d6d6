"""Training and decoding compute the same thing: the packed training row predicts the very tokens that the decoder
writes.
"""

from __future__ import annotations

import pytest
import torch
from micro import SIZES, micro_config

from wamdiff2_core import BlockDecoder, DecodingConfig
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.batch import RingBatch
from wamdiff2_core.distill.data import Feeder, Ring, wait_for
from wamdiff2_core.distill.forward import Pass, hidden_states, taken
from wamdiff2_core.distill.layout import Layout, decoding_at, first_of_block
from wamdiff2_core.distill.samples import DataSpec
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.model.vision import encode_batch
from wamdiff2_core.tasks import plan


@pytest.fixture(scope="module")
def lively(micro_folder) -> LoadedModel:
    """Random weights large enough that neighbouring tokens, images and positions all change the prediction."""
    from transformers import Qwen3VLForConditionalGeneration

    tokenizer = TextTokenizer.from_folder(micro_folder)
    config = micro_config(tokenizer)
    torch.manual_seed(3)
    model = Qwen3VLForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, 0.5 if "embed" in name else 2.0 * weight[0].numel() ** -0.5)
    entry = config.block_diffusion
    return LoadedModel(
        model, config, "wamdiff2", entry["mask_token_id"], (tokenizer.eos_id,), "next", "causal", entry, micro_folder
    )


@pytest.fixture(scope="module")
def ring(micro_folder, shard_root) -> Ring:
    spec = DataSpec(
        str(micro_folder),
        tuple(tuple(size) for size in SIZES.values()),
        prompt_room={"plan": 80, "detect": 32, "ask": 48},
    )
    ring = Ring(spec, 8, torch.device("cpu"))
    wait_for(ring, Feeder([shard_root], spec, workers=0).start(), 8, 60)
    return ring


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_one_step_blocks_equal_the_packed_row(lively, ring, micro_folder, block_size):
    """Decode a plan with one step a block; pack what came out behind an all-masked noisy copy; both must agree
    everywhere.
    """
    frames = torch.arange(3)
    batch = ring.batch(frames)
    rows = batch.rows["plan"]
    scaffold = Scaffold(plan.allowed(TextTokenizer.from_folder(micro_folder)))
    config = DecodingConfig(block_size=block_size, steps=1, rule="dynamic", threshold=0.0, max_new_tokens=96)
    layout = Layout("next", "causal", lively.config.image_token_id, 4 + 1 + 1)
    table = scaffold.table(lively.vocab_size, torch.device("cpu"))
    for index in range(3):
        pixels = torch.cat(
            [
                patches.view(-1, 3, *patches.shape[1:])[0, index]
                if patches.shape[0] == 9
                else patches.view(-1, 3, *patches.shape[1:])[camera, index]
                for group, camera in ring.spec.order()
                for patches in [batch.patches[group][0]]
            ]
        )
        grid = torch.tensor([[1, batch.patches[g][1], batch.patches[g][2]] for g, _ in ring.spec.order()])
        prompt = rows.prompt[index, -rows.prompt_length[index] :]
        out = BlockDecoder(lively).generate(prompt, pixels, grid, config, scaffold)
        assert len(out.tokens) == 95
        answer = torch.tensor([[*out.tokens, lively.eos_token_id]])
        row = rows.select(torch.tensor([index]))
        row = type(row)(**{**vars(row), "answer": answer, "frame": torch.tensor([index])})
        block = torch.tensor([block_size])
        noisy = torch.where(row.given, answer, lively.mask_token_id)
        with torch.no_grad():
            visual = RingBatch(batch, ring.spec.order()).encoded(lively.model.model.visual, encode_batch)
            packed = row.packed(row.live_length(block), block, noisy, layout)
            at = decoding_at(packed, first_of_block(block, 96), "next")
            logits = lively.model.lm_head(taken(hidden_states(lively.model, packed, visual, Pass()), at))[0]
        logits = logits.masked_fill(~table, -torch.inf)
        assert logits.argmax(-1).tolist() == answer[0].tolist()
    assert len(set(out.tokens)) > 5
