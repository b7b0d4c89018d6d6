"""Messages of a bag folder, whatever state it is in: finished (metadata.yaml is there) or cut short."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.typesys.store import Typestore

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Box
from wamdiff2_ros.bag_writer import typestore
from wamdiff2_ros.mcap_scan import Scan

STATUS_VALID = 0  # of Trajectory and Answer
BOXES_UNKNOWN = 2


class Bag:
    """`finished` False: the recorder was not allowed to close the bag, and its last second or so may be missing."""

    def __init__(self, path: Path) -> None:
        """DataError if there is no bag in the folder."""
        self.path = path if path.is_dir() else path.parent
        self.finished = (self.path / "metadata.yaml").is_file()
        self._files = sorted(self.path.glob("*.mcap"))
        if not self.finished and not self._files:
            raise DataError(f"{path} is no bag: expected a folder with metadata.yaml or .mcap files in it")

    def messages(self, topics: Collection[str]) -> Iterator[tuple[str, Any]]:
        """(topic, message) of these topics, in the order of recording."""
        yield from self._finished(topics) if self.finished else self._cut(topics)

    def topics(self) -> dict[str, str]:
        """Type of every topic."""
        if self.finished:
            with self._reader() as reader:
                return {connection.topic: connection.msgtype for connection in reader.connections}
        found: dict[str, str] = {}
        for file in self._files:
            scan = Scan(file)
            for _ in scan.messages():
                pass
            found |= scan.topics
        return found

    def _reader(self) -> AnyReader:
        try:
            return AnyReader([self.path], default_typestore=typestore())
        except AnyReaderError as error:
            raise DataError(f"{self.path} cannot be read as a bag: {error}") from error

    def _finished(self, topics: Collection[str]) -> Iterator[tuple[str, Any]]:
        try:
            with self._reader() as reader:
                wanted = [connection for connection in reader.connections if connection.topic in topics]
                if not wanted:
                    return
                for connection, _, raw in reader.messages(connections=wanted):
                    yield connection.topic, reader.deserialize(raw, connection.msgtype)
        except AnyReaderError as error:
            raise DataError(f"{self.path} cannot be read as a bag: {error}") from error

    def _cut(self, topics: Collection[str]) -> Iterator[tuple[str, Any]]:
        store: Typestore = typestore()
        for file in self._files:
            for topic, kind, raw in Scan(file).messages():
                if topic in topics and kind in store.fielddefs:
                    yield topic, store.deserialize_cdr(raw, kind)


def stamp_ns(message: Any) -> int:
    """Nanoseconds of a message's header stamp."""
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)


def plan_points(plan: Any) -> np.ndarray | None:
    """Points (8, 2) of a trajectory message; None where no plan was given."""
    if plan is None or plan.status != STATUS_VALID or len(plan.raw_x_m) != len(plan.raw_y_m) or not len(plan.raw_x_m):
        return None
    return np.column_stack([plan.raw_x_m, plan.raw_y_m])


def boxes_of(message: Any) -> tuple[Box, ...]:
    """Boxes of a message in relative units 0-1000 of its image."""
    width, height = max(int(message.image_width), 1), max(int(message.image_height), 1)
    scale = (1000 / width, 1000 / height, 1000 / width, 1000 / height)
    boxes = []
    for box in message.boxes:
        corners = (box.x1_px, box.y1_px, box.x2_px, box.y2_px)
        x1, y1, x2, y2 = (round(float(value) * factor) for value, factor in zip(corners, scale, strict=True))
        boxes.append(Box(box.label, (x1, y1, x2, y2), float(box.confidence), box.camera))
    return tuple(boxes)
