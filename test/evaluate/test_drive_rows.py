"""A drive is the same one only if everything that shapes it is the same: else a resumed file would mix them."""

from dataclasses import replace

import pytest

from wamdiff2_sim.evaluate import Job

ONE = Job("tiny", "Town01", 1000, 32, 4, 0.6)


@pytest.mark.parametrize(
    "other",
    [{"length_m": (300.0, 400.0)}, {"traffic": (5, 0)}, {"latency_s": None}, {"plan_period_s": 0.5}, {"seed": 1}],
)
def test_another_setting_is_another_drive(other: dict) -> None:
    assert replace(ONE, **other).key != ONE.key
    assert replace(ONE).key == ONE.key
