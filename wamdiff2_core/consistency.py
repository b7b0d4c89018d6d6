"""Does a plan fit what was asked for and what was answered? And is it one that can be driven at all?

Pure functions. A contradiction is a sentence for people. None found says little, since words are only partly
understood: what is not surely understood is never a contradiction.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S, EgoState, Failure, FailureKind, Plan
from wamdiff2_core.tasks.plan import PlanLimits, implausible

SIDE_M = 1.5  # a path ends on a side if it is this far out there ...
SIDE_RAD = math.radians(12.0)  # ... and heads there by this much
STRAIGHT_RAD = math.radians(50.0)  # more than this is no "straight on", however the road bends
FASTER_MPS = 1.0  # a plan accelerates if it ends this much faster ...
MOVING_MPS = 2.0  # ... and at least this fast
BEYOND_M = 3.0  # a manoeuvre in 20 m is judged by a path that leads this much further

_NOT = re.compile(r"\b(?:not|no|never|don't|do not|doesn't|isn't|without|avoid|instead of|rather than)\b")
_DISTANCE = re.compile(r"\bin (?:about )?([0-9]{1,4}) ?m\b", re.ASCII)
_TURN = re.compile(
    r"^(?:please )?(?:(?:turn|go|make a|take the(?: next| first)?) (?P<said>left|right)\b|(?P<bare>left|right)$)"
)
_STRAIGHT = re.compile(r"^(?:please )?(?:go |keep |drive )?straight\b")
_STOP = re.compile(r"^(?:please )?(?:stop|halt|brake|wait|pull over)\b")
_MUST_STOP = re.compile(
    r"\bred light\b|\blight is red\b|\bstop at\b|\b(?:must|should|i|we) (?:stop|wait|brake)\b|\bstop\.?$"
    r"|\bpedestrian is crossing\b"
)
_MAY_GO = re.compile(r"\b(?:may|can|should) (?:we|i)\b.*\b(?:go|drive|turn|continue|proceed|cross|move|start)\b")
_IS_RED = re.compile(
    r"\bis (?:the|our) (?:traffic )?light red\b|\bis there a red (?:traffic )?light\b|\b(?:must|should) (?:we|i) stop\b"
)


def contradictions(
    points: np.ndarray, ego: EgoState, instruction: str, question: str = "", answer: str = ""
) -> tuple[str, ...]:
    """What a plan (8, 2) of a car that moves like `ego` contradicts: the instruction, the answer to a question."""
    found = [_against_instruction(points, ego, instruction), _against_answer(points, ego, question, answer)]
    return tuple(sentence for sentence in found if sentence)


def checked_plan(plan: Plan, ego: EgoState, limits: PlanLimits | None = None) -> Plan | Failure:
    """The plan, or why nobody may drive it: the last gate before a message, whoever made the plan."""
    points = np.asarray(plan.points)
    if points.shape != (PLAN_POINTS, 2) or not np.issubdtype(points.dtype, np.number):
        return _refused(plan, FailureKind.INVALID, f"expected {PLAN_POINTS} points (x, y), got shape {points.shape}")
    if not np.isfinite(points).all():
        return _refused(plan, FailureKind.INVALID, "a coordinate is not finite")
    problem = implausible(points, ego, limits or PlanLimits())
    if problem:
        return _refused(plan, FailureKind.RANGE, problem)
    confidence = np.asarray(plan.confidence, dtype=np.float64)
    if confidence.shape != (PLAN_POINTS,) or not np.isfinite(confidence).all():
        return _refused(plan, FailureKind.INVALID, "the confidences are not eight finite numbers")
    return replace(plan, points=points.astype(np.float64), confidence=confidence)


def withheld(plan: Plan, sentences: tuple[str, ...]) -> Failure:
    """A plan that shall not be driven because of its contradictions."""
    return _refused(plan, FailureKind.CONTRADICTION, "; ".join(sentences))


def _refused(plan: Plan, kind: FailureKind, message: str) -> Failure:
    return Failure(kind, message, plan.text, plan.cost)


def _against_instruction(points: np.ndarray, ego: EgoState, instruction: str) -> str:
    words = _plain(instruction)
    if _NOT.search(words):
        return ""
    if _STOP.search(words):
        return f"instruction {instruction!r}, but {_faster(points, ego)}" if _faster(points, ego) else ""
    distance = _DISTANCE.search(words)
    if distance and _length(points) < float(distance[1]) + BEYOND_M:
        return ""  # the manoeuvre begins behind the end of this plan
    turn = _TURN.search(words)
    if turn and not ("left" in words and "right" in words):
        asked, side = turn["said"] or turn["bare"], _side(points)
        return f"instruction {instruction!r}, but the path leads to the {side}" if side not in ("", asked) else ""
    turned = _turned(points)
    if _STRAIGHT.search(words) and abs(turned) > STRAIGHT_RAD:
        return f"instruction {instruction!r}, but the path turns by {math.degrees(turned):+.0f} degrees"
    return ""


def _against_answer(points: np.ndarray, ego: EgoState, question: str, answer: str) -> str:
    said = _plain(answer)
    if not _says_stop(_plain(question), said):
        return ""
    faster = _faster(points, ego)
    return f"answer {answer!r}, but {faster}" if faster else ""


def _says_stop(question: str, answer: str) -> bool:
    """Whether an answer surely says that the car may not go on."""
    if _MAY_GO.search(question) and answer.startswith("no"):
        return True
    if _IS_RED.search(question) and re.match(r"yes\b", answer):
        return True
    rest = re.sub(r"^no, ", "", answer)  # "no, the light is red." denies the question, not the light
    return bool(_MUST_STOP.search(rest)) and not _NOT.search(rest)


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("\u2019", "'").split())


def _length(points: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(points, axis=0, prepend=np.zeros((1, 2))), axis=1).sum())


def _turned(points: np.ndarray) -> float:
    """Heading (rad, left positive) at the path's end; 0 where it hardly moves."""
    far = points[np.linalg.norm(points[-1] - points, axis=1) > 1.0]
    if not far.size:
        return 0.0
    last = points[-1] - far[-1]
    return math.atan2(last[1], last[0])


def _side(points: np.ndarray) -> str:
    y, turned = float(points[-1, 1]), _turned(points)
    if min(abs(y) - SIDE_M, abs(turned) - SIDE_RAD) <= 0.0 or (y > 0.0) != (turned > 0.0):
        return ""
    return "left" if y > 0.0 else "right"


def _faster(points: np.ndarray, ego: EgoState) -> str:
    """How the plan accelerates, in words; empty if it does not."""
    end = float(np.linalg.norm(points[-1] - points[-3])) / (2 * PLAN_STEP_S)
    if end < max(ego.speed + FASTER_MPS, MOVING_MPS):
        return ""
    return f"the plan accelerates from {ego.speed:.1f} to {end:.1f} m/s"
