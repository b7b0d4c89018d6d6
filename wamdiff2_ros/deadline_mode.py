"""Deadline mode of the driver: a chooser per kind of answer, measured at configure and while running.

The budget `deadline_ms` is for each batch of answers, from taking its frames to having the answers. Knows no rclpy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_core.scene import Failure, FailureKind
from wamdiff2_ros.deadline import Choice, Chooser, Dial, parse_dial
from wamdiff2_ros.parameters import Settings

TOO_SLOW = 2.0  # this many budgets: calibration leaves better settings, which are slower still, unmeasured
NOT_MEASURED = (FailureKind.INPUT, FailureKind.INVALID)  # nothing was decoded, or it broke off


@dataclass(frozen=True)
class DeadlineStatus:
    """For diagnostics: per kind of answer what was chosen and why."""

    budget_ms: float
    choices: Mapping[str, Choice]
    answers: int
    missed: int

    @property
    def unmet(self) -> list[str]:
        """Reasons of the kinds that no setting is fast enough for."""
        return [f"{kind}: {choice.reason}" for kind, choice in self.choices.items() if not choice.meets]


class DeadlineMode:
    """Used by the worker thread; `status` by others."""

    def __init__(self) -> None:
        self._choosers: dict[tuple[str, ...], Chooser] = {}
        self._dials: tuple[str, ...] = ()
        self._choices: dict[str, Choice] = {}
        self._answers = self._missed = 0
        self._lock = threading.Lock()

    def settings_for(self, settings: Settings, tasks: tuple[str, ...], now_s: float) -> tuple[Settings, str]:
        """The settings to answer with, and why; as they are, and "", where no deadline is set."""
        if not settings.deadline_ms:
            return settings, ""
        choice = self._chooser(settings, tasks).choose(settings.deadline_ms, now_s)
        with self._lock:
            self._choices["+".join(tasks)] = choice
        return replace(settings, block_size=choice.dial.block_size, steps=choice.dial.steps), choice.reason

    def measured(self, settings: Settings, tasks: tuple[str, ...], ms: float, results: Mapping[str, object]) -> None:
        """An answer with `settings` took `ms`. Answers that were not decoded say nothing about the cost."""
        broken = [r for r in results.values() if isinstance(r, Failure) and r.kind in NOT_MEASURED]
        if not settings.deadline_ms or broken:
            return
        self._chooser(settings, tasks).measured(Dial(settings.block_size, settings.steps), ms)
        with self._lock:
            self._answers += 1
            self._missed += ms > settings.deadline_ms

    @property
    def missed(self) -> int:
        """Answers that took longer than their budget."""
        return self._missed

    def status(self, settings: Settings) -> DeadlineStatus | None:
        """What is chosen now; None where no deadline is set."""
        if not settings.deadline_ms:
            return None
        with self._lock:
            return DeadlineStatus(settings.deadline_ms, dict(self._choices), self._answers, self._missed)

    def calibrate(
        self,
        settings: Settings,
        ask: Callable[[Settings, tuple[str, ...]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> list[str]:
        """Measure `settings.deadline_dials` on an `ask`, cheapest first, within `deadline_calibration_s`.

        Returns a line per measurement. A setting that raises is not used. ConfigError if none is left.
        """
        lines = []
        end_s = clock()
        kinds = kinds_of_answers(settings)
        for tasks in kinds:
            end_s = max(end_s, clock()) + settings.deadline_calibration_s / len(kinds)
            chooser = self._chooser(settings, tasks)
            for dial in reversed(chooser.dials):
                if clock() + 2e-3 * (chooser.costs.expected_ms(dial) or 0.0) >= end_s:
                    lines.append(f"{'+'.join(tasks)} {dial} and better: not measured, the time for calibration is over")
                    break
                ms = _measure(chooser, dial, settings, tasks, ask, clock, lines)
                if ms is not None and ms > TOO_SLOW * settings.deadline_ms:
                    break
        return lines

    def _chooser(self, settings: Settings, tasks: tuple[str, ...]) -> Chooser:
        if settings.deadline_dials != self._dials:
            self._choosers, self._dials = {}, settings.deadline_dials
        if tasks not in self._choosers:
            start = Dial(settings.block_size, settings.steps)
            self._choosers[tasks] = Chooser(map(parse_dial, settings.deadline_dials), start)
        return self._choosers[tasks]


def kinds_of_answers(settings: Settings) -> list[tuple[str, ...]]:
    """The batches that will usually be asked."""
    return [settings.tasks] if settings.batch_tasks else [(task,) for task in settings.tasks]


def _measure(
    chooser: Chooser,
    dial: Dial,
    settings: Settings,
    tasks: tuple[str, ...],
    ask: Callable[[Settings, tuple[str, ...]], object],
    clock: Callable[[], float],
    lines: list[str],
) -> float | None:
    """Milliseconds of the second of two answers: the first one also prepares what the next ones reuse."""
    chosen = replace(settings, block_size=dial.block_size, steps=dial.steps)
    ms = 0.0
    try:
        for _ in range(2):
            start_s = clock()
            ask(chosen, tasks)
            ms = (clock() - start_s) * 1e3
    except (Wamdiff2Error, RuntimeError) as error:  # RuntimeError: torch, such as out of memory
        lines.append(f"{'+'.join(tasks)} {dial}: does not run: {str(error).splitlines()[0]}")
        chooser.exclude(dial)
        return None
    chooser.costs.calibrated(dial, ms)
    lines.append(f"{'+'.join(tasks)} {dial}: {ms:.0f} ms")
    return ms
