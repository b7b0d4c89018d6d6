"""The thread that runs the model: takes the newest frames, builds a scene, asks the driver, hands the outcome on.

It knows no rclpy: frames come from the mailbox, the outcome goes to a function.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.scene import Answer, Detections, EgoState, Failure, FailureKind, Plan, Scene
from wamdiff2_ros.images import message_to_rgb
from wamdiff2_ros.mailbox import FrameGroup, FrameMailbox
from wamdiff2_ros.odometry import OdometryHistory
from wamdiff2_ros.parameters import Settings

Result = Plan | Detections | Answer | Failure


class AnswersScenes(Protocol):
    """The part of wamdiff2_core.driver.Driver that a worker needs."""

    decoding: Any

    def answer(self, scene: Scene, tasks: tuple[str, ...]) -> Mapping[str, Result]: ...


@dataclass
class Inputs:
    """What callbacks have heard, besides frames. Plain assignments, read by the worker at the start of a scene."""

    instruction: str
    question: str | None = None
    odometry: OdometryHistory = field(default_factory=OdometryHistory)
    odometry_received_s: float | None = None
    odometry_error: str = ""


@dataclass(frozen=True)
class Outcome:
    """Everything about one scene: what was used, what came out, what it took (milliseconds)."""

    stamp: Any  # of the newest image, as its message has it
    settings: Settings
    instruction: str
    question: str | None
    results: Mapping[str, Result]
    images: Mapping[str, np.ndarray]
    ego: EgoState
    total_ms: float
    frame_age_ms: float
    input_errors: Mapping[str, str]  # by topic


class Schedule:
    """Which tasks are due: each at most at its own rate, on the steady clock."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def due(self, settings: Settings, now_s: float, has_question: bool) -> tuple[str, ...]:
        """Tasks to run for a scene at `now_s`; they count as run."""
        chosen = []
        for task in settings.tasks:
            rate_hz = settings.rate_hz(task)
            waited_s = now_s - self._last_s.get(task, -1e9)
            if (task == "ask" and not has_question) or (rate_hz > 0.0 and waited_s < 1.0 / rate_hz):
                continue
            self._last_s[task] = now_s
            chosen.append(task)
        return tuple(chosen)

    def forget(self, task: str) -> None:
        """Make a task due at once (a new question came)."""
        self._last_s.pop(task, None)


class Worker:
    """Runs until `stop`. `settings()` is read at the start of a scene: a change applies between two scenes."""

    def __init__(
        self,
        driver: AnswersScenes,
        mailbox: FrameMailbox,
        inputs: Inputs,
        topics: Mapping[str, str],
        settings: Callable[[], Settings],
        publish: Callable[[Outcome], None],
    ) -> None:
        """`topics`: full topic name of each camera and of "odometry", for messages about them."""
        self._driver = driver
        self._mailbox = mailbox
        self._inputs = inputs
        self._topics = topics
        self._settings = settings
        self._publish = publish
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver worker", daemon=True)
        self.schedule = Schedule()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the scene it is at, and wait for it."""
        self._stop.set()
        self._mailbox.close()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            group = self._mailbox.take(timeout_s=0.5)
            if group is None:
                continue
            tasks = self.schedule.due(self._settings(), time.monotonic(), self._inputs.question is not None)
            if tasks:
                outcome = self.outcome(group, tasks)
                if not self._stop.is_set():
                    self._publish(outcome)

    def outcome(self, group: FrameGroup, tasks: tuple[str, ...]) -> Outcome:
        """Answer one group of frames: check it, decode it, ask the driver."""
        start_s = time.monotonic()
        settings, instruction, question = self._settings(), self._inputs.instruction, self._inputs.question
        errors = self._stale(group, settings, start_s)
        images = {} if errors else self._decode(group, errors)
        ego = self._inputs.odometry.ego_state(group.stamp_s)
        results: dict[str, Result] = {}
        if errors:
            results = dict.fromkeys(tasks, _input_failure(errors))
        elif "plan" in tasks and (problem := self._odometry_problem(settings, ego, start_s)):
            # Boxes and answers need no motion, so they are still given.
            errors[self._topics["odometry"]] = problem
            results["plan"] = _input_failure(errors)
        asked = tuple(task for task in tasks if task not in results)
        if asked:
            scene = Scene(images, instruction, ego or EgoState(), question, group.stamp_s)
            results.update(self._ask(scene, asked, settings))
        end_s = time.monotonic()
        return Outcome(
            stamp=group.newest.message.header.stamp,
            settings=settings,
            instruction=instruction,
            question=question,
            results=results,
            images=images,
            ego=ego or EgoState(),
            total_ms=(end_s - start_s) * 1e3,
            frame_age_ms=group.age_s(end_s) * 1e3,
            input_errors=errors,
        )

    def _stale(self, group: FrameGroup, settings: Settings, now_s: float) -> dict[str, str]:
        errors = {}
        for name, frame in group.frames.items():
            age_s = frame.age_at_receipt_s + now_s - frame.received_s
            if age_s > settings.max_frame_age_s:
                errors[self._topics[name]] = f"frame is {age_s:.2f} s old, at most {settings.max_frame_age_s:.2f} s"
        return errors

    def _decode(self, group: FrameGroup, errors: dict[str, str]) -> dict[str, np.ndarray]:
        images = {}
        for name, frame in group.frames.items():
            try:
                images[name] = message_to_rgb(frame.message)
            except DataError as error:
                errors[self._topics[name]] = str(error)
        return images

    def _odometry_problem(self, settings: Settings, ego: EgoState | None, now_s: float) -> str:
        received_s = self._inputs.odometry_received_s
        if ego is None or received_s is None:
            return self._inputs.odometry_error or "nothing received"
        age_s = now_s - received_s
        limit_s = settings.odometry_max_age_s
        return f"last message came {age_s:.2f} s ago, at most {limit_s:.2f} s" if age_s > limit_s else ""

    def _ask(self, scene: Scene, tasks: tuple[str, ...], settings: Settings) -> Mapping[str, Result]:
        self._driver.decoding = replace(
            self._driver.decoding,
            block_size=settings.block_size,
            steps=settings.steps,
            rule=settings.rule,
            threshold=settings.threshold,
            time_limit_s=settings.time_limit_s or None,
        )
        try:
            return self._driver.answer(scene, tasks=tasks)
        except (Wamdiff2Error, RuntimeError) as error:  # RuntimeError: how torch says "out of memory" and the like
            return dict.fromkeys(tasks, Failure(FailureKind.INVALID, f"{type(error).__name__}: {error}"))


def _input_failure(errors: Mapping[str, str]) -> Failure:
    return Failure(FailureKind.INPUT, "; ".join(f"{topic}: {problem}" for topic, problem in errors.items()))
