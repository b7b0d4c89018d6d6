"""Training sees the very tokens and pictures that the driver puts before the same checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shards import write_shard
from stream_files import as_kind, picture, talk, write

from wamdiff2_core.distill.samples import DataSpec, read_shard
from wamdiff2_core.distill.samples import Encoder as RowEncoder
from wamdiff2_core.distill.stream.conversations import BadSample, Conversations
from wamdiff2_core.distill.stream.encode import Encoded, Encoder
from wamdiff2_core.driver import Driver
from wamdiff2_core.model.images import preprocess
from wamdiff2_core.model.prompt import human_text
from wamdiff2_core.model.tokens import mrope_positions
from wamdiff2_core.scene import Box, EgoState, Scene
from wamdiff2_core.tasks import TASKS, ask, detect, plan

CAMERAS = {"cam_front": (64, 64), "cam_front_left": (32, 32), "cam_front_right": (32, 32)}
POINTS = np.stack([np.arange(1, 9) * 2.5, np.arange(1, 9) * -0.3], 1)
MODULES = {"plan": plan, "detect": detect, "ask": ask}


@pytest.fixture(scope="module", params=["wamdiff2", "wam_diff2", "qwen3_vl"])
def folder(request, micro_folder, tmp_path_factory) -> Path:
    if request.param == "wamdiff2":
        return micro_folder
    return as_kind(micro_folder, request.param, tmp_path_factory.mktemp("kinds") / request.param)


@pytest.mark.parametrize("task", TASKS)
def test_prompt_and_pictures_are_the_drivers(folder, tmp_path, task):
    driver = Driver.from_checkpoint(folder)
    names = [picture(tmp_path / f"{name}.png", size, 3) for name, size in CAMERAS.items()]
    if not driver.ours:
        names = [picture(tmp_path / "front.png", (333, 201))]
    images = {name: np.array(Image.open(tmp_path / file)) for name, file in zip(CAMERAS, names, strict=False)}
    scene = Scene(images, "turn left in 20 m", EgoState((5.5, 0.0), (0.3, -0.1)), question="how many cars? <|im_end|>")
    text = MODULES[task].prompt(scene)
    text = human_text(text, len(names)) if driver.ours else MODULES[task].upstream_prompt(scene)
    got = encode(folder, tmp_path, talk(text, answers(driver)[task], image=names, task=task))

    pixels, grid = driver.pixels(scene)
    counts = (grid.prod(1) // driver.image_format.merge_size**2).tolist()
    prompt = driver._prompt(scene, task, counts)
    assert got.prompt.tolist() == list(prompt.ids)
    assert torch.equal(torch.tensor(got.grids), grid)
    found, _ = preprocess(got.images, [(image.shape[1], image.shape[0]) for image in got.images], driver.image_format)
    assert torch.equal(found, pixels)
    expected, start = mrope_positions(
        torch.tensor(prompt.ids), grid.tolist(), driver.tokenizer.control("<|image_pad|>"), 2
    )
    assert torch.equal(got.positions, expected) and got.next_position == start
    assert int(got.is_image.sum()) == sum(counts)
    assert driver.tokenizer.decode(got.answer.tolist()).rstrip("\ufffd") == answers(driver)[task]


def answers(driver: Driver) -> dict[str, str]:
    boxes = [Box("car", (100, 200, 300, 400))]
    return {
        "plan": plan.serialise(POINTS, driver.formats["plan"]),
        "detect": detect.serialise(boxes, driver.formats["detect"]),
        "ask": "two cars",
    }


def encode(folder: Path, root: Path, sample: dict, **settings) -> Encoded:
    data = Conversations([write(root / "x.json", [sample])])
    return Encoder(folder, settings.pop("max_tokens", 4096), **settings)(data[len(data) - 1])


def test_scaffold_places_are_given_and_its_end_token_is_not_learnt(micro_folder, tmp_path):
    text = plan.serialise(POINTS)
    got = encode(micro_folder, tmp_path, talk("plan", text, task="plan"))
    assert len(got.answer) == 95 and len(got.given) == 96 and got.task == 0
    letters = [text[place] in ". " for place in range(95)]
    assert got.given.tolist() == [*letters, True]
    full = [Box("car", (10 * k, 20, 900, 900)) for k in range(6)]
    assert len(encode(micro_folder, tmp_path, talk("d", detect.serialise(full), task="detect")).answer) == 96
    free = encode(micro_folder, tmp_path, talk("plan", text))
    assert len(free.answer) == 96 and not free.given.any() and free.task == -1
    nothing = encode(micro_folder, tmp_path, talk("detect", "", task="detect"))
    assert len(nothing.answer) == 1 and not nothing.given[0]


def test_control_words_in_texts_stay_text(micro_folder, tmp_path):
    got = encode(micro_folder, tmp_path, talk("hi <|im_end|> <|image_pad|>", "ok <|im_end|>"))
    encoder = Encoder(micro_folder, 4096)
    end = encoder.tokenizer.eos_id
    assert (got.prompt == end).sum() == 1 and not got.is_image.any() and (got.answer == end).sum() == 1
    assert "<|im_end|> <|image_pad|>" in encoder.tokenizer.decode(got.prompt.tolist())


def test_turns_follow_each_other_as_in_decoding(micro_folder, tmp_path):
    said = talk("one?", "1", "two?", "2")
    said["conversations"].insert(0, {"from": "system", "value": "be brief"})
    got, tokenizer = encode(micro_folder, tmp_path, said), Encoder(micro_folder, 4096).tokenizer
    start, end = tokenizer.control("<|im_start|>"), tokenizer.eos_id
    words = [
        tokenizer.encode(text) for text in ("system\n", "be brief", "user\n", "one?", "assistant\n", "1", "two?", "\n")
    ]
    system, brief, user, one, assistant, first, two, newline = words
    expected = [start, *system, *brief, end, *newline, start, *user, *one, end, *newline, start, *assistant]
    expected += [*first, end, *newline, start, *user, *two, end, *newline, start, *assistant]
    assert got.prompt.tolist() == expected


def test_large_and_small_pictures_keep_to_the_limits(micro_folder, tmp_path):
    plain = as_kind(micro_folder, "qwen3_vl", tmp_path / "plain")
    # 40 x 30 grows to at least 12,544 pixels in whole tokens of 32; 2000 x 1500 shrinks to at most 2,073,600.
    for size, shape in (((40, 30), (128, 160, 3)), ((2000, 1500), (1216, 1632, 3)), ((64, 200), (224, 64, 3))):
        got = encode(plain, tmp_path, talk("<image> a", "b", image=[picture(tmp_path / "a.png", size)]))
        assert got.images[0].shape == shape
        assert got.grids == ((1, shape[0] // 16, shape[1] // 16),)
        assert int(got.is_image.sum()) == shape[0] * shape[1] // 32**2


def test_what_shows_only_when_the_sample_is_read(micro_folder, tmp_path):
    three = [picture(tmp_path / f"{name}.png", size) for name, size in CAMERAS.items()]
    (tmp_path / "torn.png").write_bytes((tmp_path / three[0]).read_bytes()[:200])
    (tmp_path / "text.png").write_text("no picture")
    holders = "<image>" * 3
    cases = {
        "missing image": talk(holders, "b", image=["gone.png", *three[1:]]),
        "unreadable image": talk(holders, "b", image=["torn.png", *three[1:]]),
        "number of images": talk("<image>", "b", image=three[:1]),
        "answer not in the fixed format": talk("plan", "1.00,2.00", task="plan"),
        "answer too long": talk("why?", "because " * 40, task="ask"),
        "too long": talk("word " * 600, "b"),
    }
    for reason, sample in cases.items():
        with pytest.raises(BadSample, match=f"^{reason}") as caught:
            encode(micro_folder, tmp_path, sample, max_tokens=1000)
        assert caught.value.reason == reason
    with pytest.raises(BadSample, match="unreadable image"):
        encode(micro_folder, tmp_path, talk(holders, "b", image=["text.png", *three[1:]]))
    plain = as_kind(micro_folder, "qwen3_vl", tmp_path / "plain")
    with pytest.raises(BadSample, match="empty answer"):  # nothing but the end token, where nothing writes it for us
        encode(plain, tmp_path, talk("detect", "", task="detect"))


def test_room_counts_whole_blocks_and_copies(micro_folder, tmp_path):
    sample = talk("a", "b")
    got = encode(micro_folder, tmp_path, sample)
    assert got.room(1) == 2 and got.room(32) == 32
    assert got.tokens(32, 2) == len(got.prompt) + 64 and got.tokens(1, 1) == len(got.prompt) + 2
    length = got.tokens(32, 2)
    encode(micro_folder, tmp_path, sample, max_tokens=length, fill=32)
    with pytest.raises(BadSample, match=f"{length} tokens, room for {length - 1}"):
        encode(micro_folder, tmp_path, sample, max_tokens=length - 1, fill=32)


def test_our_shards_give_the_rows_that_the_ring_trains_on(micro_folder, tmp_path):
    shard = write_shard(tmp_path, 1, 2)
    spec = DataSpec(str(micro_folder), tuple(CAMERAS.values()), prompt_room={"plan": 96, "detect": 32, "ask": 48})
    frames = read_shard(shard, RowEncoder(spec))
    data, encoder = Conversations([shard / "samples.json"]), Encoder(micro_folder, 1024)
    counts: dict[tuple[int, str], int] = {}
    for number in range(len(data)):
        sample = data[number]
        frame, got, arrays = int(sample.images[0].name[:4]), encoder(sample), frames.tasks[sample.task]
        row = counts.get((frame, sample.task), 0)
        counts[frame, sample.task] = row + 1
        length = arrays.prompt_length[frame, row]
        assert arrays.prompt[frame, row, -length:].tolist() == got.prompt.tolist()
        assert arrays.positions[frame, row, :, -length:].tolist() == got.positions.tolist()
        answer = arrays.answer[frame, row]
        assert answer[: len(got.answer)].tolist() == got.answer.tolist()
        assert (answer[len(got.answer) :] == encoder.tokenizer.eos_id).all()
        given = got.given[: len(answer)]
        assert arrays.given[frame, row, : len(given)].tolist() == given.tolist()
        free = ~arrays.given[frame, row, : arrays.answer_length[frame, row]]
        assert free.sum() == (~got.given[: len(got.answer)]).sum() + max(0, len(got.answer) - len(got.given))
    assert len(counts) == 6
