"""Reads an MCAP file from its start, record by record: also one that a kill or a full disk cut short.

Only what a finished file's index would tell is missing then; every whole record before the cut is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wamdiff2_core.errors import DataError

MAGIC = b"\x89MCAP0\r\n"
SCHEMA, CHANNEL, MESSAGE, CHUNK, DATA_END = 0x03, 0x04, 0x05, 0x06, 0x0F
_RECORD = struct.Struct("<BQ")


@dataclass
class Scan:
    """`topics`: type name of each topic met so far."""

    path: Path
    topics: dict[str, str] = field(default_factory=dict)
    _schemas: dict[int, str] = field(default_factory=dict)
    _channels: dict[int, str] = field(default_factory=dict)

    def messages(self) -> Iterator[tuple[str, str, bytes]]:
        """(topic, type name, CDR bytes) in the order of writing. DataError if it is no MCAP file."""
        data = self.path.read_bytes()
        if not data.startswith(MAGIC):
            raise DataError(f"{self.path}: expected an MCAP file, got one that begins with {data[:8]!r}")
        yield from self._records(memoryview(data)[len(MAGIC) :])

    def _records(self, data: memoryview) -> Iterator[tuple[str, str, bytes]]:
        at = 0
        while at + _RECORD.size <= len(data):
            kind, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            body = data[at : at + length]
            at += length
            if kind == DATA_END:
                return
            if len(body) == length:
                yield from self._record(kind, body)
            elif kind == CHUNK:
                yield from self._records(_chunk(body, self.path))  # its first records may be whole

    def _record(self, kind: int, body: memoryview) -> Iterator[tuple[str, str, bytes]]:
        if kind == SCHEMA:
            (key,) = struct.unpack_from("<H", body)
            self._schemas[key] = _text(body, 2)
        elif kind == CHANNEL:
            key, schema = struct.unpack_from("<HH", body)
            self._channels[key] = _text(body, 4)
            self.topics[self._channels[key]] = self._schemas.get(schema, "")
        elif kind == MESSAGE:
            (key,) = struct.unpack_from("<H", body)
            topic = self._channels.get(key)
            if topic is not None:
                yield topic, self.topics[topic], bytes(body[22:])
        elif kind == CHUNK:
            yield from self._records(_chunk(body, self.path))


def _text(body: memoryview, at: int) -> str:
    (length,) = struct.unpack_from("<I", body, at)
    return bytes(body[at + 4 : at + 4 + length]).decode("utf-8", "replace")


def _chunk(body: memoryview, path: Path) -> memoryview:
    """Records of a chunk, which our recorder writes uncompressed."""
    if len(body) < 40:
        return body[:0]
    compression = _text(body, 28)
    if compression:
        raise DataError(f"{path}: this unfinished file is compressed ({compression}): `ros2 bag reindex` its bag first")
    return body[28 + 4 + 8 :]
