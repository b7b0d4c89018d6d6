"""From a decoder's tokens to a task's typed answer, with what it cost."""

from __future__ import annotations

from dataclasses import replace

from wamdiff2_core.scene import Answer, Cost, Detections, Failure, FailureKind, Plan, Scene
from wamdiff2_core.tasks import ask, detect, plan
from wamdiff2_core.tasks.grammar import AnswerText

Result = Plan | Detections | Answer | Failure


def read_answer(
    task: str, form: str, status: str, answer: AnswerText, scene: Scene, limits: plan.PlanLimits, cost: Cost
) -> Result:
    """`status`: the decoder's word on the answer. Only a complete answer is parsed; an empty list of boxes is one."""
    if status == "complete" or (status == "empty" and task == "detect" and form == "fixed"):
        return replace(_parsed(task, form, answer, scene, limits), cost=cost)
    why = {
        "empty": "the model ended its answer before it began",
        "truncated": "the answer did not end within its limits of tokens and time",
        "invalid": "the model gave numbers that are no probabilities, or a mask as its answer",
    }
    return Failure(FailureKind(status), why[status], answer.text, cost)


def _parsed(task: str, form: str, answer: AnswerText, scene: Scene, limits: plan.PlanLimits) -> Result:
    if task == "detect":
        return detect.parse(answer, form)
    if task == "ask":
        return ask.parse(answer, form, scene.question or "")
    result = plan.parse(answer, form)
    if isinstance(result, Plan):
        problem = plan.implausible(result.points, scene.ego, limits)
        if problem:
            return Failure(FailureKind.RANGE, problem, answer.text)
    return result
