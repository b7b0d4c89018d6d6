"""The small tokenizer: fixed answers take exactly their scaffold's tokens, and control tokens cannot be typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.errors import CheckpointError, DataError
from wamdiff2_core.model.build_tokenizer import build, check, corpus, read_samples
from wamdiff2_core.model.prompt import answer_ids, chat_prompt, human_text
from wamdiff2_core.model.tokenizer import SPECIAL_TOKENS, TextTokenizer
from wamdiff2_core.scene import Box
from wamdiff2_core.tasks import detect, plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    build((), path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder)


def test_the_same_texts_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    build((), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@given(st.integers(0, 2**32 - 1))
def test_a_plan_is_95_tokens_of_its_scaffold(tokenizer: TextTokenizer, seed: int) -> None:
    points = np.random.default_rng(seed).uniform((0, -99.99), (99.99, 99.99), (8, 2))
    ids = answer_ids(tokenizer, plan.serialise(points))
    allowed = plan.allowed(tokenizer)
    assert allowed is not None and len(ids) == len(allowed) == 96
    assert all(choice and index in choice for index, choice in zip(ids, allowed, strict=True))
    assert sum(len(choice or ()) > 1 for choice in allowed) == 8 * 9  # eight digits and a sign each are to be found


@given(st.lists(st.tuples(st.sampled_from(detect.LABELS), st.integers(0, 900), st.integers(0, 900)), max_size=6))
def test_boxes_are_16_tokens_each_of_their_scaffold(
    tokenizer: TextTokenizer, found: list[tuple[str, int, int]]
) -> None:
    ids = answer_ids(tokenizer, detect.serialise([Box(label, (x, y, x + 50, y + 60)) for label, x, y in found]))
    allowed = detect.allowed(tokenizer)
    assert allowed is not None and len(ids) == 16 * len(found) + 1 and len(allowed) == 97
    assert all(choice and index in choice for index, choice in zip(ids, allowed, strict=False))
    assert all(choice and tokenizer.eos_id in choice for choice in allowed)


def test_tokens_seen_in_data_do_not_glue_boxes_together(tmp_path: Path) -> None:
    """Box answers in the corpus, where `;car` is frequent, must not make it one token."""
    texts = [
        "car 123456 234567;truck 123456 234567;light 111222 333444;pedestrian 123456 789789;cyclist 123456 234567;"
    ] * 3000
    check(build(texts, tmp_path))


@given(st.text(max_size=60))
def test_text_survives(tokenizer: TextTokenizer, text: str) -> None:
    import unicodedata

    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@given(st.lists(st.sampled_from((*SPECIAL_TOKENS, "<image>", " plan ", "\n")), max_size=6).map("".join))
def test_typed_control_tokens_stay_text(tokenizer: TextTokenizer, typed: str) -> None:
    assert not set(tokenizer.encode(typed)) & set(tokenizer.special.values())
    prompt = chat_prompt(tokenizer, human_text(typed, 2), [3, 5])
    pads = [index for index in prompt.ids if index == tokenizer.control("<|image_pad|>")]
    assert len(pads) == 8
    assert [index for index in prompt.ids if index == tokenizer.eos_id] == [tokenizer.eos_id]
    assert prompt.images_end == 3 + 5 + 4 + 1 + len(tokenizer.encode("user\n"))


def test_the_prompt_is_qwens_chat(folder: Path, tokenizer: TextTokenizer) -> None:
    """transformers' own tokenizer gives the same ids for the whole conversation as one string."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.eos_token_id == tokenizer.eos_id and len(theirs) == tokenizer.vocab_size
    said = "The view: <image>\nturn left in 40 m; plan"
    image = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"
    whole = f"<|im_start|>user\nThe view:{image}turn left in 40 m; plan<|im_end|>\n<|im_start|>assistant\n"
    prompt = chat_prompt(tokenizer, said, [4])
    assert list(prompt.ids) == theirs(whole)["input_ids"]
    answer = "02.26-00.17 04.43-00.70"
    assert [*prompt.ids, *answer_ids(tokenizer, answer)] == theirs(whole + answer + "<|im_end|>")["input_ids"]


def test_placeholders_must_match_images(tokenizer: TextTokenizer) -> None:
    with pytest.raises(DataError, match="expected 2 placeholders"):
        chat_prompt(tokenizer, "<image>\nplan", [4, 4])


def test_places_of_tokens(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("02.26-00.17")
    answer = tokenizer.answer(ids, [0.1 * i for i in range(len(ids))])
    assert answer.text == "02.26-00.17"
    assert [(a, b) for a, b, _ in answer.tokens] == [(i, i + 1) for i in range(11)]
    accents = tokenizer.encode("ü ok")
    places = tokenizer.answer(accents, [1.0] * len(accents)).tokens
    assert places[-1][1] == 4 and all(a <= b for a, b, _ in places)


def test_ids_without_text_are_not_text(tokenizer: TextTokenizer) -> None:
    assert tokenizer.decode([tokenizer.eos_id, 10**6, *tokenizer.encode("a")]) == "\ufffd\ufffda"


def test_corpus_is_representative() -> None:
    texts = corpus()
    assert texts == corpus() and len(texts) > 1000
    assert any(text.startswith("velocity") for text in texts) and any(text.endswith("; answer") for text in texts)


def test_reading_samples(tmp_path: Path) -> None:
    sample = {"conversations": [{"from": "human", "value": "<image>\nplan"}, {"from": "gpt", "value": "yes"}]}
    (tmp_path / "shard_0").mkdir()
    (tmp_path / "shard_0" / "samples.json").write_text(json.dumps([sample]))
    assert list(read_samples(tmp_path)) == ["plan", "yes"]
    with pytest.raises(DataError, match="found none"):
        list(read_samples(tmp_path / "nothing"))
    (tmp_path / "shard_0" / "samples.json").write_text('[{"conversations": 3}]')
    with pytest.raises(DataError, match="conversations"):
        list(read_samples(tmp_path))


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        TextTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="expected JSON"):
        TextTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(CheckpointError, match="BPE"):
        TextTokenizer.from_folder(tmp_path)
