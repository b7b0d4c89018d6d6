"""The driving score: completion times one penalty per event."""

from __future__ import annotations

import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_sim.evaluate import table
from wamdiff2_sim.scores import DriveScore, Event, driving_score


@pytest.mark.parametrize(
    ("completion", "contacts", "red", "expected"),
    [
        (1.0, {}, 0, 100.0),
        (0.5, {}, 0, 50.0),
        (1.0, {"pedestrian": 1}, 0, 50.0),
        (1.0, {"car": 1}, 0, 60.0),
        (1.0, {"truck": 1, "cyclist": 1}, 0, 36.0),
        (1.0, {"static": 2}, 0, 42.25),
        (1.0, {}, 2, 49.0),
        (0.8, {"pedestrian": 1, "car": 2}, 1, 80.0 * 0.5 * 0.36 * 0.7),
        (0.0, {"car": 1}, 0, 0.0),
    ],
)
def test_exact_values(completion, contacts, red, expected):
    assert driving_score(completion, contacts, red) == pytest.approx(expected, abs=1e-9)


def test_an_unknown_kind_is_an_error():
    with pytest.raises(DataError, match="balloon"):
        driving_score(1.0, {"balloon": 1}, 0)


def test_a_drive_sums_up_its_events():
    score = DriveScore(100.0, best_s=0.0)
    score.best_s = 90.0
    score.events += [Event("collision_car", 3.0, 1), Event("red_light", 5.0, 7), Event("red_light", 50.0, 8)]
    summary = score.summary()
    assert summary["driving_score"] == pytest.approx(90.0 * 0.6 * 0.49)
    assert summary["collisions_by_kind"] == {"car": 1}


def test_the_table_averages_over_routes():
    row = {
        "block_size": 32, "route_completion": 1.0, "collisions": 0, "collisions_by_kind": {}, "red_lights": 0,
        "off_road_s": 0.0, "comfort": 1.0, "plans": 10, "failures": {}, "per_waypoint_m": None, "ade_m": None,
        "forwards_per_plan": 6.0, "latency_ms_p50": 50.0,
    }  # fmt: skip
    hit = row | {"collisions": 1, "collisions_by_kind": {"car": 1}}
    (line,) = table([row, hit])
    assert line["driving_score"] == pytest.approx(80.0)
