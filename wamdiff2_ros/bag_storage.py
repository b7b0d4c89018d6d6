"""What a bag's files have in common: topics, an index of messages in the order of writing, their bytes by number."""

from __future__ import annotations

import io
import struct
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zstandard

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MOST_MESSAGE_BYTES = 1 << 30  # a compressed message that claims more than this is damaged
_STAMP = struct.Struct("<iI"), struct.Struct(">iI")


@dataclass(frozen=True)
class StoredTopic:
    """A topic as one file describes it. `encoding` of the definition: ros2msg, ros2idl, or empty where none is kept."""

    name: str
    type_name: str
    definition: str = ""
    encoding: str = ""
    serialisation: str = "cdr"


@dataclass
class Index:
    """One row per message, in the order of writing.

    `topic`: number in `topics`. `log_ns`: when it was recorded. `stamp_ns`: the first field read as a time, which it
    is for messages that begin with a header. `problems`: what could not be read, in words.
    """

    topics: list[StoredTopic] = field(default_factory=list)
    topic: array[int] = field(default_factory=lambda: array("i"))
    log_ns: array[int] = field(default_factory=lambda: array("q"))
    stamp_ns: array[int] = field(default_factory=lambda: array("q"))
    problems: list[str] = field(default_factory=list)
    complete: bool = True

    def add(self, topic: int, log_ns: int, head: bytes) -> None:
        self.topic.append(topic)
        self.log_ns.append(min(max(log_ns, -(1 << 63)), (1 << 63) - 1))
        self.stamp_ns.append(first_time_ns(head))


class Storage(Protocol):
    """An indexed file. `read` gives the CDR bytes of message number `k`; DataError if they are damaged."""

    index: Index

    def read(self, k: int) -> bytes: ...

    def close(self) -> None: ...


def first_time_ns(head: bytes) -> int:
    """Nanoseconds of a time right behind the CDR encapsulation; 0 where there are too few bytes."""
    if len(head) < 12:
        return 0
    sec, nanosec = _STAMP[0 if head[1] & 1 else 1].unpack_from(head, 4)
    return int(sec) * 1_000_000_000 + int(nanosec)


def inflate(data: bytes) -> bytes:
    """A message as `ros2 bag record --compression-mode message` writes it. zstandard.ZstdError if damaged."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=MOST_MESSAGE_BYTES)


def inflate_head(data: bytes) -> bytes:
    """The first bytes of a message, compressed or not; none if they cannot be read."""
    if not data.startswith(ZSTD_MAGIC):
        return data[:12]
    try:
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(12)
    except zstandard.ZstdError:
        return b""


def inflate_file(path: Path, to: Path) -> str:
    """Write a zstd file out; returns what is wrong with it, in words, and keeps what came before that."""
    inside = zstandard.ZstdDecompressor().decompressobj()
    try:
        with path.open("rb") as source, to.open("wb") as out:
            while part := source.read(1 << 20):
                if inside.eof:  # several frames behind one another
                    inside = zstandard.ZstdDecompressor().decompressobj()
                out.write(inside.decompress(part))
                while inside.eof and inside.unused_data:
                    rest, inside = inside.unused_data, zstandard.ZstdDecompressor().decompressobj()
                    out.write(inside.decompress(rest))
    except zstandard.ZstdError as error:
        return f"{path.name}: the compressed file is damaged: {error}"
    return "" if inside.eof else f"{path.name}: the compressed file was cut short"
