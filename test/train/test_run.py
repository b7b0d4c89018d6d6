"""The loop: an interrupted run goes on as if nothing had happened; what is saved appears whole or not at all."""

import csv
import json

import pytest
import torch
from micro import SIZES, micro_recipe
from shards import write_shard

from training.proof.rows import ROWS
from training.train import recipes_of
from wamdiff2_core import load_model
from wamdiff2_core.distill import checkpoint
from wamdiff2_core.distill.data import Feeder, Ring, find_shards, wait_for
from wamdiff2_core.distill.recipe import load_recipe, make_recipe
from wamdiff2_core.distill.samples import DataSpec, Encoder, read_shard
from wamdiff2_core.distill.trainer import Trainer, run_recipe
from wamdiff2_core.errors import CheckpointError, ConfigError, DataError

PHASES = [{"until": 1.0, "blocks": {4: 0.5, 32: 0.5}}]


def spec_of(folder) -> DataSpec:
    return DataSpec(
        str(folder), tuple(tuple(size) for size in SIZES.values()), prompt_room={"plan": 80, "detect": 32, "ask": 48}
    )


def losses(out) -> list[str]:
    with (out / "log.csv").open() as file:
        return [row["loss"] for row in csv.DictReader(file)]


def test_resume_gives_the_same_losses(micro_folder, shard_root, tmp_path):
    def recipe(name, steps):
        return micro_recipe(
            init=str(micro_folder),
            data=[str(shard_root)],
            out=str(tmp_path / name),
            max_steps=steps,
            log_every=1,
            phases=PHASES,
            frames_per_step=2,
            ema=0.9,
            augment=1.0,
            warmup_steps=3,
            final_lr=1.0,
        )

    run_recipe(recipe("whole", 6))
    for steps in (2, 4, 6):  # cut off twice
        run_recipe(recipe("parts", steps))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole") and len(losses(tmp_path / "whole")) == 6
    whole, parts = (checkpoint.load_state(tmp_path / name / "state.pt") for name in ("whole", "parts"))
    assert all(torch.equal(value, parts["averages"][name]) for name, value in whole["averages"].items())
    assert load_model(tmp_path / "whole" / "checkpoint").prediction == "next"


def test_a_failed_save_leaves_the_old_checkpoint(micro_folder, tmp_path, monkeypatch):
    model = load_model(micro_folder).model
    target = tmp_path / "run" / "checkpoint"
    checkpoint.save_folder(model, micro_folder, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def broken(*_args, **_more):
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", broken)
    with pytest.raises(
        CheckpointError, match=r"checkpoint could not be written: disk full \(.* GB are free there\); what was saved"
    ):
        checkpoint.save_folder(model, micro_folder, target)
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint"]  # half a checkpoint would fill the disk
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_weights_are_split_into_small_shards(micro_folder, tmp_path):
    model = load_model(micro_folder).model
    checkpoint.save_weights(model, tmp_path, limit_bytes=100_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2 and "lm_head.weight" not in index["weight_map"]
    assert load_model(tmp_path).vocab_size == 1152


def test_bad_samples_are_counted_and_named(micro_folder, tmp_path):
    folder = write_shard(tmp_path, 3, 4)
    samples = json.loads((folder / "samples.json").read_text())
    (folder / samples[0]["image"][0]).write_bytes(b"no picture")  # frame 0 is lost
    samples[4]["conversations"][1]["value"] = "x" * 3000  # the plan of frame 1 is too long
    samples[-1]["task"] = "sing"
    (folder / "samples.json").write_text(json.dumps(samples))
    frames = read_shard(folder, Encoder(spec_of(micro_folder)))
    assert frames.count == 3 and sum(frames.bad.values()) == 3
    assert any("unreadable image" in name for name in frames.bad_names)
    assert frames.tasks["plan"].rows.tolist() == [0, 3, 3]
    assert frames.tasks["ask"].rows.tolist()[-1] == 1
    (folder / "samples.json").write_text("{broken")
    nothing = read_shard(folder, Encoder(spec_of(micro_folder)))
    assert nothing.count == 0 and sum(nothing.bad.values()) == 1


def test_ring_overwrites_the_oldest_and_holdout_is_kept_out(micro_folder, tmp_path):
    for number in (49, 50, 51):
        write_shard(tmp_path, number, 4)
    assert [path.name for path in find_shards([tmp_path], 50, held_out=True)] == ["shard_00050"]
    spec = spec_of(micro_folder)
    ring = Ring(spec, 6, torch.device("cpu"))
    wait_for(ring, Feeder([tmp_path], spec, workers=0, holdout=50).start(), 6, 60)
    assert ring.filled == 6
    batch = ring.draw(5, 1.0)
    assert [patches.shape[0] for patches, _, _ in batch.patches] == [5, 10]
    assert batch.rows["plan"].prompt.shape[0] == 5
    with pytest.raises(DataError):
        wait_for(Ring(spec, 6, torch.device("cpu")), Feeder([tmp_path / "none"], spec, workers=0).start(), 6, 5)


def test_pictures_without_augmentation_are_what_the_driver_sees(micro_folder, shard_root):
    import numpy as np
    from PIL import Image

    from wamdiff2_core.model.images import preprocess

    spec = spec_of(micro_folder)
    ring = Ring(spec, 8, torch.device("cpu"))
    wait_for(ring, Feeder([shard_root], spec, workers=0).start(), 8, 60)
    folder = shard_root / "shard_00001"
    names = json.loads((folder / "samples.json").read_text())[0]["image"]
    values, _ = preprocess([np.asarray(Image.open(folder / name)) for name in names], list(spec.sizes))
    front, sides = (patches for patches, _, _ in ring.batch(torch.arange(1)).patches)
    assert torch.allclose(torch.cat([front[0], sides[0], sides[1]]), values, atol=1e-5)


def test_recipes_are_checked():
    for name, row in ROWS.items():
        needs = [f"{need}=/{need}" for need in ("teacher", "answers") if getattr(row, need)]
        assert recipes_of(name, needs)[0].name == name
    first, second = recipes_of("stage1,stage2", ["out=/x", "stage2.max_steps=30", "stage2.teacher=/t", "init=/y"])
    assert (first.init, second.init, second.out, second.max_steps) == (
        "/y",
        "/x/stage1/checkpoint",
        "/x/stage2",
        30,
    )
    for values in (
        {"max_steps": 1, "speed": 2},
        {"max_steps": "many"},
        {},
        {"max_steps": 1, "ema": 1.0},
        {"max_steps": 1, "phases": [{"until": 0.5, "blocks": {4: 1.0}}]},
        {"max_steps": 1, "weighting": "none"},
    ):
        with pytest.raises(ConfigError):
            make_recipe(values)
    with pytest.raises(ConfigError):
        load_recipe("nowhere.yaml")
    with pytest.raises(ConfigError):
        recipes_of("stage1", ["stage_1.lr=1"])
    with pytest.raises(ConfigError):
        Trainer(make_recipe({"max_steps": 1}))
