"""Figures of LingoQA predictions: the share that its judge takes for right, and text scores under their own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wamdiff2_core.evaluate.judges.endpoint import EndpointJudge
from wamdiff2_core.evaluate.judges.lingo import LingoJudge
from wamdiff2_core.evaluate.judges.rubric import own_rubric
from wamdiff2_core.evaluate.lingoqa.data import OFFICIAL_QUESTIONS, Key, Sample
from wamdiff2_core.evaluate.text_scores import LIBRARY, TOKENIZERS, missing, text_scores

Answers = Mapping[Key, str | None]


@dataclass(frozen=True)
class Judges:
    """Who judges. None: nobody of this kind."""

    lingo: LingoJudge | None = None
    endpoint: EndpointJudge | None = None
    tokenizer: str = "ptb"


def score(samples: Sequence[Sample], answers: Answers, judges: Judges) -> tuple[dict[str, Any], list[list[object]]]:
    """The result, and a row for each question: question_id, segment_id, logit, right.

    Every question counts; one without an answer is wrong. `matched` figures are over the answered ones alone, as the
    official script counts where predictions are missing.
    """
    asked = [sample for sample in samples if answers.get(sample.key)]
    given = {sample.key: str(answers[sample.key]) for sample in asked}
    known = {sample.key for sample in samples}
    report: dict[str, Any] = {
        "questions": len(samples),
        "official_questions": OFFICIAL_QUESTIONS,
        "answered": len(asked),
        "no_answer": len(samples) - len(asked),
        "unknown_predictions": sum(key not in known for key in answers),
        "judge": None,
        "endpoint": None,
    }
    logits: dict[Key, float] = {}
    if judges.lingo is not None:
        verdicts = judges.lingo.verdicts(*_columns(asked, given))
        logits = {sample.key: verdict.logit for sample, verdict in zip(asked, verdicts, strict=True)}
        report["judge"] = _judged(judges.lingo, len(samples), logits)
    if judges.endpoint is not None:
        report["endpoint"] = _endpoint(judges.endpoint, asked, given, len(samples))
    report["text"] = _texts(samples, given, judges.tokenizer)
    return report, [_row(sample, logits) for sample in samples]


def _columns(asked: Sequence[Sample], given: Mapping[Key, str]) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    return [s.question for s in asked], [s.references for s in asked], [given[s.key] for s in asked]


def _judged(judge: LingoJudge, questions: int, logits: Mapping[Key, float]) -> dict[str, Any]:
    right = sum(logit > 0.0 for logit in logits.values())
    return {
        "name": judge.name,
        "why_not_official": judge.why_not,
        "folder": str(judge.folder),
        "weights": judge.weights,
        "right": right,
        "share_right": right / questions,
        "share_right_matched": right / len(logits) if logits else None,
    }


def _endpoint(
    judge: EndpointJudge, asked: Sequence[Sample], given: Mapping[Key, str], questions: int
) -> dict[str, Any]:
    """Mean score 0 to 100 over all questions; those without an answer count 0, those not judged make it None."""
    rubric = own_rubric()
    prompts = [rubric.prompt("PERCEPTION_VQA", s.question, " / ".join(s.references), given[s.key], None) for s in asked]
    verdicts = judge.judge(prompts)
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    problems = sorted({verdict.problem for verdict in verdicts if verdict.score is None})
    return {
        "name": f"{judge.endpoint.who} with {rubric.name}",
        "judged": len(scores),
        "not_judged": len(verdicts) - len(scores),
        "score": sum(scores) / questions if len(scores) == len(verdicts) else None,
        "problems": problems[:5],
    }


def _texts(samples: Sequence[Sample], given: Mapping[Key, str], tokenizer: str) -> dict[str, Any]:
    absent = missing(tokenizer)
    head = {"library": LIBRARY, "words": TOKENIZERS[tokenizer], "missing": absent}
    if absent:
        return {**head, "scores": None}
    said = [given.get(sample.key, "") for sample in samples]
    return {**head, "scores": text_scores(said, [sample.references for sample in samples], tokenizer)}


def _row(sample: Sample, logits: Mapping[Key, float]) -> list[object]:
    logit = logits.get(sample.key)
    return [*sample.key, "" if logit is None else f"{logit:.6f}", "" if logit is None else int(logit > 0.0)]
