"""Bags that were cut anywhere, damaged anywhere, compressed or in SQLite: what is whole is kept, the rest is told."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as RosbagsWriter
from typer.testing import CliRunner
from written import START_NS, STORE, STRING, TOPICS, cdr, read, write_numbers

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_ros.bag_salvage import salvage
from wamdiff2_ros.bag_writer import BagWriter, Limits
from wamdiff2_ros.mcap_scan import Scan

CHUNKS, PER_CHUNK = 4, 6


@pytest.fixture(scope="module")
def whole() -> tuple[bytes, list[tuple[str, bytes]]]:
    """A finished file and its messages."""
    with tempfile.TemporaryDirectory() as folder:
        told = write_numbers(Path(folder) / "bag", CHUNKS, PER_CHUNK)
        return (Path(folder) / "bag" / "bag_0.mcap").read_bytes(), told


def salvaged(data: bytes, name: str = "bag_0.mcap"):
    """(report or error, messages) of a file of these bytes without metadata."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bag"
        folder.mkdir()
        (folder / name).write_bytes(data)
        try:
            report = salvage(folder, Path(scratch) / "out")
        except DataError as error:
            assert not (Path(scratch) / "out").exists()
            return error, []
        return report, read(Path(scratch) / "out")


def chunk_ends(data: bytes) -> list[int]:
    """Where each chunk of the file ends."""
    from mcap.reader import make_reader

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with open(file.name, "rb") as again:
            return [
                index.chunk_start_offset + index.chunk_length
                for index in make_reader(again).get_summary().chunk_indexes
            ]


@settings(max_examples=80, deadline=None)
@given(share=st.floats(0, 1))
def test_a_cut_anywhere_keeps_everything_before_it(whole: tuple[bytes, list], share: float) -> None:
    data, told = whole
    at = int(share * len(data))
    report, kept = salvaged(data[:at])
    assert kept == told[: len(kept)], "exactly the first messages, byte by byte"
    assert len(kept) >= PER_CHUNK * sum(end <= at for end in chunk_ends(data)), "closed chunks are whole"
    if kept:
        assert report.complete == report.files[0].finished == (at == len(data))
        assert report.kept == Counter(topic for topic, _ in kept)
    else:
        assert isinstance(report, DataError) and "not one message" in str(report)


@pytest.mark.parametrize("end", [b"", b"\0" * 4096, b"\xff" * 100, b"garbage"])
def test_what_lies_behind_the_cut_does_no_harm(whole: tuple[bytes, list], end: bytes) -> None:
    """A power cut can leave zeros."""
    data, told = whole
    report, kept = salvaged(data[: chunk_ends(data)[1]] + end)
    assert kept == told[: 2 * PER_CHUNK] and not report.complete


@settings(max_examples=80, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_damaged_byte_costs_one_chunk_at_most_and_nothing_wrong_is_kept(
    whole: tuple[bytes, list], share: float, flip: int
) -> None:
    data, told = whole
    at = int(share * len(data))
    report, kept = salvaged(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
    if at < 8:
        assert isinstance(report, DataError)
        return
    if at < chunk_ends(data)[-1] + 200:  # of a topic's name in the summary there is no checksum that covers it alone
        assert [message for message in told if message in kept] == kept
    assert len(kept) >= len(told) - PER_CHUNK
    if len(kept) < len(told):
        assert not report.complete and sum(report.lost.values()) >= 1


def test_a_hole_in_the_middle_is_told_by_topic(whole: tuple[bytes, list]) -> None:
    data, told = whole
    ends = chunk_ends(data)
    at = ends[1] - 20
    report, kept = salvaged(data[:at] + bytes(20) + data[ends[1] :])
    assert kept == told[:PER_CHUNK] + told[2 * PER_CHUNK :]
    assert report.lost == dict.fromkeys(TOPICS, PER_CHUNK // 2) and not report.never_recorded
    assert any("checksum" in note for note in report.files[0].notes)


@pytest.mark.parametrize("compression", [CompressionType.ZSTD, CompressionType.LZ4, CompressionType.NONE])
@pytest.mark.parametrize("chunked", [True, False])
def test_files_of_other_recorders(tmp_path: Path, compression: CompressionType, chunked: bool) -> None:
    """rosbag2 has no chunk checksums by default, and can compress chunks or write none."""
    path = tmp_path / "b" / "b_0.mcap"
    path.parent.mkdir()
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=400, compression=compression, use_chunking=chunked, enable_crcs=False)
        writer.start("ros2", "libmcap 1.4.0")
        schema = writer.register_schema(STRING, "ros2msg", b"string data")
        channel = writer.register_channel("/a", "cdr", schema, {"offered_qos_profiles": ""})
        for k in range(40):
            writer.add_message(channel, START_NS + k, cdr(str(k) * 20), START_NS + k, k)
        writer.finish()
    data, told = path.read_bytes(), [("/a", cdr(str(k) * 20)) for k in range(40)]
    assert salvaged(data)[1] == told
    report, kept = salvaged(data[: len(data) // 3])
    assert 3 < len(kept) < 40 and kept == told[: len(kept)] and not report.complete


def test_torn_and_missing_metadata_and_many_files(tmp_path: Path) -> None:
    told = write_numbers(tmp_path / "bag", 12, PER_CHUNK, Limits(max_file_mb=0.0003))
    files = sorted((tmp_path / "bag").glob("*.mcap"))
    assert len(files) == 12  # bag_10 comes behind bag_2
    meta = tmp_path / "bag" / "metadata.yaml"
    meta.write_bytes(meta.read_bytes()[:300])
    (tmp_path / "bag" / "bag_11.mcap").write_bytes((tmp_path / "bag" / "bag_11.mcap").read_bytes()[:700])
    report = salvage(tmp_path / "bag", tmp_path / "out")
    kept = read(tmp_path / "out")
    assert kept == told[: len(kept)] and len(kept) >= 11 * PER_CHUNK and not report.complete
    assert any("metadata.yaml" in note for note in report.notes)
    (tmp_path / "bag" / "bag_4.mcap").unlink()
    report = salvage(tmp_path / "bag", tmp_path / "out2")
    assert report.lost["/a"] >= 3 and report.lost["/b"] >= 3  # the numbers tell that a file is missing


def test_what_the_recorder_dropped_is_told_apart(tmp_path: Path) -> None:
    bag = BagWriter(tmp_path / "bag")
    bag.add_topic("/a", STRING)
    for sequence in (1, 2, 6, 7):
        bag.write("/a", START_NS + sequence, cdr("x"), sequence=sequence)
    bag.close()
    report = salvage(tmp_path / "bag", tmp_path / "out")
    assert report.never_recorded == {"/a": 3} and not report.lost and report.complete


def test_a_topic_that_changed_its_type_is_kept_under_another_name(tmp_path: Path) -> None:
    for k, kind in enumerate((STRING, "std_msgs/msg/Int32")):
        bag = BagWriter(tmp_path / f"part{k}")
        bag.add_topic("/a", kind)
        bag.write("/a", START_NS + k, cdr("x"))
        bag.close()
    (tmp_path / "part1" / "part1_0.mcap").rename(tmp_path / "part0" / "part0_1.mcap")
    report = salvage(tmp_path / "part0", tmp_path / "out")
    assert [topic for topic, _ in read(tmp_path / "out")] == ["/a", "/a_2"]
    assert "std_msgs/msg/Int32" in report.renamed["/a_2"]


def sqlite_bag(folder: Path, messages: int, size: int = 1) -> Path:
    with RosbagsWriter(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection("/a", STRING, typestore=STORE)
        for k in range(messages):
            writer.write(connection, START_NS + k, cdr(str(k) * 50 * size))
    return folder / f"{folder.name}.db3"


def test_sqlite_with_an_open_wal(tmp_path: Path) -> None:
    """rosbag2's recorder killed: rows are in the write-ahead log only."""
    database = sqlite_bag(tmp_path / "bag", 20)
    base = sqlite3.connect(database)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA wal_autocheckpoint=0")
    for k in range(20, 40):
        base.execute(
            "INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)", (START_NS + k, cdr(str(k) * 50))
        )
    base.commit()
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in database.parent.glob("*.db3*"):
        shutil.copy(file, killed)
    base.close()
    assert (killed / "bag.db3-wal").stat().st_size > 0
    report = salvage(killed, tmp_path / "out")
    assert read(tmp_path / "out") == [("/a", cdr(str(k) * 50)) for k in range(40)] and report.kept["/a"] == 40


def test_sqlite_with_a_hot_journal(tmp_path: Path) -> None:
    """Killed within a transaction whose pages were half written: what was committed before comes back."""
    database = sqlite_bag(tmp_path / "bag", 100)
    base = sqlite3.connect(database, isolation_level=None)
    base.execute("PRAGMA cache_size=2")
    base.execute("BEGIN")
    base.execute("UPDATE messages SET data = zeroblob(200)")
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in database.parent.glob("*.db3*"):
        shutil.copy(file, killed)
    base.execute("ROLLBACK")
    base.close()
    assert (killed / "bag.db3-journal").stat().st_size > 0
    salvage(killed, tmp_path / "out")
    assert read(tmp_path / "out") == [("/a", cdr(str(k) * 50)) for k in range(100)]


@pytest.mark.parametrize("share", [0.3, 0.523, 0.8, 0.97])
@pytest.mark.parametrize(("count", "size"), [(2000, 1), (200, 200)])  # large ones are in pages of their own
def test_sqlite_cut_short(tmp_path: Path, share: float, count: int, size: int) -> None:
    """SQLite reads zeros where a file is cut: no message is taken that has such zeros in it."""
    database = sqlite_bag(tmp_path / "bag", count, size)
    data = database.read_bytes()
    database.write_bytes(data[: int(len(data) * share)])
    report = salvage(database, tmp_path / "out")
    kept = read(tmp_path / "out")
    assert kept == [("/a", cdr(str(k) * 50 * size)) for k in range(len(kept))]
    assert count * (share - 0.25) < len(kept) < count and not report.complete


def test_compressed_files_and_messages_become_plain(tmp_path: Path, whole: tuple[bytes, list]) -> None:
    data, told = whole
    packed = zstandard.compress(data)
    assert salvaged(packed, "bag_0.mcap.zstd")[1] == told
    report, kept = salvaged(packed[: len(packed) * 4 // 5], "bag_0.mcap.zstd")
    assert not (kept and report.complete) and kept == told[: len(kept)]
    bag = BagWriter(tmp_path / "bag")
    bag.add_topic("/a", STRING)
    bag.write("/a", START_NS, zstandard.compress(cdr("packed")))
    bag.close()
    salvage(tmp_path / "bag", tmp_path / "out")
    assert read(tmp_path / "out") == [("/a", cdr("packed"))]


def test_the_command_says_what_was_kept(tmp_path: Path, whole: tuple[bytes, list]) -> None:
    from wamdiff2_cli.main import app

    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole[0][:1500])
    ran = CliRunner().invoke(app, ["salvage", str(cut), "--out", str(tmp_path / "out"), "--json"])
    said = json.loads(ran.output)
    assert (
        ran.exit_code == 0
        and said["complete"] is False
        and said["kept"] == Counter(t for t, _ in read(tmp_path / "out"))
    )
    ran = CliRunner().invoke(app, ["salvage", str(cut), "--out", str(tmp_path / "out2")])
    assert "its end is missing" in ran.output and "/a" in ran.output
    for source, out, error in (("nothing", "out3", DataError), ("cut.mcap", "out", ConfigError)):
        ran = CliRunner().invoke(app, ["salvage", str(tmp_path / source), "--out", str(tmp_path / out)])
        assert ran.exit_code and isinstance(ran.exception, error)


def test_a_whole_file_is_scanned_as_such(tmp_path: Path, whole: tuple[bytes, list]) -> None:
    (tmp_path / "a.mcap").write_bytes(whole[0])
    scan = Scan(tmp_path / "a.mcap")
    found = list(scan.found())
    assert scan.finished and not scan.notes and not scan.lost and scan.read == Counter(t for t, _ in whole[1])
    assert [m.sequence for m in found if m.channel.topic == "/b"] == list(range(1, 13))
