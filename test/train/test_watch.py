"""Evaluation during training: when, with what, and what an evaluator may not do."""

import time
from pathlib import Path

import pytest
import torch

from training.drives import KEPT, ShortDrives
from wamdiff2_core.distill.watch import EvaluationError, Watch
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.held_out import HeldOutFrames


def test_it_is_time_again_after_the_period(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch({"one": lambda checkpoint, step: {}}, minutes=2.0)
    assert not watch.due()
    now[0] += 120.0
    assert watch.due()
    watch.evaluate(Path("x"), 1)
    assert not watch.due()  # counted from the end of the last one
    now[0] += 1e6
    assert watch.due()
    assert not Watch({}, 2.0).due() and not Watch(watch.evaluators, 0.0).due()


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
    from shards import write_shard

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
