"""Share of right answers to questions whose answer is known."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_SPACE = re.compile(r"\s+")


def normalise(text: str) -> str:
    """Lower case, single spaces, no final full stop: the only differences between two answers that are forgiven."""
    return _SPACE.sub(" ", text.lower()).strip().rstrip(".").rstrip()


@dataclass(frozen=True)
class AnswerScore:
    """`correct` is the share of answers equal to the truth after `normalise`, over all and by kind of question."""

    correct: float
    by_kind: dict[str, float]
    count: int


def answer_score(rows: Iterable[tuple[str, str | None, str]]) -> AnswerScore:
    """Score rows of (kind, answer or None where there is none, truth). NaN over no rows."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for kind, answer, truth in rows:
        hits[kind].append(answer is not None and normalise(answer) == normalise(truth))
    every = [hit for kind_hits in hits.values() for hit in kind_hits]
    correct = sum(every) / len(every) if every else float("nan")
    return AnswerScore(correct, {kind: sum(h) / len(h) for kind, h in sorted(hits.items())}, len(every))
