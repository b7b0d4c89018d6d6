"""Closed-loop drives of the proof: paired, interleaved, one line each, failures named, resumable."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time

import pytest

from training.proof.drives import FILE, Evaluation, Pool, Tour, drives_of
from training.proof.rows import Decoding, Run
from wamdiff2_core.errors import ConfigError


def finish(root, label):
    (root / label).mkdir(parents=True)
    (root / label / "DONE").write_text("{}")


def tour(root, **values):
    base = {"towns": ("Town01", "Town02"), "routes_per_town": 3, "workers": 1}
    return Tour(root, ("ar", "stage3"), (0, 1), **(base | values))


def test_all_rows_drive_the_same_routes_and_take_turns(tmp_path):
    for label in ("ar/seed0", "stage3/seed0", "ar/seed1"):
        finish(tmp_path, label)
    evaluation = Evaluation(tour(tmp_path))
    evaluation._look()
    order = [(d.run.label, d.round, d.job.town) for d in evaluation.queue]
    assert order[:4] == [("ar/seed0", 0, "Town01"), ("ar/seed0", 0, "Town02"),
                         ("stage3/seed0", 0, "Town01"), ("stage3/seed0", 0, "Town02")]  # fmt: skip
    assert [label for label, _, _ in order[8:12]] == ["ar/seed1"] * 4  # two routes a town, then the next seed
    assert order[12][1] == 2 and len(order) == 18
    routes = [{(d.job.town, d.job.seed, d.job.traffic) for d in drives_of(tour(tmp_path), Run(row, 0))}
              for row in ("ar", "stage3")]  # fmt: skip
    assert routes[0] == routes[1] and len(routes[0]) == 6
    large = drives_of(tour(tmp_path), Run("teacher_ar", 0))[0]
    assert large.turn > evaluation.queue[-1].turn
    assert {d.job.block_size for d in evaluation.queue if d.run.row == "ar"} == {1}


def test_decoding_can_be_replaced(tmp_path):
    changed = tour(tmp_path, decoding={"stage3": Decoding(16, 2, 0.5)})
    job = drives_of(changed, Run("stage3", 0))[0].job
    assert (job.block_size, job.steps, job.threshold) == (16, 2, 0.5)
    with pytest.raises(ConfigError):
        tour(tmp_path, workers=0)


def test_a_failed_drive_is_a_line_and_is_not_driven_again(tmp_path, capsys):
    finish(tmp_path, "ar/seed0")  # without a checkpoint: every drive fails
    (tmp_path / "stage3/seed0").mkdir(parents=True)
    (tmp_path / "stage3/seed0/FAILED").write_text("diverged")
    short = {"seeds": (0,), "towns": ("Town01",), "routes_per_town": 2, "length_m": (60.0, 80.0)}
    what = Tour(tmp_path, ("ar", "stage3"), workers=2, **short)
    assert Evaluation(what).run() == 2  # stage3 never came
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert len(rows) == 2 and all("CheckpointError" in row["error"] for row in rows)
    assert {(row["row"], row["model_seed"], row["town"]) for row in rows} == {("ar", 0, "Town01")}
    assert Evaluation(what).run() == 2
    assert len((tmp_path / FILE).read_text().splitlines()) == 2
    again = Tour(tmp_path, ("ar", "stage3"), workers=2, retry=True, **short)
    assert Evaluation(again).made == 0 and (tmp_path / FILE).read_text() == ""
    assert "FAILED CheckpointError" in capsys.readouterr().out


@pytest.mark.slow
def test_the_expert_drives_and_time_ends_it(tmp_path):
    short = {"seeds": (0,), "towns": ("Town01",), "length_m": (60.0, 80.0), "traffic": (3, 2), "expert": True}
    what = Tour(tmp_path, ("ar",), workers=2, routes_per_town=1, minutes=60.0, **short)
    evaluation = Evaluation(what)
    evaluation.expected = evaluation.expected[:1]  # only the expert: nobody trains `ar` here
    assert evaluation.run() == 0
    (row,) = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert row["row"] == "expert" and row["driving_score"] > 90.0 and row["model_seed"] == 0
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": ["cut sh')  # a kill in the middle of a line
    late = Evaluation(Tour(tmp_path, ("ar",), workers=1, routes_per_town=40, minutes=0.05, **short))
    assert late.run() == 2
    lines = (tmp_path / FILE).read_text().splitlines()
    assert all(json.loads(line) for line in lines) and len(lines) >= 1


@pytest.mark.slow
def test_a_worker_that_dies_names_its_drive_and_is_replaced(tmp_path):
    expert = drives_of(tour(tmp_path, length_m=(60.0, 80.0), traffic=(2, 1)), Run("expert", 0))
    pool = Pool(1, ())
    try:
        pool.submit(0, expert[0])
        while not multiprocessing.active_children():
            time.sleep(0.1)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        (row,) = finished(pool)
        assert "BrokenProcessPool" in row["error"] and row["key"] == expert[0].job.key and pool.free == [0]
        pool.submit(0, expert[1])
        (row,) = finished(pool)
        assert row["town"] == "Town02" and row["driving_score"] > 0.0
    finally:
        pool.close()


def finished(pool):
    end = time.monotonic() + 280.0
    while time.monotonic() < end:
        rows = pool.finished(1.0)
        if rows:
            return rows
    return []
