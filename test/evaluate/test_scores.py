"""The scores of answers: by hand-made cases whose values are known."""

import math

import numpy as np
import pytest

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.answers import answer_score
from wamdiff2_core.evaluate.detection import detection_score
from wamdiff2_core.evaluate.waypoints import waypoint_errors
from wamdiff2_core.scene import Box


def test_waypoint_errors_are_mean_distances():
    reference = np.zeros((2, 8, 2))
    plan = reference.copy()
    plan[0, :, 0] = 3.0
    plan[0, :, 1] = 4.0
    plan[1, 7, 1] = 2.0
    errors = waypoint_errors(plan, reference)
    assert errors.per_waypoint_m[:7] == pytest.approx([2.5] * 7)
    assert errors.fde_m == pytest.approx(3.5)
    assert errors.ade_m == pytest.approx((2.5 * 7 + 3.5) / 8)
    assert errors.count == 2


def test_waypoint_errors_without_plans_are_nan_and_bad_input_is_an_error():
    assert math.isnan(waypoint_errors(np.zeros((0, 8, 2)), np.zeros((0, 8, 2))).ade_m)
    with pytest.raises(DataError, match=r"\(1, 8, 2\)"):
        waypoint_errors(np.zeros((1, 7, 2)), np.zeros((1, 8, 2)))
    with pytest.raises(DataError, match="finite"):
        waypoint_errors(np.full((1, 8, 2), np.nan), np.zeros((1, 8, 2)))


def test_detection_perfect_half_and_none():
    car, walker = Box("car", (100, 100, 300, 300)), Box("pedestrian", (500, 500, 550, 700))
    assert detection_score([[car, walker]], [[car, walker]]).map50 == pytest.approx(1.0)
    half = detection_score([[car]], [[car, walker]])
    assert half.map50 == pytest.approx(0.5)
    assert half.ap50 == pytest.approx({"car": 1.0, "pedestrian": 0.0})
    assert detection_score([[]], [[car]]).map50 == 0.0
    assert detection_score([[Box("truck", (0, 0, 9, 9))]], [[car]]).map50 == 0.0
    assert math.isnan(detection_score([[]], [[]]).map50)


def test_detection_score_order_matters():
    car = Box("car", (100, 100, 300, 300))
    right, wrong = Box("car", (100, 100, 300, 300), 0.9), Box("car", (600, 600, 900, 900), 0.5)
    assert detection_score([[right, wrong]], [[car]]).map50 == pytest.approx(1.0)
    flipped = [Box("car", right.xyxy, 0.5), Box("car", wrong.xyxy, 0.9)]
    assert detection_score([flipped], [[car]]).map50 == pytest.approx(0.5)


def test_answers_forgive_case_and_the_final_stop_only():
    same = ("light", "The light is red", "the light is red.")
    score = answer_score([same, ("light", "green", "red"), ("car", None, "x")])
    assert score.correct == pytest.approx(1 / 3)
    assert score.by_kind == {"car": 0.0, "light": 0.5}
    assert math.isnan(answer_score([]).correct)
