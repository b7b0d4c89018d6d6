"""What all answer grammars share: the decoded text with the probability of each of its tokens, and the failures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Failure, FailureKind

_SEPARATORS = frozenset('.,; \n[]{}":')


class Tokens(Protocol):
    """What a grammar asks of a tokenizer (see model/tokenizer.py)."""

    eos_id: int

    def single(self, text: str) -> int:
        """The id of the one token that `text` is; CheckpointError when it is not exactly one token."""
        ...


@dataclass(frozen=True)
class AnswerText:
    """A decoded answer. `tokens`: (start, end, probability) of each token, character offsets into `text`."""

    text: str
    tokens: tuple[tuple[int, int, float], ...] = ()

    def confidence(self, start: int, end: int) -> float:
        """Mean probability of the tokens inside text[start:end]; separators say nothing and do not count."""
        found = [p for a, b, p in self.tokens if a < end and b > start and set(self.text[a:b]) - _SEPARATORS]
        return math.fsum(found) / len(found) if found else 1.0


def as_answer(answer: AnswerText | str) -> AnswerText:
    """Bare text is an answer whose probabilities are not known (confidence 1)."""
    return AnswerText(answer) if isinstance(answer, str) else answer


def not_parsed(expected: str, text: str) -> Failure:
    return Failure(FailureKind.PARSE, f"expected {expected}", text)


def out_of_range(message: str, text: str) -> Failure:
    return Failure(FailureKind.RANGE, message, text)


def unknown_form(task: str, form: str, known: tuple[str, ...]) -> ConfigError:
    return ConfigError(f"answer format of task {task}: expected one of {', '.join(known)}; got {form!r}")
