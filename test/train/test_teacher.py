"""A teacher must speak the student's tokens; what does not fit is said before the first step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from micro import build_micro, micro_recipe
from stream_files import as_kind

from wamdiff2_core import load_model
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.lessons import Lessons
from wamdiff2_core.distill.teacher import load_teacher
from wamdiff2_core.errors import CheckpointError


@pytest.fixture
def teacher(micro_folder, tmp_path) -> Path:
    """A copy that is to be changed."""
    return Path(shutil.copytree(micro_folder, tmp_path / "teacher"))


def change(file: Path, edit) -> None:
    value = json.loads(file.read_text())
    edit(value)
    file.write_text(json.dumps(value))


def swap_two_tokens(tokenizer: dict) -> None:
    vocab = tokenizer["model"]["vocab"]
    vocab["!"], vocab['"'] = vocab['"'], vocab["!"]


def load(folder: Path, student: Path, block_size: int = 4):
    return load_teacher(folder, load_model(student), block_size, Pass(), "float32")


def test_of_the_same_tokens(micro_folder, tmp_path):
    assert load(build_micro(tmp_path / "other", seed=3), micro_folder).block_size == 4


@pytest.mark.parametrize(("file", "edit", "said"), [
    ("tokenizer.json", swap_two_tokens, r"token \d+ \(of 2\) is '.', the student's is '.'; both must"),
    ("config.json", lambda raw: raw["vision_config"].update(spatial_merge_size=1), "image size rule is"),
    ("config.json", lambda raw: raw["block_diffusion"].update(mask_token_id=600), "mask token is 600, the student"),
])  # fmt: skip
def test_of_other_tokens(micro_folder, teacher, file, edit, said):
    change(teacher / file, edit)
    with pytest.raises(CheckpointError, match=said):
        load(teacher, micro_folder)


def test_of_another_vocabulary(micro_folder, teacher):
    """As that of another model: its answers would stand at other places of the distribution."""
    model = load_model(teacher).model
    model.resize_token_embeddings(1160)
    from wamdiff2_core.distill.checkpoint import save_weights

    save_weights(model, teacher, dtype=torch.float32)
    with pytest.raises(CheckpointError, match="vocab_size is 1160, the student's is 1152"):
        load(teacher, micro_folder)


def test_a_plain_model_teaches_single_tokens_only(micro_folder, tmp_path):
    plain = as_kind(micro_folder, "qwen3_vl", tmp_path / "plain")
    assert load(plain, micro_folder, 1).block_size == 1
    for size in (0, 4):
        with pytest.raises(CheckpointError, match="names no mask token, so it cannot teach blocks"):
            load(plain, micro_folder, size)


def test_answers_of_other_tokens(micro_folder, teacher):
    change(teacher / "tokenizer.json", swap_two_tokens)
    recipe = micro_recipe(max_steps=1, init=str(micro_folder), answers=str(teacher))
    with pytest.raises(CheckpointError, match="answers .*: token"):
        Lessons.of(recipe, None, 0)
