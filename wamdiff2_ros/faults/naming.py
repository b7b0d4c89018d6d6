"""Was a fault named? Looks through what the witness wrote down after the fault began, in /diagnostics and stats."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WARN = 1
STALE_S = 2.5  # a node that says nothing for so long is shown as STALE by diagnostic tools

Event = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """Events before the fault (some seconds) and from its start until the limit."""

    before: Sequence[Event]
    after: Sequence[Event]
    start_s: float
    target: str


Naming = Callable[[Window], tuple[float, str] | None]
"""When (seconds after the start) and with which words a fault was named; None: it was not."""


def diagnosed(pattern: str, least_level: int = WARN) -> Naming:
    """A status of that level whose `name: message` fits. `{target}` in the pattern is the fault's target."""

    def look(window: Window) -> tuple[float, str] | None:
        expression = re.compile(pattern.replace("{target}", re.escape(window.target)), re.IGNORECASE)
        for event in window.after:
            if event["kind"] == "status" and event["level"] >= least_level:
                text = f"{event['name']}: {event['message']}"
                if expression.search(text):
                    return event["at_s"] - window.start_s, text
        return None

    return look


def counted(value: str, name: str = "", least: float = 1.0) -> Naming:
    """A counter among the values of a status (whose name holds `name`) that rose by `least` above what it was before.

    A counter that first appears after the start counts from zero.
    """

    def look(window: Window) -> tuple[float, str] | None:
        wanted, holder = value.replace("{target}", window.target), name.replace("{target}", window.target)
        old: dict[str, float] = {}
        for event in [*window.before, *window.after]:
            if event["kind"] != "status" or holder not in event["name"] or wanted not in event["values"]:
                continue
            count = float(event["values"][wanted])
            if event["at_s"] < window.start_s:
                old[event["name"]] = count
            elif count - old.get(event["name"], 0.0) >= least:
                text = f"{event['name']}: {wanted} {count:.0f} (was {old.get(event['name'], 0.0):.0f})"
                return event["at_s"] - window.start_s, text
        return None

    return look


def faster(value: str, name: str, times: float) -> Naming:
    """A counter among the values of a status (whose name holds `name`) that rises `times` as fast as before."""

    def look(window: Window) -> tuple[float, str] | None:
        holder = name.replace("{target}", window.target)
        seen = [
            (event["at_s"], float(event["values"][value]))
            for event in [*window.before, *window.after]
            if event["kind"] == "status" and holder in event["name"] and value in event["values"]
        ]
        rates = [(b[0], (b[1] - a[1]) / max(b[0] - a[0], 0.5)) for a, b in pairwise(seen)]
        usual = max((rate for at_s, rate in rates if at_s < window.start_s), default=0.0)
        for at_s, rate in rates:
            if at_s >= window.start_s and usual > 0.0 and rate > times * usual:
                return at_s - window.start_s, f"{holder}: {value} {rate:.0f} a second, before {usual:.0f}"
        return None

    return look


def dropped(times: float) -> Naming:
    """Stats count dropped frames `times` as fast as before the fault, and at least ten."""

    def look(window: Window) -> tuple[float, str] | None:
        before = [(e["at_s"], e["frames_dropped"]) for e in window.before if e["kind"] == "stats"]
        usual = (before[-1][1] - before[0][1]) / max(before[-1][0] - before[0][0], 0.1) if len(before) > 1 else 0.0
        first: Event | None = None
        for event in window.after:
            if event["kind"] != "stats":
                continue
            first = first or event
            more, seconds = event["frames_dropped"] - first["frames_dropped"], event["at_s"] - first["at_s"]
            if more >= 10 and more > times * usual * seconds:
                return event["at_s"] - window.start_s, f"stats: {more:.0f} frames dropped in {seconds:.1f} s"
        return None

    return look


def fell_silent(name: str) -> Naming:
    """The node whose statuses begin with `name` says nothing any more: shown as STALE where diagnostics are watched."""

    def look(window: Window) -> tuple[float, str] | None:
        heard = [e["at_s"] for e in [*window.before, *window.after] if e["kind"] == "status"]
        mine = [
            e["at_s"] for e in [*window.before, *window.after] if e["kind"] == "status" and e["name"].startswith(name)
        ]
        if not mine or not heard:
            return None
        for at_s, then_s in zip(mine, [*mine[1:], max(heard)]):
            if then_s - at_s >= STALE_S and at_s + STALE_S > window.start_s:
                return at_s + STALE_S - window.start_s, f"{name}: no diagnostics for {STALE_S} s (STALE)"
        return None

    return look


def answered(pattern: str) -> Naming:
    """The node's answer to the request that was the fault (setting parameters)."""

    def look(window: Window) -> tuple[float, str] | None:
        for event in window.after:
            if event["kind"] == "reply" and re.search(pattern, event["text"], re.IGNORECASE):
                return event["at_s"] - window.start_s, event["text"]
        return None

    return look


def in_stats(field: str) -> Naming:
    """Stats show the value that was set (the target)."""

    def look(window: Window) -> tuple[float, str] | None:
        for event in window.after:
            if event["kind"] == "stats" and event[field] == float(window.target):
                return event["at_s"] - window.start_s, f"stats: {field} {window.target}"
        return None

    return look


def either(*ways: Naming) -> Naming:
    """The earliest of several."""

    def look(window: Window) -> tuple[float, str] | None:
        found = [named for way in ways if (named := way(window)) is not None]
        return min(found) if found else None

    return look
