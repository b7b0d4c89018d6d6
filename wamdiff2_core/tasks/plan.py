"""Task plan: where the ego vehicle shall be in the next 4 s, eight points as text.

Form "fixed": each waypoint is `dd.dd` (x) and sign + `dd.dd` (y), one space between waypoints; with a tokenizer of
single digits these are 95 tokens, of which 72 are free and the others given. Form "upstream":
`2.26,-0.17,4.43,-0.70,...`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.scene import PLAN_POINTS, PLAN_STEP_S, Command, EgoState, Failure, Plan, Scene
from wamdiff2_core.tasks.grammar import AnswerText, Tokens, as_answer, not_parsed, out_of_range, unknown_form
from wamdiff2_core.tasks.navigation import parse_navigation

FORMS = ("fixed", "upstream")
MAX_FIXED_M = 99.99
MAX_UPSTREAM_M = 500.0
MAX_EGO = 99.99


@dataclass(frozen=True)
class PlanLimits:
    """Beyond these a plan is no motion of a car. One wrong metre digit stays within: smoothing takes care of that."""

    max_speed_mps: float = 50.0
    max_acceleration_mps2: float = 30.0

    def __post_init__(self) -> None:
        if not (0.0 < self.max_speed_mps < math.inf and 0.0 < self.max_acceleration_mps2 < math.inf):
            raise ConfigError(f"plan limits: expected numbers > 0, got {self}")


_FIXED = re.compile(r"([0-9]{2}\.[0-9]{2})([+-][0-9]{2}\.[0-9]{2})", re.ASCII)
_UPSTREAM = re.compile(r"([+-]?[0-9]{1,4}(?:\.[0-9]{1,6})?), ?([+-]?[0-9]{1,4}(?:\.[0-9]{1,6})?)", re.ASCII)
_UPSTREAM_WORDS = {
    Command.LEFT: "left",
    Command.RIGHT: "right",
    Command.STRAIGHT: "straight",
    Command.FOLLOW: "straight",
}
_LAYOUT = "dd.dd+dd.dd"


def prompt(scene: Scene) -> str:
    """The human text after the images: `velocity +05.12 +00.00 acceleration +00.31 -00.05; follow the road; plan`."""
    return prompt_text(scene.ego, scene.instruction)


def prompt_text(ego: EgoState, instruction: str) -> str:
    """Velocity (m/s) and acceleration (m/s^2) in the ego frame, the instruction, the task word."""
    vx, vy, ax, ay = (_signed(value) for value in (*ego.velocity, *ego.acceleration))
    return f"velocity {vx} {vy} acceleration {ax} {ay}; {instruction.strip()}; plan"


def upstream_prompt(scene: Scene) -> str:
    """The same facts in the layout of upstream's conversations, the image's place included."""
    vx, vy, ax, ay = (_plain(value) for value in (*scene.ego.velocity, *scene.ego.acceleration))
    command = parse_navigation(scene.instruction)
    word = scene.instruction.strip() if command is None else _UPSTREAM_WORDS[command]
    return (
        f"The view ahead of the vehicle: <image>\nThe navigation information is: {word}\n"
        f"The current position is (0.00,0.00)\n"
        f"The current velocity is: ({vx},{vy}) and current accelerate is: ({ax},{ay})\n"
        f"Instruction: predict the driving of the next 4 seconds as {PLAN_POINTS} waypoints x,y."
    )


def serialise(points: np.ndarray, form: str = "fixed") -> str:
    """The answer text of points (8, 2) in metres, ego frame. Form "fixed" clamps to its range (see `clamped`)."""
    points = _checked(points)
    if form == "fixed":
        limited = np.clip(points, (0.0, -MAX_FIXED_M), (MAX_FIXED_M, MAX_FIXED_M))
        return " ".join(f"{x:05.2f}{_signed(y)}" for x, y in limited + 0.0)
    if form == "upstream":
        return ",".join(_plain(value) for value in points.flat)
    raise unknown_form("plan", form, FORMS)


def clamped(points: np.ndarray) -> int:
    """How many of the eight waypoints the form "fixed" cannot express (backwards, or beyond 99.99 m)."""
    x, y = _checked(points).T
    return int(np.sum((x < -0.005) | (x > MAX_FIXED_M + 0.005) | (np.abs(y) > MAX_FIXED_M + 0.005)))


def parse(answer: AnswerText | str, form: str = "fixed") -> Plan | Failure:
    """Exactly eight waypoints in the given form, nothing else, or a PARSE / RANGE failure."""
    answer = as_answer(answer)
    if form == "fixed":
        found = _waypoints(answer.text, _FIXED, " ")
        limit = MAX_FIXED_M
    elif form == "upstream":
        found = _waypoints(answer.text, _UPSTREAM, ",")
        limit = MAX_UPSTREAM_M
    else:
        raise unknown_form("plan", form, FORMS)
    if found is None:
        return not_parsed(f"{PLAN_POINTS} waypoints in form {form}", answer.text)
    points = np.array([[float(match[1]), float(match[2])] for match in found])
    if np.abs(points).max() > limit:
        return out_of_range(f"a coordinate is beyond {limit} m", answer.text)
    confidence = np.array([answer.confidence(match.start(), match.end()) for match in found])
    return Plan(points, confidence, answer.text)


def implausible(points: np.ndarray, ego: EgoState, limits: PlanLimits) -> str | None:
    """What about points (8, 2) a car that moves like `ego` cannot do; None when nothing."""
    velocity = np.diff(np.vstack([[0.0, 0.0], points]), axis=0) / PLAN_STEP_S
    speed = float(np.linalg.norm(velocity, axis=1).max())
    if speed > limits.max_speed_mps:
        return f"a speed of {speed:.1f} m/s between waypoints, limit {limits.max_speed_mps:.1f}"
    change = np.diff(np.vstack([ego.velocity, velocity]), axis=0) / PLAN_STEP_S
    acceleration = float(np.linalg.norm(change, axis=1).max())
    if acceleration > limits.max_acceleration_mps2:
        return (
            f"an acceleration of {acceleration:.1f} m/s^2 between waypoints, limit {limits.max_acceleration_mps2:.1f}"
        )
    return None


def allowed(tokenizer: Tokens, form: str = "fixed") -> tuple[tuple[int, ...] | None, ...] | None:
    """Allowed token ids of the 96 answer positions (95 and the end token); None for the free form "upstream"."""
    if form == "upstream":
        return None
    if form != "fixed":
        raise unknown_form("plan", form, FORMS)
    digits = tuple(tokenizer.single(digit) for digit in "0123456789")
    classes = {"d": digits, "+": (tokenizer.single("+"), tokenizer.single("-"))}
    classes |= {char: (tokenizer.single(char),) for char in ". "}
    return tuple(classes[char] for char in " ".join([_LAYOUT] * PLAN_POINTS)) + ((tokenizer.eos_id,),)


def ranks(form: str = "fixed") -> tuple[int, ...] | None:
    """Which of the 96 answer positions are decided first: signs and tens of metres, then metres, then decimals."""
    if form == "upstream":
        return None
    if form != "fixed":
        raise unknown_form("plan", form, FORMS)
    one = (0, 1, 0, 2, 2) + (0,) + (0, 1, 0, 2, 2)  # dd.dd+dd.dd; points and spaces are given
    return (*one, *((0, *one) * (PLAN_POINTS - 1)), 0)


def _waypoints(text: str, pattern: re.Pattern[str], separator: str) -> list[re.Match[str]] | None:
    """Matches of exactly eight waypoints that together with single separators make up the whole text."""
    found: list[re.Match[str]] = []
    at = 0
    for index in range(PLAN_POINTS):
        if index and text[at : at + 1] != separator:
            return None
        at += bool(index)
        if separator == "," and index and text[at : at + 1] == " ":
            at += 1
        match = pattern.match(text, at)
        if match is None:
            return None
        found.append(match)
        at = match.end()
    return found if at == len(text) else None


def _plain(value: float) -> str:
    """Two decimals, zero without a sign."""
    return f"{round(float(value), 2) + 0.0:.2f}"


def _signed(value: float) -> str:
    """Sign and dd.dd; zero is always positive, so that equal values are equal texts."""
    if not (math.isfinite(value) and abs(value) < MAX_EGO + 0.005):
        raise DataError(f"expected a finite value within +-{MAX_EGO}, got {value!r}")
    return f"{round(float(value), 2) + 0.0:+06.2f}"


def _checked(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    if points.shape != (PLAN_POINTS, 2) or not np.isfinite(points).all():
        raise DataError(
            f"expected finite points of shape ({PLAN_POINTS}, 2), got shape {points.shape}: {points.tolist()}"
        )
    return points
