"""Runs the fault test: waits until the node plans, makes a fault, undoes it, waits until it plans again, and so on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros.faults.bench import Bench
from wamdiff2_ros.faults.events import EventLog
from wamdiff2_ros.faults.kinds import Kind
from wamdiff2_ros.supervisor import last_lines

VALID = 0
TURN_S = 0.05
MEMORY_PERIOD_S = 2.0
NAMED_WITHIN_S = 5.0
ADAPT_ANSWERS = 4  # looked at to see how fast this machine is
MOST_ENDS = 5  # of processes by themselves, before the run is given up
SEEN_ANSWERS = 2.0
RECOVER_ANSWERS = 5.0  # in the time of so many answers more, the node plans again
LEAST_AGE_S, MOST_AGE_S = 1.0, 10.0


class NeverPlanned(Wamdiff2Error):
    """The driver gave no plan, or a process ended, although no fault was made."""


@dataclass
class Injected:
    """A fault that was made. Steady times; `recovered_s`: from the end of the fault to the next plan, None: never."""

    name: str
    target: str
    start_s: float
    cleared_s: float = 0.0
    end_s: float = 0.0
    recovered_s: float | None = None
    answer_s: float = 0.0  # what an answer took then


@dataclass
class RunRecord:
    """What the controller did."""

    faults: list[Injected] = field(default_factory=list)
    not_injected: dict[str, str] = field(default_factory=dict)  # kind: why
    exit_codes: dict[str, int] = field(default_factory=dict)
    ended_by_itself: list[str] = field(default_factory=list)
    first_plan_s: float = 0.0
    answer_s: float = 0.0  # what an answer takes on this machine, while nothing is wrong
    began_s: float = 0.0
    ended_s: float = 0.0


def during(faults: Iterable[Injected], at_s: float) -> str:
    """The fault that was going on, or the last one, and whole seconds since its start."""
    earlier = [fault for fault in faults if fault.start_s <= at_s]
    return f"{earlier[-1].name} +{at_s - earlier[-1].start_s:.0f} s" if earlier else "before the first"


def named_within_s(fault: Injected) -> float:
    """Most seconds until a fault must have been named: five, and two answers of a node that is slow."""
    return NAMED_WITHIN_S + SEEN_ANSWERS * fault.answer_s


class Tail:
    """New events of a file that another process is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[dict[str, Any]]:
        import json

        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Runner:
    """`say` takes a line for the console. `recover_s`: most seconds from the end of a fault to the next plan."""

    def __init__(self, bench: Bench, say: Callable[[str], None], recover_s: float, start_s: float) -> None:
        self._bench = bench
        self._say = say
        self._recover_s = recover_s
        self._start_s = start_s
        self._tail = Tail(bench.witness_log)
        self._next_memory_s = 0.0
        self._plan_s = self._ok_s = 0.0  # steady time of the newest plan and of the newest good diagnosis
        self._took_s: list[float] = []  # answers, by the node's stats
        self.record = RunRecord(began_s=time.monotonic())

    def run(self, kinds: Iterable[Kind], seconds: float) -> RunRecord:
        """Start everything, go through `kinds` for so long after the first plan, end everything."""
        record, log = self.record, self._bench.log
        record.ended_by_itself = self._bench.processes.died
        self._bench.start()
        try:
            if not self._healthy(self._start_s):
                raise NeverPlanned(
                    f"no plan within {self._start_s:.0f} s\n{last_lines(self._bench.processes.life('wamdiff2').log)}"
                )
            record.first_plan_s = self._plan_s - record.began_s
            self._adapt()
            until_s = time.monotonic() + seconds
            for kind in kinds:
                if time.monotonic() >= until_s:
                    break
                self._one(kind, log)
            self._wait(1.0)
        finally:
            record.ended_s = time.monotonic()
            record.exit_codes = self._bench.processes.end_all()
        return record

    def _adapt(self) -> None:
        """Set the limit on the age of a plan to what this machine can keep, with room for one that is busy."""
        until_s = time.monotonic() + self._start_s
        while len(self._took_s) < ADAPT_ANSWERS:
            if time.monotonic() > until_s:
                raise NeverPlanned(f"{len(self._took_s)} stats within {self._start_s:.0f} s")
            self._turn()
        usual_s = sorted(self._took_s)[len(self._took_s) // 2]
        self.record.answer_s = usual_s
        self._bench.processes.grace_s += RECOVER_ANSWERS * usual_s
        self._recover_s += RECOVER_ANSWERS * usual_s
        limit_s = round(min(MOST_AGE_S, LEAST_AGE_S + 3.0 * usual_s), 2)
        self._say(f"an answer takes {usual_s:.2f} s here: plans may be {limit_s} s old at most")
        self._bench.adapt({"max_plan_age_s": limit_s})

    def _one(self, kind: Kind, log: EventLog) -> None:
        if kind.needs_mount and not self._bench.disk.mounted:
            if kind.name not in self.record.not_injected:
                self._say(f"{kind.name}: not injected: {self._bench.disk.why_not}")
            self.record.not_injected[kind.name] = self._bench.disk.why_not
            return
        fault = Injected(kind.name, "", time.monotonic(), answer_s=max(self._took_s[-5:]))
        fault.target = kind.inject(self._bench)
        # Pictures are opened when it is their turn: a slow node must have time to meet the broken ones.
        self._wait(kind.seconds + SEEN_ANSWERS * fault.answer_s)
        kind.clear(self._bench, fault.target)
        fault.cleared_s = time.monotonic()
        limit_s = self._recover_s + (self._start_s if kind.ends_driver else 0.0)
        if self._healthy(limit_s):
            fault.recovered_s = max(0.0, self._plan_s - fault.cleared_s)
        # What is asked for within five seconds must have had them, before the next fault muddles the diagnosis.
        self._wait(max(0.0, fault.start_s + named_within_s(fault) - time.monotonic()))
        fault.end_s = time.monotonic()
        self.record.faults.append(fault)
        log.write("fault", **asdict(fault))
        again = "not again" if fault.recovered_s is None else f"again after {fault.recovered_s:.1f} s"
        self._say(f"{fault.start_s - self.record.began_s:6.1f} s  {kind.name:18} {fault.target:42} plans {again}")

    def _healthy(self, limit_s: float) -> bool:
        """Wait until a plan came after now and the diagnosis is good again; False if not within the limit."""
        since_s = time.monotonic()
        while not (self._plan_s > since_s and self._ok_s > since_s):
            if time.monotonic() > since_s + limit_s:
                return False
            self._turn()
        return True

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._turn()

    def _turn(self) -> None:
        time.sleep(TURN_S)
        for event in self._tail.read():
            if event["kind"] == "trajectory" and event["status"] == VALID and not self._plan_s > event["at_s"]:
                self._plan_s = event["at_s"]
            if event["kind"] == "stats" and "plan" in event["tasks"]:
                self._took_s.append(event["total_ms"] * 1e-3)
            if event["kind"] == "status" and event["name"] == "wamdiff2: plans" and event["level"] == 0:
                self._ok_s = event["at_s"]
        if time.monotonic() >= self._next_memory_s:
            self._next_memory_s = time.monotonic() + MEMORY_PERIOD_S
            for name in self._bench.processes.look():
                self._again(name)

    def _again(self, name: str) -> None:
        """A process has ended by itself: a failure, but the run goes on with a new one unless it ends each time."""
        words = f"{name} has ended by itself\n{last_lines(self._bench.processes.life(name).log)}"
        if not self.record.faults or len(self.record.ended_by_itself) > MOST_ENDS:
            raise NeverPlanned(words)
        self._say(words)
        self._bench.processes.start(name)
