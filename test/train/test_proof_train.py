"""Trainings of the proof: order, what waits for what, failures that stop only what needs them, and going on again."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
import yaml

from training.proof.__main__ import main
from training.proof.rows import ROWS, Run, runs_of
from training.proof.train import Plan, claim
from wamdiff2_core import load_model
from wamdiff2_core.errors import ConfigError

MICRO = {
    "frames_per_step": 4, "ring_frames": 8, "workers": 0, "warmup_steps": 2, "ema": 0.0, "log_every": 1, "threads": 1,
    "max_steps": 2, "prompt_room": {"plan": 64, "detect": 32, "ask": 48}, "tensorboard": False,
}  # fmt: skip


@pytest.fixture
def recipes(tmp_path):
    """Two-step recipes of all rows."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in ROWS:
        phases = {} if ROWS[name].decoding.block_size == 1 else {"phases": [{"until": 1.0, "blocks": {4: 1.0}}]}
        taught = {"distill_weight": 1.0} if ROWS[name].teacher else {}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **MICRO, **phases, **taught}))
    return folder


@pytest.fixture
def root(tmp_path, micro_folder):
    """A run folder whose untrained weights are there already."""
    for name in ("random/seed0", "grown/seed0"):
        shutil.copytree(micro_folder, tmp_path / "run" / name / "checkpoint")
        (tmp_path / "run" / name / "DONE").write_text("{}\n")
    return tmp_path / "run"


def call(root, recipes, shard_root, rows, *more):
    where = ["--run", str(root), "--data", str(shard_root), "--recipes", str(recipes), "--device", "cpu"]
    return main(["train", *where, "--rows", rows, "--seeds", "0", *more])


def test_what_others_need_comes_first():
    order = [run.label for run in runs_of(("stage3", "ar", "base", "teacher_blocks", "stage1"), (1, 0))]
    assert order == ["random/seed0", "base/seed0", "ar/seed0", "stage1/seed0", "teacher_blocks/seed0", "stage3/seed0",
                     "ar/seed1", "stage1/seed1", "stage3/seed1"]  # fmt: skip
    assert Run("stage3", 2).needs() == {
        "init": Run("stage2", 2), "teacher": Run("teacher_blocks", 0)
    }  # fmt: skip
    assert Run("answers", 0).needs() == {"init": Run("base", 0), "answers": Run("teacher_ar", 0)}
    assert [run.label for run in runs_of(("teacher_ar",), (2,))] == ["grown/seed0", "teacher_ar/seed0"]
    assert [run.label for run in runs_of(("base", "ar"), (1,))] == ["random/seed0", "base/seed0", "ar/seed1"]
    with pytest.raises(ConfigError):
        runs_of(("stage9",), (0,))


def test_rows_are_trained_in_order_and_not_again(root, recipes, shard_root, capsys):
    assert call(root, recipes, shard_root, "stage1,base,ar", "stage1.max_steps=3") == 0
    assert json.loads((root / "stage1/seed0/DONE").read_text())["steps"] == 3
    assert load_model(root / "stage1/seed0/checkpoint").vocab_size == 1152
    said = capsys.readouterr().out
    assert said.index("done base/seed0") < said.index("done ar/seed0") < said.index("done stage1/seed0")
    before = (root / "ar/seed0/log.csv").stat().st_mtime_ns
    assert call(root, recipes, shard_root, "stage1,base,ar,direct") == 0
    assert (root / "ar/seed0/log.csv").stat().st_mtime_ns == before
    assert (root / "direct/seed0/DONE").is_file()


def test_the_draw_of_frames_does_not_depend_on_the_runs_before(root, recipes, shard_root, tmp_path):
    shutil.copytree(root, tmp_path / "other")
    assert call(root, recipes, shard_root, "base,ar,stage1,direct") == 0
    assert call(tmp_path / "other", recipes, shard_root, "base,ar,direct") == 0

    def losses(path):
        with (path / "direct/seed0/log.csv").open() as file:
            return [row["loss"] for row in csv.DictReader(file)]

    assert losses(root) == losses(tmp_path / "other") and len(losses(root)) == 2


def test_a_failed_run_stops_only_what_needs_it(root, recipes, shard_root, capsys):
    assert call(root, recipes, shard_root, "base,ar,stage1,direct,stage2", "stage1.lr=1e30") == 1
    said = capsys.readouterr().out
    assert "failed stage1/seed0" in said and "skipped stage2/seed0 (needs stage1/seed0 failed" in said
    assert (root / "direct/seed0/DONE").is_file() and not (root / "stage2/seed0/DONE").exists()
    assert "DivergedError" in (root / "stage1/seed0/FAILED").read_text()
    shutil.rmtree(root / "stage1/seed0")
    assert call(root, recipes, shard_root, "base,ar,stage1") == 0


def test_what_another_process_trains_is_waited_for(root, recipes, shard_root, capsys):
    assert call(root, recipes, shard_root, "stage1", "--wait-minutes", "0.02") == 1  # nobody trains `base`
    assert "waiting stage1/seed0 (needs base/seed0 ready)" in capsys.readouterr().out
    with claim(root / "base/seed0") as mine:
        assert mine
        assert call(root, recipes, shard_root, "base", "--wait-minutes", "0.02") == 1
    assert not (root / "base/seed0/DONE").exists()


def test_overrides_are_checked(root, recipes):
    def plan(*overrides):
        return Plan(root, ("data",), ("ar", "stage3"), (0,), "cpu", recipes, overrides)

    recipe = plan("lr=0.1", "stage3.lr=0.2").recipe(Run("stage3", 1))
    assert (recipe.lr, recipe.seed, recipe.name, recipe.device) == (0.2, 1, "stage3", "cpu")
    assert recipe.init == str(root / "stage2/seed1/checkpoint")
    assert recipe.teacher == str(root / "teacher_blocks/seed0/checkpoint")
    for wrong in ("stage9.lr=1", "lr"):
        with pytest.raises(ConfigError):
            plan(wrong)
