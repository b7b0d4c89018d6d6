"""Which kind a question is, by its words: evaluation counts right answers by kind."""

from __future__ import annotations

import re

from wamdiff2_sim.questions import WORDINGS

OTHER = "other"


def _pattern(wording: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+\}", wording)
    return re.compile(".+".join(re.escape(part) for part in parts))


_PATTERNS = [(kind, _pattern(wording)) for kind, wordings in WORDINGS.items() for wording in wordings]


def kind_of(question: str) -> str:
    """A key of `questions.WORDINGS`, or "other" for a question that this world does not ask."""
    text = question.strip().lower()
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(text)), OTHER)
