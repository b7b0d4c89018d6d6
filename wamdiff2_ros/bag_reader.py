"""A drive's bag as a DriveRecord: plans beside the expert's, boxes and answers beside the truth, moments to look at.

Messages of one moment carry one stamp (capture time of the images), so they are brought together by it. A bag that ends
early, or lacks a topic, gives a record of what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.record import AnswerRecord, BoxRecord, DriveRecord, PlanRecord
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import PLAN_POINTS, Box, Camera, FailureKind
from wamdiff2_core.tasks.detect import MAX_BOXES
from wamdiff2_ros.bag_clock import Clock
from wamdiff2_ros.bag_heard import Heard, hear
from wamdiff2_ros.bag_messages import STATUS_VALID, Bag, boxes_of, plan_points, stamp_ns
from wamdiff2_ros.bag_pictures import snapshots
from wamdiff2_ros.bag_topics import find_parts
from wamdiff2_ros.graph import share_folder
from wamdiff2_sim.data.entries import MIN_HEIGHT_UNITS, MIN_VISIBLE, MIN_WIDTH_UNITS
from wamdiff2_sim.question_kinds import kind_of
from wamdiff2_sim.roads.roadmap import load_map

QUESTION_S = 2.0  # an answer later than this after the question is about another moment
NEAR_ROUTE_M = 60.0


class NotADrive(DataError):
    """A bag that holds neither plans nor the world's status."""


def read_drive(folder: Path, cameras: Sequence[Camera], pictures: int = 12) -> DriveRecord:
    """The record of a drive, with that many moments to look at. NotADrive if the bag holds nothing of one."""
    bag = Bag(folder)
    parts = find_parts(bag.topics(), [camera.name for camera in cameras])
    heard = hear(bag, parts, Clock(bag, [parts.topics[c.name] for c in cameras if c.name in parts.topics]))
    if not heard.status and not heard.trajectory:
        raise NotADrive(
            f"{folder} holds neither /world/status nor /wamdiff2/output/trajectory: it is not the bag of a drive"
        )
    record = record_of(heard)
    record.settings["bag_finished"] = bag.finished
    record.snapshots = snapshots(bag, heard.trajectory, heard.boxes, heard.status, cameras, pictures)
    bag.close()
    return record


def finish_drive(
    folder: Path,
    out: Path,
    cameras: Sequence[Camera] | None = None,
    wall_seconds: float = 0.0,
    title: str = "wamdiff2 drive",
) -> dict[str, object]:
    """Write out/summary.json and out/report.html from a bag; returns the summary. `cameras` None: the demo's rig."""
    from wamdiff2_core.evaluate.machine import commit
    from wamdiff2_core.evaluate.report import write_report
    from wamdiff2_core.evaluate.summary import summarise, write_json

    record = read_drive(folder, cameras or load_rig(share_folder("config") / "rig_three.yaml"))
    record.wall_seconds = wall_seconds
    record.settings["commit"] = commit()
    summary = summarise(record)
    write_json(out / "summary.json", summary)
    write_report(out / "report.html", record, summary, title)
    return summary


def record_of(heard: Heard) -> DriveRecord:
    """What was said as a record, without pictures."""
    record = DriveRecord(
        plans=[_plan(ns, heard) for ns in sorted(heard.trajectory)],
        boxes=[
            BoxRecord(ns * 1e-9, boxes_of(heard.boxes[ns]), true_boxes(heard.true_boxes[ns]))
            for ns in sorted(heard.boxes)
            if ns in heard.true_boxes  # an answer that failed names no box, and misses those that were there
        ],
        answers=_answers(heard),
    )
    if heard.stats:
        _stats(record, [heard.stats[ns] for ns in sorted(heard.stats)])
    if heard.status:
        _status(record, [heard.status[ns] for ns in sorted(heard.status)])
    if heard.route:
        poses = heard.route[max(heard.route)].poses
        record.route = np.array([[p.pose.position.x, p.pose.position.y] for p in poses]).reshape(-1, 2)
    if record.settings.get("map") and len(record.track):
        record.lanes = _lanes(str(record.settings["map"]), record)
    return record


def _status(record: DriveRecord, statuses: Sequence[Any]) -> None:
    last = statuses[-1]
    record.score = {
        "route_completion": float(last.route_completion),
        "collisions": int(last.collisions),
        "red_lights": int(last.red_lights),
        "off_road_s": float(last.off_road_s),
        "comfort": float(last.comfort),
        "drive_ended": bool(last.done),
    }
    record.track = np.array([[stamp_ns(s) * 1e-9, s.x_m, s.y_m, s.speed_mps] for s in statuses])
    record.settings |= {"map": last.map_name, "seed": int(last.seed)}


def _stats(record: DriveRecord, stats: Sequence[Any]) -> None:
    newest = stats[-1]
    counts = {kind.value: _total(getattr(s, f"failures_{kind.value}", 0) for s in stats) for kind in FailureKind}
    record.failures = {kind: count for kind, count in counts.items() if count}
    record.parse_failures = record.failures.get(FailureKind.PARSE.value, 0)
    record.frames_dropped = _total(s.frames_dropped for s in stats)
    record.settings |= {
        "block_size": newest.block_size,
        "steps": newest.steps,
        "threshold": None if newest.threshold is None else round(float(newest.threshold), 4),
        "rule": newest.rule,
        "checkpoint": newest.checkpoint,
        "kernels": newest.kernels,
        "device": newest.device,
        "block_sizes_used": sorted({int(s.block_size) for s in stats if s.block_size is not None}),
    }


def _total(counts: Iterable[int | None]) -> int:
    """Sum of a counter that starts anew with every start of the driver; 0 where it was not recorded."""
    total = before = 0
    for count in (int(count) for count in counts if count is not None):
        total += count - before if count >= before else count
        before = count
    return total


def _plan(ns: int, heard: Heard) -> PlanRecord:
    plan, stats = heard.trajectory[ns], heard.stats.get(ns)
    return PlanRecord(
        stamp_s=ns * 1e-9,
        points=plan_points(plan),
        expert=expert_points(heard.status.get(ns)),
        latency_ms=_cost(stats, "total_ms"),
        frame_age_ms=_cost(stats, "frame_age_ms"),
        forwards=None if stats is None or stats.forwards is None else int(stats.forwards),
        instruction=plan.instruction or "",
        stamp_ns=ns,
    )


def _cost(stats: Any, name: str) -> float | None:
    value = getattr(stats, name, None)
    return None if value is None else float(value)


def expert_points(status: Any) -> np.ndarray | None:
    """The expert's points (8, 2) in a status message; None where it holds none."""
    if status is None or not len(status.expert_x_m) == len(status.expert_y_m) == PLAN_POINTS:
        return None
    return np.column_stack([status.expert_x_m, status.expert_y_m])


def true_boxes(message: Any) -> tuple[Box, ...]:
    """The boxes that the model was taught to name: the largest, big and visible enough (`data.entries`)."""
    area = {}
    for box in boxes_of(message):
        x1, y1, x2, y2 = (min(1000, max(0, value)) for value in box.xyxy)
        large = x2 - x1 >= MIN_WIDTH_UNITS and y2 - y1 >= MIN_HEIGHT_UNITS
        if large and box.confidence >= MIN_VISIBLE:
            area[Box(box.label, (x1, y1, x2, y2), 1.0, box.camera)] = (x2 - x1) * (y2 - y1)
    return tuple(sorted(area, key=lambda box: -area[box])[:MAX_BOXES])


def _answers(heard: Heard) -> list[AnswerRecord]:
    """The first answer after each question, with the truth at the moment of asking."""
    asked = [(ns, s.question, s.true_answer) for ns, s in sorted(heard.status.items()) if s.question and s.true_answer]
    records = []
    for ns, question, truth in asked:
        limit = ns + int(QUESTION_S * 1e9)
        fitting = [t for t, a in heard.answer.items() if ns <= t <= limit and a.question == question]
        if fitting:
            answer = heard.answer[min(fitting)]
            text = answer.text if answer.status == STATUS_VALID else ""
            records.append(AnswerRecord(min(fitting) * 1e-9, question, text, truth, kind_of(question)))
    return records


def _lanes(map_name: str, record: DriveRecord) -> list[np.ndarray]:
    """Centre lines (N, 2) of the map's lanes near the driven path and the route."""
    shown = np.vstack([record.track[:, 1:3], record.route[:, :2]])
    low, high = shown.min(axis=0) - NEAR_ROUTE_M, shown.max(axis=0) + NEAR_ROUTE_M
    lines = [lane.points[:, :2] for lane in load_map(map_name).lanes.values()]
    return [line for line in lines if ((line > low) & (line < high)).all(axis=1).any()]
