"""Deadline mode: which block size and steps meet a budget in milliseconds, from what was measured here.

Quality, best first: more denoising steps per token; among equals the smaller block. The best setting that is expected
to fit is taken. Pure: time and milliseconds are given; the worker measures, and one thread uses an object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from wamdiff2_core.errors import ConfigError

RECENT = 10  # answers that say how slow the machine is now
LEARN, OUTLIER = 0.2, 1.25  # how fast a setting's own cost follows what is measured; further off is a spike
LEARN_FROM = 3  # the last answers with another setting, which it is compared with
LEAST = 0.1  # an unmeasured setting costs no less than this part of the most similar one
SHORTEST_MS = 1e-3  # what a clock that did not move counts as
DOWN_FIT = 0.9  # a setting to step down to must be expected within this part of the budget
UP_FIT = 0.85  # one to step up to must leave more room, so that it is not left again at once
STAY = 10  # answers with a setting before a better one is tried
PATIENCE_S, PATIENCE_MOST_S = 2.0, 60.0  # after a step down, how long none is made up: doubles each time
FORGIVE_S = 30.0  # that long without a step down beyond the wait: patience starts small again


@dataclass(frozen=True)
class Dial:
    """A block size and the most steps per block."""

    block_size: int
    steps: int

    @property
    def passes(self) -> float:
        """Most forward passes per answer token."""
        return min(self.steps, self.block_size) / self.block_size

    def __str__(self) -> str:
        return f"{self.block_size}x{self.steps}"


def parse_dial(text: str) -> Dial:
    """'16x8': blocks of 16, 8 steps. ConfigError if it is not of that form."""
    block, cross, steps = text.partition("x")
    if not (cross and block.isdecimal() and steps.isdecimal() and 1 <= int(block) <= 256 and 1 <= int(steps) <= 256):
        raise ConfigError(f"{text!r} is no setting like 16x8 (block size x steps, each 1..256)")
    return Dial(int(block), int(steps))


def best_first(dials: Iterable[Dial]) -> list[Dial]:
    """In the order of quality that is stated above."""
    return sorted(set(dials), key=lambda dial: (-dial.passes, dial.block_size))


@dataclass(frozen=True)
class Choice:
    """`expected_ms`: 9 of 10 answers should be faster; None: nothing is known. `meets`: that is within the budget."""

    dial: Dial
    expected_ms: float | None
    meets: bool
    reason: str


class Costs:
    """What settings cost, measured: each one's milliseconds at the usual load, and one factor for the load of now.

    The factor is learnt from whatever setting is in use, so a spike or its end changes the expectation for all of
    them, also for those that have not run since.
    """

    def __init__(self) -> None:
        self._usual_ms: dict[Dial, float] = {}
        self._ratios: deque[tuple[Dial, float]] = deque(maxlen=RECENT)  # measured / usual

    def calibrated(self, dial: Dial, ms: float) -> None:
        """A measurement on an undisturbed machine."""
        self._usual_ms[dial] = max(ms, SHORTEST_MS)

    def measured(self, dial: Dial, ms: float) -> None:
        """An answer with `dial` took `ms`."""
        ms = max(ms, SHORTEST_MS)
        load = median(self._last_ratios()) if self._ratios else 1.0
        usual_ms = self._usual_ms[dial] = self._usual(dial) if dial in self._usual_ms else ms / load
        self._ratios.append((dial, ms / usual_ms))
        others = [ratio for other, ratio in self._ratios if other != dial][-LEARN_FROM:]
        if len(others) == LEARN_FROM:  # just switched: the settings beside each other, at about the same load
            off = ms / usual_ms / median(others)
            self._usual_ms[dial] = usual_ms * min(max(off, 1.0 / OUTLIER), OUTLIER) ** LEARN

    @property
    def load(self) -> float:
        """90th percentile of measured / usual over the last answers: a single outlier among ten does not count."""
        ordered = sorted(self._last_ratios())
        if not ordered:
            return 1.0
        return ordered[-2] if len(ordered) > 2 else ordered[-1]

    def _last_ratios(self) -> list[float]:
        return [ratio for _, ratio in self._ratios]

    def expected_ms(self, dial: Dial) -> float | None:
        """For a setting never measured: on the line through the two most similar in passes that were.

        From a single one: as if forward passes were all of the cost, which they are not, so rather too much.
        """
        if not self._usual_ms:
            return None
        return self._usual(dial) * self.load

    def _usual(self, dial: Dial) -> float:
        """Fewer passes do not cost more: one disturbed measurement must not keep a setting out for ever."""
        usual_ms = self._usual_ms.get(dial)
        more = [ms for other, ms in self._usual_ms.items() if other.passes > dial.passes]
        return min([self._guess_ms(dial) if usual_ms is None else usual_ms, *more])

    def _guess_ms(self, dial: Dial) -> float:
        by_passes = {other.passes: ms for other, ms in self._usual_ms.items()}
        near, *others = sorted(by_passes, key=lambda passes: abs(passes - dial.passes))
        if not others:
            return by_passes[near] * dial.passes / near
        slope = max((by_passes[others[0]] - by_passes[near]) / (others[0] - near), 0.0)
        return max(by_passes[near] + slope * (dial.passes - near), LEAST * by_passes[near])


class Chooser:
    """Picks a setting for each answer of one kind. Steps down at once, up with patience."""

    def __init__(self, dials: Iterable[Dial], start: Dial) -> None:
        """`start`: used while nothing has been measured."""
        self._dials = best_first(dials)
        self._start = start
        self.costs = Costs()
        self._current: Dial | None = None
        self._budget_ms = 0.0
        self._used = 0
        self._patience_s = PATIENCE_S
        self._up_from_s = 0.0

    @property
    def dials(self) -> list[Dial]:
        """Those that may be chosen, best first."""
        return list(self._dials)

    def exclude(self, dial: Dial) -> None:
        """Never choose this one (it does not run). ConfigError if it was the last."""
        self._dials = [other for other in self._dials if other != dial]
        if not self._dials:
            raise ConfigError(f"no setting for the deadline is left: the last, {dial}, does not run either")

    def measured(self, dial: Dial, ms: float) -> None:
        """An answer with `dial` took `ms`."""
        self.costs.measured(dial, ms)
        self._used += dial == self._current

    def choose(self, budget_ms: float, now_s: float) -> Choice:
        """The setting for the next answer."""
        if budget_ms != self._budget_ms:
            self._budget_ms, self._current = budget_ms, None
            self._patience_s, self._up_from_s = PATIENCE_S, now_s
        expected = {dial: ms for dial in self._dials if (ms := self.costs.expected_ms(dial)) is not None}
        if not expected:
            return Choice(self._start, None, True, f"{self._start}: nothing has been measured yet")
        before = self._current
        if before is None:
            dial = self._fitting(self._dials, expected, DOWN_FIT)
        elif expected[before] > budget_ms:
            dial = self._down(before, expected, now_s)
        else:
            dial = self._up(before, expected, now_s)
        if dial != before:
            self._current, self._used = dial, 0
        meets = expected[dial] <= budget_ms
        return Choice(dial, expected[dial], meets, self._reason(before, dial, expected))

    def _fitting(self, dials: Iterable[Dial], expected: dict[Dial, float], part: float) -> Dial:
        """The best of `dials` within that part of the budget, else the fastest of all."""
        fitting = (dial for dial in dials if expected[dial] <= part * self._budget_ms)
        return next(fitting, min(self._dials, key=lambda dial: (expected[dial], dial.passes)))

    def _down(self, before: Dial, expected: dict[Dial, float], now_s: float) -> Dial:
        cheaper = [dial for dial in self._dials if (expected[dial], dial.passes) < (expected[before], before.passes)]
        if not cheaper:
            return before
        if now_s > self._up_from_s + FORGIVE_S:
            self._patience_s = PATIENCE_S
        self._up_from_s = now_s + self._patience_s
        self._patience_s = min(2.0 * self._patience_s, PATIENCE_MOST_S)
        return self._fitting(cheaper, expected, DOWN_FIT)

    def _up(self, before: Dial, expected: dict[Dial, float], now_s: float) -> Dial:
        if self._used < STAY or now_s < self._up_from_s:
            return before
        better = self._dials[: self._dials.index(before)]
        for dial in better:
            if expected[dial] <= UP_FIT * self._budget_ms:
                return dial
        return before

    def _reason(self, before: Dial | None, dial: Dial, expected: dict[Dial, float]) -> str:
        budget = f"{self._budget_ms:.0f} ms"
        if expected[dial] > self._budget_ms:
            return f"no setting meets {budget}: the fastest, {dial}, is expected to take {expected[dial]:.0f} ms"
        text = f"{dial}: expected {expected[dial]:.0f} of {budget}"
        index = self._dials.index(dial)
        if index:
            better = self._dials[index - 1]
            text += f"; next better {better}: {expected[better]:.0f} ms"
        if before is not None and before != dial:
            text += f"; before {before}: {expected[before]:.0f} ms"
        return f"{text}; load {self.costs.load:.2f}"
