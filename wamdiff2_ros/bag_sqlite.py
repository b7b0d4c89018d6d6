"""SQLite bags (.db3), read message by message as far as the file allows: also one that was cut or never closed."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from array import array
from pathlib import Path

import zstandard

from wamdiff2_core.errors import DataError
from wamdiff2_ros.bag_storage import ZSTD_MAGIC, Index, StoredTopic, inflate, inflate_head

MAGIC = b"SQLite format 3\x00"
HEAD = "SELECT id, topic_id, timestamp, substr(data, 1, 12) FROM messages WHERE id > ? ORDER BY id"
_HEADING = 100
MOST_SKIPPED = 1 << 24  # ids tried behind a damaged place


class SqliteFile:
    """An indexed file. DataError if its tables cannot be read at all."""

    def __init__(self, path: Path) -> None:
        self.path, self.index = path, Index()
        self._ids = array("q")
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._base = sqlite3.connect(self._address(path), uri=True, check_same_thread=False)
            # A file shorter than its heading says is refused otherwise; what is left of it can still be read.
            self._base.execute("PRAGMA writable_schema=ON")
            numbers = self._topics()
            self._scan(numbers)
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path}: expected a bag in SQLite: {error}") from error

    def read(self, k: int) -> bytes:
        """CDR bytes of message number `k`. DataError if the place in the file is damaged."""
        try:
            row = self._base.execute("SELECT data FROM messages WHERE id = ?", (self._ids[k],)).fetchone()
            return inflate(row[0])
        except (sqlite3.DatabaseError, zstandard.ZstdError, TypeError) as error:  # TypeError: no such row any more
            raise DataError(f"{self.path.name}: message {self._ids[k]} is damaged: {error}") from error

    def offered_profiles(self) -> dict[str, str]:
        """The senders' QoS by topic, as YAML; nothing of files that are older than that."""
        columns = {row[1] for row in self._base.execute("PRAGMA table_info(topics)")}
        if "offered_qos_profiles" not in columns:
            return {}
        return dict(self._base.execute("SELECT name, offered_qos_profiles FROM topics"))

    def close(self) -> None:
        self._base.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _address(self, path: Path) -> str:
        """The file, never written to; a copy of it where a journal of a recorder that was killed has to be applied."""
        journals = [p for p in (path.with_name(path.name + end) for end in ("-wal", "-journal")) if p.is_file()]
        if not any(p.stat().st_size for p in journals):
            return f"{self._without_cut_page(path).resolve().as_uri()}?mode=ro&immutable=1"
        self.index.problems.append(f"{path.name}: its journal was still open: the recorder was not able to close it")
        self.index.complete = False
        self._scratch = tempfile.TemporaryDirectory(prefix="wamdiff2_bag_")
        for file in (path, *journals):
            shutil.copy(file, self._scratch.name)
        return (Path(self._scratch.name) / path.name).as_uri()

    def _without_cut_page(self, path: Path) -> Path:
        """The file; of one that is cut a copy whose heading says so: SQLite reads zeros where pages are missing."""
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEADING)
        if len(head) < _HEADING:
            raise DataError(f"{path}: expected a bag in SQLite, got {size} bytes")
        page = int.from_bytes(head[16:18], "big")
        page = 65536 if page == 1 else page
        if page < 512 or size == int.from_bytes(head[28:32], "big") * page:
            return path
        self.index.problems.append(f"{path.name}: it is cut: {size} bytes of pages of {page}")
        self.index.complete = False
        self._scratch = tempfile.TemporaryDirectory(prefix="wamdiff2_bag_")
        copy = Path(shutil.copy(path, self._scratch.name))
        with copy.open("r+b") as file:
            file.truncate(size // page * page)
            file.seek(28)
            file.write((size // page).to_bytes(4, "big"))
        return copy

    def _topics(self) -> dict[int, int]:
        """Number of each topic id."""
        tables = {row[0] for row in self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"topics", "messages"} <= tables:
            raise DataError(f"{self.path}: expected the tables topics and messages, got {sorted(tables)}")
        definitions: dict[str, tuple[str, str]] = {}
        if "message_definitions" in tables:  # not in bags of ROS 2 Humble and before
            query = "SELECT topic_type, encoded_message_definition, encoding FROM message_definitions"
            definitions = {kind: (text, encoding) for kind, text, encoding in self._base.execute(query)}
        numbers = {}
        rows = self._base.execute("SELECT id, name, type, serialization_format FROM topics ORDER BY id")
        for key, name, kind, serialisation in rows:
            numbers[int(key)] = len(self.index.topics)
            self.index.topics.append(StoredTopic(name, kind, *definitions.get(kind, ("", "")), serialisation))
        return numbers

    def _scan(self, numbers: dict[int, int]) -> None:
        """Index all rows; where the file is damaged, look further behind that place."""
        last, skip, damage = -1, 0, ""
        while skip <= MOST_SKIPPED:
            try:
                for key, topic, log_ns, head in self._base.execute(HEAD, (last + skip,)):
                    last, skip = key, 0
                    self._row(key, numbers.get(topic), log_ns, bytes(head or b""))
                break
            except sqlite3.DatabaseError as error:
                damage = damage or f"{self.path.name}: damaged behind message {last}: {error}"
                skip = max(1, skip * 2)
        if damage:
            self.index.problems.append(damage)
            self.index.complete = False

    def _row(self, key: int, topic: int | None, log_ns: int | None, head: bytes) -> None:
        if log_ns is None:  # SQLite reads zeros where the file is cut
            self.index.problems.append(f"{self.path.name}: message {key} is cut off")
            self.index.complete = False
            return
        if topic is None:
            self.index.problems.append(f"{self.path.name}: message {key} is of a topic that is not in the list")
            return
        if head.startswith(ZSTD_MAGIC):
            whole = self._base.execute("SELECT data FROM messages WHERE id = ?", (key,)).fetchone()[0]
            head = inflate_head(whole)
        self.index.add(topic, log_ns, head)
        self._ids.append(key)
