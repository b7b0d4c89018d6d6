"""Makes a proper bag out of unfinished or damaged files, and tells what was kept and what was lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import zstandard
from rosbags.interfaces import Qos
from rosbags.rosbag2.errors import ReaderError
from rosbags.rosbag2.metadata import parse_qos

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_ros.bag_definitions import known_definition
from wamdiff2_ros.bag_file import LIBRARY
from wamdiff2_ros.bag_files import bag_files, read_metadata
from wamdiff2_ros.bag_metadata import METADATA_NAME, Topic
from wamdiff2_ros.bag_sqlite import SqliteFile
from wamdiff2_ros.bag_storage import ZSTD_MAGIC, inflate, inflate_file
from wamdiff2_ros.bag_writer import BagWriter, Limits
from wamdiff2_ros.mcap_scan import Found, Scan


@dataclass(frozen=True)
class Message:
    """A message on its way into the new bag."""

    topic: Topic
    log_ns: int
    publish_ns: int
    sequence: int
    data: bytes


@dataclass
class FileReport:
    """One file: whether its end is there, what is wrong with it in words."""

    path: str
    finished: bool = False
    kept: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class Salvage:
    """`lost`: messages by topic that are known to be missing; behind a cut there may have been more that left no trace.

    `never_recorded`: what our own recorder counted and dropped (its numbers show the gaps). `renamed`: topics whose
    type or definition changed, and the new name of what came after.
    """

    out: str
    files: list[FileReport] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    never_recorded: Counter[str] = field(default_factory=Counter)
    renamed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Nothing is known to be missing, and no file was cut."""
        return not self.lost and all(file.finished for file in self.files)


def salvage(source: Path, out: Path, max_file_mb: float = 0.0) -> Salvage:
    """Write what can be read of a bag folder or a file to the new folder `out`.

    DataError if there is no bag, or nothing in it can be read; ConfigError if `out` is there already; NoRoom, OSError.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already; a bag is not written over")
    metadata = read_metadata(source if source.is_dir() else source.parent)
    files = bag_files(source, metadata) if source.exists() else []
    if not files:
        raise DataError(f"{source}: expected a bag folder or file, found no .mcap, .db3 or .zstd file")
    report = Salvage(str(out), notes=list(metadata.problems) if source.is_dir() else [])
    target = _Target(out, max_file_mb, report)
    with tempfile.TemporaryDirectory(prefix="wamdiff2_salvage_") as scratch:
        for file in files:
            target.take(file, Path(scratch))
    target.close()
    report.lost, report.never_recorded = +report.lost, +report.never_recorded
    stated = metadata.messages if source.is_dir() else None
    kept = sum(report.kept.values())
    if stated is not None and stated > kept + sum(report.lost.values()):
        report.notes.append(f"{METADATA_NAME} states {stated} messages, {stated - kept} more than were found")
    if not kept:
        raise DataError(f"{source}: not one message can be read: {'; '.join(_told(report)) or 'the files hold none'}")
    return report


class _Target:
    """The new bag; it is made with the first message."""

    def __init__(self, out: Path, max_file_mb: float, report: Salvage) -> None:
        self._out, self._limits, self._report = out, Limits(max_file_mb=max_file_mb), report
        self._bag: BagWriter | None = None
        self._names: dict[Topic, str] = {}
        self._used: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, path: Path, scratch: Path) -> None:
        """Everything that can be read of a file; what cannot is noted."""
        file = FileReport(path.name)
        self._report.files.append(file)
        try:
            for message in _messages(path, scratch, file, self._report, self._last):
                self._write(message)
                file.kept += 1
        except DataError as error:
            file.finished = False
            file.notes.append(str(error))

    def close(self) -> None:
        if self._bag is not None:
            self._bag.close()

    def _write(self, message: Message) -> None:
        if self._bag is None:
            self._bag = BagWriter(self._out, self._limits)
        name = self._names.get(message.topic) or self._add(self._bag, message.topic)
        self._report.kept[name] += 1
        self._bag.write(name, message.log_ns, message.data, message.publish_ns, message.sequence)

    def _add(self, bag: BagWriter, topic: Topic) -> str:
        """A topic that is there already with another type or definition gets a name of its own: play wants one type."""
        same = next((t for t in self._names if _same(t, topic)), None)
        if same is not None:  # the QoS differs only: the first one stands, for the whole bag
            self._names[topic] = self._names[same]
            return self._names[same]
        name, number = topic.name, 2
        while name in self._used:
            name, number = f"{topic.name}_{number}", number + 1
        if name != topic.name:
            self._report.renamed[name] = f"{topic.name} with another definition of {topic.type_name}"
        self._used.add(name)
        self._names[topic] = name
        bag.add(replace(topic, name=name))
        return name


def _same(a: Topic, b: Topic) -> bool:
    return (a.name, a.type_name, a.definition) == (b.name, b.type_name, b.definition)


def _told(report: Salvage) -> list[str]:
    return [f"{file.path}: {note}" for file in report.files for note in file.notes]


def _messages(path: Path, scratch: Path, file: FileReport, report: Salvage, last: dict[str, int]) -> Iterator[Message]:
    """Messages of any kind of file. `last`: newest number of each topic so far. DataError: it is no such file."""
    with path.open("rb") as begin:
        magic = begin.read(len(ZSTD_MAGIC))
    if magic == ZSTD_MAGIC:
        inflated = scratch / path.name.removesuffix(".zstd")
        if problem := inflate_file(path, inflated):
            file.notes.append(problem)
        path = inflated
    with path.open("rb") as begin:
        is_sqlite = begin.read(6) == b"SQLite"
    yield from _of_sqlite(path, file, report) if is_sqlite else _of_mcap(path, file, report, last)


def _of_mcap(path: Path, file: FileReport, report: Salvage, last: dict[str, int]) -> Iterator[Message]:
    scan, gaps = Scan(path), Counter[str]()
    topics: dict[int, tuple[Topic, Found]] = {}  # the message holds on to the channel, so its id stays its own
    begun: set[str] = set()
    for found in scan.found():
        if id(found.channel) not in topics:
            topics[id(found.channel)] = _topic_of(found, file), found
        topic, sequence = topics[id(found.channel)][0], found.sequence
        yield Message(topic, found.log_ns, found.publish_ns, sequence, _inflated(found.data, topic.name))
        if sequence and scan.library.startswith(LIBRARY):
            gap = sequence - last.get(topic.name, sequence) - 1
            # Between two files a gap is a lost end or a lost file; inside one the recorder itself dropped something.
            (gaps if topic.name in begun else report.lost)[topic.name] += max(0, gap)
            begun.add(topic.name)
            last[topic.name] = sequence
    file.finished = scan.finished
    file.notes.extend(scan.notes)
    report.lost.update(scan.lost)
    report.never_recorded.update(+(gaps - scan.lost))


def _topic_of(found: Found, file: FileReport) -> Topic:
    channel, schema = found.channel, found.schema
    said = channel.metadata
    profiles = _profiles(said.get("offered_qos_profiles", ""), file, channel.topic)
    if schema is None:
        file.notes.append(f"{channel.topic}: the part that names its type is missing; it is kept without one")
        return Topic(channel.topic, "unknown/msg/Unknown", qos=profiles)
    text = schema.data.decode("utf-8", "replace")
    return Topic(channel.topic, schema.name, text, schema.encoding, said.get("topic_type_hash", ""), profiles)


def _of_sqlite(path: Path, file: FileReport, report: Salvage) -> Iterator[Message]:
    source = SqliteFile(path)
    try:
        index, profiles = source.index, source.offered_profiles()
        topics = []
        for stored in index.topics:
            text, encoding = stored.definition, stored.encoding
            if not text:  # bags of ROS 2 Humble and before
                text, encoding = known_definition(stored.type_name), "ros2msg"
            qos = _profiles(profiles.get(stored.name, ""), file, stored.name)
            topics.append(Topic(stored.name, stored.type_name, text, encoding, qos=qos))
        for k in range(len(index.topic)):
            topic = topics[index.topic[k]]
            try:
                data = source.read(k)
            except DataError as error:
                report.lost[topic.name] += 1
                file.notes.append(str(error))
                continue
            yield Message(topic, index.log_ns[k], 0, 0, data)
        file.finished = index.complete
        file.notes.extend(index.problems)
    finally:
        source.close()


def _profiles(text: str, file: FileReport, topic: str) -> tuple[Qos, ...]:
    try:
        return tuple(parse_qos(text))
    except (ReaderError, KeyError, TypeError) as error:
        file.notes.append(f"{topic}: its QoS cannot be read and is left out: {error}")
        return ()


def _inflated(data: bytes, topic: str) -> bytes:
    """Bags compressed message by message become plain ones."""
    try:
        return inflate(data)
    except zstandard.ZstdError as error:
        raise DataError(f"{topic}: a compressed message is damaged: {error}") from error
