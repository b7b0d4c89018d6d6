"""What came in on each topic and what was refused: named for a while, counted for good. Knows no rclpy."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

NAMED_S = 5.0  # how long a refusal is named after messages are good again

OK, WARN, ERROR = "ok", "warn", "error"
_ORDER = (OK, WARN, ERROR)


@dataclass(frozen=True)
class InputState:
    """How an input is: OK, WARN or ERROR, in words, with figures by name."""

    level: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)


def worst(states: list[tuple[str, str]]) -> tuple[str, str]:
    """(level, text) of several: the worst level, and all texts of it."""
    level = max((state[0] for state in states), key=_ORDER.index)
    return level, "; ".join(text for worse, text in states if worse == level and text)


@dataclass
class _Topic:
    received: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    last_good_s: float | None = None
    problem: str = ""
    problem_s: float = 0.0
    refusal: bool = True  # the problem is one, not just a warning


class InputLog:
    """By topic name; times on the steady clock. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}

    def accepted(self, topic: str) -> None:
        """A message that can be used."""
        with self._lock:
            entry = self._entry(topic)
            entry.received += 1
            entry.last_good_s = time.monotonic()

    def refused(self, topic: str, kind: str, text: str, found_later: bool = False) -> None:
        """A message that is not used: `kind` is what is counted, `text` says more.

        found_later: it was accepted before, and turned out to be bad when it was opened.
        """
        with self._lock:
            entry = self._entry(topic)
            entry.received += not found_later
            entry.refused[kind] += 1
            entry.problem, entry.problem_s, entry.refusal = text, time.monotonic(), True

    def noted(self, topic: str, kind: str) -> None:
        """Something worth counting about a message that is used all the same."""
        with self._lock:
            self._entry(topic).noted[kind] += 1

    def warned(self, topic: str, kind: str, text: str) -> None:
        """Something worth a warning that refuses no message."""
        self.noted(topic, kind)
        with self._lock:
            entry = self._entry(topic)
            entry.problem, entry.problem_s, entry.refusal = text, time.monotonic(), False

    def refused_total(self) -> int:
        """Refused messages of all topics."""
        with self._lock:
            return sum(entry.refused.total() for entry in self._topics.values())

    def heard_of(self, topic: str) -> bool:
        """Whether anything was ever said about the topic."""
        with self._lock:
            return topic in self._topics

    def last_good_s(self, topic: str) -> float | None:
        with self._lock:
            return self._entry(topic).last_good_s

    def problem(self, topic: str) -> str:
        """Why the newest message was refused; empty if it was not."""
        with self._lock:
            entry = self._entry(topic)
            return entry.problem if entry.refusal and entry.problem_s > (entry.last_good_s or 0.0) else ""

    def state(self, topic: str, now_s: float, required: bool) -> InputState:
        """How the topic is at steady time `now_s`. required: without a message it is an error."""
        with self._lock:
            entry = self._entry(topic)
            values = {"received": str(entry.received)}
            if entry.last_good_s is not None:
                values["seconds since last"] = f"{now_s - entry.last_good_s:.2f}"
            values |= {f"refused {kind}": str(count) for kind, count in entry.refused.items()}
            values |= {kind: str(count) for kind, count in entry.noted.items()}
            recent = bool(entry.problem) and now_s - entry.problem_s < NAMED_S
            if recent and not entry.refusal:
                return InputState(WARN, entry.problem, values)
            if recent and entry.problem_s > (entry.last_good_s or 0.0):
                return InputState(ERROR if required else WARN, entry.problem, values)
            if recent:
                return InputState(WARN, f"{entry.refused.total()} refused, the last: {entry.problem}", values)
            if entry.last_good_s is None:
                return InputState(ERROR if required else OK, "nothing received", values)
            return InputState(OK, "arriving" if required else "heard", values)

    def _entry(self, topic: str) -> _Topic:
        return self._topics.setdefault(topic, _Topic())
