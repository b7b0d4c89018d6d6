"""Two processes are as good as one: the same loss and gradients however tokens are spread, the same run when it goes on
with another number of processes."""

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as processes
import yaml
from micro import build_micro, micro_recipe
from shards import write_shard
from stream_files import as_kind, mixed_file, write
from team_run import KINDS, frames_of, gradients, recipe_of, run, snapshot

from wamdiff2_core import load_model
from wamdiff2_core.distill.parallel import Team
from wamdiff2_core.distill.trainer import Trainer
from wamdiff2_core.errors import ConfigError


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def folders(micro_folder, shard_root, tmp_path_factory):
    out = tmp_path_factory.mktemp("team")
    folders = {"micro": micro_folder, "shards": shard_root, "out": out, "files": out}
    folders["teacher"] = build_micro(out / "teacher", seed=1)
    folders["upstream"] = as_kind(micro_folder, "wam_diff2", out / "upstream")
    samples = json.loads(mixed_file(out, 20).read_text())
    write(out / "seen.json", [sample for sample in samples if "image" in sample])
    write(out / "text.json", [sample for sample in samples if "image" not in sample])
    return folders


@pytest.fixture(scope="module")
def alone(folders):
    """What one process finds with the rows of both, and the run that it saves for the teams to go on with."""
    micro, shards, out = folders["micro"], folders["shards"], folders["out"]
    recipe = recipe_of(micro, shards, out / "alone")
    source = frames_of(recipe, [0, 1])
    taught = recipe_of(micro, shards, out / "none", teacher=str(folders["teacher"]), distill_weight=1.0)
    autoregressive = recipe_of(micro, shards, out / "none", phases=[], prediction="next")
    found = {"plain": gradients(Trainer(recipe, source)), "taught": gradients(Trainer(taught, source)),
             "ar": gradients(Trainer(autoregressive, source))}  # fmt: skip
    found["chunks"], found["checkpointing"] = found["taught"], found["plain"]
    found["clipped"] = gradients(Trainer(recipe, source), 0.01)
    trainer = Trainer(recipe, source)
    for _ in range(2):
        trainer.train_step()
    trainer.save()
    found["saved"] = snapshot(trainer)
    trainer.train_step()
    found["next"] = snapshot(trainer)
    for kind in KINDS:
        shutil.copytree(out / "alone", out / kind)
    source.source.close()
    return found


@pytest.fixture(scope="module")
def teams(folders, alone):
    processes.spawn(run, (2, free_port(), folders), 2)
    return {kind: torch.load(folders["out"] / f"{kind}.pt", weights_only=True) for kind in KINDS}


def assert_same(first: dict, second: dict, tolerance: float = 0.0) -> None:
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.allclose(value, second[name], atol=tolerance, rtol=tolerance * 10), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["plain", "taught", "chunks", "checkpointing", "ar", "clipped"])
def test_gradients_are_those_of_one_process_with_all_rows(teams, alone, kind, what):
    """5 live tokens on one rank and 1 on the other."""
    ours, single = teams[kind][what], alone[what]
    assert ours["loss"] == pytest.approx(single["loss"], rel=1e-5)
    largest = max(float(value.abs().max()) for value in single["gradients"].values())
    assert largest > 1e-4
    assert_same(ours["gradients"], single["gradients"], 1e-4 * largest)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_without_pictures_takes_part(teams, kind):
    uneven = teams[kind]["uneven"]
    assert uneven["pictures"][0] > 0 == uneven["pictures"][1]
    largest = max(float(value.abs().max()) for value in uneven["expected"].values())
    assert_same(uneven["gradients"], uneven["expected"], 1e-4 * largest)
    assert uneven["gradients"]["model.visual.pos_embed.weight"].abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_is_by_the_norm_over_all_shards(teams, kind):
    squares = sum(float(value.square().sum()) for value in teams[kind]["clipped"]["gradients"].values())
    assert squares**0.5 == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_saves_and_two_go_on(teams, alone, kind):
    resumed, saved = teams[kind]["resumed"], alone["saved"]
    assert resumed["step"] == saved["step"] == 2
    for part in ("weights", "moments", "averages"):
        assert_same(resumed[part], saved[part])
    assert teams[kind]["place"] == [0, 1]  # rank 0 has the data position that the one process had
    assert_same(teams[kind]["saved"]["averages"], alone["next"]["averages"], 2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_save_and_one_goes_on(teams, folders, kind):
    recipe = recipe_of(folders["micro"], folders["shards"], folders["out"] / kind)
    source = frames_of(recipe, [0, 1])
    trainer = Trainer(recipe, source)
    assert trainer.resume() and source.restored == [0]
    found, saved = snapshot(trainer), teams[kind]["saved"]
    assert found["step"] == saved["step"] == 3
    for part in ("weights", "moments", "averages"):
        assert_same(found[part], saved[part])
    model = load_model(folders["out"] / kind / "checkpoint").model
    assert_same(
        dict(model.named_parameters()), {name: value.bfloat16().float() for name, value in saved["averages"].items()}
    )
    source.source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_with_their_own_random_numbers(teams, folders, kind):
    random = teams[kind]["random"]
    assert random["first"] == random["again"] and random["first"][0] != random["first"][1]
    assert random["step"] == 3
    with (folders["out"] / f"random_{kind}" / "log.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["3"]  # written by one of them, from the step that was saved on


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_agree_on_the_time(teams, kind):
    first, second = teams[kind]["seconds"]
    assert first == second == pytest.approx(100.0, abs=50.0)


@pytest.mark.slow
def test_when_one_rank_fails_all_end_and_it_is_named(micro_folder, tmp_path):
    """Two shards, one for each rank; the second one holds nothing."""
    write_shard(tmp_path / "data", 1, 4)
    broken = write_shard(tmp_path / "data", 2, 4)
    (broken / "samples.json").write_text("[]")
    values = vars(recipe_of(micro_folder, tmp_path / "data", tmp_path / "run", parallel="ddp"))
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    plain["phases"] = [vars(phase) for phase in values["phases"]]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(plain))
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    how = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 280}
    command = [*torchrun, "-m", "training.train", str(tmp_path / "run.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode != 0
    assert "error on rank 1: no usable frames" in done.stderr and "checkpoint:" not in done.stdout


def test_a_recipe_without_parallel_is_refused_by_several_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="parallel is none, but torchrun started 2 processes"):
        with Team.of(micro_recipe(max_steps=1)):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_team_may_be_one_process(folders, alone, kind):
    recipe = recipe_of(folders["micro"], folders["shards"], folders["out"] / "single", parallel=kind)
    source = frames_of(recipe, [0, 1])
    with Team.of(recipe) as team:
        ours = gradients(Trainer(recipe, source, team))
    assert ours["loss"] == pytest.approx(alone["plain"]["loss"], rel=1e-5)
    assert_same(ours["gradients"], alone["plain"]["gradients"], 1e-5)
    source.source.close()
