"""Aggregation in two stages against the official functions (tag v2.2), run on the golden scenes' own numbers.

`stages/aggregation.json` holds which golden scene stands where, where it starts and where its plan ends, and what came
out of the official weighting, extended comfort and means over groups; one group has no second scene nearby.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.evaluate.navsim import stages
from wamdiff2_core.evaluate.navsim import vehicle as car

GOLDEN = Path(__file__).parents[1] / "golden" / "navsim"
PARTS = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "lk", "hc")


def test_two_stages_equal_the_official_summary() -> None:
    with gzip.open(GOLDEN / "scenes.json.gz", "rt", encoding="utf-8") as file:
        scenes = {scene["id"]: scene["expected"] for scene in json.load(file)["scenes"]}
    golden = json.loads((GOLDEN / "stages" / "aggregation.json").read_text(encoding="utf-8"))
    members = {}
    for token, one in golden["members"].items():
        states, table = np.array(scenes[one["scene"]]["simulated_plan"]), scenes[one["scene"]]["v2"]
        acceleration = np.hypot(states[:, car.ACCEL_X], states[:, car.ACCEL_Y])
        members[token] = stages.Member(
            {name: table[name] for name in PARTS}, np.array(one["start"]), np.array(one["end"]), acceleration,
            states[:, car.HEADING],
        )  # fmt: skip
    result = stages.aggregate(stages.read_groups(golden), members)
    expected = golden["expected"]
    assert result["combined"] == pytest.approx(expected["combined"], abs=1e-9)
    for stage in ("stage_one", "stage_two"):
        assert result[stage] == pytest.approx(expected[stage], abs=1e-9), stage
    assert (result["groups"], result["scenes"]) == (6, len(members))
