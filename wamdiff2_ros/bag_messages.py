"""Messages of a bag in whatever state: MCAP or SQLite, split, compressed, cut short, with or without metadata."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import PLAN_POINTS, Box
from wamdiff2_ros.bag_files import bag_files, open_file, read_metadata
from wamdiff2_ros.bag_storage import Storage, StoredTopic
from wamdiff2_ros.bag_types import Decoder, decoder

STATUS_VALID = 0  # of Trajectory and Answer
BOXES_UNKNOWN = 2
MOST_PROBLEMS = 40  # told one by one; a damaged file can have thousands


class Bag:
    """Every message that can be read, in the order of recording: by the time it was recorded, then by file and place.

    `finished` False: the recorder was not allowed to close the bag, and its last second or so may be missing.
    `problems`: what is wrong with it, in words; decoding adds to them. `stated`: how many messages the metadata tells.
    """

    def __init__(self, path: Path) -> None:
        """DataError if there is no bag at this path. A bag without a single readable message is one."""
        metadata = read_metadata(path if path.is_dir() else path.parent)
        files = bag_files(path, metadata) if path.exists() else []
        if not files and not metadata.finished:
            raise DataError(f"{path} is no bag: expected a folder with metadata.yaml, .mcap or .db3 files in it")
        self.path, self.finished, self.stated = path, metadata.finished, metadata.messages
        self.problems: list[str] = []
        self.undecodable: Counter[str] = Counter()  # messages by topic
        self._scratch = tempfile.TemporaryDirectory(prefix="wamdiff2_bag_")
        self._files: list[Storage] = []
        self._open(files, metadata.storage)
        self.complete = metadata.finished and all(file.index.complete for file in self._files)
        self._merge()
        self._note(*metadata.problems)
        for file in self._files:
            self._note(*file.index.problems)
        if path.is_dir() and self.stated is not None and self.stated != len(self):
            self._note(f"the metadata states {self.stated} messages, {len(self)} can be read")
        self._explain_types()

    def __len__(self) -> int:
        return len(self.log_ns)

    def messages(self, topics: Collection[str]) -> Iterator[tuple[str, Any]]:
        """(topic, message) of these topics, in the order of recording."""
        for k in self.rows(topics):
            message = self.message(k)
            if message is not None:
                yield self.names[self.topic[k]], message

    def rows(self, topics: Collection[str]) -> np.ndarray:
        """Numbers of the messages of these topics, in the order of recording."""
        wanted = [number for number, name in enumerate(self.names) if name in topics]
        return np.flatnonzero(np.isin(self.topic, wanted))

    def message(self, k: int) -> Any:
        """Message number `k`; None, counted in `undecodable`, where it is damaged or of a type that is not known."""
        stored = self._stored(k)
        reader = decoder(stored)
        if isinstance(reader, Decoder):
            try:
                return reader.decode(self.raw(k))
            except DataError as error:
                if not self.undecodable[stored.name]:
                    self._note(f"{stored.name}: {error}")
        self.undecodable[stored.name] += 1
        return None

    def raw(self, k: int) -> bytes:
        """CDR bytes of message number `k`. DataError if they are damaged."""
        return self._files[self._file[k]].read(int(self._place[k]))

    def topics(self) -> dict[str, str]:
        """Type of every topic."""
        return {stored.name: stored.type_name for file in self._files for stored in file.index.topics}

    def missing_fields(self, topic: str) -> set[str]:
        """Fields (Type.field) of today's definition that some message of this topic was recorded without."""
        readers = [decoder(s) for file in self._files for s in file.index.topics if s.name == topic]
        return {name for reader in readers if isinstance(reader, Decoder) for name in reader.missing}

    def begins_with_time(self, topic: str) -> bool:
        """Whether `stamp_ns` of this topic's messages is what it says."""
        readers = [decoder(s) for file in self._files for s in file.index.topics if s.name == topic]
        return any(isinstance(reader, Decoder) and reader.begins_with_time for reader in readers)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._scratch.cleanup()

    def _open(self, files: list[Path], storage: str) -> None:
        errors = []
        for path in files:
            try:
                file, kind = open_file(path, Path(self._scratch.name), self.problems)
            except DataError as error:
                errors.append(str(error))
                continue
            self._files.append(file)
            if storage and storage != kind:
                self._note(f"metadata.yaml says that the storage is {storage}; {path.name} is {kind}, and read as that")
        if files and not self._files:
            raise DataError(f"{self.path}: no file can be read: {'; '.join(errors)}")
        self._note(*errors)

    def _merge(self) -> None:
        """One order over all files; topics of the same name in several files are one."""
        self.names = list(self.topics())
        numbers = {name: k for k, name in enumerate(self.names)}
        parts = [file.index for file in self._files]
        sizes = [len(part.topic) for part in parts]
        log = np.concatenate([np.array(part.log_ns, np.int64) for part in parts] or [np.zeros(0, np.int64)])
        stamp = np.concatenate([np.array(part.stamp_ns, np.int64) for part in parts] or [np.zeros(0, np.int64)])
        of_file = np.repeat(np.arange(len(parts)), sizes)
        place = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, int)])
        order = np.argsort(log, kind="stable")  # equal times stay in the order of files and places
        self.log_ns, self.stamp_ns, self._file, self._place = log[order], stamp[order], of_file[order], place[order]
        local = [[numbers[s.name] for s in part.topics] for part in parts]
        topic = [np.array(local[f], int)[np.array(part.topic, int)] for f, part in enumerate(parts) if len(part.topic)]
        self.topic = np.concatenate(topic or [np.zeros(0, int)])[order]
        spans = [(min(part.log_ns), max(part.log_ns)) for part in parts if len(part.log_ns)]
        if any(b[0] < a[1] for a, b in zip(spans, spans[1:])):
            self._note("the times of its files overlap: messages are taken by the time of recording")

    def _stored(self, k: int) -> StoredTopic:
        """Message number `k`'s topic as its file describes it."""
        index = self._files[self._file[k]].index
        return index.topics[index.topic[int(self._place[k])]]

    def _explain_types(self) -> None:
        for stored in dict.fromkeys(s for file in self._files for s in file.index.topics):
            reader = decoder(stored)
            told = reader if isinstance(reader, str) else reader.changes
            if told:
                self._note(f"{stored.name}: {told}")

    def _note(self, *problems: str) -> None:
        for problem in problems:
            if problem not in self.problems and len(self.problems) < MOST_PROBLEMS:
                self.problems.append(problem)


def stamp_ns(message: Any) -> int:
    """Nanoseconds of a message's header stamp."""
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)


def plan_points(plan: Any) -> np.ndarray | None:
    """Points (8, 2) of a trajectory message; None where no plan was given, or none that could be one."""
    if plan is None or plan.status != STATUS_VALID or not len(plan.raw_x_m) == len(plan.raw_y_m) == PLAN_POINTS:
        return None
    points = np.column_stack([plan.raw_x_m, plan.raw_y_m])
    return points if np.isfinite(points).all() else None


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
