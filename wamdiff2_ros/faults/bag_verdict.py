"""Compares the bags that a fault test has left with what was published meanwhile."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wamdiff2_ros.faults import bags
from wamdiff2_ros.faults.bench import Bench
from wamdiff2_ros.faults.run import Injected, during

TRAJECTORY, STATS = "/wamdiff2/output/trajectory", "/wamdiff2/output/stats"


@dataclass
class Published:
    """Stamps by topic and life of the publisher, in the order of publication; steady time by topic and stamp.

    flood: topic and stamp of messages that came too fast for any history to hold: DDS drops of them on the way.
    """

    stamps: dict[bags.Source, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_s: dict[tuple[str, int], float] = field(default_factory=dict)
    flood: set[tuple[str, int]] = field(default_factory=set)

    def add(self, topic: str, life: int, stamp_ns: int, at_s: float) -> None:
        self.stamps[topic, life].append(stamp_ns)
        self.at_s[topic, stamp_ns] = at_s


def published(bench: Bench, events: Iterable[Mapping[str, Any]]) -> Published:
    """What sensors and driver said. The driver's life is known by when a message was heard."""
    starts_s = [life.started_s for life in bench.processes.lives if life.name == "wamdiff2"]
    said = Published()
    for event in events:
        at_s, topic = event["at_s"], f"{bench.prefix}/odometry"
        if event["kind"] in ("frame", "odometry"):
            topic = bench.topic(event["camera"]) if event["kind"] == "frame" else topic
            said.add(topic, event.get("life", 0), event["stamp_ns"], at_s)
            if event["flood"]:
                said.flood.add((topic, event["stamp_ns"]))
        elif event["kind"] == "trajectory":
            said.add(TRAJECTORY, bisect.bisect(starts_s, at_s), event["starts_ns"], at_s)
        elif event["kind"] == "stats":
            said.add(STATS, bisect.bisect(starts_s, at_s), event["stamp_ns"], at_s)
    return said


def judge_bags(bench: Bench, events: Iterable[Mapping[str, Any]], faults: Sequence[Injected]) -> dict[str, Any]:
    """A row per bag, the sum of what closed chunks lack, and how much a kill took from a bag's end (seconds)."""
    said = published(bench, events)
    lives = [life for life in bench.processes.lives if life.name == "recorder"]
    rows, total, at_a_kill = [], 0, [0.0]
    for folder, life in zip(bench.bags, lives):
        recorded = bags.read_closed(folder)
        missing = bags.lost(recorded.stamps, said.stamps)
        gone = [(topic, stamp) for topic, stamps in missing.items() for stamp in stamps]
        calm = [pair for pair in gone if pair not in said.flood]
        row: dict[str, Any] = {
            "bag": folder.name, "messages": recorded.count, "chunks": recorded.chunks, "cut": recorded.cut,
            "lost": len(calm), "lost_by_topic": dict(Counter(topic for topic, _ in calm)),
            "lost_during": dict(Counter(during(faults, said.at_s[pair]) for pair in calm).most_common(5)),
            "never_arrived_in_floods": len(gone) - len(calm),
        }  # fmt: skip
        total += len(calm)
        if life.by_force:
            last_s = max(
                (said.at_s.get((topic, stamp), 0.0) for topic, stamps in recorded.stamps.items() for stamp in stamps),
                default=0.0,
            )
            row["lost_at_the_kill_s"] = round(life.ended_s - max(last_s, life.started_s), 2)
            at_a_kill.append(row["lost_at_the_kill_s"])
        rows.append(row)
    return {"lost_from_closed_chunks": total, "most_lost_at_a_kill_s": max(at_a_kill), "bags": rows}
