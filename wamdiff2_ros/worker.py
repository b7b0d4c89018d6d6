"""The thread that runs the model: takes the newest frames, builds a scene, asks the driver, hands the outcome on.

It knows no rclpy: frames come from the mailbox, the outcome goes to a function.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wamdiff2_core.scene import EgoState, Failure, FailureKind, Scene
from wamdiff2_ros.ahead import Ahead
from wamdiff2_ros.asking import Answered, AnswersScenes, Asking, Drawn, Result
from wamdiff2_ros.deadline_mode import DeadlineMode
from wamdiff2_ros.frame_groups import FrameGroup
from wamdiff2_ros.input_log import InputLog
from wamdiff2_ros.mailbox import FrameMailbox
from wamdiff2_ros.odometry import OdometryHistory
from wamdiff2_ros.opening import Opened, Opener
from wamdiff2_ros.parameters import Settings
from wamdiff2_ros.stages import Stages, taken

CANDIDATES = "candidates"  # a batch of its own, after the plan: it must not wait for them
OUT_OF_DATE = "time went back, or a sender was started anew, while this was answered"
DECODERS = max(1, min(4, (os.cpu_count() or 2) - 1))  # threads for pictures, beside the worker's own
OWN_KEPT = 8  # answers looked at for what this node adds to a model's time


@dataclass
class Inputs:
    """What callbacks have heard, besides frames. Plain assignments, read by the worker at the start of a scene."""

    instruction: str
    question: str | None = None
    odometry: OdometryHistory = field(default_factory=OdometryHistory)
    odometry_received_s: float | None = None
    odometry_error: str = ""
    log: InputLog = field(default_factory=InputLog)


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
    tasks: tuple[str, ...] = ()  # that were asked, those that failed included
    stages: Stages = Stages(0.0)
    captured_s: float = 0.0  # steady time at which the newest of the images was taken
    contradictions: tuple[str, ...] = ()  # of the plan
    drawn: Drawn | None = None
    degraded: Mapping[str, str] = field(default_factory=dict)  # by topic: cameras held or left out, and why
    deadline: str = ""  # why block size and steps were chosen; "" where they are as set
    deadline_missed: int = 0  # answers so far that took longer than the budget


@dataclass(frozen=True)
class _Prepared:
    """A group of frames, checked and decoded, with what was heard by then."""

    group: FrameGroup
    settings: Settings
    instruction: str
    question: str | None
    opened: Opened
    ego: EgoState | None
    odometry_problem: str
    stages: Stages


class Schedule:
    """Which tasks are due: each at most at its own rate, on the steady clock."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def due(self, settings: Settings, now_s: float, has_question: bool) -> list[tuple[str, ...]]:
        """Batches of tasks to run one after the other on a scene at `now_s`; they count as run.

        One batch of all that is due, or (without `batch_tasks`) the plan by itself and then the one other due task that
        has waited longest, so that a plan waits for one other task at most and no task starves.
        """
        waits = {task: now_s - self._last_s.get(task, -1e9) for task in settings.tasks}
        due = [task for task in settings.tasks if waits[task] * (settings.rate_hz(task) or 1e9) >= 1.0]
        due = [task for task in due if task != "ask" or has_question]
        batches = [tuple(due)] if settings.batch_tasks else self._apart(due, waits)
        self._last_s |= {task: now_s for batch in batches for task in batch}
        return [batch for batch in batches if batch]

    def _apart(self, due: list[str], waits: Mapping[str, float]) -> list[tuple[str, ...]]:
        others = [task for task in due if task != "plan"]
        others.sort(key=lambda task: -waits[task])
        return [(task,) for task in ["plan"] * ("plan" in due) + others[:1]]

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
        deadline: DeadlineMode | None = None,
    ) -> None:
        """`topics`: full topic name of each camera and of "odometry", for messages about them.

        `deadline`: with what was measured before; None: nothing has been.
        """
        self._asking = Asking(driver)
        self._deadline = deadline or DeadlineMode()
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="picture")
        self.ahead = Ahead(self._decoders, lambda: mailbox.waited_for)
        self._opener = Opener(topics, self.ahead)
        self._mailbox = mailbox
        self._inputs = inputs
        self._topics = topics
        self._settings = settings
        self._publish = publish
        self._stop = threading.Event()
        self._publishing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="driver worker", daemon=True)
        self._own_s: deque[float] = deque(maxlen=OWN_KEPT)  # from taking frames to publication, without inference
        self.schedule = Schedule()
        self.out_of_date = 0  # answers withheld, because time went back or was over while they were made

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """Nothing is published once this returns, and the thread ends after the answer it is at.

        False if it has not ended after `limit_s` seconds.
        """
        with self._publishing:
            self._stop.set()
        self._mailbox.close()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        free_since_s = time.monotonic()
        while not self._stop.is_set():
            group = self._mailbox.take(timeout_s=0.5, soon_s=max(self._own_s, default=0.0))
            if group is None:
                continue
            start_s = time.monotonic()
            received_s = max(frame.received_s for frame in group.frames.values())
            stages = taken(received_s, free_since_s, start_s)
            settings = self._settings()  # once: a change applies to the next scene as a whole
            batches = self.schedule.due(settings, start_s, self._inputs.question is not None)
            if settings.candidates and settings.scorer == "none" and any("plan" in batch for batch in batches):
                batches.append((CANDIDATES,))
            prepared = self._prepare(group, settings, stages, start_s) if batches else None
            for tasks in batches:
                if prepared is None or self._stop.is_set():
                    break
                outcome = self._in_time(prepared, tasks, start_s)
                with self._publishing:
                    if self._stop.is_set():
                        break
                    self._publish(self._if_of_this_time(group, outcome))
                if tasks is batches[0]:
                    self._own_s.append(time.monotonic() - start_s - outcome.stages.inference_ms * 1e-3)
                start_s = time.monotonic()  # a further batch on this scene has waited for the ones before
                prepared = replace(prepared, stages=taken(received_s, start_s, start_s))
            free_since_s = time.monotonic()
        self.ahead.close()
        self._decoders.shutdown()

    def _if_of_this_time(self, group: FrameGroup, outcome: Outcome) -> Outcome:
        """The outcome; without answers if all that they rest on was forgotten, without a plan that comes too late."""
        old = OUT_OF_DATE if group.epoch != self._mailbox.resets else ""
        age_s, limit_s = time.monotonic() - outcome.captured_s, outcome.settings.max_plan_age_s
        too_late = age_s > limit_s and "plan" in outcome.results and not isinstance(outcome.results["plan"], Failure)
        if not old and not too_late:
            return outcome
        self.out_of_date += 1
        if old:
            failures = dict.fromkeys(outcome.results, Failure(FailureKind.INPUT, old))
        else:
            late = f"the plan came too late: its pictures are {age_s:.2f} s old, at most {limit_s:.2f} s"
            failures = {"plan": Failure(FailureKind.INPUT, late)}
        return replace(outcome, results={**outcome.results, **failures}, drawn=None, contradictions=())

    def _prepare(self, group: FrameGroup, settings: Settings, stages: Stages, now_s: float) -> _Prepared:
        """Check and decode the frames; note what else was heard."""
        log, rules = self._inputs.log, self._mailbox.rules
        opened = self._opener.open(group, rules, log, settings.max_frame_age_s, now_s)
        ego = self._inputs.odometry.ego_state(group.stamp_s)
        problem = self._odometry_problem(settings, ego, group.stamp_s, now_s)
        stages = replace(stages, images_ms=(time.monotonic() - now_s) * 1e3)
        return _Prepared(group, settings, self._inputs.instruction, self._inputs.question, opened, ego, problem, stages)

    def _in_time(self, prepared: _Prepared, tasks: tuple[str, ...], start_s: float) -> Outcome:
        """The outcome with block size and steps as set or, with a deadline, as chosen to meet it."""
        chosen, why = self._deadline.settings_for(prepared.settings, tasks, start_s)
        outcome = self._outcome(replace(prepared, settings=chosen), tasks, start_s)
        if outcome.stages.inference_ms + outcome.stages.prompt_ms > 0.0:  # the driver was asked
            self._deadline.measured(chosen, tasks, outcome.total_ms, outcome.results)
        return replace(outcome, deadline=why, deadline_missed=self._deadline.missed)

    def _outcome(self, prepared: _Prepared, tasks: tuple[str, ...], start_s: float) -> Outcome:
        """Ask the driver, unless the input forbids it."""
        group, errors, ego = prepared.group, dict(prepared.opened.errors), prepared.ego or EgoState()
        results: dict[str, Result] = {}
        if errors:
            results = dict.fromkeys((task for task in tasks if task != CANDIDATES), _input_failure(errors))
        elif prepared.odometry_problem:
            errors[self._topics["odometry"]] = prepared.odometry_problem
            if "plan" in tasks:  # boxes and answers need no motion, so they are still given
                results["plan"] = _input_failure(errors)
        asked = tuple(task for task in tasks if task not in results)
        answered = self._ask(prepared, asked, ego, bool(errors))
        results.update(answered.results)
        end_s = time.monotonic()
        return Outcome(
            stamp=group.newest.message.header.stamp,
            settings=prepared.settings,
            instruction=prepared.instruction,
            question=prepared.question,
            results=results,
            images=prepared.opened.images,
            ego=ego,
            total_ms=(end_s - start_s) * 1e3,
            frame_age_ms=group.age_s(end_s) * 1e3,
            input_errors=errors,
            degraded=prepared.opened.degraded,
            tasks=tasks,
            stages=replace(prepared.stages, prompt_ms=answered.prompt_ms, inference_ms=answered.inference_ms),
            captured_s=end_s - group.newest.age_s(end_s),
            contradictions=answered.contradictions,
            drawn=answered.drawn,
        )

    def _ask(self, prepared: _Prepared, tasks: tuple[str, ...], ego: EgoState, no_input: bool) -> Answered:
        """The driver's answers to those tasks that the input allows."""
        if not tasks or (tasks == (CANDIDATES,) and no_input):
            return Answered({})
        images, stamp_s = dict(prepared.opened.images), prepared.group.stamp_s
        scene = Scene(images, prepared.instruction, ego, prepared.question, stamp_s)
        if tasks == (CANDIDATES,):
            return self._asking.draw(scene, prepared.settings)
        return self._asking.answer(scene, tasks, prepared.settings)

    def _odometry_problem(self, settings: Settings, ego: EgoState | None, stamp_s: float, now_s: float) -> str:
        """Why the motion at `stamp_s` (capture time of the frames) is not known; empty if it is."""
        received_s = self._inputs.odometry_received_s
        if ego is None or received_s is None:
            return self._inputs.odometry_error or "nothing received"
        age_s = now_s - received_s
        limit_s = settings.odometry_max_age_s
        late = f"last usable message came {age_s:.2f} s ago, at most {limit_s:.2f} s"
        if age_s > limit_s:
            return self._inputs.odometry_error or late
        nearest = self._inputs.odometry.at(stamp_s)
        apart_s = limit_s if nearest is None else abs(nearest.stamp_s - stamp_s)
        return f"its stamps are {apart_s:.2f} s apart from the frames'" if apart_s > limit_s else ""


def _input_failure(errors: Mapping[str, str]) -> Failure:
    return Failure(FailureKind.INPUT, "; ".join(f"{topic}: {problem}" for topic, problem in errors.items()))
