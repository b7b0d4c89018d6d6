"""Packed streams: every sample computes what it computes alone; order, position and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from micro import micro_config
from stream_files import as_kind, mixed_file, picture, talk, write
from transformers import Qwen3VLForConditionalGeneration

from wamdiff2_core.distill.forward import Pass, hidden_states, taken
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.distill.stream.conversations import Conversations
from wamdiff2_core.distill.stream.encode import Encoded, Encoder
from wamdiff2_core.distill.stream.order import Order
from wamdiff2_core.distill.stream.packing import StreamBatch, collate
from wamdiff2_core.distill.stream.reader import Reader, StreamSpec, choice
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.model.masks import CONTEXTS, Part
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.model.vision import encode_batch

FILL, LENGTH = 32, 640


@pytest.fixture(scope="module")
def plain(micro_folder, tmp_path_factory) -> Path:
    return as_kind(micro_folder, "qwen3_vl", tmp_path_factory.mktemp("plain") / "checkpoint")


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return mixed_file(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def lively(plain):
    """Random weights large enough that neighbouring tokens, images and positions all change the output."""
    torch.manual_seed(3)
    model = Qwen3VLForConditionalGeneration(micro_config(TextTokenizer.from_folder(plain))).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, 0.5 if "embed" in name else 2.0 * weight[0].numel() ** -0.5)
    return model


def samples_of(plain: Path, file: Path, copies: int = 2) -> tuple[list[Encoded], Encoder]:
    data, encoder = Conversations([file]), Encoder(plain, LENGTH, FILL, copies)
    return [encoder(data[number]) for number in (0, 1, 2, 3, 4)], encoder


def outputs(model, batch: StreamBatch, block: torch.Tensor, noisy, how: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, C, H) twice: what predicts each answer token, from the clean and from the noisy stream."""
    packed = batch.packed(batch.live_length(block), block, noisy, how)
    with torch.no_grad():
        visual = batch.encoded(model.model.visual, encode_batch)
        hidden = hidden_states(model, packed, visual, Pass())
    late = taken(hidden, packed.noisy_at if packed.noisy_at is not None else packed.clean_at)
    return taken(hidden, packed.clean_at), late


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_a_sample_in_a_stream_computes_what_it_computes_alone(plain, file, lively, context, attention):
    samples, encoder = samples_of(plain, file)
    how = Layout("next", context, encoder.image_id, 0)
    together = collate([samples[:2], samples[2:]], LENGTH, FILL, 2, encoder, attention)
    block = torch.tensor([1, 4, 8, 32, 4])
    noisy = noisy_of(together, encoder)
    clean, late = outputs(lively, together, block, noisy, how)
    for row, sample in enumerate(samples):
        alone = collate([[sample]], sample.tokens(FILL, 2), FILL, 2, encoder)
        width = alone.answer.shape[1]
        live = int(alone.live_length(block[row : row + 1]))
        expected = outputs(lively, alone, block[row : row + 1], noisy[row : row + 1, :width], how)
        for mine, theirs in zip((clean, late), expected, strict=True):
            torch.testing.assert_close(mine[row, :live], theirs[0, :live], atol=2e-4, rtol=1e-3)
    assert len({tuple(row[0].tolist()) for row in clean}) == len(samples)


def noisy_of(batch: StreamBatch, encoder: Encoder) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    hide = torch.rand(batch.answer.shape, generator=generator) < 0.5
    return torch.where(hide, encoder.tokenizer.control("<|mask|>"), batch.answer)


def test_no_sample_sees_another(plain, file, lively):
    """Other tokens, another picture and other noise in one sample leave the others as they are, bit by bit."""
    samples, encoder = samples_of(plain, file)
    how = Layout("next", "causal", encoder.image_id, 0)
    batch = collate([samples[:3]], LENGTH, FILL, 2, encoder)
    block = torch.full((3,), 8)
    noisy = noisy_of(batch, encoder)
    clean, late = outputs(lively, batch, block, noisy, how)
    other = noisy.clone()
    other[1] = encoder.tokenizer.control("<|mask|>")
    ids = batch.ids.clone()
    ids[(batch.document == 1) & (batch.part == Part.PROMPT) & (batch.image_at < 0)] += 1
    changed = StreamBatch(
        **{**vars(batch), "ids": ids, "images": (batch.images[0], batch.images[1] // 2, batch.images[2])}
    )
    clean2, late2 = outputs(lively, changed, block, other, how)
    for row in (0, 2):
        assert torch.equal(clean[row], clean2[row]) and torch.equal(late[row], late2[row])
    assert not torch.allclose(clean[1], clean2[1]) and not torch.allclose(late[1], late2[1])


@pytest.mark.parametrize("prediction", ["next", "same"])
def test_predictors_stand_where_they_should(plain, file, prediction):
    samples, encoder = samples_of(plain, file)
    batch = collate([samples[:3], samples[3:]], LENGTH, FILL, 2, encoder)
    block = torch.full((5,), 4)
    packed = batch.packed(batch.live_length(block), block, batch.answer + 1, Layout(prediction, "causal", 0, 0))
    ids = packed.ids.flatten()
    back = 1 if prediction == "next" else 0
    for row, sample in enumerate(samples):
        own = len(sample.answer)
        assert ids[packed.clean_at[row, 0]] == sample.prompt[-1]
        assert ids[packed.clean_at[row, 1:own]].tolist() == sample.answer[: own - 1].tolist()
        assert ids[packed.noisy_at[row, 1:own]].tolist() == (sample.answer[1 - back : own - back] + 1).tolist()
        document = batch.document.flatten()
        assert (document[packed.clean_at[row]] == row).all() and (document[packed.noisy_at[row]] == row).all()


def test_rotary_positions_of_copies_are_those_of_decoding(plain, file):
    samples, encoder = samples_of(plain, file)
    batch = collate([samples[:3], samples[3:]], LENGTH, FILL, 2, encoder)
    for row, sample in enumerate(samples):
        mine = batch.document == row
        assert torch.equal(batch.positions[:, mine & (batch.part == Part.PROMPT)], sample.positions)
        clean, noisy = (batch.positions[:, mine & (batch.part == part)] for part in (Part.CLEAN, Part.NOISY))
        assert torch.equal(clean, noisy)
        assert clean[:, 0].tolist() == [int(sample.positions.max()) + 1] * 3


def test_a_picture_shared_by_samples_is_encoded_once(plain, tmp_path):
    name = picture(tmp_path / "a.png", (96, 64))
    talks = [talk(f"<image> {word}", "1", image=[name]) for word in ("left", "right", "car")]
    data, encoder = Conversations([write(tmp_path / "x.json", talks)]), Encoder(plain, LENGTH, FILL)
    samples = [encoder(data[number]) for number in range(3)]
    batch = collate([samples], LENGTH, FILL, 2, encoder)
    assert len(batch.images) == len(batch.grids) == 1
    slots = [batch.image_at[(batch.document == row) & (batch.image_at >= 0)].tolist() for row in range(3)]
    assert slots[0] == slots[1] == slots[2] == list(range(len(slots[0]))) and slots[0]


def test_without_noise_the_rooms_of_noisy_answers_are_padding(plain, file, lively):
    samples, encoder = samples_of(plain, file)
    how = Layout("next", "causal", encoder.image_id, 0)
    block = torch.ones(2, dtype=torch.int64)
    wide, narrow = (collate([samples[:2]], LENGTH, FILL, copies, encoder) for copies in (2, 1))
    for row, (mine, theirs) in enumerate(zip(*(outputs(lively, b, block, None, how)[0] for b in (wide, narrow)))):
        own = len(samples[row].answer)
        torch.testing.assert_close(mine[:own], theirs[:own], atol=2e-4, rtol=1e-3)
    assert (narrow.part != Part.PAD).sum() < (wide.part != Part.PAD).sum()
    with pytest.raises(ConfigError, match="no room for noisy answers"):
        narrow.packed(narrow.live_length(block), block, narrow.answer, how)
    with pytest.raises(ConfigError, match=r"stream of 100 tokens: .* would end at"):
        collate([samples[:2]], 100, FILL, 2, encoder)


def test_choice():
    assert choice([90, 10, 20], 100, first=True) == 0
    assert choice([90, 10, 20, 20], 25, first=False) == 2
    assert choice([90, 30], 25, first=False) is None and choice([], 25, first=False) is None


def test_streams_are_full_and_hold_every_sample_once_an_epoch(plain, file):
    reader = Reader(spec_of(plain, file, workers=0, lookahead=8))
    seen: list[str] = []
    while len(seen) < 24 + 8:
        batch = reader.batch()
        assert batch.ids.shape == (1, LENGTH) and batch.used > 0.6
        seen += batch.names
    assert set(seen[: 24 + 8]) == {f"mixed.json[{n}] {'text' if n % 5 == 4 else 'seen'}{n}" for n in range(24)}
    assert max(seen.count(name) for name in seen[:24]) <= 2


def spec_of(plain: Path, file: Path, **settings) -> StreamSpec:
    return StreamSpec(str(plain), (str(file),), max_tokens=LENGTH, fill=FILL, **{"seed": 5, **settings})


def trace(reader: Reader, batches: int) -> list[tuple]:
    """What identifies batches: names in order, ids, pictures."""
    out = []
    for _ in range(batches):
        batch = reader.batch()
        out.append((batch.names, batch.ids.tolist(), batch.image_at.tolist(), [int(i.sum()) for i in batch.images]))
    return out


@pytest.mark.parametrize("streams", [1, 3])
def test_workers_do_not_change_the_order(plain, file, streams):
    traces = []
    for workers in (0, 1, 4):
        reader = Reader(spec_of(plain, file, workers=workers, streams=streams))
        traces.append(trace(reader, 12))
        reader.close()
    assert traces[0] == traces[1] == traces[2]
    other = Reader(spec_of(plain, file, workers=0, streams=streams, seed=6))
    assert trace(other, 12) != traces[0]


@pytest.mark.parametrize("workers", [0, 3])
def test_interrupted_twice_is_the_same_sequence(plain, file, workers):
    whole = trace(Reader(spec_of(plain, file, workers=0)), 14)
    got, state = [], None
    for batches in (3, 4, 7):  # across the end of an epoch
        reader = Reader(spec_of(plain, file, workers=workers))
        if state is not None:
            reader.restore(state)
        got += trace(reader, batches)
        state = json.loads(json.dumps(reader.state()))
        reader.close()
    assert got == whole
    assert len(json.dumps(state)) < 500 and state["epoch"] >= 1


def test_a_reader_can_go_back(plain, file):
    reader = Reader(spec_of(plain, file, workers=2))
    reader.batch()
    state = reader.state()
    first = trace(reader, 3)
    reader.restore(state)
    assert trace(reader, 3) == first
    reader.close()


def test_ranks_share_an_epoch(plain, file):
    orders = [Order(24, 7, rank, 3) for rank in range(3)]
    epochs = [[order.number(order.take()) for order in orders for _ in range(8)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * 2 and epochs[0] != epochs[1]
    assert Order(24, 7, 1, 3).share() == 8 and sum(Order(25, 0, rank, 3).share() for rank in range(3)) == 25
    with pytest.raises(DataError, match="at least one sample for each of 30 ranks, got 24"):
        Order(24, 0, 0, 30)
    with pytest.raises(ConfigError, match="rank: expected 0 <= rank < 2, got 2"):
        Order(24, 0, 2, 2)


def test_a_position_of_other_ranks_or_other_data(plain, file, tmp_path, caplog):
    two = Reader(spec_of(plain, file, workers=0, rank=0, world=2, lookahead=2))
    trace(two, 2)
    state = two.state()
    one = Reader(spec_of(plain, file, workers=0))
    one.restore(state)
    assert one.state()["index"] == 2 * state["index"] and "rank 0 of 2" in caplog.text
    assert one.batch().names
    for name, value in (("seed", 1), ("samples", 99)):
        with pytest.raises(ConfigError, match=f"expected {name} {state[name]}, the saved one has {value}"):
            one.restore({**state, name: value})


def test_bad_samples_are_counted_once_and_a_hopeless_file_ends_the_search(plain, tmp_path):
    talks = [talk(f"<image> {n}", "1", image=["gone.png"], id=n) for n in range(3)]
    talks += [talk("word " * 900, "1"), *(talk(f"good {n}", "yes") for n in range(3))]
    reader = Reader(spec_of(plain, write(tmp_path / "x.json", talks), workers=2, lookahead=1))
    for _ in range(6):
        reader.batch()
    assert reader.tally.bad == {"missing image": 3, "too long": 1}
    assert sorted(name.split(":")[0] for name in reader.tally.bad_names) == [
        *(f"x.json[{n}] {n}" for n in range(3)),
        "x.json[3]",
    ]
    assert reader.tally.summary().startswith("4 bad samples (3 missing image, 1 too long), the first: x.json[")
    reader.close()
    hopeless = Reader(spec_of(plain, write(tmp_path / "y.json", talks[:4]), workers=2))
    with pytest.raises(DataError, match=r"no usable sample in a whole epoch: 4 bad samples"):
        hopeless.batch()
    hopeless.close()


def test_wrong_specs(plain, file):
    for wrong in ({"streams": 0}, {"workers": -1}, {"attention": "sparse"}, {"lookahead": 0}):
        with pytest.raises(ConfigError, match="stream: expected files, positive sizes"):
            spec_of(plain, file, **wrong)
