"""Asking the driver: the dial, the call, what it took, and what may be driven of what it says."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wamdiff2_core.consistency import checked_plan, contradictions, withheld
from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.scene import Answer, Detections, Failure, FailureKind, Plan, Scene
from wamdiff2_ros.parameters import Settings

if TYPE_CHECKING:
    from wamdiff2_core.select.choose import Selector

Result = Plan | Detections | Answer | Failure
ANSWER_HOLDS_S = 2.0  # an answer about a scene is held against the plans of so many seconds
# What odd numbers or a full memory raise out of a model; RuntimeError is how torch says most of it.
MODEL_ERRORS = (Wamdiff2Error, RuntimeError, ArithmeticError, ValueError, LookupError)


class AnswersScenes(Protocol):
    """The part of wamdiff2_core.driver.Driver that a worker needs."""

    decoding: Any

    def answer(self, scene: Scene, tasks: tuple[str, ...]) -> Mapping[str, Result]: ...


@dataclass(frozen=True)
class Drawn:
    """Plans drawn at random for one scene, the likeliest first; `withheld`: how many more were no plan."""

    plans: tuple[Plan, ...]
    withheld: int
    temperature: float


@dataclass(frozen=True)
class Answered:
    """What the driver said, checked; milliseconds inside the driver, the model's work apart from the rest."""

    results: Mapping[str, Result]
    contradictions: tuple[str, ...] = ()
    drawn: Drawn | None = None
    prompt_ms: float = 0.0
    inference_ms: float = 0.0


@dataclass(frozen=True)
class _Said:
    """An answer to the open question, and the stamp of its scene."""

    question: str
    text: str
    stamp_s: float


def turn_dial(driver: AnswersScenes, settings: Settings) -> None:
    """Let the driver's next answers be decoded as the settings say."""
    driver.decoding = replace(
        driver.decoding,
        block_size=settings.block_size,
        steps=settings.steps,
        rule=settings.rule,
        threshold=settings.threshold,
        time_limit_s=settings.time_limit_s or None,
    )


class Asking:
    """Asks one driver. Used by one thread; remembers the last answer, to hold it against the plans that follow."""

    def __init__(self, driver: AnswersScenes) -> None:
        self._driver = driver
        self._said: _Said | None = None
        self._chooser: Selector | None = None

    def answer(self, scene: Scene, tasks: Sequence[str], settings: Settings) -> Answered:
        """All `tasks` on a scene. An error of the driver becomes a failure of each task."""
        turn_dial(self._driver, settings)
        started_s = time.monotonic()
        try:
            given, drawn = self._given(scene, tuple(tasks), settings)
            results = self._complete(given, tasks)
        except MODEL_ERRORS as error:
            results = dict.fromkeys(tasks, Failure(FailureKind.INVALID, f"{type(error).__name__}: {error}"))
            drawn = None
        took_ms = (time.monotonic() - started_s) * 1e3
        inference_ms = min(max((result.cost.total_ms for result in results.values()), default=0.0), took_ms)
        self._remember(results.get("ask"), scene)
        found: tuple[str, ...] = ()
        plan = results.get("plan")
        if isinstance(plan, Plan):
            results["plan"], found = self._checked(plan, scene, settings)
        return Answered(results, found, drawn, took_ms - inference_ms, inference_ms)

    def _given(
        self, scene: Scene, tasks: tuple[str, ...], settings: Settings
    ) -> tuple[Mapping[str, Result], Drawn | None]:
        """The driver's answers; with a scorer the plan is the best of plan and candidates, the others are `Drawn`."""
        if settings.scorer == "none" or "plan" not in tasks:
            return self._driver.answer(scene, tasks=tasks), None
        selected = self._selector(settings).plan(self._driver, scene)  # type: ignore[arg-type]
        others = [one for k, one in enumerate(selected.proposals.plans) if k != selected.index]
        checked = [checked_plan(one, scene.ego) if isinstance(one, Plan) else one for one in others]
        plans = sorted((p for p in checked if isinstance(p, Plan)), key=lambda plan: -plan.log_likelihood)
        drawn = Drawn(tuple(plans), len(checked) - len(plans), settings.candidate_temperature)
        rest = tuple(task for task in tasks if task != "plan")
        answers = self._driver.answer(scene, tasks=rest) if rest else {}
        return {"plan": selected.plan, **answers}, drawn

    def _selector(self, settings: Settings) -> Selector:
        """Made anew when its settings change. Imported here: nodes that choose nothing load no PyTorch for it."""
        from wamdiff2_core.select.choose import Selector
        from wamdiff2_core.select.propose import PACES, ProposalConfig

        paces = PACES if settings.candidate_paces else ()
        config = ProposalConfig(settings.candidates, (settings.candidate_temperature,), paces=paces)
        if self._chooser is None or (self._chooser.scorer, self._chooser.config) != (settings.scorer, config):
            self._chooser = Selector(settings.scorer, config)
        return self._chooser

    def draw(self, scene: Scene, settings: Settings) -> Answered:
        """`settings.candidates` further plans; those that nobody may drive are only counted."""
        turn_dial(self._driver, settings)
        started_s = time.monotonic()
        count, temperature = settings.candidates, settings.candidate_temperature
        try:
            drawn = self._driver.plan_candidates(scene, count, temperature)  # type: ignore[attr-defined]
        except MODEL_ERRORS as error:
            drawn = [Failure(FailureKind.INVALID, f"{type(error).__name__}: {error}")] * count
        took_ms = (time.monotonic() - started_s) * 1e3
        inference_ms = min(max((result.cost.total_ms for result in drawn), default=0.0), took_ms)
        checked = [checked_plan(plan, scene.ego) if isinstance(plan, Plan) else plan for plan in drawn]
        plans = sorted((p for p in checked if isinstance(p, Plan)), key=lambda plan: -plan.log_likelihood)
        result = Drawn(tuple(plans), len(checked) - len(plans), temperature)
        return Answered({}, (), result, took_ms - inference_ms, inference_ms)

    def _complete(self, given: Mapping[str, Result], tasks: Sequence[str]) -> dict[str, Result]:
        """A result for each task, whatever the driver gave: nothing for a task is a failure, not a gap."""
        missing = Failure(FailureKind.EMPTY, "the driver gave no answer to this task")
        results = {task: given.get(task, missing) for task in tasks}
        for task, result in results.items():
            if not isinstance(result, Result):
                results[task] = Failure(FailureKind.INVALID, f"the driver gave {type(result).__name__} to task {task}")
        return results

    def _checked(self, plan: Plan, scene: Scene, settings: Settings) -> tuple[Plan | Failure, tuple[str, ...]]:
        checked = checked_plan(plan, scene.ego)
        if isinstance(checked, Failure):
            return checked, ()
        said = self._said
        if said is None or not -ANSWER_HOLDS_S <= scene.stamp_s - said.stamp_s <= ANSWER_HOLDS_S:
            said = _Said("", "", 0.0)
        found = contradictions(checked.points, scene.ego, scene.instruction, said.question, said.text)
        return (withheld(checked, found) if found and settings.withhold_contradictions else checked), found

    def _remember(self, answer: Result | None, scene: Scene) -> None:
        if isinstance(answer, Answer):
            self._said = _Said(answer.question, answer.text, scene.stamp_s)
        elif answer is not None or scene.question is None:  # no answer now: the one before says nothing any more
            self._said = None
