"""Evaluation during training: when, with what, and what an evaluator may not do."""

from pathlib import Path

import pytest
import torch
from micro import micro_recipe
from shards import write_shard
from stream_files import as_kind

from training.adopt import adopt
from training.drives import KEPT, ShortDrives
from training.train import evaluation_setting, watch_of
from wamdiff2_core import load_model
from wamdiff2_core.distill.csv_file import read_csv
from wamdiff2_core.distill.trainer import run_chain, run_recipe
from wamdiff2_core.distill.watch import EvaluationError, Watch
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.held_out import HeldOutFrames


def test_it_is_time_again_after_the_period():
    watch = Watch({"one": lambda checkpoint, step: {}}, minutes=2.0)
    watch.begin(500.0)  # a resumed run
    assert [seconds for seconds in range(500, 1000, 50) if watch.due(seconds)] == [650, 800, 950]
    assert not Watch(watch.evaluators, 0.0).due(1e6)


def test_figures_carry_their_evaluators_name():
    seen = []
    watch = Watch(
        {
            "frames": lambda checkpoint, step: {"ade_m": 1.5, "map50": torch.tensor(0.25)},
            "drives": lambda checkpoint, step: seen.append((checkpoint, step)) or {"driving_score": 40},
        }
    )
    assert watch.evaluate(Path("run/checkpoint"), 7) == {
        "frames/ade_m": 1.5, "frames/map50": 0.25, "drives/driving_score": 40.0}  # fmt: skip
    assert seen == [(Path("run/checkpoint"), 7)]


def test_a_failure_names_its_evaluator():
    def broken(checkpoint, step):
        raise ZeroDivisionError("no frames")

    with pytest.raises(EvaluationError, match=r"evaluator drives at step 3 of x: ZeroDivisionError: no frames"):
        Watch({"drives": broken}).evaluate(Path("x"), 3)
    for names, minutes in ({"": broken}, 0.0), ({"a/b": broken}, 0.0), ({"a": broken}, -1.0):
        with pytest.raises(ConfigError, match="evaluation"):
            Watch(names, minutes)


def test_training_goes_on_with_its_own_random_numbers():
    def restless(checkpoint, step):
        torch.manual_seed(99)
        return {"drawn": torch.rand(())}

    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    Watch({"restless": restless}).evaluate(Path("x"), 0)
    assert torch.equal(torch.rand(3), want)


def test_held_out_frames_are_decoded_as_on_the_road(micro_folder, tmp_path, monkeypatch):
    from wamdiff2_core.evaluate import held_out

    for number in (10, 11):
        write_shard(tmp_path / "a", number, 3, seed=1)
    write_shard(tmp_path / "b", 20, 2, seed=2)
    frames = HeldOutFrames([tmp_path / "a", tmp_path / "b"], Setting(8, 2, 0.5), frames=4, holdout=10)
    found = frames(micro_folder, 5)
    assert {"answers_correct", "parse_failures_share", "failures_share", "forwards_per_plan"} <= set(found)
    assert 0.0 <= found["failures_share"] <= 1.0 and found["forwards_per_plan"] >= 9
    names = [frame.name for frame in frames._table.frames]
    assert [name.split("/")[0] for name in names] == ["shard_00010"] * 2 + ["shard_00020"] * 2
    monkeypatch.setattr(held_out, "read_frames", lambda *_: pytest.fail("frames are read once"))
    assert frames(micro_folder, 6) == found
    monkeypatch.undo()
    with pytest.raises(EvaluationError, match=r"evaluator frames .*shard"):
        Watch({"frames": HeldOutFrames([tmp_path / "a"], Setting(), holdout=99)}).evaluate(micro_folder, 1)
    with pytest.raises(DataError):
        HeldOutFrames([tmp_path / "none"], Setting())(micro_folder, 1)
    with pytest.raises(ConfigError):
        HeldOutFrames([], Setting())


def test_held_out_frames_of_a_checkpoint_that_names_no_cameras(micro_folder, tmp_path):
    """As training.adopt makes it from a plain Qwen3-VL: one frame after the other, with upstream's prompts."""
    adopt(as_kind(micro_folder, "qwen3_vl", tmp_path / "plain"), tmp_path / "adopted")
    write_shard(tmp_path / "a", 10, 2, seed=1)
    found = HeldOutFrames([tmp_path / "a"], Setting(8, 2, 0.5), frames=2)(tmp_path / "adopted", 5)
    assert {"failures_share", "parse_failures_share", "forwards_per_plan", "answers_correct"} <= set(found)
    assert found["forwards_per_plan"] > 8 and 0.0 <= found["failures_share"] <= 1.0


def test_short_drives():
    drives = ShortDrives(Setting(), routes=2, workers=1, length_m=(30.0, 45.0), traffic=(0, 0))
    found = drives(Path("expert"), 5)  # no model: the expert takes its place
    assert set(found) == set(KEPT)
    assert found["driving_score"] > 90.0 and found["route_completion"] > 0.9 and found["failed_plans_share"] == 0.0
    jobs = ShortDrives(Setting(), routes=7).jobs(Path("x"))
    assert len({(job.town, job.seed) for job in jobs}) == 7 and len({job.town for job in jobs}) == 5
    with pytest.raises(ConfigError):
        ShortDrives(Setting(), routes=0)
    with pytest.raises(ConfigError, match="block size"):
        ShortDrives(Setting(scaffold=False))


def test_a_checkpoint_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(EvaluationError, match="evaluator frames"):
        Watch({"frames": HeldOutFrames([tmp_path], Setting())}).evaluate(tmp_path / "none", 1)


def shard_recipe(micro_folder, tmp_path, **values):
    """A recipe of two steps on one shard, with another one held out."""
    for number in (10, 11):
        if not (tmp_path / "data" / f"shard_{number:05d}").exists():
            write_shard(tmp_path / "data", number, 4, seed=1)
    base = {"init": str(micro_folder), "data": [str(tmp_path / "data")], "out": str(tmp_path / "run"), "max_steps": 4,
            "holdout": 10, "frames_per_step": 2, "log_every": 1, "phases": [{"until": 1.0, "blocks": {8: 1.0}}],
            "ema": 0.9, "augment": 1.0}  # fmt: skip
    return micro_recipe(**{**base, **values})


def test_a_run_is_evaluated_on_its_way_and_at_its_end(micro_folder, tmp_path):
    plain = shard_recipe(micro_folder, tmp_path, out=str(tmp_path / "plain"))
    run_recipe(plain)
    recipe = shard_recipe(micro_folder, tmp_path, evaluate=["frames"], evaluate_frames=3, evaluate_minutes=1e-9)
    run_chain([recipe], watch_of)
    rows = read_csv(tmp_path / "run" / "evaluation.csv")
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"] and all("frames/failures_share" in row for row in rows)
    losses = [[row["loss"] for row in read_csv(tmp_path / name / "log.csv")] for name in ("plain", "run")]
    assert losses[0] == losses[1]  # the same training, watched or not
    names = {path.name for path in (tmp_path / "run" / "plots").iterdir()}
    assert names == {"losses.png", "rates.png", "evaluation.png", "overview.png"}
    run_chain([recipe], watch_of)  # finished before: nothing to add
    assert read_csv(tmp_path / "run" / "evaluation.csv") == rows


def test_a_failed_evaluation_leaves_a_run_to_go_on_with(micro_folder, tmp_path):
    def broken(checkpoint, step):
        raise OSError("no disk")

    recipe = shard_recipe(micro_folder, tmp_path)
    with pytest.raises(EvaluationError, match="evaluator late at step 4"):
        run_chain([recipe], lambda recipe: Watch({"late": broken}))
    assert load_model(tmp_path / "run" / "checkpoint").prediction == "next"
    run_chain([recipe], lambda recipe: Watch({"late": lambda checkpoint, step: {"fine": 1.0}}))
    assert read_csv(tmp_path / "run" / "evaluation.csv")[0]["late/fine"] == "1.0"


def test_recipes_name_their_evaluators(micro_folder, tmp_path):
    assert watch_of(shard_recipe(micro_folder, tmp_path)) is None
    watch = watch_of(shard_recipe(micro_folder, tmp_path, evaluate=["frames", "drives"], evaluate_routes=2))
    assert list(watch.evaluators) == ["frames", "drives"]
    assert watch.evaluators["drives"].setting == Setting(8, 3, 0.6) and watch.evaluators["drives"].routes == 2
    assert evaluation_setting(micro_recipe(max_steps=1)) == Setting(1, 3, 0.6)
    assert evaluation_setting(micro_recipe(max_steps=1, evaluate_decoding="B=4,steps=2")) == Setting(4, 2)
    for values in ({"evaluate": ["sing"]}, {"evaluate": ["frames"], "holdout": 0},
                   {"evaluate": ["drives"], "evaluate_decoding": "B=4|8"}):  # fmt: skip
        with pytest.raises(ConfigError):
            watch_of(shard_recipe(micro_folder, tmp_path, **values))
    apart = shard_recipe(micro_folder, tmp_path, evaluate=["frames"], evaluate_data=["x"], holdout=0)
    assert watch_of(apart).evaluators["frames"].folders == [Path("x")]
