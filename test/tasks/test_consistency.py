"""Plans against words: what is a contradiction, what is not, and what nobody may drive."""

from __future__ import annotations

import numpy as np
import pytest

from wamdiff2_core.consistency import checked_plan, contradictions, withheld
from wamdiff2_core.scene import EgoState, Failure, FailureKind, Plan

TIMES = np.arange(1, 9) * 0.5
SLOW, FAST, STANDS = EgoState((2.0, 0.0)), EgoState((8.0, 0.0)), EgoState()
AHEAD = np.column_stack([6.0 * TIMES, 0.0 * TIMES])
STARTS = np.column_stack([0.6 * TIMES**2, 0.0 * TIMES])
BRAKES = np.column_stack([8.0 * TIMES - TIMES**2, 0.0 * TIMES])


def turn(side: float, speed: float = 6.0, radius: float = 15.0) -> np.ndarray:
    angle = speed * TIMES / radius
    return np.column_stack([radius * np.sin(angle), side * radius * (1.0 - np.cos(angle))])


LEFT, RIGHT = turn(1.0), turn(-1.0)


@pytest.mark.parametrize(
    ("instruction", "points", "ego", "found"),
    [
        ("turn left", RIGHT, FAST, "leads to the right"),
        ("Turn LEFT now", RIGHT, FAST, "leads to the right"),
        ("turn left in 10 m", RIGHT, FAST, "leads to the right"),
        ("please take the next right", LEFT, FAST, "leads to the left"),
        ("left", RIGHT, FAST, "leads to the right"),
        ("go straight now", RIGHT, FAST, "turns by -"),
        ("stop at the crossing", STARTS, STANDS, "accelerates from 0.0"),
        ("turn left", LEFT, FAST, ""),
        ("turn left", AHEAD, FAST, ""),
        ("turn left in 40 m", RIGHT, FAST, ""),  # the road may bend before the junction
        ("turn left in 10 m", RIGHT * 0.3, SLOW, ""),
        ("do not turn left", RIGHT, FAST, ""),
        ("turn left after the right bend", RIGHT, FAST, ""),
        ("turn left at the bus stop", turn(1.0, 8.0, 20.0), SLOW, ""),
        ("go straight now", turn(1.0, 6.0, 80.0), FAST, ""),
        ("stop at the crossing", BRAKES, FAST, ""),
        ("follow the road", RIGHT, FAST, ""),
        ("keep the left lane", RIGHT, FAST, ""),
        ("", RIGHT, FAST, ""),
    ],
)
def test_instructions(instruction: str, points: np.ndarray, ego: EgoState, found: str) -> None:
    said = contradictions(points, ego, instruction)
    assert len(said) == bool(found)
    assert not found or (found in said[0] and repr(instruction) in said[0])


@pytest.mark.parametrize(
    ("question", "answer", "against"),
    [
        ("", "stop", True),
        ("what is the light?", "the light is red.", True),
        ("what is ahead?", "a red light.", True),
        ("may we go?", "no, the light is red.", True),
        ("may we turn left?", "No, another car is coming.", True),
        ("is the light red?", "yes.", True),
        ("should we stop?", "yes", True),
        ("what do we do?", "I stop at the light.", True),
        ("what do we do?", "we must stop", True),
        ("why?", "a pedestrian is crossing.", True),
        ("is the light red?", "no.", False),
        ("is the light green?", "no, the light is red.", True),
        ("what is ahead?", "there is no red light.", False),
        ("what is ahead?", "the light is not red.", False),
        ("must we stop?", "no need to stop", False),
        ("may we go?", "yes, the light is green.", False),
        ("what is ahead?", "a green light.", False),
        ("is it night?", "no.", False),
        ("what is ahead?", "a car, about 15 m away.", False),
        ("", "", False),
    ],
)
def test_answers(question: str, answer: str, against: bool) -> None:
    said = contradictions(STARTS, STANDS, "follow the road", question, answer)
    assert len(said) == against
    assert not contradictions(BRAKES, FAST, "follow the road", question, answer)  # who brakes contradicts nobody


def test_both_are_told() -> None:
    points = turn(-1.0, 9.0)
    assert len(contradictions(points, SLOW, "turn left now", "", "stop")) == 2


def plan(points: object = AHEAD, confidence: object = None) -> Plan:
    return Plan(points, np.full(8, 0.9) if confidence is None else confidence, "a plan")  # type: ignore[arg-type]


def with_value(value: float) -> np.ndarray:
    points = AHEAD.copy()
    points[3, 1] = value
    return points


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (plan(with_value(np.nan)), FailureKind.INVALID),
        (plan(with_value(np.inf)), FailureKind.INVALID),
        (plan(AHEAD[:5]), FailureKind.INVALID),
        (plan(np.zeros((0, 2))), FailureKind.INVALID),
        (plan(np.full((8, 2), "1")), FailureKind.INVALID),
        (plan(AHEAD * 100.0), FailureKind.RANGE),
        (plan(with_value(90.0)), FailureKind.RANGE),
        (plan(confidence=np.full(8, np.nan)), FailureKind.INVALID),
        (plan(confidence=np.ones(3)), FailureKind.INVALID),
    ],
)
def test_what_nobody_may_drive(bad: Plan, kind: FailureKind) -> None:
    result = checked_plan(bad, FAST)
    assert isinstance(result, Failure) and result.kind is kind and result.message and result.text == "a plan"


def test_what_may_be_driven_is_passed_on() -> None:
    good = checked_plan(plan(AHEAD.astype(np.float32), np.ones(8, np.float32)), FAST)
    assert isinstance(good, Plan) and good.points.dtype == good.confidence.dtype == np.float64
    assert np.allclose(good.points, AHEAD)
    assert withheld(good, ("a", "b")).kind is FailureKind.CONTRADICTION
