"""Held-out frames of the proof: every part is measured, kept, and not measured again."""

from __future__ import annotations

import json
import shutil

import pytest
from shards import write_shard

from training.proof import frames
from training.proof.frames import Look, Unit, Watch, store_of, units_of
from training.proof.rows import Run
from wamdiff2_core.evaluate.frame_store import FrameStore

FEW = "B=32,steps=1|2,threshold=0.6,scaffold=on|off"


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    root = tmp_path_factory.mktemp("held")
    file = write_shard(root, 1, 6) / "samples.json"
    samples = json.loads(file.read_text())
    for sample in samples[::2]:  # half of the frames come to a junction
        for turn in sample["conversations"]:
            turn["value"] = turn["value"].replace("follow the road", "turn left in 20 m")
    file.write_text(json.dumps(samples))
    return root


@pytest.fixture
def root(tmp_path, micro_folder):
    for row in ("ar", "stage2", "stage3", "teacher_blocks", "teacher_ar"):
        shutil.copytree(micro_folder, tmp_path / row / "seed0" / "checkpoint")
        (tmp_path / row / "seed0" / "DONE").write_text("{}")
    return tmp_path


def test_every_part_is_measured_once(root, held_out, monkeypatch, capsys):
    monkeypatch.setattr(frames, "STEPS", FEW)
    look = Look(root, held_out, ("ar", "stage3", "direct"), (0,), "cpu", sweep_frames=2, fork_draws=2, overlap_frames=4,
                once=True)  # fmt: skip
    assert Watch(look).run() == 2  # direct is not there
    main = FrameStore.read(store_of(root, "ar", 0, "main"))
    assert len(main.measured) == 1 and main.measured[0].setting.block_size == 1 and len(main.measured[0].rows) == 6
    assert len(FrameStore.read(store_of(root, "stage3", 0, "steps")).measured) == 4
    forks = FrameStore.read(store_of(root, "stage3", 0, "forks"))
    assert [one.setting.seed for one in forks.measured] == [0, 1] and forks.measured[0].setting.temperature == 1.0
    assert 0 < len(forks.measured[0].rows) <= 6
    agreement = json.loads((root / "eval/overlap/stage3_seed0.json").read_text())
    assert agreement["teacher_blocks"]["all"] == 1.0  # the micro checkpoint agrees with itself
    assert agreement["teacher_ar"]["all"] < 1.0 and agreement["teacher_ar"]["tokens"] > 10
    before = {path: path.stat().st_mtime_ns for path in (root / "eval").rglob("*.*")}
    assert Watch(look).run() == 2
    assert {path: path.stat().st_mtime_ns for path in (root / "eval").rglob("*.*")} == before
    assert "6 parts measured, 0 failed" in capsys.readouterr().out


def test_main_figures_come_first():
    units = sorted(unit for row in ("stage3", "ar") for seed in (1, 0) for unit in units_of(Run(row, seed)))
    assert [(u.row, u.seed, u.part) for u in units[:4]] == [
        ("ar", 0, "main"), ("stage3", 0, "main"), ("ar", 1, "main"), ("stage3", 1, "main")]  # fmt: skip
    assert [u.part for u in units if u.row == "stage3" and u.seed == 0] == ["main", "forks", "overlap", "steps"]


def test_a_broken_checkpoint_is_named_and_the_rest_goes_on(root, held_out, capsys):
    (root / "ar/seed0/checkpoint/model.safetensors").write_bytes(b"nothing")
    look = Look(root, held_out, ("ar", "teacher_ar"), (0,), "cpu", frames=2, fork_draws=1, once=True)
    assert Watch(look).run() == 1
    said = capsys.readouterr().out
    assert "FAILED ar/seed0 main" in said and "teacher_ar/seed0 main: " in said
    assert Unit(0, 0, 2, "ar", "main").part == "main"
