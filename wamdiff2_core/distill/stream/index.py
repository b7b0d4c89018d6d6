"""Where each sample stands in JSON and JSON-lines files. Only offsets stay in memory; samples are read when due."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wamdiff2_core.errors import DataError

_SPACE = re.compile(r"[ \t\n\r]*")
_BOM = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Entry:
    """One JSON value of a file: bytes [start, end), its number in the file (from 0), and the value itself."""

    start: int
    end: int
    number: int
    value: object


@dataclass(frozen=True)
class Broken:
    """A place that could not be read: what is wrong there, the number of the sample and the byte where it begins."""

    reason: str
    number: int
    start: int


@dataclass
class Scan:
    """What a walk through a file found."""

    entries: int = 0
    broken: list[Broken] = field(default_factory=list)


def scan(path: Path, found: Scan) -> Iterator[Entry]:
    """All readable samples of a file; `found` collects the unreadable places.

    A list that breaks off gives what stands before the break; of JSON lines only the broken ones are lost. Raises
    DataError, with file and position, when nothing at all can be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a file of conversations, got {error.strerror or error}") from error
    shift = len(_BOM) if raw.startswith(_BOM) else 0
    text = _text(raw[shift:], path)
    at = _after_space(text, 0)
    if text[at : at + 1] not in ("[", "{"):
        raise DataError(f"{path}: byte {at + shift}: expected a JSON list or JSON lines, got {text[at : at + 20]!r}")
    walk = _list(text, at, found) if text[at] == "[" else _lines(text, found)
    for entry in _in_bytes(walk, text, shift):
        found.entries += 1
        yield entry
    if found.broken and not found.entries:
        first = found.broken[0]
        raise DataError(f"{path}: byte {first.start}: no sample can be read: {first.reason}")


def read(path: Path, start: int, end: int) -> object:
    """The value at bytes [start, end) of a file that has been walked through before."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return json.loads(file.read(end - start))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: byte {start}: the sample seen here before cannot be read again: {error}") from error


def _text(raw: bytes, path: Path) -> str:
    """Bytes that are no UTF-8 become lone surrogates, so that only the samples that hold them are lost."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: byte 0: expected UTF-8, got UTF-16")
    return raw.decode("utf-8", "surrogateescape")


def _list(text: str, at: int, found: Scan) -> Iterator[Entry]:
    at = _after_space(text, at + 1)
    number = 0
    if text[at : at + 1] == "]":
        return
    while True:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            found.broken.append(Broken(f"broken JSON, the list is not read further ({error})"[:120], number, at))
            return
        yield Entry(at, end, number, value)
        number += 1
        at = _after_space(text, end)
        if text[at : at + 1] == "]":
            return
        if text[at : at + 1] != ",":
            reason = "list breaks off" if at >= len(text) else f"expected , or ] got {text[at]!r}: not read further"
            found.broken.append(Broken(reason, number, at))
            return
        at = _after_space(text, at + 1)


def _lines(text: str, found: Scan) -> Iterator[Entry]:
    at = number = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if line.strip():
            try:
                yield Entry(at, end, number, json.loads(line))
            except (ValueError, RecursionError) as error:
                found.broken.append(Broken(f"broken JSON line ({error})"[:120], number, at))
            number += 1
        at = end + 1


def _in_bytes(walk: Iterator[Entry], text: str, shift: int) -> Iterator[Entry]:
    """Offsets of characters as offsets of bytes."""
    if text.isascii():
        for entry in walk:
            yield Entry(entry.start + shift, entry.end + shift, entry.number, entry.value)
        return
    character, byte = 0, shift
    for entry in walk:
        start = byte + len(text[character : entry.start].encode("utf-8", "surrogateescape"))
        character, byte = entry.end, start + len(text[entry.start : entry.end].encode("utf-8", "surrogateescape"))
        yield Entry(start, byte, entry.number, entry.value)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
