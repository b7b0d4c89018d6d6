"""The log: figures of an interval, files that outlive kills and older versions, TensorBoard behind a resumed step."""

import csv
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from micro import micro_recipe

from wamdiff2_core.distill.csv_file import GrowingCsv, read_csv
from wamdiff2_core.distill.log import BAD, LOG, TrainLog
from wamdiff2_core.distill.loss import Share
from wamdiff2_core.distill.optimise import Clock
from wamdiff2_core.distill.step import Losses
from wamdiff2_core.errors import ConfigError, DataError

CPU = torch.device("cpu")
SOURCE = SimpleNamespace(filled=8, seen=16, bad=Counter({"shard": 2}), bad_names=["a: torn"], device=CPU)


def losses(value: float, rows: int = 2, **parts: tuple[float, float]) -> Losses:
    """parts: plan_ar=(total, count) and so on."""
    shares: dict = {}
    for name, (total, count) in parts.items():
        task, kind = name.split("_")
        share = Share(torch.full((rows,), total / rows), torch.full((rows,), count / rows))
        shares.setdefault(task, {})[kind] = share
    return Losses(torch.tensor(value), shares, torch.tensor(sum(count for _, count in parts.values())))


def recipe(tmp_path, **values):
    return micro_recipe(init="x", data=["x"], out=str(tmp_path), max_steps=10, **values)


def sitting(tmp_path, first: int, *steps: Losses, **values):
    """A sitting that resumes at step `first` and writes a line for every step."""
    chosen = recipe(tmp_path, **values)
    clock = Clock(chosen, first)
    with TrainLog(tmp_path, chosen) as log:
        log.begin(first, SOURCE)
        means = []
        for one in steps:
            clock.step += 1
            log.add(one)
            means.append(log.write(clock, 1e-3, SOURCE))
    return means


def events(tmp_path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    return {tag: [(one.step, round(one.value, 4)) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_a_part_is_the_mean_over_its_tokens(tmp_path):
    chosen = recipe(tmp_path, tensorboard=False)
    clock = Clock(chosen, step=2)
    with TrainLog(tmp_path, chosen) as log:
        log.begin(0, SOURCE)
        assert log.write(clock, 1e-3, SOURCE) == 0.0  # nothing to say yet
        log.add(losses(1.0, plan_ar=(8.0, 4.0), plan_distill=(0.0, 0.0)))
        log.add(losses(2.0, plan_ar=(1.0, 8.0), plan_distill=(0.0, 0.0), ask_diffusion=(6.0, 2.0)))
        assert log.write(clock, 1e-3, SOURCE) == pytest.approx(1.5)
    (row,) = read_csv(tmp_path / "log.csv")
    assert (float(row["loss"]), float(row["plan_ar"]), float(row["ask_diffusion"])) == (1.5, 0.75, 3.0)
    assert "plan_distill" not in row and not (tmp_path / "tensorboard").exists()
    assert (row["frames"], row["frames_seen"], row["bad"]) == ("8", "16", "2")


def test_results_that_are_overwritten_in_place_are_summed_as_they_were(tmp_path):
    chosen = recipe(tmp_path, tensorboard=False)
    held = losses(1.0, plan_ar=(2.0, 2.0))
    with TrainLog(tmp_path, chosen) as log:
        log.begin(0, SOURCE)
        for value in (1.0, 5.0):  # as a captured step does
            held.loss.fill_(value)
            log.add(held)
        assert log.write(Clock(chosen, 2), 1e-3, SOURCE) == pytest.approx(3.0)


def test_two_processes_write_one_log(tmp_path, capsys):
    chosen = recipe(tmp_path, tensorboard=True)

    def twice(values):  # the other process has seen the same
        return 2 * values

    for rank in (1, 0):
        with TrainLog(tmp_path / str(rank), chosen, rank, twice) as log:
            log.begin(0, SOURCE)
            log.add(losses(0.5, plan_ar=(2.0, 4.0)))
            assert log.write(Clock(chosen, 1), 1e-3, SOURCE) == pytest.approx(1.0)
            log.evaluation(Clock(chosen, 1), {"frames/ade_m": 1.0})
        if rank:
            assert capsys.readouterr().out == "" and not (tmp_path / "1").exists()
    (row,) = read_csv(tmp_path / "0" / "log.csv")
    assert float(row["plan_ar"]) == 0.5 and float(row["loss"]) == 1.0


def test_a_resumed_run_drops_what_lies_behind_it(tmp_path):
    for first, values in ((0, (5.0, 4.0, 3.0)), (1, (2.0, 1.0))):
        sitting(tmp_path, first, *(losses(value, plan_ar=(value, 1.0)) for value in values))
    assert [(row["step"], float(row["loss"])) for row in read_csv(tmp_path / "log.csv")] == [
        ("1", 5.0), ("2", 2.0), ("3", 1.0)]  # fmt: skip
    seen = events(tmp_path)
    assert seen["loss/total"] == [(1, 5.0), (2, 2.0), (3, 1.0)] == seen["loss/plan_ar"]
    assert {"rate/lr", "rate/tokens_per_s", "machine/memory_gb"} <= set(seen)


def test_evaluations_are_kept_and_resumed_too(tmp_path):
    chosen = recipe(tmp_path)
    for first in (0, 2):
        with TrainLog(tmp_path, chosen) as log:
            log.begin(first, SOURCE)
            for step in (first + 2, first + 4):
                log.evaluation(Clock(chosen, step), {"frames/ade_m": 10.0 - step, f"only/{first}": 1.0})
    rows = read_csv(tmp_path / "evaluation.csv")
    assert [(row["step"], float(row["frames/ade_m"])) for row in rows] == [("2", 8.0), ("4", 6.0), ("6", 4.0)]
    assert events(tmp_path)["evaluation/frames/ade_m"] == [(2, 8.0), (4, 6.0), (6, 4.0)]


def test_a_line_cut_short_is_written_anew(tmp_path):
    sitting(tmp_path, 0, *(losses(value, plan_ar=(value, 1.0)) for value in (3.0, 2.0, 1.0)), tensorboard=False)
    path = tmp_path / "log.csv"
    whole = path.read_text()
    path.write_text(whole[: whole.rindex("\n", 0, -1) + 4])  # "3,0" of the third line: kill -9 in the middle
    sitting(tmp_path, 2, losses(0.5, plan_ar=(0.5, 1.0)), tensorboard=False)
    assert [(row["step"], row["loss"]) for row in read_csv(path)] == [("1", "3.0"), ("2", "2.0"), ("3", "0.5")]
    path.write_text("step,lo")  # nothing but a part of the heading
    sitting(tmp_path, 0, losses(7.0, plan_ar=(1.0, 1.0)), tensorboard=False)
    assert [row["loss"] for row in read_csv(path)] == ["7.0"]


def test_a_log_of_other_columns_is_gone_on_with(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,seconds,loss,plan_old\r\n1,0.5,4.0,9.0\r\n2,0.6,3.0,8.0\r\n")
    sitting(tmp_path, 1, losses(2.0, plan_ar=(1.0, 1.0)), losses(1.0, plan_distill=(1.0, 1.0)), tensorboard=False)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["4.0", "2.0", "1.0"]
    assert [(row["plan_old"], row["plan_ar"], row["plan_distill"]) for row in rows] == [
        ("9.0", "", ""), ("", "1.0", ""), ("", "", "1.0")]  # fmt: skip
    path.write_text("step,loss\nmany,1.0\n")
    with pytest.raises(DataError, match="expected a step"):
        GrowingCsv(path).begin(3)


def test_without_the_package_a_recipe_may_not_ask_for_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"wamdiff2\[train\]"):
        TrainLog(tmp_path, recipe(tmp_path))
    sitting(tmp_path, 0, losses(1.0, plan_ar=(1.0, 1.0)), tensorboard=False)
    assert len(read_csv(tmp_path / "log.csv")) == 1


def test_bad_samples_are_named_once_by_all_ranks_and_sittings(tmp_path, capsys):
    chosen = recipe(tmp_path, tensorboard=False)
    other = (Counter({"missing image": 1}), ["b: missing image: x.jpg", "a: torn"])

    def both(mine):
        return [mine, (dict(other[0]), other[1], 0)]

    for _ in range(2):
        source = SimpleNamespace(**{**vars(SOURCE), "bad": Counter(torn=1), "bad_names": ["a: torn"]})
        with TrainLog(tmp_path, chosen, everyones=both) as log:
            log.begin(0, source)
            source.bad_names = [*source.bad_names, *(f"c{number}: torn" for number in range(9))]
            source.bad = Counter(torn=12)  # two more than it has names for
            log.add(losses(1.0, plan_ar=(1.0, 1.0)))
            log.write(Clock(chosen, 1), 0.1, source)
    lines = ["a: torn", "b: missing image: x.jpg", *(f"c{number}: torn" for number in range(9))]
    assert (tmp_path / BAD).read_text().splitlines() == lines
    told = capsys.readouterr().out
    assert "2 bad samples, not trained on (1 torn, 1 missing image); 2 so far:\n  a: torn\n  b: missing" in told
    assert "9 bad samples, not trained on (9 torn); 13 so far:" in told and f"... 4 more in {tmp_path / BAD}" in told
    assert told.count("not trained on") == 2 and read_csv(tmp_path / LOG)[-1]["bad"] == "13"
