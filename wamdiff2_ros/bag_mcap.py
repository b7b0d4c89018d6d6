"""MCAP files read from their start, record by record: also those that a kill, a full disk or a bad copy cut short.

The index at the file's end is not needed and not used, so whole and cut files are read the same way.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import zstandard

from wamdiff2_core.errors import DataError
from wamdiff2_ros.bag_storage import Index, StoredTopic, inflate, inflate_head
from wamdiff2_ros.mcap_scan import next_chunk

MAGIC = b"\x89MCAP0\r\n"
SCHEMA, CHANNEL, MESSAGE, CHUNK, DATA_END = 0x03, 0x04, 0x05, 0x06, 0x0F
LAST_KIND = 0x0F
IN_FILE = -1  # the message's bytes lie in the file itself, not in a compressed chunk
KEPT_CHUNKS = 8
_RECORD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_CHUNK = struct.Struct("<QQQI")

Buffer = bytes | mmap.mmap


class McapFile:
    """An indexed file. DataError if it does not begin like one."""

    def __init__(self, path: Path) -> None:
        self.path, self.index = path, Index()
        self._schemas: dict[int, tuple[str, str, str]] = {}
        self._channels: dict[int, int] = {}
        self._chunks: list[tuple[str, int, int]] = []  # compression, where its records begin, their stored length
        self._chunk, self._at, self._length = array("i"), array("q"), array("q")
        self._open: OrderedDict[int, bytes] = OrderedDict()
        self._file = path.open("rb")
        if path.stat().st_size < len(MAGIC):
            self._file.close()
            raise DataError(f"{path}: the file is empty")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map[: len(MAGIC)] != MAGIC:
            found = self._map[: len(MAGIC)]
            self.close()
            raise DataError(f"{path}: expected an MCAP file, got one that begins with {found!r}")
        self._scan()

    def read(self, k: int) -> bytes:
        """CDR bytes of message number `k`. DataError if its compression is damaged."""
        at, chunk = self._at[k], self._chunk[k]
        data = (self._map if chunk == IN_FILE else self._records(chunk))[at : at + self._length[k]]
        try:
            return inflate(data)
        except zstandard.ZstdError as error:
            raise DataError(f"{self.path.name}: message {k} is damaged: {error}") from error

    def close(self) -> None:
        if not self._map.closed:
            self._map.close()
        self._file.close()

    def _scan(self) -> None:
        self.index.complete = False
        begin, size = len(MAGIC), len(self._map)
        while begin < size:
            begin = self._scan_from(begin)
        if not self.index.complete:
            missing = "its end is missing: the recorder was not able to close it, or the copy is cut"
            self.index.problems.append(f"{self.path.name}: {missing}")

    def _scan_from(self, begin: int) -> int:
        """Index up to the end, or to something that is no record: then where the next whole chunk begins."""
        for kind, at, length, whole in _records(self._map, begin, len(self._map)):
            if kind == DATA_END and whole:
                self.index.complete = True
                break
            if not 0 < kind <= LAST_KIND:
                following = next_chunk(self._map, at)
                self.index.problems.append(
                    f"{self.path.name}: damaged at byte {at}; reading "
                    + (f"goes on at byte {following}" if following < len(self._map) else "ends there")
                )
                return following
            if kind == CHUNK:
                self._chunk_record(at, length, whole)
            elif whole:
                self._record(self._map, kind, at, length, IN_FILE)
        return len(self._map)

    def _record(self, data: Buffer, kind: int, at: int, length: int, chunk: int) -> None:
        try:
            if kind == SCHEMA:
                self._schema(data[at : at + length])
            elif kind == CHANNEL:
                self._channel(data[at : at + length])
            elif kind == MESSAGE:
                self._message(data, at, length, chunk)
        except (struct.error, UnicodeDecodeError) as error:
            self.index.problems.append(f"{self.path.name}: a record at byte {at} is damaged: {error}")

    def _schema(self, body: bytes) -> None:
        (key,) = struct.unpack_from("<H", body)
        name, at = _text(body, 2)
        encoding, at = _text(body, at)
        definition, _ = _text(body, at)
        self._schemas[key] = (name, definition, encoding)

    def _channel(self, body: bytes) -> None:
        key, schema = struct.unpack_from("<HH", body)
        name, at = _text(body, 4)
        serialisation, _ = _text(body, at)
        type_name, definition, encoding = self._schemas.get(schema, ("", "", ""))
        topic = StoredTopic(name, type_name, definition, encoding, serialisation)
        if key not in self._channels or self.index.topics[self._channels[key]] != topic:
            self._channels[key] = len(self.index.topics)
            self.index.topics.append(topic)

    def _message(self, data: Buffer, at: int, length: int, chunk: int) -> None:
        key, _, log_ns, _ = _MESSAGE.unpack_from(data, at)
        topic = self._channels.get(key)
        if topic is None:
            self.index.problems.append(f"{self.path.name}: a message of a channel {key} that was never announced")
            return
        body, size = at + _MESSAGE.size, length - _MESSAGE.size
        head = data[body : body + min(size, 12)]
        if head[:4] == b"\x28\xb5\x2f\xfd":
            head = inflate_head(data[body : body + size])
        self.index.add(topic, log_ns, head)
        self._chunk.append(chunk)
        self._at.append(body)
        self._length.append(size)

    def _chunk_record(self, at: int, length: int, whole: bool) -> None:
        """Index a chunk; of one that was cut, its first messages. A chunk whose checksum is wrong is left out."""
        try:
            _, _, size, crc = _CHUNK.unpack_from(self._map, at)
            compression, begin = _text(self._map, at + _CHUNK.size)
        except (struct.error, UnicodeDecodeError):
            self.index.problems.append(f"{self.path.name}: the chunk at byte {at} is cut within its heading")
            return
        begin, stored = begin + 8, at + length - begin - 8
        number = len(self._chunks)
        self._chunks.append((compression, begin, stored))
        data = self._map[begin : begin + stored] if not compression else self._records(number)
        if whole and (len(data) != size or (crc and zlib.crc32(data) != crc)):
            self.index.problems.append(
                f"{self.path.name}: the chunk at byte {at} is damaged ({len(data)} of {size} bytes); it is left out"
            )
            return
        # Bytes of an uncompressed chunk are read from the file later: nothing of it has to be kept.
        source, first, where = (data, 0, number) if compression else (self._map, begin, IN_FILE)
        for kind, inside, inner_length, inner_whole in _records(source, first, first + len(data)):
            if inner_whole:
                self._record(source, kind, inside, inner_length, where)

    def _records(self, number: int) -> bytes:
        """The records of a compressed chunk, as far as they can be decompressed; the last few chunks are kept."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        compression, begin, stored = self._chunks[number]
        data = self._decompressed(compression, self._map[begin : begin + stored], begin)
        self._open[number] = data
        if len(self._open) > KEPT_CHUNKS:
            self._open.popitem(last=False)
        return data

    def _decompressed(self, compression: str, data: bytes, at: int) -> bytes:
        try:
            if compression == "zstd":
                return zstandard.ZstdDecompressor().decompressobj().decompress(data)
            if compression == "lz4":
                return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data))
            error = f"compression {compression!r} is not known"
        except (zstandard.ZstdError, RuntimeError, EOFError) as failed:  # RuntimeError: lz4's word for damaged data
            error = str(failed)
        self.index.problems.append(f"{self.path.name}: the chunk at byte {at} cannot be decompressed: {error}")
        return b""


def _records(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int, bool]]:
    """(kind, where its body begins, body length as far as it is there, whether all of it is there)."""
    while at + _RECORD.size <= end:
        kind, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield kind, at, min(length, end - at), at + length <= end
        at += length


def _text(body: Buffer, at: int) -> tuple[str, int]:
    """A string with its length before it, and where it ends. UnicodeDecodeError or struct.error if it is none."""
    (length,) = struct.unpack_from("<I", body, at)
    data = body[at + 4 : at + 4 + length]
    if len(data) != length:
        raise struct.error(f"a text of {length} bytes is cut after {len(data)}")
    return data.decode("utf-8"), at + 4 + length
