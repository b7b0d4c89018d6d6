"""What is wrong with a recipe shows before the first step, and the message says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from training.train import main, recipes_of
from wamdiff2_core.distill.parallel import device_of
from wamdiff2_core.distill.recipe import load_recipe, make_recipe
from wamdiff2_core.distill.trainer import run_chain
from wamdiff2_core.errors import ConfigError

PHASES = [{"until": 0.5, "blocks": {4: 1.0}}, {"until": 1.0, "blocks": {8: 0.5, 32: 0.5}}]
TAUGHT = {"phases": PHASES, "teacher": "there", "distill_weight": 1.0}


@pytest.mark.parametrize(("values", "said"), [
    ({"lr": float("nan")}, "lr: expected a finite number"),
    ({"clip": float("inf")}, "clip: expected a finite number"),
    ({"weight_decay": "nan"}, "weight_decay: expected a finite number"),
    ({"task_weights": {"plan": float("nan"), "detect": 1, "ask": 1}}, "task_weights: expected a finite number"),
    ({"phases": [{"until": float("nan"), "blocks": {4: 1.0}}]}, "phases: expected a finite number"),
    ({"task_weights": {"plan": -1.0, "detect": 1, "ask": 1}}, "task_weights: expected .* none negative"),
    ({"max_steps": 0, "max_minutes": -1.0}, "max_minutes must not be negative"),
    ({"final_lr": -1.0}, "final_lr must not be negative"),
    ({"save_minutes": -1.0}, "save_minutes must not be negative"),
    ({"evaluate_minutes": -1.0}, "evaluate_minutes must not be negative"),
    ({"evaluate_routes": 0}, "evaluate_routes: at least 1"),
    ({"seed": -1}, "seed must not be negative"),
    ({"holdout": -5}, "holdout must not be negative"),
    ({"threads": -2}, "threads must not be negative"),
    ({"free_share": 2.0}, "free_share: expected 0 to 1, got 2.0"),
    ({"betas": [1.5, 0.9]}, "betas: expected 0 <= beta < 1, got 1.5, 0.9"),
    ({"phases": [PHASES[1], PHASES[0]]}, "`until` must grow and end at 1.0, got 1.0, 0.5"),
    ({"phases": [PHASES[0], PHASES[0], PHASES[1]]}, "`until` must grow and end at 1.0, got 0.5, 0.5, 1.0"),
    ({"phases": [{**PHASES[0], "until": 1.5}]}, "`until` must grow and end at 1.0, got 1.5"),
    ({**TAUGHT, "teacher_block_size": 64}, "at most the student's largest block of 32, got 64"),
    ({**TAUGHT, "teacher_block_size": 12}, "12 does not divide 32"),
    ({**TAUGHT, "teacher_block_size": 3}, "3 does not divide 4, 8, 32"),
    ({"device": "cuda", "capture": True, "chunk_tokens": 5}, "capture and chunk_tokens exclude each other"),
])  # fmt: skip
def test_what_cannot_be(values, said):
    with pytest.raises(ConfigError, match=said):
        make_recipe({"max_steps": 1, **values})


@pytest.mark.parametrize("size", [0, 1, 2, 4, 8, 16, 32])
def test_teachers_that_see_at_least_as_much(size):
    assert make_recipe({"max_steps": 1, **TAUGHT, "teacher_block_size": size}).teacher_block_size == size


def test_a_key_that_stands_twice(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text("name: twice\nmax_steps: 1\nlr: 1.0e-3\nlr: 1.0e-4\n")
    with pytest.raises(ConfigError, match="lr stands twice"):
        load_recipe(file)
    file.write_text("name: once\nmax_steps: 1\nphases:\n  - {until: 1.0, blocks: {4: 1.0, 4: 2.0}}\n")
    with pytest.raises(ConfigError, match="4 stands twice"):
        load_recipe(file)


def test_an_override_that_is_no_yaml():
    with pytest.raises(ConfigError, match=r"override 'files=\[a': expected a value in YAML notation"):
        recipes_of("base", ["files=[a"])


@pytest.mark.parametrize(("source", "values"), [
    ("ring", {"data": ["y"]}), ("ring", {"holdout": 7}), ("ring", {"source": "stream", "files": ["x"]}),
    ("stream", {"files": ["x", "y"]}), ("stream", {"max_tokens": 99}), ("stream", {"image_root": "z"}),
    ("stream", {"device": "cuda"}),
])  # fmt: skip
def test_recipes_of_one_chain_read_one_source(source, values):
    first = make_recipe({"max_steps": 1, "source": source, "files": ["x"], "data": ["x"], "out": "o", "init": "i"})
    second = make_recipe({**vars(first), **values})
    with pytest.raises(ConfigError, match=f"expected one value of .*{next(iter(values))}"):
        run_chain([first, second])


def test_devices():
    recipe = make_recipe({"max_steps": 1})
    assert device_of(recipe) == torch.device("cpu")
    with pytest.raises(ConfigError, match="device: expected cpu or cuda, got 'foo'"):
        device_of(replace(recipe, device="foo"))
    with pytest.raises(ConfigError, match=r"device cuda:99: this machine has \d+ CUDA devices"):
        device_of(replace(recipe, device="cuda:99"))


def test_the_command_ends_with_a_line_that_says_what_to_do(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for overrides, said in (
        (["device=cuda:99"], "device cuda:99: this machine has"),
        (["device=cpu", "capture=false", "init=" + str(tmp_path / "none")], "expected a checkpoint folder"),
    ):
        assert main(["base", f"out={tmp_path}", "init=x", "data=y", *overrides]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and said in error and "Traceback" not in error
