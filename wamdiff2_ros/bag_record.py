"""A drive's bag as a DriveRecord: plans beside the expert's, boxes and answers beside the truth, moments to look at.

Messages of one moment carry one stamp (capture time of the images), so they are brought together by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.record import AnswerRecord, BoxRecord, DriveRecord, PlanRecord, Snapshot
from wamdiff2_core.overlay import overlay
from wamdiff2_core.scene import Box, Camera
from wamdiff2_ros.bag_writer import typestore
from wamdiff2_ros.images import compressed_to_rgb

SNAPSHOTS = 8
QUESTION_S = 2.0  # an answer later than this after the question is about another moment
STATUS_VALID = 0
UNKNOWN = 2


@dataclass
class _Heard:
    """Messages by stamp in nanoseconds, as they came."""

    plans: dict[int, Any] = field(default_factory=dict)
    stats: dict[int, Any] = field(default_factory=dict)
    boxes: dict[int, Any] = field(default_factory=dict)
    truth: dict[int, Any] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    status: dict[int, Any] = field(default_factory=dict)


TOPICS = {
    "/wamdiff2/output/trajectory": "plans",
    "/wamdiff2/output/stats": "stats",
    "/wamdiff2/output/boxes": "boxes",
    "/wamdiff2/output/answer": "answers",
    "/world/ground_truth/boxes": "truth",
    "/world/status": "status",
}


def read_drive(bag: Path, cameras: Sequence[Camera]) -> DriveRecord:
    """The record of a drive in the embedded world. DataError if the bag cannot be read or holds no such drive."""
    if not (bag / "metadata.yaml").is_file():
        raise DataError(f"{bag} is not a finished bag: it has no metadata.yaml")
    with AnyReader([bag], default_typestore=typestore()) as reader:
        heard = _Heard()
        for topic, message in _messages(reader, set(TOPICS)):
            getattr(heard, TOPICS[topic])[_stamp_ns(message)] = message
        if not heard.status:
            raise DataError(f"{bag} holds no /world/status: it is not a drive in the embedded world")
        record = _figures(heard)
        moments = _moments(heard, SNAPSHOTS)
        record.snapshots = _snapshots(reader, heard, moments, cameras)
    return record


def _messages(reader: AnyReader, topics: set[str]) -> Iterator[tuple[str, Any]]:
    wanted: list[Connection] = [connection for connection in reader.connections if connection.topic in topics]
    for connection, _, raw in reader.messages(connections=wanted):
        yield connection.topic, reader.deserialize(raw, connection.msgtype)


def _stamp_ns(message: Any) -> int:
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _figures(heard: _Heard) -> DriveRecord:
    statuses = [heard.status[ns] for ns in sorted(heard.status)]
    last = statuses[-1]
    record = DriveRecord(
        score={
            "route_completion": float(last.route_completion),
            "collisions": int(last.collisions),
            "red_lights": int(last.red_lights),
            "off_road_seconds": float(last.off_road_s),
            "comfort": float(last.comfort),
        },
        track=np.array([[s.time_s, s.x_m, s.y_m, s.speed_mps] for s in statuses]),
        plans=[_plan(ns, heard) for ns in sorted(heard.plans) if heard.plans[ns].status == STATUS_VALID],
        boxes=[
            BoxRecord(ns * 1e-9, _boxes(heard.boxes[ns]), _boxes(heard.truth[ns]))
            for ns in sorted(heard.boxes)
            if ns in heard.truth and heard.boxes[ns].status != UNKNOWN
        ],
        answers=_answers(heard),
    )
    if heard.stats:
        newest = heard.stats[max(heard.stats)]
        record.parse_failures = int(newest.failures_parse)
        record.frames_dropped = int(newest.frames_dropped)
        record.settings = {
            "block_size": int(newest.block_size),
            "steps": int(newest.steps),
            "threshold": round(float(newest.threshold), 4),
            "rule": newest.rule,
            "checkpoint": newest.checkpoint,
        }
    return record


def _plan(ns: int, heard: _Heard) -> PlanRecord:
    plan, stats = heard.plans[ns], heard.stats.get(ns)
    return PlanRecord(
        stamp_s=ns * 1e-9,
        points=np.column_stack([plan.raw_x_m, plan.raw_y_m]),
        expert=_expert(heard.status.get(ns)),
        latency_ms=float(stats.total_ms) if stats else 0.0,
        frame_age_ms=float(stats.frame_age_ms) if stats else 0.0,
        forwards=int(stats.forwards) if stats else 0,
        instruction=plan.instruction,
    )


def _expert(status: Any) -> np.ndarray | None:
    if status is None or not len(status.expert_x_m):
        return None
    return np.column_stack([status.expert_x_m, status.expert_y_m])


def _boxes(message: Any) -> tuple[Box, ...]:
    width, height = max(int(message.image_width), 1), max(int(message.image_height), 1)
    scale = (1000 / width, 1000 / height, 1000 / width, 1000 / height)
    boxes = []
    for box in message.boxes:
        corners = (box.x1_px, box.y1_px, box.x2_px, box.y2_px)
        x1, y1, x2, y2 = (round(float(value) * factor) for value, factor in zip(corners, scale, strict=True))
        boxes.append(Box(box.label, (x1, y1, x2, y2), float(box.confidence), box.camera))
    return tuple(boxes)


def _answers(heard: _Heard) -> list[AnswerRecord]:
    """The first answer after each question, with the truth at the moment of asking."""
    asked = [(ns, s.question, s.true_answer) for ns, s in sorted(heard.status.items()) if s.question and s.true_answer]
    records = []
    for ns, question, truth in asked:
        limit = ns + int(QUESTION_S * 1e9)
        fitting = [t for t, a in heard.answers.items() if ns <= t <= limit and a.question == question]
        if fitting:
            answer = heard.answers[min(fitting)]
            text = answer.text if answer.status == STATUS_VALID else ""
            records.append(AnswerRecord(min(fitting) * 1e-9, question, text, truth))
    return records


def _moments(heard: _Heard, count: int) -> list[int]:
    """Stamps spread over the drive, of moments with boxes where there are enough of them."""
    candidates = sorted(set(heard.boxes) & set(heard.plans)) or sorted(heard.plans) or sorted(heard.status)
    if not candidates:
        return []
    at = np.linspace(0, len(candidates) - 1, min(count, len(candidates))).round().astype(int)
    return [candidates[k] for k in at]


def _snapshots(
    reader: AnyReader, heard: _Heard, moments: list[int], cameras: Sequence[Camera]
) -> list[Snapshot]:
    topics = {f"/world/{camera.name}/image/compressed": camera for camera in cameras}
    pictures: dict[int, dict[str, np.ndarray]] = {ns: {} for ns in moments}
    for topic, message in _messages(reader, set(topics)):
        ns = _stamp_ns(message)
        if ns in pictures:
            name = topics[topic].name
            pictures[ns][name] = compressed_to_rgb(message.data)
    return [_snapshot(ns, pictures[ns], heard, cameras) for ns in moments if len(pictures[ns]) == len(cameras)]


def _snapshot(ns: int, pictures: dict[str, np.ndarray], heard: _Heard, cameras: Sequence[Camera]) -> Snapshot:
    plan, found, status = heard.plans.get(ns), heard.boxes.get(ns), heard.status.get(ns)
    points = None
    if plan is not None and plan.status == STATUS_VALID:
        points = np.column_stack([plan.raw_x_m, plan.raw_y_m])
    drawn = {}
    for camera in cameras:
        first = camera is cameras[0]
        boxes = _boxes(found) if found is not None and first else ()
        drawn[camera.name] = overlay(pictures[camera.name], camera, points, boxes)
    caption = plan.instruction if plan is not None else ""
    if status is not None:
        caption += f", {status.speed_mps * 3.6:.0f} km/h"
    return Snapshot(ns * 1e-9, drawn, caption)
