"""Counters of the driver node, and the diagnostics made of them."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from wamdiff2_core.scene import Detections, Failure, FailureKind, Plan
from wamdiff2_ros.conversions import header
from wamdiff2_ros.deadline_mode import DeadlineStatus
from wamdiff2_ros.input_log import ERROR, OK, WARN, InputState
from wamdiff2_ros.worker import Outcome, Result

RATE_WINDOW_S = 5.0
LEVELS = {OK: DiagnosticStatus.OK, WARN: DiagnosticStatus.WARN, ERROR: DiagnosticStatus.ERROR}


class Health:
    """What happened since activation. Written by the worker and the watchdog, read for stats and diagnostics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.failures: Counter[FailureKind] = Counter()
        self.plans = 0
        self.boxes_dropped = 0  # of lists of boxes, those that no rectangle has
        self.contradictions = 0
        self.last_contradiction = ""
        self.last_failure = ""
        self.input_errors: dict[str, str] = {}
        self.degraded: dict[str, str] = {}
        self.last_outcome_s: float | None = None
        self._plan_times: deque[float] = deque()
        self._started_s = time.monotonic()

    def count(self, outcome: Outcome) -> None:
        """Count an outcome's plans and failures; its input errors replace the ones known before."""
        with self._lock:
            now_s = time.monotonic()
            self.last_outcome_s = now_s
            self.input_errors = dict(outcome.input_errors)
            self.degraded = dict(outcome.degraded)
            if outcome.contradictions:
                self.contradictions += 1
                self.last_contradiction = "; ".join(outcome.contradictions)[:300]
            for task, result in outcome.results.items():
                self._count_result(task, result, now_s)

    def count_missing(self, errors: Mapping[str, str]) -> None:
        """Count a period in which no scene could be made, and remember which topics were the reason."""
        with self._lock:
            self.failures[FailureKind.INPUT] += 1
            self.input_errors = dict(errors)

    def plan_hz(self) -> float:
        """Valid plans per second over the last five seconds (or since activation)."""
        with self._lock:
            now_s = time.monotonic()
            while self._plan_times and self._plan_times[0] < now_s - RATE_WINDOW_S:
                self._plan_times.popleft()
            return len(self._plan_times) / max(min(RATE_WINDOW_S, now_s - self._started_s), 0.2)

    def failure_counts(self) -> dict[FailureKind, int]:
        with self._lock:
            return dict(self.failures)

    def _count_result(self, task: str, result: Result, now_s: float) -> None:
        if isinstance(result, Failure):
            self.failures[result.kind] += 1
            self.last_failure = f"{task}: {result.kind.value}: {result.message}"[:300]
        elif isinstance(result, Plan):
            self.plans += 1
            self._plan_times.append(now_s)
        elif isinstance(result, Detections):
            self.boxes_dropped += result.dropped


def diagnostics(
    health: Health,
    stamp_s: float,
    name: str,
    inputs: Mapping[str, InputState],
    outputs: tuple[str, str] = (OK, ""),
    values: Mapping[str, object] | None = None,
) -> DiagnosticArray:
    """One status for the plans, one for each input topic, one for all outputs. `values`: further figures of the plans.

    `outputs`: (level, which subscriber gets nothing).
    """
    errors = dict(health.input_errors)
    statuses = [_plan_status(health, name, values or {})]
    statuses.extend(_input_status(name, topic, state, errors.get(topic, "")) for topic, state in inputs.items())
    statuses.append(_status(LEVELS[outputs[0]], f"{name}: outputs", outputs[1] or "no subscriber is shut out", {}))
    return DiagnosticArray(header=header(stamp_s, ""), status=statuses)


def _plan_status(health: Health, name: str, further: Mapping[str, object]) -> DiagnosticStatus:
    hz = health.plan_hz()
    if hz > 0.0:
        without = "".join(f"; {topic}: {why}" for topic, why in health.degraded.items())
        level = DiagnosticStatus.WARN if without else DiagnosticStatus.OK
        text = f"planning at {hz:.1f} Hz{without}"
    elif health.input_errors:
        reasons = "; ".join(f"{topic}: {problem}" for topic, problem in health.input_errors.items())
        level, text = DiagnosticStatus.ERROR, f"no plan: {reasons}"
    elif health.last_outcome_s is None:
        level, text = DiagnosticStatus.WARN, "no plan yet"
    else:
        level, text = DiagnosticStatus.ERROR, f"no plan: {health.last_failure or 'plan is not among the tasks'}"
    values: dict[str, object] = {"plans": health.plans, "last failure": health.last_failure, **further}
    values["impossible boxes left out"] = health.boxes_dropped
    values |= {"contradictions": health.contradictions, "last contradiction": health.last_contradiction}
    values.update({f"failures {kind.value}": count for kind, count in health.failure_counts().items()})
    return _status(level, f"{name}: plans", text, values)


def deadline_status(name: str, deadline: DeadlineStatus) -> DiagnosticStatus:
    """What was chosen for the budget; a warning while no setting meets it."""
    unmet = deadline.unmet
    level, text = (DiagnosticStatus.WARN, "; ".join(unmet)) if unmet else (DiagnosticStatus.OK, "the budget is met")
    values: dict[str, object] = {f"choice {kind}": choice.reason for kind, choice in deadline.choices.items()}
    values |= {"budget ms": deadline.budget_ms, "answers": deadline.answers, "answers over it": deadline.missed}
    return _status(level, f"{name}: deadline", text, values)


def _input_status(name: str, topic: str, state: InputState, problem: str) -> DiagnosticStatus:
    """`problem`: what the last scene had against the input."""
    if problem and state.level != ERROR:
        state = InputState(ERROR, problem, state.values)
    return _status(LEVELS[state.level], f"{name}: input {topic}", state.text, state.values)


def _status(level: bytes, name: str, text: str, values: Mapping[str, object]) -> DiagnosticStatus:
    pairs = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
    return DiagnosticStatus(level=level, name=name, message=text, hardware_id="wamdiff2", values=pairs)
