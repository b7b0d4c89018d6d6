"""A run that is killed at any moment, twice in a row, ends with the same samples and weights as one that was not."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from micro import micro_recipe
from stream_files import as_kind, mixed_file

from wamdiff2_core import load_model
from wamdiff2_core.distill import checkpoint
from wamdiff2_core.distill.parallel import Team
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.trainer import DivergedError, Trainer
from wamdiff2_core.errors import CheckpointError, ConfigError

STEPS = 6
PHASES = [{"until": 0.5, "blocks": {4: 1.0}}, {"until": 1.0, "blocks": {4: 0.5, 8: 0.5}}]


def recipe_of(out: Path, **values) -> Recipe:
    """Saves after every step."""
    base = {
        "out": str(out), "max_steps": STEPS, "phases": PHASES, "frames_per_step": 2, "ema": 0.9, "augment": 1.0,
        "warmup_steps": 3, "log_every": 1, "save_minutes": 1e-9, "tensorboard": False,
    }  # fmt: skip
    return micro_recipe(**{**base, **values})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Kills the process at a point of the training: `where` it happens for the `when`-th time."""

    def __init__(self, where: str, when: int) -> None:
        self.where, self.left = where, when

    def reached(self, where: str) -> bool:
        self.left -= where == self.where
        return where == self.where and not self.left

    def arm(self, monkeypatch) -> None:
        write, save, step = checkpoint.save_file, torch.save, Trainer.train_step

        def weights(tensors, path, **more):
            write(tensors, path, **more)
            if self.reached("weights"):  # before config.json
                die()

        def state(value, path):
            if self.reached("state"):
                Path(path).write_bytes(b"half of it")
                die()
            save(value, path)

        def replace_folder(new, target):
            if self.reached("rename") and target.exists():
                target.rename(target.with_name(f".{target.name}.old-1"))
                die()
            swap(new, target)

        def train_step(trainer):
            if self.reached("step"):
                die()
            return step(trainer)

        swap = checkpoint.replace_folder
        monkeypatch.setattr(checkpoint, "save_file", weights)
        monkeypatch.setattr(checkpoint.torch, "save", state)
        monkeypatch.setattr(checkpoint, "replace_folder", replace_folder)
        monkeypatch.setattr(Trainer, "train_step", train_step)


def sitting(recipe: Recipe, killer: Killer | None) -> None:
    """One process's training; notes what each step is trained on."""
    torch.set_num_threads(1)
    if killer is not None:
        killer.arm(pytest.MonkeyPatch())
    trainer = Trainer(recipe)
    draw = trainer.source.draw

    def noted():
        batch = draw()
        seen = hashlib.sha256(b"".join(rows.answer.numpy().tobytes() for rows in batch.parts.values())).hexdigest()
        with Path(recipe.out, "samples.jsonl").open("a") as file:
            file.write(json.dumps([trainer.clock.step, seen]) + "\n")
        return batch

    trainer.source.draw = noted
    Path(recipe.out).mkdir(parents=True, exist_ok=True)
    trainer.run()
    trainer.source.close()


def sit(recipe: Recipe, killer: Killer | None = None) -> None:
    """In a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=sitting, args=(recipe, killer))
    process.start()
    process.join()
    assert process.exitcode == (0 if killer is None else -signal.SIGKILL)


def outcome(out: Path) -> tuple[dict, dict, dict]:
    """Samples by step, state tensors, weights as saved."""
    samples = dict(json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines())
    state = checkpoint.load_state(out / "state.pt")
    tensors = {f"{part}/{name}": value for part in ("model", "optimiser", "averages")
               for name, value in state[part].items()}  # fmt: skip
    weights = dict(load_model(out / "checkpoint").model.named_parameters())
    return samples, tensors | {"generator": state["ranks"][0]["generator"]}, weights


def assert_same_run(first: Path, second: Path) -> None:
    (samples, tensors, weights), (others, other_tensors, other_weights) = outcome(first), outcome(second)
    assert samples == others and sorted(samples) == list(range(STEPS)) and len(set(samples.values())) == STEPS
    assert set(tensors) == set(other_tensors)
    assert all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())
    assert not [path.name for path in second.iterdir() if path.name.startswith(".")]  # nothing is left lying about


@pytest.fixture(scope="module")
def ring(micro_folder, shard_root):
    return {"init": str(micro_folder), "data": [str(shard_root)], "on_policy_every": 3}


@pytest.fixture(scope="module")
def uninterrupted(ring, tmp_path_factory):
    recipe = recipe_of(tmp_path_factory.mktemp("whole") / "run", **ring)
    sit(recipe)
    return Path(recipe.out)


@pytest.mark.parametrize("first, second", [(("step", 3), ("weights", 2)), (("state", 2), ("rename", 1))])
def test_killed_twice(ring, uninterrupted, tmp_path, first, second):
    """Between two saves, while weights are written, while the state is, and between the two renames."""
    recipe = recipe_of(tmp_path / "run", **ring)
    for killer in (Killer(*first), Killer(*second)):
        sit(recipe, killer)
    sit(recipe)
    assert_same_run(uninterrupted, tmp_path / "run")


def test_killed_before_the_first_save(ring, uninterrupted, tmp_path):
    recipe = recipe_of(tmp_path / "run", **ring)
    sit(recipe, Killer("weights", 1))
    assert not (tmp_path / "run" / "checkpoint").exists() and not (tmp_path / "run" / "state.pt").exists()
    sit(recipe)
    assert_same_run(uninterrupted, tmp_path / "run")


def test_a_stream_goes_on_at_its_place(micro_folder, tmp_path):
    stream = {
        "init": str(as_kind(micro_folder, "wam_diff2", tmp_path / "init")), "source": "stream", "max_tokens": 512,
        "files": [str(mixed_file(tmp_path, 30))], "workers": 1, "context": "causal",
    }  # fmt: skip
    sit(recipe_of(tmp_path / "whole", **stream))
    for killer in (Killer("step", 3), Killer("state", 2), None):
        sit(recipe_of(tmp_path / "parts", **stream), killer)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_state_of_something_else_is_refused(ring, tmp_path):
    trainer = Trainer(recipe_of(tmp_path / "run", **ring))
    for content in (b"no state", None):
        if content is None:
            checkpoint.save_state({"format": 2, "model": {"other": torch.zeros(1)}}, tmp_path / "run" / "state.pt")
        else:
            (tmp_path / "run" / "state.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="expected the state"):
            trainer.resume()
    trainer.source.close()


def test_another_recipe_does_not_go_on_in_this_folder(micro_folder, shard_root, tmp_path, capsys):
    values = {"init": str(micro_folder), "data": [str(shard_root)], "max_steps": 2}
    Trainer(recipe_of(tmp_path, **values)).run()
    with pytest.raises(
        CheckpointError, match="here is the run of recipe micro, step 2; .* for recipe other: set another"
    ):
        Trainer(recipe_of(tmp_path, **values, name="other")).run()
    capsys.readouterr()
    Trainer(recipe_of(tmp_path, **values, log_every=2)).run()
    assert f"{tmp_path}/state.pt: step 2, this run is at its end\n" in capsys.readouterr().out
    Trainer(recipe_of(tmp_path, **{**values, "max_steps": 3}, lr=1e-4)).run()
    said = "step 2, going on; settings that are others now: max_steps: 2, now 3; lr: 0.004, now 0.0001\n"
    assert said in capsys.readouterr().out
    assert checkpoint.load_state(tmp_path / "state.pt")["step"] == 3


def test_weights_that_are_no_numbers_are_not_saved(micro_folder, shard_root, tmp_path):
    values = {"init": str(micro_folder), "data": [str(shard_root)], "save_minutes": 0.0, "log_every": 100}
    Trainer(recipe_of(tmp_path, **values, max_steps=2)).run()
    before = (tmp_path / "state.pt").read_bytes()
    trainer = Trainer(recipe_of(tmp_path, **values, max_steps=4))
    backward = trainer.backward

    def broken():
        losses = backward()
        next(trainer.model.parameters()).grad.fill_(float("nan"))
        return losses

    trainer.backward = broken
    with pytest.raises(DivergedError, match="step 3: a weight is no longer a number; .*state.pt is from before"):
        trainer.run()
    assert (tmp_path / "state.pt").read_bytes() == before
    assert all(torch.isfinite(weight).all() for weight in load_model(tmp_path / "checkpoint").model.parameters())


def test_a_state_of_another_size_of_model(micro_folder, shard_root, tmp_path):
    values = {"init": str(micro_folder), "data": [str(shard_root)], "max_steps": 2}
    Trainer(recipe_of(tmp_path, **values)).run()
    state = checkpoint.load_state(tmp_path / "state.pt")
    name = next(iter(state["model"]))
    checkpoint.save_state({**state, "model": {**state["model"], name: torch.zeros(3)}}, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="expected the state .* of a run that trains this model"):
        Trainer(recipe_of(tmp_path, **values)).run()


def test_where_nothing_can_be_written(micro_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="state.pt could not be written: .*; nothing was saved here before"):
        checkpoint.save_state({}, tmp_path / "file" / "state.pt")
    with pytest.raises(CheckpointError, match="checkpoint could not be written: "):
        checkpoint.save_folder(load_model(micro_folder).model, micro_folder, tmp_path / "file" / "checkpoint")
    with pytest.raises(ConfigError, match="out: expected a folder that can be written, .*file"):
        Trainer(recipe_of(tmp_path / "file", init=str(micro_folder), data=["x"]))


def test_a_full_disk_says_how_much_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(RuntimeError("unexpected pos 5 vs 3\nat ...")))
    with pytest.raises(
        CheckpointError, match=r"unexpected pos 5 vs 3 \(\d+\.\d GB are free there\); nothing was saved"
    ):
        checkpoint.save_state({}, tmp_path / "state.pt")
    assert not list(tmp_path.iterdir())


def test_ranks_that_see_different_folders(micro_folder, shard_root, tmp_path, monkeypatch):
    values = {"init": str(micro_folder), "data": [str(shard_root)], "max_steps": 2}
    Trainer(recipe_of(tmp_path, **values)).run()
    trainer = Trainer(recipe_of(tmp_path, **values))
    monkeypatch.setattr(Team, "unanimous", lambda self, value: value != 1.0)  # of "is it there?"
    with pytest.raises(ConfigError, match="only some ranks see it; expected `out` in a folder that all machines share"):
        trainer.resume()
    monkeypatch.setattr(Team, "unanimous", lambda self, value: value != 2.0)  # of the step
    with pytest.raises(ConfigError, match="step 2 here, another one on rank 0"):
        trainer.resume()
    trainer.source.close()
