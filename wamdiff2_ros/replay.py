"""A bag's frames planned once more, with other settings or another checkpoint: in order, as fast as it goes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import Progress

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.driver import Driver
from wamdiff2_core.scene import Answer, Box, Cost, Detections, Failure, Plan, Scene
from wamdiff2_ros.bag_heard import Heard
from wamdiff2_ros.bag_messages import BOXES_UNKNOWN, STATUS_VALID, boxes_of, plan_points
from wamdiff2_ros.bag_reader import QUESTION_S, expert_points, true_boxes
from wamdiff2_ros.bag_scenes import Footage, Moment

NEAR_NS = 50_000_000  # messages this close in time are about the same moment
PERIOD_S = 0.5  # between frames of a bag that holds no plans
TASKS = ("plan", "detect", "ask")
T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """A moment of the bag and what is known about it: what was driven, planned, seen and answered then, and the truth.

    Points (8, 2) in base_link at `ns`; None: not known.
    """

    ns: int
    instruction: str
    question: str | None
    speed_mps: float | None
    spread_ms: float
    driven: np.ndarray | None
    planned: np.ndarray | None
    expert: np.ndarray | None
    boxes: tuple[Box, ...] | None
    true_boxes: tuple[Box, ...] | None
    answer: str | None
    true_answer: str | None


@dataclass(frozen=True)
class Made:
    """What was made of a frame with one block size. Failures: the kind, and the message; None where there is none."""

    ns: int
    block_size: int
    points: np.ndarray | None = None
    boxes: tuple[Box, ...] | None = None
    answer: str | None = None
    failures: dict[str, str] = field(default_factory=dict)  # kind by task
    said: dict[str, str] = field(default_factory=dict)  # why, by task
    cost: Cost = field(default_factory=Cost)  # of the plan
    age_ms: float | None = None  # of the pictures when the plan was published; live only


@dataclass
class Replay:
    """`pictures`: by time, the pictures by camera of the frames that are shown. `notes`: what was assumed."""

    frames: list[Frame] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    pictures: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def choose_moments(footage: Footage, heard: Heard, most: int) -> tuple[list[Moment], list[str]]:
    """Moments to plan again: those of the recorded plans, spread over the bag if there are more than `most` (0: all).

    Where the bag holds no plans, or none whose pictures are there: one every half second. Said in the notes.
    """
    asked = heard.asked()
    moments = footage.moments(spread(asked, most)) if asked else []
    if moments:
        return moments, []
    found = spread(footage.moments(period_s=PERIOD_S), most)
    why = "none of the recorded plans has its pictures in the bag" if asked else "the bag holds no plans"
    return found, [f"{why}: a frame every {PERIOD_S} s is planned"] if found else []


def wanted_tasks(text: str, footage: Footage, heard: Heard) -> tuple[str, ...]:
    """Tasks of a list like plan,detect; "auto": the plan, and what the bag holds something to compare with."""
    if text != "auto":
        return tuple(task for task in TASKS if task in text.split(","))
    boxes = bool(heard.true_boxes or heard.boxes)
    asked = bool(heard.answer) or footage.parts.get("question") is not None
    return ("plan", *(["detect"] if boxes else []), *(["ask"] if asked else []))


def replan(
    driver: Driver, footage: Footage, heard: Heard, settings: Sequence[DecodingConfig], tasks: Collection[str],
    moments: Sequence[Moment], pictures: int, console: Console,
) -> Replay:  # fmt: skip
    """Answer every moment for each set of settings. Pictures are decoded once, while the frame before is answered."""
    replay = Replay()
    shown = {moment.ns for moment in spread(list(moments), pictures)} if pictures else set()
    truths = true_answers(heard, footage, moments)
    warm = False
    with Progress(console=console) as progress:
        bar = progress.add_task("frames", total=len(moments) or None)
        for moment, scene in _ahead(footage, moments):
            progress.advance(bar)
            if scene is None:
                continue
            moving = footage.motion_known(moment)
            replay.frames.append(frame_of(footage, heard, moment, scene, moving, truths.get(moment.ns)))
            for config in settings:
                driver.decoding = config
                if not warm:
                    driver.answer(scene, ("plan",))  # the first call allocates: not measured
                    warm = True
                replay.made.append(_answer(driver, scene, moment.ns, tasks, moving))
            if moment.ns in shown:
                replay.pictures[moment.ns] = scene.images
    return replay


def frame_of(
    footage: Footage, heard: Heard, moment: Moment, scene: Scene, moving: bool, truth: str | None
) -> Frame:  # fmt: skip
    """The moment with everything that the bag tells about it."""
    ns = moment.ns
    boxes, right = near(heard.boxes, ns), near(heard.true_boxes, ns)
    known = boxes is not None and boxes.status != BOXES_UNKNOWN
    return Frame(
        ns,
        scene.instruction,
        scene.question,
        scene.ego.speed if moving else None,
        moment.spread_ns * 1e-6,
        footage.driven(ns),
        plan_points(near(heard.trajectory, ns)),
        expert_points(near(heard.status, ns)),
        boxes_of(boxes) if known else None,
        true_boxes(right) if right is not None else None,
        _recorded_answer(heard, ns, scene.question),
        truth,
    )


def true_answers(heard: Heard, footage: Footage, moments: Sequence[Moment]) -> dict[int, str]:
    """Right answers by time of the first moment after each question, while the question is about that moment."""
    times = np.array([moment.ns for moment in moments], np.int64)
    found = {}
    for ns, status in sorted(heard.status.items()):
        k = int(np.searchsorted(times, ns))
        if status.question and status.true_answer and k < len(times) and times[k] - ns <= QUESTION_S * 1e9:
            if footage.question(moments[k]) == status.question.strip():
                found[int(times[k])] = str(status.true_answer)
    return found


def near(messages: dict[int, Any], ns: int) -> Any:
    """The message of this time, or the nearest one within 50 ms; None if there is none."""
    if ns in messages:
        return messages[ns]
    fitting = [t for t in messages if abs(t - ns) <= NEAR_NS]
    return messages[min(fitting, key=lambda t: abs(t - ns))] if fitting else None


def _recorded_answer(heard: Heard, ns: int, question: str | None) -> str | None:
    """The first answer to the question that was asked at that time."""
    limit = ns + int(QUESTION_S * 1e9)
    fitting = [t for t, a in heard.answer.items() if ns <= t <= limit and a.question.strip() == question]
    answer = heard.answer[min(fitting)] if fitting else None
    return answer.text if answer is not None and answer.status == STATUS_VALID else None


def _answer(driver: Driver, scene: Scene, ns: int, tasks: Collection[str], moving: bool) -> Made:
    """The plan on its own, as the node decodes it, so that its cost is the plan's; then the rest in one batch."""
    size = driver.decoding.block_size
    rest = tuple(task for task in ("detect", "ask") if task in tasks and (task != "ask" or scene.question))
    results: dict[str, Any] = {}
    if "plan" in tasks and moving:
        results["plan"] = driver.plan(scene)
    if rest:
        results |= driver.answer(scene, rest)
    made = made_of(ns, size, results)
    if "plan" in tasks and not moving:
        made.failures["plan"], made.said["plan"] = "input", "no fresh odometry: a plan would be a guess"
    return made


def made_of(ns: int, size: int, results: dict[str, Any], age_ms: float | None = None) -> Made:
    """Typed results by task as one record."""
    plan, boxes, answer = (results.get(task) for task in TASKS)
    failed = {task: result for task, result in results.items() if isinstance(result, Failure)}
    return Made(
        ns,
        size,
        plan.points if isinstance(plan, Plan) else None,
        boxes.boxes if isinstance(boxes, Detections) else None,
        answer.text if isinstance(answer, Answer) else None,
        {task: failure.kind.value for task, failure in failed.items()},
        {task: failure.message for task, failure in failed.items()},
        plan.cost if plan is not None else Cost(),
        age_ms,
    )


def _ahead(footage: Footage, moments: Sequence[Moment]) -> Iterator[tuple[Moment, Scene | None]]:
    """Scenes in order, the next one read and decoded by another thread meanwhile."""
    with ThreadPoolExecutor(1, "pictures") as pool:
        waiting = [pool.submit(footage.scene, moment) for moment in moments[:1]]
        for k, moment in enumerate(moments):
            now = waiting.pop()
            scene = now.result()
            if k + 1 < len(moments):
                waiting.append(pool.submit(footage.scene, moments[k + 1]))
            yield moment, scene


def spread(values: list[T], most: int) -> list[T]:
    """At most so many of the values, evenly; 0: all."""
    if not most or len(values) <= most:
        return values
    return [values[k] for k in np.linspace(0, len(values) - 1, most).round().astype(int)]
