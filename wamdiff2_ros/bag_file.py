"""One MCAP file that is whole after every chunk: room for a chunk and for the index is reserved before it is written.

So a full disk is met between two chunks, never inside one, and the file can still be finished then.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, cast

from mcap.writer import CompressionType, Writer

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros.bag_metadata import FileFacts, Topic, describe, yaml_text

LIBRARY = "wamdiff2"
FULL = (errno.ENOSPC, errno.EDQUOT)
_ONE_CHUNK = 1 << 62  # the library makes a chunk when it is told to, not by size
_KEEP_SIZE = 1  # of fallocate(2): reserve blocks behind the end of the file, without moving it
_RECORD_BYTES = 31  # of a message record beside its data
_INDEX_BYTES = 16  # of a message in the message index
_SPARE_BYTES = 65536  # metadata.yaml, topics that turn up before the next chunk, rounding to blocks


class NoRoom(Wamdiff2Error):
    """The disk has no room for the next chunk and the index behind it. Nothing was written."""


@dataclass(frozen=True)
class Entry:
    """A message for the bag. `sequence` counts what arrived on the topic, from 1; 0: not counted."""

    topic: str
    log_ns: int
    data: bytes
    publish_ns: int = 0
    sequence: int = 0


class _Memory:
    """Takes what the MCAP library writes; `drain` gives it out. So the library never meets a disk error."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._drained = self._held = 0

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        self._held += len(data)
        return len(data)

    def tell(self) -> int:
        return self._drained + self._held

    def flush(self) -> None:
        """Nothing to do: the file is written by `drain`'s caller."""

    def drain(self) -> bytes:
        data = b"".join(self._parts)
        self._parts, self._drained, self._held = [], self._drained + self._held, 0
        return data


class BagFile:
    """`size`: bytes written and whole; `facts`: what is in it. OSError if the file cannot be made."""

    def __init__(self, path: Path) -> None:
        self.facts = FileFacts(path.name)
        self.size = 0
        self._topics: dict[str, tuple[Topic, int]] = {}
        self._schemas: dict[tuple[str, str], int] = {}
        self._index_bytes = 0
        self._memory = _Memory()
        self._writer = Writer(cast(IO[Any], self._memory), chunk_size=_ONE_CHUNK, compression=CompressionType.NONE)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._writer.start("ros2", f"{LIBRARY} {_version()}")

    def add(self, topic: Topic) -> None:
        """Make the topic known in this file; needed before its first message."""
        key = (topic.type_name, topic.definition)
        if key not in self._schemas:
            encoding = topic.encoding if topic.definition else ""
            self._schemas[key] = self._writer.register_schema(topic.type_name, encoding, topic.definition.encode())
            self._index_bytes += 2 * (len(topic.definition) + len(topic.type_name) + 64)
        said = topic.channel_metadata()
        self._topics[topic.name] = topic, self._writer.register_channel(topic.name, "cdr", self._schemas[key], said)
        # In the channel of chunk and index, and twice (file, text in the file) in the metadata.
        self._index_bytes += 4 * (len(topic.name) + len(topic.type_name) + sum(map(len, said.values())) + 512)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write one chunk. NoRoom: nothing was written. OSError: cut back to the chunk before; `abandon` it then."""
        if os.fstat(self._handle).st_nlink == 0:  # writing would go on, into nothing
            raise FileNotFoundError(errno.ENOENT, f"{self.facts.path} was deleted while it was written")
        chunk = sum(len(entry.data) + _RECORD_BYTES + _INDEX_BYTES for entry in entries)
        here = len({entry.topic for entry in entries})
        # Its own head and index; its entry in the file's index.
        chunk, index = chunk + 256 + 32 * here, 256 + 16 * here
        self._reserve(chunk + self._index_bytes + index + _SPARE_BYTES)
        self._index_bytes += index
        for entry in entries:
            channel, publish_ns = self._topics[entry.topic][1], entry.publish_ns or entry.log_ns
            self._writer.add_message(channel, entry.log_ns, entry.data, publish_ns, entry.sequence & 0xFFFFFFFF)
        self._writer.flush()
        self._commit()
        for entry in entries:
            self.facts.take(entry.topic, entry.log_ns)

    def sync(self) -> None:
        """Put on the medium what was written, so that it lasts through a power cut."""
        os.fdatasync(self._handle)

    def finish(self, sync: bool = True) -> None:
        """Write index and metadata, and give back reserved room. OSError as in `write`."""
        topics = [topic for topic, _ in self._topics.values()]
        self._writer.add_metadata("rosbag2", {"serialized_metadata": yaml_text(describe(topics, [self.facts]))})
        self._writer.finish()
        self._commit()
        if sync:
            os.fsync(self._handle)
        self.abandon()

    def abandon(self) -> None:
        """Close it as it is: every whole chunk is in it."""
        try:
            os.ftruncate(self._handle, self.size)
        finally:
            os.close(self._handle)

    def _reserve(self, room: int) -> None:
        code = _fallocate(self._handle, self.size, room)
        if code in FULL:
            raise NoRoom(f"the disk is full: no room for {room / 2**20:.2f} MiB more")
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):  # NFS and others: the best that can be done is to ask
            free = free_bytes(self._handle)
            if free < room:
                raise NoRoom(f"the disk is full: {free / 2**20:.2f} MiB free, {room / 2**20:.2f} MiB needed")
        elif code:
            raise OSError(code, os.strerror(code))

    def _commit(self) -> None:
        data = memoryview(self._memory.drain())
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._handle, data[done:], self.size + done)
        except OSError:
            os.ftruncate(self._handle, self.size)
            raise
        self.size += len(data)


def free_bytes(where: Path | int) -> int:
    """Room on the disk for users without special rights."""
    facts = os.statvfs(where)
    return facts.f_bavail * facts.f_frsize


def _fallocate(handle: int, at: int, length: int) -> int:
    """0, or the errno of fallocate(2). Python has only the form that makes the file longer."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        return errno.ENOSYS
    failed = call(ctypes.c_int(handle), ctypes.c_int(_KEEP_SIZE), ctypes.c_int64(at), ctypes.c_int64(length))
    return ctypes.get_errno() if failed else 0


def _version() -> str:
    try:
        return version("wamdiff2")
    except PackageNotFoundError:  # installed by colcon
        return "0"
