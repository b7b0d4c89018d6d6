"""Replays of bags in every storage and state: evaluated as far as they go, and what is missing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bags import drive, write_items
from broken_bags import changed_type, only, replayed, restamped, write_rosbag
from rosbags.rosbag2 import CompressionMode, StoragePlugin

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_ros.bag_messages import Bag
from wamdiff2_ros.bag_writer import message_folder
from wamdiff2_ros.replay_run import NO_FRAMES, PASSED

MCAP, SQLITE = StoragePlugin.MCAP, StoragePlugin.SQLITE3
FRONT = "/world/cam_front/image/compressed"


def told(report: dict[str, Any], words: str) -> bool:
    return any(words in problem for problem in report["input"]["problems"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plain")
    return replayed(write_rosbag(folder / "bag", drive(8.0)), folder / "out", timing=False)


def test_the_plain_bag_is_evaluated_in_full(plain: dict[str, Any]) -> None:
    (row,) = plain["results"]
    assert plain["exit_code"] == PASSED and plain["input"]["problems"] == []
    assert row["frames"] == 16 and row["compared_with_driven"] == 8 and row["compared_with_recorded"] == 15
    assert row["ade_m"] == pytest.approx(0.8) and row["ade_to_recorded_m"] == pytest.approx(0.5)
    assert row["map50"] == pytest.approx(1.0) and row["answers_correct"] == 1.0
    assert plain["recorded"]["ade_m"] == pytest.approx(0.3) and plain["recorded"]["compared_with_driven"] == 7
    assert plain["recorded"]["frame_age_ms"] == pytest.approx(200.0)
    assert plain["input"]["max_gap_s"] == pytest.approx(0.1) and plain["input"]["read_share"] == 1.0


@pytest.mark.parametrize(
    ("plugin", "compression"),
    [
        (MCAP, CompressionMode.STORAGE),
        (MCAP, CompressionMode.MESSAGE),
        (MCAP, CompressionMode.FILE),
        (SQLITE, CompressionMode.NONE),
        (SQLITE, CompressionMode.MESSAGE),
        (SQLITE, CompressionMode.FILE),
    ],
)
def test_every_storage_and_compression_gives_the_same(
    plain: dict[str, Any], tmp_path: Path, plugin: StoragePlugin, compression: CompressionMode
) -> None:
    report = replayed(write_rosbag(tmp_path / "bag", drive(8.0), plugin, compression), tmp_path / "out", timing=False)
    assert report == plain


def test_a_split_bag_is_one_bag(plain: dict[str, Any], tmp_path: Path) -> None:
    items, folder = drive(8.0), tmp_path / "bag"
    folder.mkdir()
    for k, part in enumerate((items[:300], items[300:])):
        whole = write_rosbag(tmp_path / f"part{k}", part)
        next(whole.glob("*.mcap")).rename(folder / f"bag_{k}.mcap")
    report = replayed(folder, tmp_path / "out", timing=False)
    assert report["results"] == plain["results"] and told(report, "there is no metadata.yaml")
    single = replayed(folder / "bag_0.mcap", tmp_path / "out", timing=False)
    assert 0 < single["results"][0]["frames"] < 16


def cut(bag: Path, to: Path, share: float) -> Path:
    """The first part of each file and no metadata: what a killed recorder or a bad copy leaves."""
    to.mkdir()
    for file in bag.glob("*.*"):
        if file.name != "metadata.yaml":
            data = file.read_bytes()
            (to / file.name).write_bytes(data[: int(len(data) * share)])
    return to


@pytest.mark.parametrize(
    ("plugin", "compression", "share"),
    [
        (MCAP, CompressionMode.NONE, 0.6),
        (MCAP, CompressionMode.STORAGE, 0.2),
        (MCAP, CompressionMode.MESSAGE, 0.6),
        (MCAP, CompressionMode.FILE, 0.6),
        (SQLITE, CompressionMode.NONE, 0.6),
    ],
)
def test_cut_inside_a_chunk(tmp_path: Path, plugin: StoragePlugin, compression: CompressionMode, share: float) -> None:
    whole = write_rosbag(tmp_path / "bag", drive(8.0), plugin, compression)
    assert compression != CompressionMode.NONE or len(list(whole.iterdir())) == 2
    report = replayed(cut(whole, tmp_path / "cut", share), tmp_path / "out")
    row = report["results"][0]
    assert report["exit_code"] == PASSED and 3 <= row["frames"] < 16 and row["compared_with_recorded"]
    assert not report["input"]["bag_finished"] and report["input"]["messages_stated"] is None
    assert 0 < report["input"]["messages_read"] < 660 and told(report, "there is no metadata.yaml")
    assert told(report, "its end is missing") or told(report, "damaged") or told(report, "cut short")
    assert "remarks on the bag" in report["verdict"]


def test_a_damaged_chunk_in_the_middle_is_left_out(tmp_path: Path) -> None:
    bag = write_items(tmp_path / "bag", drive(8.0))
    file = next(bag.glob("*.mcap"))
    small = bytearray(file.read_bytes())
    small[len(small) // 2] ^= 0xFF
    file.write_bytes(small)
    report = replayed(bag, tmp_path / "out")
    assert told(report, "is damaged") and told(report, "the metadata states")
    assert report["exit_code"] == NO_FRAMES  # this small bag is one chunk; what is behind a wrong checksum is not used


def test_zero_stamps_are_replaced_by_the_time_of_recording(tmp_path: Path) -> None:
    items = restamped(drive(8.0), lambda topic: topic == FRONT, lambda ns: 0)
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and told(report, f"{FRONT}: 80 of 80 stamps are zero")
    everything = restamped(drive(8.0), lambda topic: True, lambda ns: 0)
    report = replayed(write_items(tmp_path / "all", everything), tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and report["results"][0]["ade_m"] == pytest.approx(0.8)


def test_a_hole_of_800_ms_is_found_and_not_bridged(tmp_path: Path) -> None:
    items = [item for item in drive(8.0) if not 3.0e9 < item[1] < 3.75e9]
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    assert report["input"]["max_gap_s"] == pytest.approx(0.8)
    row = next(row for row in report["input"]["topics"] if row["topic"] == FRONT)
    assert row["max_gap_s"] == pytest.approx(0.8) and row["gap_at_s"] == pytest.approx(2.0)
    assert report["results"][0]["compared_with_driven"] == 2  # at 4.0 and 4.5 s: before, the future has the hole


def test_a_camera_that_dies_is_a_gap_up_to_the_end(tmp_path: Path) -> None:
    items = [item for item in drive(8.0) if item[0] != FRONT or item[1] < 4e9]
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    assert report["input"]["max_gap_s"] == pytest.approx(5.0) and report["results"][0]["frames"] == 6
    assert told(report, "moments left out: no picture of cam_front")


def test_unknown_types_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    from rosbags.typesys import get_types_from_msg

    from wamdiff2_ros.bag_writer import typestore

    store = typestore()
    store.register(get_types_from_msg("float64 value", "acme_msgs/msg/Radar"))
    radar = [("/radar", 2 * 10**9, "acme_msgs/msg/Radar", bytes(12))]
    bag = write_rosbag(tmp_path / "bag", [*drive(8.0), *radar], SQLITE, store=store)
    report = replayed(bag, tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and not told(report, "/radar")  # the bag holds its definition
    import sqlite3

    with sqlite3.connect(next(bag.glob("*.db3"))) as base:
        base.execute("DELETE FROM message_definitions")
    report = replayed(bag, tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and told(report, "/radar: type acme_msgs/msg/Radar is not known")


def definition(name: str) -> str:
    return (message_folder() / f"{name}.msg").read_text()


def test_a_field_that_was_added_since_is_not_known_and_said(tmp_path: Path) -> None:
    lines = [line for line in definition("Stats").splitlines() if "frame_age_ms" not in line]
    items, store = changed_type(drive(8.0), "wamdiff2/msg/Stats", "\n".join(lines))
    report = replayed(write_rosbag(tmp_path / "bag", items, store=store), tmp_path / "out")
    assert told(report, "recorded without Stats.frame_age_ms") and report["exit_code"] == PASSED
    assert report["recorded"]["frame_age_ms"] is None and report["recorded"]["plan_total_ms"] > 100.0


def test_a_field_that_was_removed_since_is_ignored_and_said(tmp_path: Path) -> None:
    text = "uint32 old_field\n" + definition("Trajectory")
    items, store = changed_type(drive(8.0), "wamdiff2/msg/Trajectory", text, old_field=7)
    report = replayed(write_rosbag(tmp_path / "bag", items, store=store), tmp_path / "out")
    assert told(report, "Trajectory.old_field of then is ignored")
    assert report["recorded"]["ade_m"] == pytest.approx(0.3)


def test_a_message_without_a_field_that_is_needed_is_not_compared(tmp_path: Path) -> None:
    lines = [line for line in definition("Trajectory").splitlines() if not line.startswith("uint8 status")]
    items, store = changed_type(drive(8.0), "wamdiff2/msg/Trajectory", "\n".join(lines))
    report = replayed(write_rosbag(tmp_path / "bag", items, store=store), tmp_path / "out")
    assert told(report, "recorded without Trajectory.status: it is not compared")
    assert report["results"][0]["frames"] > 0 and report["recorded"]["plans"] == 0


def test_a_wrong_storage_identifier_is_told_by_the_file(tmp_path: Path) -> None:
    bag = write_rosbag(tmp_path / "bag", drive(8.0))
    metadata = bag / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("storage_identifier: mcap", "storage_identifier: sqlite3"))
    report = replayed(bag, tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and told(report, "says that the storage is sqlite3; bag.mcap is mcap")
    metadata.write_text("][")
    assert told(replayed(bag, tmp_path / "out"), "metadata.yaml cannot be read")


def test_equal_times_keep_the_order_of_recording(tmp_path: Path) -> None:
    items = [(topic, 5 * 10**9, kind, data) for topic, _, kind, data in drive(8.0)]  # recorded all at once
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and report["results"][0]["ade_m"] == pytest.approx(0.8)
    twice = [item for item in drive(8.0) for _ in range(2)]
    report = replayed(write_items(tmp_path / "twice", twice), tmp_path / "out")
    assert report["results"][0]["frames"] == 16 and told(report, "messages have the time of the one before")


def test_overlapping_files_are_merged_by_time(plain: dict[str, Any], tmp_path: Path) -> None:
    items, folder = drive(8.0), tmp_path / "bag"
    folder.mkdir()
    for k in range(2):  # by topic: both files cover the whole time
        part = [item for item in items if (hash_of(item[0]) % 2) == k]
        next(write_rosbag(tmp_path / f"part{k}", part).glob("*.mcap")).rename(folder / f"bag_{k}.mcap")
    report = replayed(folder, tmp_path / "out", timing=False)
    assert report["results"] == plain["results"] and told(report, "times of its files overlap")


def hash_of(topic: str) -> int:
    return sum(topic.encode())


def test_a_bag_that_was_looped_is_two_drives(tmp_path: Path) -> None:
    again = [(topic, ns + 8 * 10**9, kind, data) for topic, ns, kind, data in drive(8.0)]
    report = replayed(write_items(tmp_path / "bag", [*drive(8.0), *again]), tmp_path / "out")
    assert report["results"][0]["frames"] == 32 and told(report, "time goes back 1 times")
    assert report["results"][0]["compared_with_driven"] == 16 and report["results"][0]["ade_m"] == pytest.approx(0.8)
    assert report["input"]["max_gap_s"] == pytest.approx(0.1)


@pytest.mark.parametrize("plugin", [MCAP, SQLITE])
def test_an_empty_bag_fails_with_its_own_code(tmp_path: Path, plugin: StoragePlugin) -> None:
    report = replayed(write_rosbag(tmp_path / "bag", [], plugin), tmp_path / "out")
    assert report["exit_code"] == NO_FRAMES and report["verdict"].startswith("Failed: no frame")
    assert told(report, "cam_front: the bag holds no such topic") and (tmp_path / "out" / "report.html").is_file()


def test_without_images_the_recorded_plans_are_evaluated_and_the_replay_fails(tmp_path: Path) -> None:
    items = only(drive(8.0), lambda topic: "image" not in topic)
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    assert report["exit_code"] == NO_FRAMES and told(report, "cam_front: the bag holds no such topic")
    assert report["recorded"]["ade_m"] == pytest.approx(0.3) and report["recorded"]["frame_age_ms"] > 0
    assert report["input"]["max_gap_s"] is None  # of cameras that are not there no gap is known
    assert next(r for r in report["input"]["topics"] if r["part"] == "odometry")["max_gap_s"] == pytest.approx(0.1)


def test_only_images_give_boxes_and_no_plan(tmp_path: Path) -> None:
    items = only(drive(8.0), lambda topic: "image" in topic)
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out", tasks="plan,detect")
    row = report["results"][0]
    assert row["frames"] == 16 and row["plans"] == 0 and row["failures"]["input"] == 16
    assert row["ade_m"] is None and told(report, "odometry: the bag holds no such topic")
    assert told(report, "the bag holds no plans: a frame every 0.5 s is planned")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "odometry: the bag holds no such topic" in page and "no fresh odometry" in page


def test_pictures_that_cannot_be_decoded_are_counted(tmp_path: Path) -> None:
    items = [
        (topic, ns, kind, data[:60] if topic == FRONT and k % 2 else data)
        for k, (topic, ns, kind, data) in enumerate(drive(8.0))
    ]
    report = replayed(write_items(tmp_path / "bag", items), tmp_path / "out")
    row = next(row for row in report["input"]["topics"] if row["topic"] == FRONT)
    assert row["undecodable"] > 0 and 0 < report["results"][0]["frames"] < 16
    assert told(report, "moments left out: a picture of cam_front cannot be decoded")


def test_topics_are_remapped_guessed_or_refused(tmp_path: Path) -> None:
    names = {"cam_front": "/cam_a/raw", "cam_front_left": "/cam_b/raw", "cam_front_right": "/cam_c/raw"}
    renamed = [
        (next((new for old, new in names.items() if f"/{old}/" in topic), topic), *rest) for topic, *rest in drive(8.0)
    ]
    bag = write_items(tmp_path / "bag", renamed)  # type: ignore[arg-type]
    report = replayed(bag, tmp_path / "out")
    assert report["exit_code"] == NO_FRAMES and told(report, "no telling which of /cam_a/raw, /cam_b/raw, /cam_c/raw")
    assert replayed(bag, tmp_path / "out", topics=names)["results"][0]["frames"] == 16
    two = {name: names[name] for name in list(names)[:2]}
    report = replayed(bag, tmp_path / "out", topics=two)
    assert report["results"][0]["frames"] == 16 and told(report, "cam_front_right is taken to be /cam_c/raw")
    for wrong, words in (({"cam_back": "/cam_a/raw"}, "expected one of cam_front"), ({"odometry": "/x"}, "bag holds"),
                         ({"odometry": "/cam_a/raw"}, "expected nav_msgs/msg/Odometry")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            replayed(bag, tmp_path / "out", topics=wrong)


def test_what_is_no_bag_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no bag"):
        Bag(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "x.mcap").write_bytes(b"no bag at all")
    (tmp_path / "text" / "y.db3").write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.mcap: expected an MCAP or SQLite bag file.*y\.db3: the file is empty"):
        Bag(tmp_path / "text")
