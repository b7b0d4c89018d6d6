"""A drive is the same one only if everything that shapes it is the same: else a resumed file would mix them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wamdiff2_sim import evaluate as closed_loop
from wamdiff2_sim.evaluate import EXPERT, Job

ONE = Job("tiny", "Town01", 1000, 32, 4, 0.6)


@pytest.mark.parametrize(
    "other",
    [
        {"length_m": (300.0, 400.0)},
        {"traffic": (5, 0)},
        {"latency_s": None},
        {"plan_period_s": 0.5},
        {"seed": 1},
        {"device": "cuda"},
        {"dtype": "bfloat16"},
    ],
)
def test_another_setting_is_another_drive(other: dict) -> None:
    assert replace(ONE, **other).key != ONE.key
    assert replace(ONE).key == ONE.key


def test_rows_of_before_a_choice_of_numbers_count_as_the_default_and_the_expert_has_none() -> None:
    assert ONE.key == ["tiny", "Town01", 1000, 32, 4, 0.6, 0.2, 0.25, 150.0, 220.0, 25, 15]
    assert replace(ONE, dtype="bfloat16").key == [*ONE.key, "cpu", "bfloat16"]
    expert = replace(ONE, checkpoint=EXPERT)
    assert replace(expert, device="cuda", dtype="bfloat16").key == expert.key


def test_the_expert_needs_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps({"key": replace(ONE, checkpoint=EXPERT, block_size=0).key}) + "\n")
    monkeypatch.setattr(closed_loop, "table", list)
    monkeypatch.setattr(closed_loop, "jobs", lambda args: [replace(ONE, checkpoint=EXPERT, block_size=0)])
    asked = closed_loop.arguments(checkpoint=EXPERT, out=tmp_path / "d.json", device="cuda:93")
    report = closed_loop.evaluate(asked)
    assert len(report["results"]) == 1 and "gpu" not in report["machine"] and "kernels" not in report["settings"]
