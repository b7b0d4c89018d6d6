"""Analyses of the proof: exact values of small hand-made data."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from training.proof.exposure import curve, plan_errors
from training.proof.forks import at_forks, clusters, entropy, fork_figures
from training.proof.overlap import top_overlap
from training.proof.pairs import paired, row_difference, spread
from training.proof.pareto import front, steps_needed
from wamdiff2_core.evaluate.frames import Frame
from wamdiff2_core.scene import EgoState


def test_spread_over_seeds_keeps_single_seeds_and_what_is_missing():
    found = spread({0: 1.0, 2: 3.0, 1: None})
    assert found["mean"] == 2.0 and found["spread"] == pytest.approx(math.sqrt(2)) and found["seed_numbers"] == [0, 2]
    assert spread({0: 5.0})["spread"] is None
    assert spread({0: None}) is None and spread({0: float("nan")}) is None


def test_paired_differences_use_common_routes_only():
    found = paired({"a": 3.0, "b": 5.0, "c": 9.0}, {"a": 1.0, "b": 1.0, "d": 0.0})
    assert found == {"mean": 3.0, "error": pytest.approx(1.0), "count": 2}
    assert paired({"a": 1.0}, {"b": 1.0}) is None
    row = {0: {"a": 2.0, "b": 4.0}, 1: {"a": 4.0, "b": 4.0}}
    base = {0: {"a": 1.0, "b": 1.0}, 1: {"a": 1.0}}
    difference = row_difference(row, base)
    assert difference["routes"] == 2 and difference["seeds"] == [2.0, 3.0]
    assert difference["mean"] == pytest.approx((2.0 + 3.0) / 2)  # route a: (1 + 3) / 2; route b: 3
    assert difference["error"] == pytest.approx(np.std([2.0, 3.0], ddof=1) / math.sqrt(2))
    assert row_difference(row, {5: {"a": 1.0}}) is None


def test_exposure_curve_is_over_frames_that_both_planned():
    truth = np.zeros((8, 2)).tolist()

    def rows(*lengths):
        plans = [None if x is None else [[x * (w + 1), 0.0] for w in range(8)] for x in lengths]
        return [{"frame": f"f{k}", "plan": {"points": points, "truth": truth}} for k, points in enumerate(plans)]

    found = curve({0: plan_errors(rows(1.0, 3.0, None))}, {0: plan_errors(rows(0.5, 2.5, 9.0))})
    assert found["frames"] == 2
    assert found["autoregressive_m"] == pytest.approx([2.0 * (w + 1) for w in range(8)])
    assert found["gap_m"] == pytest.approx([0.5 * (w + 1) for w in range(8)])
    assert found["gap_error_m"] == pytest.approx([0.0] * 8) and found["seeds"][0][7] == pytest.approx(4.0)
    assert curve({0: {}}, {1: {}}) is None


def test_the_front_holds_what_nothing_beats():
    pairs = ((4, 1.0), (2, 2.0), (3, 2.5), (8, 0.9), (9, 0.9), (1, None))
    points = [{"forwards_per_plan": forwards, "ade_m": ade} for forwards, ade in pairs]
    assert [(p["forwards_per_plan"], p["ade_m"]) for p in front(points)] == [(2, 2.0), (4, 1.0), (8, 0.9)]
    sweep = [{"block_size": 8, "steps": s, "ade_m": a} for s, a in ((1, 2.0), (2, 1.01), (4, 1.0), (8, 1.0))]
    hollow = {"forwards_per_plan": 0.5, "ade_m": 0.1, "failed_plans_share": 0.2, "block_size": 8, "steps": 1}
    assert front([*points, hollow])[0] == {"forwards_per_plan": 2, "ade_m": 2.0} and len(steps_needed([hollow])) == 0
    assert steps_needed(sweep)[8]["steps"] == 2 and steps_needed(sweep, 0.0)[8]["steps"] == 4


def test_clusters_link_chains_and_part_what_is_far():
    ends = np.array([[0, 0], [2.9, 0], [5.8, 0], [0, 50], [1, 50], [100, 0]], float)
    labels = clusters(ends)
    assert labels[0] == labels[1] == labels[2] and labels[3] == labels[4] and len(set(labels.tolist())) == 3
    assert clusters(np.array([[0, 0], [3.1, 0]])).tolist() == [0, 1]
    assert entropy(np.array([0, 0, 1, 1])) == pytest.approx(math.log(2)) and entropy(np.array([0, 0])) == 0.0


def test_fork_figures():
    left, right = np.full((8, 2), 10.0), np.full((8, 2), -10.0)
    found = fork_figures([[left, right, left, right], [left, left, left, None], [None] * 4])
    assert found["frames"] == 2 and found["modes"] == 1.5 and found["several"] == 0.5
    assert found["entropy"] == pytest.approx(math.log(2) / 2) and found["failed"] == 5 / 12
    assert fork_figures([])["modes"] is None


def test_forks_are_frames_shortly_before_a_junction():
    def frame(instruction, speed=6.0):
        asked = (("q", "a"),)
        return Frame(instruction, (), EgoState((speed, 0.0)), instruction, np.zeros((8, 2)), (), asked)

    frames = [frame(text) for text in ("turn left in 20 m", "go straight in 40 m", "turn right now", "follow the road")]
    found = at_forks([*frames, frame("turn right in 10 m", speed=0.0)])
    assert [one.name for one in found] == ["turn left in 20 m"]
    assert found[0].instruction == "drive on" and found[0].questions == ()


def test_top_overlap():
    one = torch.tensor([[9.0, 8, 7, 0, 0, 0], [0, 0, 0, 9, 8, 7]])
    other = torch.tensor([[9.0, 8, 0, 7, 0, 0], [9.0, 8, 7, 0, 0, 0]])
    assert top_overlap(one, other, k=3).tolist() == pytest.approx([2 / 3, 0.0])
    assert top_overlap(one, one, k=3).tolist() == [1.0, 1.0]
