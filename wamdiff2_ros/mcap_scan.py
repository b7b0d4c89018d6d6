"""Reads an MCAP file from its start, record by record: also one that a kill, a full disk or a bad disk left in pieces.

The index at the end is not needed: every whole message before a cut is read, also in the part of a chunk that is there.
Behind a damaged part reading goes on at the next chunk whose checksum is right. What is missing is named in `lost` and
`notes`. A chunk whose checksum is wrong gives nothing.
"""

from __future__ import annotations

import mmap
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Header, MessageIndex, Schema, Statistics

from wamdiff2_core.errors import DataError

MAGIC = b"\x89MCAP0\r\n"
_RECORD = struct.Struct("<BQ")
_CHUNK = struct.Struct("<QQQII")  # start, end, bytes unpacked, checksum, length of the compression's name
_MESSAGE = struct.Struct("<HIQQ")
_FOOTER = struct.Struct("<BQQQI")
_LAST_OPCODE = max(opcode.value for opcode in Opcode)
_LONGEST_CHUNK = 2**32
# A chunk's opcode, a length below 2**40, 28 bytes, one of the compressions by name.
_CHUNK_START = re.compile(rb"\x06.{5}\0\0\0.{28}(?:\0\0\0\0|\x04\0\0\0zstd|\x03\0\0\0lz4)", re.DOTALL)
_BROKEN = (
    McapError,
    struct.error,
    UnicodeDecodeError,
    zstandard.ZstdError,
    RuntimeError,
    EOFError,
    ValueError,
    DataError,
)


@dataclass(frozen=True)
class Found:
    """A message with its channel; `schema` None: the file does not say what it consists of."""

    channel: Channel
    schema: Schema | None
    log_ns: int
    publish_ns: int
    sequence: int
    data: bytes

    @property
    def type_name(self) -> str:
        return self.schema.name if self.schema else ""


@dataclass
class Scan:
    """`topics`: type name by topic. After `found` is used up: `finished` (the file's end is there), `lost` messages by
    topic as far as known, `notes` about damage, `read` messages by topic, `library` that wrote the file."""

    path: Path
    topics: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    lost: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    library: str = ""
    _schemas: dict[int, Schema] = field(default_factory=dict)
    _channels: dict[int, Channel] = field(default_factory=dict)
    _stated: dict[int, int] = field(default_factory=dict)
    _chunked: bool = False  # then a message outside of chunks is none
    _damaged: bool = False  # the chunk before; the index behind it tells what was in it

    def messages(self) -> Iterator[tuple[str, str, bytes]]:
        """(topic, type name, CDR bytes) in the order of writing. DataError if it is no MCAP file."""
        for message in self.found():
            yield message.channel.topic, message.type_name, message.data

    def found(self) -> Iterator[Found]:
        """Every whole message in the order of writing. DataError if it is no MCAP file."""
        with self.path.open("rb") as file:
            begin = file.read(len(MAGIC))
            if not MAGIC.startswith(begin):
                raise DataError(f"{self.path}: expected an MCAP file, got one that begins with {begin!r}")
            if begin != MAGIC:
                self.notes.append(f"cut within its first bytes: {len(begin)} are there")
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from self._file(data)
                if self._channels and self.lost and not self.read:
                    # Only the end of the file told what its channels are: once more, knowing them.
                    self.lost.clear()
                    self.notes.append("the topics are known from the end of the file only")
                    yield from self._file(data)
        self._compare()

    def _file(self, data: mmap.mmap) -> Iterator[Found]:
        self._look_ahead(data)
        at = len(MAGIC)
        while at < len(data):
            if at + _RECORD.size > len(data):
                self.notes.append(f"cut inside the head of a record at byte {at}")
                return
            kind, length = _RECORD.unpack_from(data, at)
            end = at + _RECORD.size + length
            broken = not 0 < kind <= _LAST_OPCODE
            if not broken:
                body = data[at + _RECORD.size : min(end, len(data))]
                try:
                    yield from self._record(kind, body, whole=end <= len(data))
                except _BROKEN as error:
                    self.notes.append(f"a record at byte {at} cannot be read: {error or type(error).__name__}")
                    broken = True
            if kind == Opcode.FOOTER and not broken and data[end : end + len(MAGIC)] == MAGIC:
                self.finished = True
                return
            at = self._next(data, at, end, broken)

    def _look_ahead(self, data: mmap.mmap) -> None:
        """Behind the messages of a finished file stand its counts and, once more, its channels."""
        at = len(data) - len(MAGIC) - _FOOTER.size
        if at < len(MAGIC) or data[-len(MAGIC) :] != MAGIC:
            return
        kind, length, at, _, _ = _FOOTER.unpack_from(data, at)
        if kind != Opcode.FOOTER or length != _FOOTER.size - _RECORD.size:
            return
        while len(MAGIC) < at <= len(data) - _RECORD.size and kind != Opcode.CHUNK:
            kind, length = _RECORD.unpack_from(data, at)
            try:
                if kind in (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.STATISTICS):
                    list(self._record(kind, data[at + _RECORD.size : at + _RECORD.size + length], whole=True))
            except _BROKEN as error:
                self.notes.append(f"the list of topics at the file's end is damaged: {error}")
                return
            at += _RECORD.size + length

    def _next(self, data: mmap.mmap, at: int, end: int, broken: bool) -> int:
        """Where to go on behind the record at `at`, which ends at `end` if it is what it claims to be."""
        if not broken and end <= len(data):
            return end
        following = next_chunk(data, at + 1)
        what = "ends" if following >= len(data) else f"goes on at byte {following}"
        self.notes.append(f"damaged or cut in the record at byte {at} of {len(data)}; reading {what}")
        return following

    def _record(self, kind: int, body: bytes, whole: bool) -> Iterator[Found]:
        """Read one record; `whole` False: only its beginning is there."""
        if kind == Opcode.CHUNK:
            yield from self._chunk(body, whole)
        elif kind == Opcode.MESSAGE and self._chunked:
            raise DataError("a message outside of the chunks")
        elif kind == Opcode.MESSAGE:
            yield from self._message(body, whole)
        elif not whole:
            return
        elif kind == Opcode.SCHEMA:
            schema = Schema.read(_stream(body))
            self._schemas[schema.id] = schema
        elif kind == Opcode.CHANNEL:
            channel = Channel.read(_stream(body))
            self._channels[channel.id] = channel
            schema_of = self._schemas.get(channel.schema_id)
            self.topics[channel.topic] = schema_of.name if schema_of else ""
        elif kind == Opcode.HEADER:
            self.library = Header.read(_stream(body)).library
        elif kind == Opcode.STATISTICS:
            self._stated = dict(Statistics.read(_stream(body)).channel_message_counts)
        elif kind == Opcode.MESSAGE_INDEX and self._damaged:
            index = MessageIndex.read(_stream(body))
            self._lose(index.channel_id, len(index.records))
        if kind != Opcode.MESSAGE_INDEX and kind != Opcode.CHUNK:
            self._damaged = False

    def _chunk(self, body: bytes, whole: bool) -> Iterator[Found]:
        self._damaged = False
        content, checksum, size = _unpack(body)
        if whole and checksum and zlib.crc32(content) != checksum:
            self._damaged = True
            self.notes.append(f"a chunk of {len(body)} bytes is damaged: its checksum is wrong")
            return
        self._chunked = True
        at = 0
        while at + _RECORD.size <= len(content):
            kind, length = _RECORD.unpack_from(content, at)
            end = at + _RECORD.size + length
            inside = content[at + _RECORD.size : min(end, len(content))]
            if kind == Opcode.MESSAGE:
                yield from self._message(inside, end <= len(content))
            elif kind in (Opcode.SCHEMA, Opcode.CHANNEL):
                yield from self._record(kind, inside, end <= len(content))
            at = end
        if len(content) < size:
            self.notes.append(f"a chunk is cut: {len(content)} of {size} bytes are there")

    def _message(self, body: bytes, whole: bool) -> Iterator[Found]:
        if not whole:
            if len(body) >= 2:
                self._lose(struct.unpack_from("<H", body)[0], 1)
            return
        key, sequence, log_ns, publish_ns = _MESSAGE.unpack_from(body)
        channel = self._channels.get(key)
        if channel is None:  # what said so was in a damaged part
            self._lose(key, 1)
            return
        self.read[channel.topic] += 1
        schema = self._schemas.get(channel.schema_id)
        yield Found(channel, schema, log_ns, publish_ns, sequence, body[_MESSAGE.size :])

    def _lose(self, key: int, count: int) -> None:
        channel = self._channels.get(key)
        self.lost[channel.topic if channel else f"channel {key}"] += count

    def _compare(self) -> None:
        """Where the end of the file states how many there were, that is what counts."""
        stated: Counter[str] = Counter()
        for key, count in self._stated.items():
            stated[self._channels[key].topic if key in self._channels else f"channel {key}"] += count
        if stated:
            self.lost = +Counter({topic: stated[topic] - self.read[topic] for topic in stated})


def _stream(body: bytes) -> ReadDataStream:
    return ReadDataStream(BytesIO(body))


def _unpack(body: bytes) -> tuple[bytes, int, int]:
    """(content as far as it is there, checksum or 0, its whole size) of a chunk."""
    _, _, size, checksum, name_length = _CHUNK.unpack_from(body)
    name_end = _CHUNK.size + name_length
    name, data = body[_CHUNK.size : name_end].decode(), body[name_end + 8 :]
    if size > _LONGEST_CHUNK:
        raise DataError(f"a chunk claims to hold {size} bytes")
    if name == "":
        return data, checksum, size
    if name == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data), checksum, size
    if name == "lz4":
        return lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size), checksum, size
    raise DataError(f"a chunk is compressed in an unknown way: {name!r}")


def next_chunk(data: mmap.mmap, at: int) -> int:
    """Where the next chunk with a right checksum begins; the length of `data` if there is none."""
    for match in _CHUNK_START.finditer(data, at):
        start = match.start()
        _, length = _RECORD.unpack_from(data, start)
        end = start + _RECORD.size + length
        if end > len(data):
            continue
        try:
            content, checksum, size = _unpack(data[start + _RECORD.size : end])
        except _BROKEN:
            continue
        if checksum and len(content) == size and zlib.crc32(content) == checksum:
            return start
    return len(data)
