"""Writing bags without rosbag2: MCAP files with the metadata that rosbag2 wants. No rclpy here.

Messages are held for `flush_s` or until they fill a chunk; a written chunk is never touched again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rosbags.interfaces import Qos

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.bag_definitions import definition, message_folder, typestore
from wamdiff2_ros.bag_file import FULL, BagFile, Entry, NoRoom, free_bytes
from wamdiff2_ros.bag_metadata import METADATA_NAME, FileFacts, Topic, describe, sync_folder, write_metadata

__all__ = ["BagWriter", "Limits", "NoRoom", "message_folder", "typestore"]

CHUNK_BYTES = 2**20
LATCHED_KEPT = 32  # publishers of a latched topic whose last message is repeated
MIB = 2**20
UNFINISHED = "wamdiff2_unfinished_files"  # in the metadata: whole chunks without index; `wamdiff2 salvage` them


@dataclass(frozen=True)
class Limits:
    """0 is no limit; of sync_s: only closed files and metadata are put on the medium by force."""

    max_file_mb: float = 0.0
    max_file_s: float = 0.0
    min_free_mb: float = 0.0
    flush_s: float = 0.5
    sync_s: float = 1.0

    def __post_init__(self) -> None:
        """ConfigError naming every limit that is out of its range."""
        wrong = [name for name, value in vars(self).items() if not 0.0 <= value <= 1e9]
        if not 0.0 < self.flush_s <= 60.0:
            wrong.append("flush_s")
        if wrong:
            raise ConfigError(f"recorder: expected 0 or more, and 0 < flush_s <= 60, got {vars(self)} ({wrong[0]})")


class BagWriter:
    """One bag folder; topics are added as they turn up. Close it, or its metadata is missing. For one thread."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        """Makes the folder. ConfigError if there is something already, or if it cannot be made."""
        if path.exists():
            raise ConfigError(f"{path} exists already; a bag is not written over")
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{path}: a bag cannot be made there: {error}") from error
        self.path = path
        self.count = 0  # messages written, those that begin a file once more not counted
        self.pending: list[Entry] = []
        self.custom: dict[str, str] = {}
        self._pending_bytes = 0
        self._pending_since_s = 0.0
        self._limits = limits or Limits()
        self._store = typestore()
        self._topics: dict[str, Topic] = {}
        self._latched: dict[str, dict[bytes, Entry]] = {}
        self._file: BagFile | None = None
        self._files: list[FileFacts] = []
        self._opened_s = self._synced_s = 0.0
        self._numbered = 0
        self._closed = False

    def add_topic(self, topic: str, type_name: str) -> None:
        """`type_name` like sensor_msgs/msg/Image. ConfigError if its definition is not known here."""
        self.add(self.topic(topic, type_name))

    def topic(self, name: str, type_name: str, qos: Sequence[Qos] = (), type_hash: str = "") -> Topic:
        """A topic with the definition that is known here; ConfigError: none is.

        `type_hash`: of the sender's, where known. The topic has the hash of the definition that was found.
        """
        text, known = definition(self._store, type_name, type_hash)
        return Topic(name, type_name, text, "ros2msg", known, tuple(qos))

    def add(self, topic: Topic, latched: bool = False) -> None:
        """A topic with its definition. latched: each sender's last message is repeated in each further file."""
        self._topics[topic.name] = topic
        if latched:
            self._latched[topic.name] = {}
        if self._file is not None:
            self._file.add(topic)

    def write(
        self, topic: str, stamp_ns: int, data: bytes, publish_ns: int = 0, sequence: int = 0, publisher: bytes = b""
    ) -> None:
        """`data` is CDR as it came over the wire. NoRoom, OSError: as in `flush`, the message is among the pending."""
        entry = Entry(topic, stamp_ns, data, publish_ns, sequence)
        if not self.pending:
            self._pending_since_s = time.monotonic()
        self.pending.append(entry)
        self._pending_bytes += len(data)
        if topic in self._latched:
            self._remember(self._latched[topic], publisher, entry)
        if self._pending_bytes >= CHUNK_BYTES:
            self.flush()

    def due_s(self) -> float:
        """Seconds until the pending messages have to be flushed; 0: now. flush_s if there are none."""
        if not self.pending:
            return self._limits.flush_s
        return max(0.0, self._pending_since_s + self._limits.flush_s - time.monotonic())

    def flush(self) -> None:
        """Write the pending messages as one chunk.

        NoRoom, OSError: they are pending still, what was written before is whole; `pause` or `close` then.
        """
        if not self.pending:
            return
        if self._file is not None and self._over(self._file):
            self._finish_file()
        self._check_room()
        entries = self.pending
        if self._file is None:
            self._file = self._open()
            entries = self._repeated(entries) + entries
        self._write_chunk(self._file, entries)
        self.count += len(self.pending)
        self.pending, self._pending_bytes = [], 0
        now_s = time.monotonic()
        if self._limits.sync_s and now_s - self._synced_s >= self._limits.sync_s:
            self._file.sync()
            self._synced_s = now_s

    def pause(self) -> None:
        """Finish the file and write the metadata of what there is; `flush` goes on in a new file. NoRoom, OSError."""
        try:
            self._finish_file()
            write_metadata(self.path, describe(list(self._topics.values()), self._files, self.custom))
        except OSError as error:
            if error.errno in FULL:
                raise NoRoom(f"no room to finish the bag: {error}") from error
            raise

    def close(self) -> None:
        """Write what is pending, index and metadata; a second call does nothing. NoRoom, OSError: as `flush`."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self.pause()

    def drop_pending(self) -> Counter[str]:
        """Give up the pending messages; how many of each topic."""
        lost = Counter(entry.topic for entry in self.pending)
        self.pending, self._pending_bytes = [], 0
        return lost

    def facts(self) -> Mapping[str, object]:
        """For people, from any thread: the file being written, its size, how many there are."""
        file = self._file
        name, size = (file.facts.path, file.size) if file else ("", 0)
        return {"file": name, "file MiB": f"{size / MIB:.1f}", "files": len(self._files) + (file is not None)}

    def _remember(self, kept: dict[bytes, Entry], publisher: bytes, entry: Entry) -> None:
        kept.pop(publisher, None)  # the newest comes last
        kept[publisher] = entry
        if len(kept) > LATCHED_KEPT:
            kept.pop(next(iter(kept)))

    def _repeated(self, entries: Sequence[Entry]) -> list[Entry]:
        """Last latched messages, stamped with the start of the new file; those that are in it anyway are left out."""
        if not self._files:
            return []
        start_ns, new = min(entry.log_ns for entry in entries), set(map(id, entries))
        olds = [old for kept in self._latched.values() for old in kept.values() if id(old) not in new]
        return [Entry(old.topic, start_ns, old.data, old.publish_ns or old.log_ns) for old in olds]

    def _over(self, file: BagFile) -> bool:
        limits = self._limits
        too_large = limits.max_file_mb and file.size + self._pending_bytes > limits.max_file_mb * MIB
        too_long = limits.max_file_s and time.monotonic() - self._opened_s >= limits.max_file_s
        return bool(too_large or too_long)

    def _check_room(self) -> None:
        least = self._limits.min_free_mb * MIB
        if least and (free := free_bytes(self.path)) - self._pending_bytes < least:
            raise NoRoom(f"{free / MIB:.1f} MiB free on the disk, min_free_mb is {self._limits.min_free_mb:g}")

    def _write_chunk(self, file: BagFile, entries: Sequence[Entry]) -> None:
        first = not file.facts.counts
        try:
            file.write(entries)
        except OSError as error:  # cut back to its last whole chunk, but it cannot be finished any more
            self._file = None
            file.abandon()
            self._keep(file, finished=False)
            if error.errno in FULL:  # a disk that cannot reserve room
                raise NoRoom(f"the disk is full: {error}") from error
            raise
        if first:
            (self.path / METADATA_NAME).unlink(missing_ok=True)  # of a pause: it does not name this file

    def _open(self) -> BagFile:
        file = BagFile(self.path / f"{self.path.name}_{self._numbered}.mcap")
        self._numbered += 1
        self._opened_s = self._synced_s = time.monotonic()
        for topic in self._topics.values():
            file.add(topic)
        return file

    def _finish_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        finished = False
        try:
            if file.facts.counts:
                file.finish()
                finished = True
        finally:
            if not finished:
                file.abandon()
            self._keep(file, finished)

    def _keep(self, file: BagFile, finished: bool) -> None:
        if not file.facts.counts:  # the disk was full before its first chunk
            (self.path / file.facts.path).unlink(missing_ok=True)
            self._numbered -= 1
        elif finished:
            self._files.append(file.facts)
            sync_folder(self.path)
        else:  # readers refuse a bag with such a file, so it is named apart
            names = [*filter(None, self.custom.get(UNFINISHED, "").split(",")), file.facts.path]
            self.custom[UNFINISHED] = ",".join(names)
