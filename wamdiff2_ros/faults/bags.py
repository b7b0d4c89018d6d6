"""The check of the bags: what was published while the recorder listened must be in their closed chunks.

Reads MCAP files by itself, not through the project's reader: record by record, a chunk only if it is there to its end.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"\x89MCAP0\r\n"
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK = 0x03, 0x04, 0x05, 0x06
Source = tuple[str, int]
_RECORD = struct.Struct("<BQ")


@dataclass
class Recorded:
    """Header stamps in nanoseconds by topic, in the order of the file; and when (Unix time) the last was received."""

    stamps: dict[str, list[int]] = field(default_factory=dict)
    last_received_ns: int = 0
    chunks: int = 0
    cut: bool = False  # the file ends inside a record

    @property
    def count(self) -> int:
        return sum(map(len, self.stamps.values()))


def read_closed(folder: Path) -> Recorded:
    """Messages of all closed chunks of a bag folder's MCAP files."""
    found = Recorded()
    for path in sorted(folder.glob("*.mcap")):
        _Reader(found).file(path.read_bytes())
    return found


class _Reader:
    def __init__(self, found: Recorded) -> None:
        self._found = found
        self._topics: dict[int, str] = {}

    def file(self, data: bytes) -> None:
        if data.startswith(MAGIC):
            self._records(memoryview(data)[len(MAGIC) :])

    def _records(self, data: memoryview) -> None:
        for kind, body in _split(data, self._found):
            if kind == _CHANNEL:
                (key,) = struct.unpack_from("<H", body)
                self._topics[key] = _text(body, 4)
            elif kind == _MESSAGE:
                self._message(body)
            elif kind == _CHUNK:
                self._found.chunks += 1
                self._records(_content(body))

    def _message(self, body: memoryview) -> None:
        """Channel, sequence, log and publish time; then CDR: four bytes, and a header's stamp if there is one."""
        key, _, received_ns = struct.unpack_from("<HIQ", body)
        sec, nanosec = struct.unpack_from("<iI", body, 22 + 4) if len(body) >= 34 else (0, 0)
        self._found.last_received_ns = max(self._found.last_received_ns, received_ns)
        self._found.stamps.setdefault(self._topics.get(key, ""), []).append(sec * 10**9 + nanosec)


def _split(data: memoryview, found: Recorded) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at + _RECORD.size <= len(data):
        kind, length = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + length]
        if len(body) < length or kind == 0:
            found.cut = True
            return
        yield kind, body
        at += _RECORD.size + length


def _content(body: memoryview) -> memoryview:
    compression = _text(body, 28)
    packed = body[28 + 4 + len(compression) + 8 :]
    if compression == "zstd":
        import zstandard

        return memoryview(zstandard.ZstdDecompressor().decompress(bytes(packed), max_output_size=_size(body)))
    if compression:
        raise ValueError(f"chunk compression {compression!r} is not known here")
    return packed


def _size(body: memoryview) -> int:
    return int(struct.unpack_from("<Q", body, 16)[0])


def _text(body: memoryview, at: int) -> str:
    (length,) = struct.unpack_from("<I", body, at)
    return bytes(body[at + 4 : at + 4 + length]).decode("utf-8", "replace")


def lost(recorded: Mapping[str, Sequence[int]], published: Mapping[Source, Sequence[int]]) -> dict[str, list[int]]:
    """By topic: stamps that were published between the first and the last recorded message and are not recorded.

    `published`: stamps in the order of publication, by topic and life of the publisher: what it says before the
    recorder has found it is not the recorder's to lose. Zero stamps tell nothing and are left out on both sides.
    """
    missing: dict[str, list[int]] = {}
    for (topic, _), stamps in published.items():
        mine = Counter(stamp for stamp in recorded.get(topic, ()) if stamp)
        there = [stamp for stamp in stamps if stamp in mine]
        if there:
            first, last = stamps.index(there[0]), len(stamps) - 1 - stamps[::-1].index(there[-1])
            ends = (0, there[0], there[-1])  # two messages may share a stamp, and the recorder came between them
            between = Counter(stamp for stamp in stamps[first : last + 1] if stamp not in ends)
            gone = sorted((between - mine).elements())
            if gone:
                missing[topic] = missing.get(topic, []) + gone
    return missing
