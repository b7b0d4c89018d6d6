"""The check of what the driver published, from what sensors and witness wrote down. Pure functions, no ROS.

Every trajectory that a car could drive must come from a group of frames that were really published, are whole, belong
to one moment of the current epoch, and were young enough; and from odometry that was whole and young enough.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from wamdiff2_ros.faults.timeline import epoch_of

VALID = 0
Event = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The node's own limits (seconds), and what the way from node to witness may add.

    slack_s: scheduling and transport; an answer may also take as long as it says in stats, up to max_plan_age_s.
    """

    max_frame_age_s: float
    max_plan_age_s: float
    sync_tolerance_s: float
    odometry_max_age_s: float
    slack_s: float


@dataclass
class Sensors:
    """What the sensors published: frames by camera and stamp, good odometry in the order of time, clock jumps."""

    frames: dict[str, dict[int, Event]] = field(default_factory=dict)
    stamps: dict[str, list[int]] = field(default_factory=dict)
    odometry_s: list[float] = field(default_factory=list)
    jumps: list[tuple[float, int]] = field(default_factory=list)  # (steady time, epoch that begins)

    def epoch(self, at_s: float) -> int:
        k = bisect.bisect_right(self.jumps, (at_s, 1 << 30))
        return self.jumps[k - 1][1] if k else 0


def sensors_from(events: Iterable[Event], cameras: Sequence[str]) -> Sensors:
    sensors = Sensors({name: {} for name in cameras})
    for event in events:
        if event["kind"] == "frame":
            sensors.frames[event["camera"]][event["stamp_ns"]] = event
        elif event["kind"] == "odometry" and event["good"]:
            sensors.odometry_s.append(event["at_s"])
        elif event["kind"] == "jump":
            sensors.jumps.append((event["at_s"], event["epoch"]))
    sensors.odometry_s.sort()
    sensors.stamps = {name: sorted(frames) for name, frames in sensors.frames.items()}
    return sensors


def inference_s(events: Sequence[Event]) -> float:
    """What an answer usually takes, by the node's own stats."""
    times = [event["total_ms"] * 1e-3 for event in events if event["kind"] == "stats" and event["total_ms"] > 1.0]
    return median(times) if times else 0.0


def bad_trajectories(sensors: Sensors, heard: Sequence[Event], limits: Limits) -> list[dict[str, Any]]:
    """Driveable trajectories that should not have been published, each with the reasons."""
    took_s = {e["stamp_ns"]: e["total_ms"] * 1e-3 for e in heard if e["kind"] == "stats" and "plan" in e["tasks"]}
    usual_s = inference_s(heard)
    bad = []
    for event in heard:
        if event["kind"] == "trajectory" and event["status"] == VALID:
            answer_s = max(took_s.get(event["stamp_ns"], usual_s), usual_s)
            reasons = problems(sensors, event, limits, answer_s)
            if reasons:
                bad.append({**event, "reasons": reasons})
    return bad


def problems(sensors: Sensors, trajectory: Event, limits: Limits, answer_s: float) -> list[str]:
    """What is wrong with one driveable trajectory that came `answer_s` after its scene was begun; empty: nothing."""
    heard_s, stamp_ns = trajectory["at_s"], trajectory["stamp_ns"]
    found = [] if trajectory["points"] and trajectory["finite"] else ["no points, or not all are finite"]
    frames = {name: _nearest(sensors, name, stamp_ns) for name in sensors.frames}
    if all(frame is None or frame["stamp_ns"] != stamp_ns for frame in frames.values()):
        return [*found, f"stamp {stamp_ns} is of no frame that was published"]
    for name, frame in frames.items():
        apart_s = abs(frame["stamp_ns"] - stamp_ns) * 1e-9 if frame else float("inf")
        if frame is None or apart_s > limits.sync_tolerance_s + 1e-4:
            found.append(f"{name}: no frame within {limits.sync_tolerance_s} s of the stamp")
        elif not frame["good"]:
            found.append(f"{name}: the frame was bad ({frame['content']})")
    oldest_s = min(frame["taken_s"] for frame in frames.values() if frame)
    limit_s = min(limits.max_frame_age_s + answer_s, limits.max_plan_age_s) + limits.slack_s
    if heard_s - oldest_s > limit_s:
        found.append(f"frame was {heard_s - oldest_s:.2f} s old, at most {limit_s:.2f} s")
    if epoch_of(stamp_ns) != sensors.epoch(heard_s - limits.slack_s) and epoch_of(stamp_ns) != sensors.epoch(heard_s):
        found.append(f"frame of epoch {epoch_of(stamp_ns)} after the clock jumped to {sensors.epoch(heard_s)}")
    return found + _odometry_problem(sensors, heard_s, limits, answer_s)


def _odometry_problem(sensors: Sensors, heard_s: float, limits: Limits, answer_s: float) -> list[str]:
    k = bisect.bisect_right(sensors.odometry_s, heard_s)
    age_s = heard_s - sensors.odometry_s[k - 1] if k else float("inf")
    limit_s = limits.odometry_max_age_s + answer_s + limits.slack_s
    return [f"odometry was {age_s:.2f} s old, at most {limit_s:.2f} s"] if age_s > limit_s else []


def _nearest(sensors: Sensors, camera: str, stamp_ns: int) -> Event | None:
    """The camera's frame whose stamp is nearest, among those of the same epoch (if it has any)."""
    stamps = sensors.stamps[camera]
    k = bisect.bisect_left(stamps, stamp_ns)
    near = [s for s in stamps[max(0, k - 3) : k + 3] if epoch_of(s) == epoch_of(stamp_ns)]
    return sensors.frames[camera][min(near, key=lambda s: abs(s - stamp_ns))] if near else None
