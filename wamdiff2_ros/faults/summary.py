"""From what was written down to out/faults/summary.json, and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wamdiff2_ros.faults import check
from wamdiff2_ros.faults.bag_verdict import judge_bags
from wamdiff2_ros.faults.bench import Bench
from wamdiff2_ros.faults.events import read_events
from wamdiff2_ros.faults.kinds import by_name
from wamdiff2_ros.faults.naming import Window
from wamdiff2_ros.faults.processes import Life, growth_mb
from wamdiff2_ros.faults.run import NAMED_WITHIN_S, SEEN_ANSWERS, Injected, RunRecord, during, named_within_s

BEFORE_S = 4.0  # what was usual before a fault, where a counter must rise
EXAMPLES = 20
AT_A_KILL_S = 1.0  # of recording, lost from the end of a bag
Event = dict[str, Any]


@dataclass(frozen=True)
class Judge:
    """Limits of the verdict. `limits`: for plans. warm_up_s, least_s: for memory; named_slack_s: a slow machine's."""

    limits: check.Limits
    warm_up_s: float = 30.0
    least_s: float = 60.0
    named_slack_s: float = 0.0


def summarise(bench: Bench, record: RunRecord, judge: Judge, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole verdict. The bags are read, so their disk must still be there."""
    sensor_events = list(read_events(bench.sensor_log))
    heard = list(read_events(bench.witness_log))
    replies = [event for event in read_events(bench.log_path) if event["kind"] == "reply"]
    sensors = check.sensors_from(sensor_events, bench.cameras)
    plans = [e for e in heard if e["kind"] == "trajectory" and e["status"] == check.VALID]
    bad = check.bad_trajectories(sensors, heard, judge.limits)
    named = [name_of(fault, heard, replies, judge.named_slack_s) for fault in record.faults]
    bag_part = judge_bags(bench, [*sensor_events, *heard], record.faults)
    memory = memory_growth(bench.processes.lives, judge)
    unnamed = [f"{fault.name} {fault.target}" for fault, name in zip(record.faults, named) if name is None]
    lasting = [
        f"{fault.name} {fault.target} (an answer took {fault.answer_s:.1f} s before it)"
        for fault in record.faults
        if fault.recovered_s is None
    ]
    summary: dict[str, Any] = {
        **about,
        "seconds": round(record.ended_s - record.began_s, 1),
        "faults_injected": len(record.faults),
        "faults_named": len(named) - len(unnamed),
        "stale_or_invalid_published": len(bad),
        "lost_from_closed_chunks": bag_part["lost_from_closed_chunks"],
        "memory_growth_mb": max((m["growth_mb"] for m in memory.values() if m["growth_mb"] is not None), default=None),
        "plans": len(plans),
        "inference_s": round(check.inference_s(heard), 3),
        "not_named": unnamed,
        "not_recovered": lasting,
        "not_injected": record.not_injected,
        "ended_by_itself": record.ended_by_itself,
        "exit_codes": record.exit_codes,
        "kinds": by_kind(record.faults, named),
        "bags": bag_part,
        "memory": memory,
        "limits": vars(judge.limits)
        | {"named_within_s": NAMED_WITHIN_S + judge.named_slack_s, "and_answers": SEEN_ANSWERS},
        "bad_trajectories": [{**e, "during": during(record.faults, e["at_s"])} for e in bad[:EXAMPLES]],
    }
    summary["failures"] = failures(summary)
    return summary


def failures(summary: Mapping[str, Any]) -> list[str]:
    """Why the test is not passed; empty: it is."""
    found = []
    if not summary["faults_injected"]:
        found.append("no fault was injected")
    for count in ("stale_or_invalid_published", "lost_from_closed_chunks"):
        if summary[count]:
            found.append(f"{count}: {summary[count]}")
    for names in ("not_named", "not_recovered", "ended_by_itself"):
        if summary[names]:
            found.append(f"{names}: {', '.join(summary[names])}")
    if summary["bags"]["most_lost_at_a_kill_s"] > AT_A_KILL_S + summary["limits"]["slack_s"]:
        found.append(
            f"kill -9 of the recorder lost {summary['bags']['most_lost_at_a_kill_s']} s, at most {AT_A_KILL_S} s"
        )
    ended_badly = [f"{name}: {code}" for name, code in summary["exit_codes"].items() if code]
    if ended_badly:
        found.append(f"exit codes: {', '.join(ended_badly)}")
    return found


def name_of(
    fault: Injected, heard: Sequence[Event], replies: Sequence[Event], slack_s: float
) -> tuple[float, str] | None:
    """When and how a fault was named, within the limit."""
    limit_s = fault.start_s + named_within_s(fault) + slack_s
    before = [e for e in heard if fault.start_s - BEFORE_S <= e["at_s"] < fault.start_s]
    after = [e for e in [*heard, *replies] if fault.start_s <= e["at_s"] <= limit_s]
    return by_name(fault.name).named(Window(before, after, fault.start_s, fault.target))


def by_kind(faults: Sequence[Injected], named: Sequence[tuple[float, str] | None]) -> dict[str, Any]:
    """Per kind: how often, named how often, within (longest), recovered within (longest), and one example."""
    groups: dict[str, list[tuple[Injected, tuple[float, str] | None]]] = defaultdict(list)
    for fault, name in zip(faults, named):
        groups[fault.name].append((fault, name))
    rows = {}
    for kind, group in groups.items():
        names = [name for _, name in group if name is not None]
        back = [fault.recovered_s for fault, _ in group if fault.recovered_s is not None]
        rows[kind] = {
            "injected": len(group),
            "named": len(names),
            "named_within_s": round(max((at_s for at_s, _ in names), default=0.0), 2),
            "recovered": len(back),
            "recovered_within_s": round(max(back, default=0.0), 2),
            "as": names[0][1][:200] if names else "",
        }
    return rows


def memory_growth(lives: Sequence[Life], judge: Judge) -> dict[str, Any]:
    """Per process: growth over its longest life, and the size it had."""
    longest: dict[str, Life] = {}
    for life in lives:
        if len(life.memory) > len(longest[life.name].memory if life.name in longest else []):
            longest[life.name] = life
    rows = {}
    for name, life in longest.items():
        growth = growth_mb(life.memory, judge.warm_up_s, judge.least_s)
        rows[name] = {
            "growth_mb": None if growth is None else round(growth, 1),
            "median_mb": round(median(mb for _, mb in life.memory), 1),
            "lived_s": round(life.memory[-1][0] - life.memory[0][0], 1),
        }
    return rows


def table(summary: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    """Rows for printing: kind, injected, named, within s, recovered, within s, named as."""
    for kind, row in summary["kinds"].items():
        yield (
            kind, str(row["injected"]), str(row["named"]), f"{row['named_within_s']:.1f}", str(row["recovered"]),
            f"{row['recovered_within_s']:.1f}", row["as"],
        )  # fmt: skip


def write(path: Path, summary: Mapping[str, Any]) -> None:
    from wamdiff2_core.evaluate.summary import write_json

    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dict(summary))
