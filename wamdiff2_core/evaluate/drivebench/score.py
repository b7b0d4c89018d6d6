"""Figures of DriveBench answers: accuracy by the option letter, text scores, and a judge's score where there is one.

Which entries belong to which figure is the official rule: by question type and tag. Entries that it does not use are
counted by reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.drivebench.data import Descriptions, Sample
from wamdiff2_core.evaluate.judges.endpoint import EndpointJudge
from wamdiff2_core.evaluate.judges.rubric import Rubric
from wamdiff2_core.evaluate.text_scores import LIBRARY, TOKENIZERS, missing, text_scores

# (question type, form): the official tag that puts an entry there, the first that fits, and the judge's prompt
PARTS = {
    ("perception", "VQA"): (2, "PERCEPTION_VQA"),
    ("perception", "MCQ"): (0, "PERCEPTION_MCQ"),
    ("prediction", "VQA"): (3, "PREDICTION_VQA"),
    ("planning", "VQA"): (1, "PLANNING_VQA"),
    ("behavior", "MCQ"): (0, "BEHAVIOR_MCQ"),
}
OFFICIAL_MODEL = re.compile(r"gpt-3\.5-turbo(-\d{4})?")
OFFICIAL_HOST = "api.openai.com"
OFFICIAL_SCORE = "GPT score"
_LETTERS = "ABCD"
_ANY = re.compile(r"\b([abcd])\b")
_FIRST = re.compile(
    r"\W*(?:(?:the )?(?:correct )?(?:answer|option)(?: is)?:?\s*)?\W*([a-d])(?:[.):,]|\s*$)", re.IGNORECASE
)
Part = tuple[str, str]


@dataclass(frozen=True)
class Asking:
    """A judge with its prompts. descriptions: of objects; without them prompts say nothing about their looks."""

    judge: EndpointJudge
    rubric: Rubric
    descriptions: Descriptions | None = None

    @property
    def name(self) -> str:
        """The official name only for the official model, where it is served, with official prompts and descriptions."""
        place = self.judge.endpoint
        described = self.descriptions is not None and self.descriptions.official
        asked = OFFICIAL_MODEL.fullmatch(place.model) and place.host == OFFICIAL_HOST
        if asked and described and self.rubric.official:
            return f"{OFFICIAL_SCORE} ({place.model})"
        return f"score by {place.who} with {self.rubric.name}"


def official_letter(text: str) -> str:
    """The letter that the official rule reads: the first of A, B, C, D, in this order, that stands alone anywhere in
    the text; so an article "a" is an A. Empty if there is none.
    """
    found = set(_ANY.findall(text.strip().lower()))
    return next((letter for letter in _LETTERS if letter.lower() in found), "")


def first_letter(text: str) -> str:
    """The letter that an answer begins with ("B.", "(b) going ahead", "The answer is B"), empty if it does not."""
    found = _FIRST.match(text)
    return found[1].upper() if found else ""


def parts(samples: Sequence[Sample]) -> tuple[dict[Part, list[Sample]], dict[str, int]]:
    """Entries by part, and how many belong to none, by reason."""
    found: dict[Part, list[Sample]] = {part: [] for part in PARTS}
    unused: Counter[str] = Counter()
    for sample in samples:
        part = next((p for p, (tag, _) in PARTS.items() if p[0] == sample.kind and tag in sample.tags), None)
        if part is None:
            unused[f"{sample.kind} with tag {list(sample.tags)} is in no figure"] += 1
        else:
            found[part].append(sample)
    return found, dict(unused)


def score(samples: Sequence[Sample], tokenizer: str = "ptb", asking: Asking | None = None) -> dict[str, Any]:
    """Figures by part. Entries without an answer are wrong, and empty texts; multiple-choice entries whose truth has
    no letter are in no figure and are counted.
    """
    by_part, unused = parts(samples)
    absent = missing(tokenizer)
    report: dict[str, Any] = {
        "samples": len(samples),
        "no_answer": sum(sample.pred is None for sample in samples),
        "unused": unused,
        "text": {"library": LIBRARY, "words": TOKENIZERS[tokenizer], "missing": absent},
        "judge": None if asking is None else asking.name,
        "parts": {},
    }
    for part, group in by_part.items():
        if group:
            made = _letters(group) if part[1] == "MCQ" else _texts(group, tokenizer, absent)
            judged = {} if asking is None else {"judge": _judged(part, group, asking)}
            report["parts"][" ".join(part)] = {"samples": len(group), **made, **judged}
    choices = [made for made in report["parts"].values() if made.get("choices")]
    report["choices"] = sum(made["choices"] for made in choices)
    report["accuracy"] = _mean(choices, "accuracy")
    report["accuracy_first_letter"] = _mean(choices, "accuracy_first_letter")
    return report


def _mean(made: Sequence[dict[str, Any]], name: str) -> float | None:
    count = sum(one["choices"] for one in made)
    return sum(one[name] * one["choices"] for one in made) / count if count else None


def _letters(group: Sequence[Sample]) -> dict[str, Any]:
    lettered = [sample for sample in group if official_letter(sample.truth)]
    said = [sample.pred or "" for sample in lettered]
    right = [official_letter(text) == official_letter(s.truth) for text, s in zip(said, lettered, strict=True)]
    strict = [first_letter(text) == official_letter(s.truth) for text, s in zip(said, lettered, strict=True)]
    count = len(lettered)
    return {
        "choices": count,
        "truth_without_letter": len(group) - count,
        "answers_without_letter": sum(not official_letter(text) for text in said),
        "accuracy": sum(right) / count if count else None,
        "accuracy_first_letter": sum(strict) / count if count else None,
    }


def _texts(group: Sequence[Sample], tokenizer: str, absent: Sequence[str]) -> dict[str, Any]:
    if absent:
        return {"scores": None}
    return {"scores": text_scores([s.pred or "" for s in group], [[s.truth] for s in group], tokenizer)}


def _judged(part: Part, group: Sequence[Sample], asking: Asking) -> dict[str, Any]:
    """Mean over the part; entries without an answer count 0. None where an entry could not be judged."""
    prompts, problems = [], Counter[str]()
    for sample in group:
        if sample.pred is None:
            continue
        try:
            looks = asking.descriptions.of(sample) if asking.descriptions else None
        except DataError as error:
            problems[str(error)] += 1
            continue
        prompts.append(asking.rubric.prompt(PARTS[part][1], sample.question, sample.truth, sample.pred, looks))
    verdicts = asking.judge.judge(prompts)
    problems.update(verdict.problem for verdict in verdicts if verdict.score is None)
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    return {
        "judged": len(scores),
        "not_answered": sum(sample.pred is None for sample in group),
        "not_judged": problems.total(),
        "score": None if problems else sum(scores) / len(group),
        "problems": dict(problems.most_common(5)),
    }
