"""Own answers on packed streams: what the decoder writes, in the room of the sample."""

from __future__ import annotations

import pytest
import torch
from micro import micro_config
from shards import write_shard
from stream_files import picture, talk, write
from transformers import Qwen3VLForConditionalGeneration

from training.convert.__main__ import main
from wamdiff2_core import BlockDecoder, DecodingConfig
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.distill.on_policy import own_answers
from wamdiff2_core.distill.stream.conversations import Conversations
from wamdiff2_core.distill.stream.encode import Encoder
from wamdiff2_core.distill.stream.own import own_stream_answers
from wamdiff2_core.distill.stream.packing import collate
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.images import preprocess
from wamdiff2_core.model.tokenizer import TextTokenizer

CONFIG = DecodingConfig(block_size=8, steps=2)


@pytest.fixture(scope="module")
def loaded(micro_folder) -> LoadedModel:
    tokenizer = TextTokenizer.from_folder(micro_folder)
    torch.manual_seed(4)
    model = Qwen3VLForConditionalGeneration(micro_config(tokenizer)).float().train()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, 0.5 if "embed" in name else 2.0 * weight[0].numel() ** -0.5)
    entry = model.config.block_diffusion
    ends = (tokenizer.eos_id,)
    return LoadedModel(
        model, model.config, "wamdiff2", entry["mask_token_id"], ends, "next", "causal", entry, micro_folder
    )


def test_answers_are_the_decoders(loaded, tmp_path):
    write_shard(tmp_path, 1, 1)
    out = tmp_path / "all.json"
    main(["world", str(tmp_path), "--out", str(out)])
    write(tmp_path / "text.json", [talk("hello?", "yes")])
    data, encoder = Conversations([out, tmp_path / "text.json"]), Encoder(loaded.folder, 2048, 8)
    samples = [encoder(data[number]) for number in range(len(data))]
    batch = collate([samples[:2], samples[2:]], 2048, 8, 2, encoder)
    own = own_stream_answers(loaded, batch, CONFIG)
    assert loaded.model.training
    decoder = BlockDecoder(loaded)
    for row, sample in enumerate(samples):
        room = sample.room(8)
        pixels, grid = None, None
        if sample.images:
            pixels, grid = preprocess(sample.images, [(i.shape[1], i.shape[0]) for i in sample.images], encoder.form)
        scaffold = encoder.allowed[("plan", "detect", "ask")[sample.task]] if sample.task >= 0 else None
        alone = decoder.generate(
            sample.prompt, pixels, grid, CONFIG, Scaffold(scaffold) if scaffold else None, None, [room]
        )
        if alone.tokens:
            expected = [*alone.tokens, *[encoder.tokenizer.eos_id] * batch.answer.shape[1]]
            assert own.answer[row].tolist() == expected[: batch.answer.shape[1]]
            assert own.answer_length[row] == min(len(alone.tokens) + 1, room)
        else:
            assert torch.equal(own.answer[row], batch.answer[row])
    assert not torch.equal(own.answer[0], batch.answer[0])
    assert (own.answer_length <= own.room).all() and torch.equal(own.ids, batch.ids)


def test_a_shared_picture_is_shown_to_every_sample(loaded, tmp_path):
    names = [picture(tmp_path / f"{n}.png", (32, 32), n) for n in range(3)]
    orders = ([0, 1, 2], [2, 1, 0], [0, 1, 2])
    talks = [talk("<image><image><image> go?", "yes", image=[names[n] for n in order]) for order in orders]
    data, encoder = Conversations([write(tmp_path / "x.json", talks)]), Encoder(loaded.folder, 1024, 8)
    batch = collate([[encoder(data[number]) for number in range(3)]], 1024, 8, 2, encoder)
    assert len(batch.images) == 5  # the middle and right cameras see 32 x 32, the front one 64 x 64
    assert batch.shown == ((0, 1, 2), (3, 1, 4), (0, 1, 2))
    own = own_answers(loaded, batch, 8)
    assert own.answer[0].tolist() == own.answer[2].tolist() != own.answer[1].tolist()
