"""Bags as they are written: files that stand alone, chunks that are whole, a full disk, a queue that overflows."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
import yaml
from mcap.reader import make_reader
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from written import START_NS, STRING, cdr, read, small_disk, write_numbers

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.bag_definitions import add_installed, definition, typestore
from wamdiff2_ros.bag_thread import FAILED, FULL, RECORDING, BagThread
from wamdiff2_ros.bag_writer import BagWriter, Limits, NoRoom
from wamdiff2_ros.mcap_scan import Scan

MIB = 2**20
FOREVER = QosTime(9223372036, 854775807)


def metadata(bag: Path) -> dict:
    return yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]


def test_a_bag_says_what_rosbag2_wants_to_know(tmp_path: Path) -> None:
    told = write_numbers(tmp_path / "bag")
    assert read(tmp_path / "bag") == told
    info = metadata(tmp_path / "bag")
    assert info["version"] == 9 and info["storage_identifier"] == "mcap" and info["message_count"] == len(told)
    assert info["relative_file_paths"] == ["bag_0.mcap"] and info["duration"]["nanoseconds"] == 23 * 10**7
    topic = info["topics_with_message_count"][0]["topic_metadata"]
    assert topic["type"] == STRING and topic["type_description_hash"].startswith("RIHS01_df668c74")
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert sum(1 for _ in reader.iter_messages()) == len(told)
        summary = reader.get_summary()
        inside = yaml.safe_load(next(iter(reader.iter_metadata())).metadata["serialized_metadata"])
    assert len(summary.chunk_indexes) == 4 and summary.schemas[1].data == b"string data\n"
    assert inside["message_count"] == len(told) and inside["relative_file_paths"] == ["bag_0.mcap"]


def test_offered_qos_comes_through_complete(tmp_path: Path) -> None:
    offered = Qos(
        QosHistory.UNKNOWN, 0, QosReliability.BEST_EFFORT, QosDurability.TRANSIENT_LOCAL, FOREVER, QosTime(0, 5),
        QosLiveliness.AUTOMATIC, FOREVER, False,
    )  # fmt: skip
    bag = BagWriter(tmp_path / "bag")
    bag.add(bag.topic("/a", STRING, [offered]))
    bag.write("/a", START_NS, cdr("one"))
    bag.close()
    said = metadata(tmp_path / "bag")["topics_with_message_count"][0]["topic_metadata"]["offered_qos_profiles"]
    assert said[0]["reliability"] == "best_effort" and said[0]["durability"] == "transient_local"
    assert said[0]["lifespan"] == {"sec": 0, "nsec": 5} and len(said[0]) == 9
    assert read(tmp_path / "bag") == [("/a", cdr("one"))]  # rosbags gives nothing where file and metadata differ


def test_every_file_stands_alone(tmp_path: Path) -> None:
    """Latched messages of every sender are repeated, counted, and come first."""
    bag = BagWriter(tmp_path / "bag", Limits(max_file_mb=0.001))
    bag.add(bag.topic("/parameters", STRING), latched=True)
    bag.add_topic("/a", STRING)
    for sender in (b"1", b"2"):
        for text in ("old", "new"):
            bag.write("/parameters", START_NS, cdr(f"{text} of {sender.decode()}"), publisher=sender)
    for k in range(6):
        bag.write("/a", START_NS + (k + 1) * 10**9, cdr(str(k) * 600))
        bag.flush()
    bag.close()
    files = metadata(tmp_path / "bag")["relative_file_paths"]
    assert files == [f"bag_{k}.mcap" for k in range(len(files))] and len(files) >= 3
    for name in files[1:]:
        found = list(Scan(tmp_path / "bag" / name).found())
        assert [m.data for m in found[:2]] == [cdr("new of 1"), cdr("new of 2")] and found[2].channel.topic == "/a"
        assert found[0].log_ns == found[2].log_ns and found[0].publish_ns == START_NS
    assert Counter(topic for topic, _ in read(tmp_path / "bag"))["/a"] == 6
    assert metadata(tmp_path / "bag")["message_count"] == len(read(tmp_path / "bag"))


def test_a_chunk_is_written_before_its_time_is_up(tmp_path: Path) -> None:
    bag = BagWriter(tmp_path / "bag", Limits(flush_s=0.01))
    bag.add_topic("/a", STRING)
    bag.write("/a", START_NS, cdr("x"))
    while bag.due_s() > 0:
        threading.Event().wait(bag.due_s())
    bag.flush()
    assert [m.data for m in Scan(tmp_path / "bag" / "bag_0.mcap").found()] == [cdr("x")]
    bag.write("/a", START_NS, bytes(MIB))  # by size, at once
    assert len(list(Scan(tmp_path / "bag" / "bag_0.mcap").found())) == 2 and not bag.pending


def test_a_full_disk_is_met_between_two_chunks_and_the_bag_is_finished(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:
        bag = BagWriter(disk / "bag", Limits(sync_s=0.0))
        bag.add_topic("/a", STRING)
        written, data = 0, b"\0\1\0\0" + bytes(300_000)
        with pytest.raises(NoRoom, match="full"):
            for k in range(40):
                bag.write("/a", START_NS + k, data)
                bag.flush()
                written += 1
        bag.pause()
        assert written >= 6 and len(read(disk / "bag")) == written == bag.count and len(bag.pending) == 1
        with pytest.raises(NoRoom):
            bag.flush()
        bag.pause()  # no file, no metadata harmed
        assert len(read(disk / "bag")) == written
        first = disk / "bag" / "bag_0.mcap"
        shutil.move(first, tmp_path / "kept.mcap")  # there is room again
        bag.flush()
        assert not (disk / "bag" / "metadata.yaml").exists(), "it would not name the new file"
        bag.close()
        assert len(list(Scan(tmp_path / "kept.mcap").found())) == written
        assert metadata(disk / "bag")["relative_file_paths"] == ["bag_0.mcap", "bag_1.mcap"]
        assert [m.log_ns for m in Scan(disk / "bag" / "bag_1.mcap").found()] == [START_NS + written]


def test_the_watermark_stops_before_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        bag = BagWriter(disk / "bag", Limits(min_free_mb=4))
        bag.add_topic("/a", STRING)
        with pytest.raises(NoRoom, match="min_free_mb is 4"):
            for k in range(40):
                bag.write("/a", START_NS + k, bytes(300_000))
        bag.pause()
        assert metadata(disk / "bag")["message_count"] == bag.count > 5


class SlowBag:
    """Stands in for a disk: writes when it is let."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.count, self.got, self.error, self.custom = 0, [], None, {}

    def write(self, topic: str, *rest: object) -> None:
        self.go.wait(30)
        if self.error:
            raise self.error
        self.got.append((topic, rest[3]))
        self.count += 1

    def due_s(self) -> float:
        return 0.5

    def pause(self) -> None: ...

    def flush(self) -> None: ...

    close = flush

    def drop_pending(self) -> Counter:
        return Counter()


def test_what_the_queue_cannot_take_is_counted_by_topic_and_its_numbers_are_missing() -> None:
    bag = SlowBag()
    thread = BagThread(bag, queue_bytes=1000)
    for k in range(30):
        thread.put("/big" if k % 3 else "/small", k, bytes(100 if k % 3 else 10))
    state = thread.state()
    assert state.arrived == 30 and state.queued_bytes <= 1000
    bag.go.set()
    end = thread.stop()
    lost = sum(end.dropped.values())
    assert sum(json.loads(bag.custom["wamdiff2_dropped"]).values()) == lost
    assert {reason for reason, _ in end.dropped} == {"queue full"} and lost > 0
    assert end.written + lost == end.arrived and end.queued == end.queued_bytes == 0 and end.name == RECORDING
    numbers = [number for topic, number in bag.got if topic == "/big"]
    assert numbers == sorted(set(numbers)) and max(numbers) <= 20


def test_a_broken_disk_ends_the_recording_and_counts_everything() -> None:
    bag = SlowBag()
    bag.error = OSError(5, "Input/output error")
    bag.go.set()
    thread = BagThread(bag, queue_bytes=10**6)
    for k in range(50):
        thread.put("/a", k, b"x")
    end = thread.stop()
    assert end.name == FAILED and "Input/output error" in end.reason
    assert end.dropped["recorder stopped", "/a"] + end.dropped["not written at the end", "/a"] + 1 == 50


def test_a_full_disk_waits_and_goes_on_or_ends(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        (disk / "ballast").write_bytes(bytes(2 * MIB))
        bag = BagWriter(disk / "bag", Limits(flush_s=0.01))
        bag.add_topic("/a", STRING)
        thread = BagThread(bag, queue_bytes=MIB)
        wait_until(lambda: thread.put("/a", START_NS, bytes(200_000)) or thread.state().name == FULL)
        assert "full" in thread.state().reason
        wait_until(lambda: thread.put("/a", START_NS, bytes(200_000)) or thread.state().dropped["disk full", "/a"])
        (disk / "ballast").unlink()
        wait_until(lambda: thread.state().name == RECORDING)
        end = thread.stop()
        assert end.times_full == 1 and len(read(disk / "bag")) == end.written
        assert end.written + sum(end.dropped.values()) == end.arrived


def test_a_full_disk_ends_it_by_parameter(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:
        bag = BagWriter(disk / "bag", Limits(flush_s=0.01))
        bag.add_topic("/a", STRING)
        thread = BagThread(bag, queue_bytes=MIB, end_when_full=True)
        wait_until(lambda: thread.put("/a", START_NS, bytes(200_000)) or thread.state().name == FAILED)
        end = thread.stop()
        assert "stopped: the disk is full" in end.reason and len(read(disk / "bag")) == end.written > 3
        assert end.written + sum(end.dropped.values()) == end.arrived


def test_a_bag_that_is_deleted_under_the_recorder_is_no_silent_loss(tmp_path: Path) -> None:
    bag = BagWriter(tmp_path / "bag")
    bag.add_topic("/a", STRING)
    thread = BagThread(bag, queue_bytes=MIB)
    thread.put("/a", START_NS, bytes(MIB))
    wait_until(lambda: thread.state().written == 1 and not thread.state().queued)  # there is room for the next
    shutil.rmtree(tmp_path / "bag")
    thread.put("/a", START_NS, bytes(MIB))
    wait_until(lambda: thread.state().name == FAILED)
    assert "deleted" in thread.stop().reason


def wait_until(true: object) -> None:
    until = 12_000  # against hanging only
    while not true():
        threading.Event().wait(0.01)
        until -= 1
        assert until, "it did not come about"


def test_wrong_limits_and_unknown_types_are_named(tmp_path: Path) -> None:
    for wrong in ({"flush_s": 0.0}, {"max_file_mb": -1.0}, {"min_free_mb": float("nan")}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Limits(**wrong)
    bag = BagWriter(tmp_path / "bag")
    with pytest.raises(ConfigError, match="nowhere/msg/Nothing"):
        bag.add_topic("/a", "nowhere/msg/Nothing")
    with pytest.raises(ConfigError, match="exists already"):
        BagWriter(tmp_path / "bag")


def test_definitions_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "share" / "made_up" / "msg"
    folder.mkdir(parents=True)
    (folder / "Outer.msg").write_text("std_msgs/Header header\nInner[] parts\nstring MODE=a/msg/B\n")
    (folder / "Inner.msg").write_text("float64 x\n")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    store = typestore()
    add_installed(store, "made_up/msg/Outer")
    text, _ = store.generate_msgdef("made_up/msg/Outer", ros_version=2)
    assert "float64 x" in text and "MSG: made_up/Inner" in text


def test_a_definition_that_differs_from_ours_is_taken_where_the_sender_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "share" / "std_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder / "String.msg").write_text("string data\nint32 more\n")
    store = typestore()
    other = typestore()
    del other.fielddefs[STRING]
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    add_installed(other, STRING)
    sent = other.hash_rihs01(STRING)
    assert definition(store, STRING, sent) == ("string data\nint32 more\n", sent)
    text, known = definition(store, STRING, "RIHS01_of_nobody")
    assert text == "string data\n" and known == store.hash_rihs01(STRING) == definition(store, STRING)[1]
