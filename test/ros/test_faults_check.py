"""The parts of the fault test that judge: each finds what it is there to find."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from wamdiff2_ros.faults import bags, check, naming, pictures
from wamdiff2_ros.faults.check import Limits, Sensors, problems
from wamdiff2_ros.faults.events import EventLog, read_events
from wamdiff2_ros.faults.kinds import KINDS
from wamdiff2_ros.faults.naming import Window
from wamdiff2_ros.faults.processes import growth_mb
from wamdiff2_ros.faults.schedule import rounds
from wamdiff2_ros.faults.timeline import Timeline, epoch_of

LIMITS = Limits(max_frame_age_s=0.5, max_plan_age_s=1.0, sync_tolerance_s=0.05, odometry_max_age_s=0.5, slack_s=0.1)
CAMERAS = ("a", "b")


def frame(camera: str, taken_s: float, stamp_ns: int, good: bool = True) -> dict:
    values = {"camera": camera, "taken_s": taken_s, "stamp_ns": stamp_ns, "good": good, "content": "random"}
    return {"kind": "frame", "at_s": taken_s, **values}


def world(timeline: Timeline) -> tuple[Sensors, dict]:
    """Two cameras and odometry for ten seconds from steady second 100; and a plan heard at 105.3 from frames of 105."""
    events: list[dict] = []
    for k in range(100):
        at_s = 100.0 + 0.1 * k
        events += [frame(name, at_s, timeline.stamp_ns(at_s)) for name in CAMERAS]
        events.append({"kind": "odometry", "at_s": at_s, "good": True})
    sensors = check.sensors_from(events, CAMERAS)
    plan = {"kind": "trajectory", "at_s": 105.3, "stamp_ns": timeline.stamp_ns(105.0), "status": 0}
    return sensors, {**plan, "points": 41, "finite": True}


def test_a_good_plan_is_good() -> None:
    sensors, plan = world(Timeline(0.0))
    assert problems(sensors, plan, LIMITS, answer_s=0.2) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stamp_ns": 12345}, "no frame that was published"),
        ({"points": 0}, "no points"),
        ({"finite": False}, "not all are finite"),
        ({"at_s": 105.9}, "frame was 0.90 s old, at most 0.80 s"),
        ({"at_s": 99999.0}, "odometry was"),
    ],
)
def test_a_bad_plan_is_found(change: dict, says: str) -> None:
    sensors, plan = world(Timeline(0.0))
    assert says in "; ".join(problems(sensors, {**plan, **change}, LIMITS, answer_s=0.2))


def test_no_answer_takes_long_enough_to_excuse_an_old_plan() -> None:
    sensors, plan = world(Timeline(0.0))
    assert problems(sensors, {**plan, "at_s": 106.05}, LIMITS, answer_s=9.0) == []
    assert "at most 1.10 s" in "; ".join(problems(sensors, {**plan, "at_s": 106.15}, LIMITS, answer_s=9.0))


def test_a_bad_or_missing_frame_of_one_camera_is_found() -> None:
    timeline = Timeline(0.0)
    sensors, plan = world(timeline)
    sensors.frames["b"][plan["stamp_ns"]]["good"] = False
    assert "b: the frame was bad (random)" in problems(sensors, plan, LIMITS, 0.2)
    del sensors.frames["b"][plan["stamp_ns"]]
    sensors.stamps["b"].remove(plan["stamp_ns"])
    assert "b: no frame within 0.05 s of the stamp" in problems(sensors, plan, LIMITS, 0.2)


def test_frames_from_before_a_jump_are_found() -> None:
    timeline = Timeline(0.0)
    timeline.jump(105.1, -20.0)
    sensors, plan = world(timeline)
    sensors.jumps = [(105.1, 1)]
    assert "after the clock jumped to 1" in "; ".join(problems(sensors, plan, LIMITS, 0.2))
    assert problems(sensors, {**plan, "at_s": 105.15}, LIMITS, 0.2) == []  # was on its way at the jump
    after = {**plan, "stamp_ns": timeline.stamp_ns(105.2)}
    assert problems(sensors, after, LIMITS, 0.2) == []


def test_stamps_are_never_used_twice_and_say_their_epoch() -> None:
    timeline = Timeline(50.0)
    timeline.jump(60.0, -5.0)
    timeline.jump(70.0, 5.0)
    stamps = [timeline.stamp_ns(50.0 + 0.1 * k) for k in range(300)]
    assert len(set(stamps)) == 300
    assert [epoch_of(stamps[k]) for k in (0, 99, 101, 199, 201)] == [0, 0, 1, 1, 2]
    with pytest.raises(ValueError, match="after 3 ones"):
        timeline.jump(65.0, 1.0)


def test_a_log_survives_a_cut_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log")
    log.write("one", value=1)
    log.write("two", at_s=3.0)
    log.close()
    path = tmp_path / "log"
    path.write_bytes(path.read_bytes() + b'{"at_s": 4.0, "ki')
    assert [(e["kind"], e.get("value")) for e in read_events(path)] == [("one", 1), ("two", None)]
    assert list(read_events(tmp_path / "none")) == []


def status(at_s: float, name: str, level: int, message: str = "", **values: str) -> dict:
    return {"kind": "status", "at_s": at_s, "name": name, "level": level, "message": message, "values": values}


def window(*events: dict, target: str = "/cam") -> Window:
    before = [event for event in events if event["at_s"] < 10.0]
    return Window(before, [event for event in events if event["at_s"] >= 10.0], 10.0, target)


def test_a_fault_is_named_by_a_warning_about_its_target_only() -> None:
    named = naming.diagnosed("{target}.*old")
    assert named(window(status(11.0, "input /cam", 1, "too old"))) == (1.0, "input /cam: too old")
    assert named(window(status(11.0, "input /cam", 0, "too old"))) is None
    assert named(window(status(11.0, "input /other", 2, "too old"))) is None
    assert named(window(status(9.0, "input /cam", 2, "too old"))) is None


def test_counters_must_rise() -> None:
    named = naming.counted("bad", "{target}")
    before = status(9.0, "input /cam", 0, bad="3")
    assert named(window(before, status(11.0, "input /cam", 0, bad="3"))) is None
    assert named(window(before, status(12.0, "input /cam", 0, bad="5"))) == (2.0, "input /cam: bad 5 (was 3)")


def test_dropped_frames_count_when_there_are_more_than_usual() -> None:
    def stats(at_s: float, dropped: int) -> dict:
        return {"kind": "stats", "at_s": at_s, "frames_dropped": dropped}

    named = naming.dropped(3.0)
    usual = [stats(8.0, 0), stats(9.0, 10)]
    assert named(window(*usual, stats(10.0, 20), stats(12.0, 40))) is None
    assert named(window(*usual, stats(10.0, 20), stats(12.0, 120))) is not None


def test_a_flood_shows_in_the_rate_of_what_was_received() -> None:
    def received(*counts: int) -> list[dict]:
        return [status(7.0 + k, "node: input /cam", 0, received=str(count)) for k, count in enumerate(counts)]

    named = naming.faster("received", "{target}", 3.0)
    assert named(window(*received(10, 20, 30, 40, 55, 70))) is None
    said = named(window(*received(10, 20, 30, 40, 50, 350)))
    assert said is not None and said[0] == 2.0 and said[1].endswith("300 a second, before 10")


def test_silence_is_stale() -> None:
    named = naming.fell_silent("node")
    heard = [status(10.0 + k, "other", 0) for k in range(5)]
    assert named(window(*heard, *(status(8.0 + k, "node: a", 0) for k in range(6)))) is None
    said = named(window(*heard, *(status(8.0 + k, "node: a", 0) for k in range(3))))
    assert said is not None and said[0] == pytest.approx(2.5)


def mcap(path: Path, topics: list[str], chunks: list[list[tuple[int, int]]], cut: int = 0) -> None:
    """An MCAP file of chunks of (topic's number, header stamp in ns), the last `cut` bytes left out."""

    def record(kind: int, body: bytes) -> bytes:
        return struct.pack("<BQ", kind, len(body)) + body

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    data = bags.MAGIC
    for key, topic in enumerate(topics):
        data += record(4, struct.pack("<HH", key, 1) + text(topic) + text("cdr") + struct.pack("<I", 0))
    for messages in chunks:
        inside = b"".join(
            record(5, struct.pack("<HIQQ", key, 0, 7, 7) + bytes(4) + struct.pack("<iI", ns // 10**9, ns % 10**9))
            for key, ns in messages
        )
        head = struct.pack("<QQQI", 7, 7, len(inside), 0) + text("")
        data += record(6, head + struct.pack("<Q", len(inside)) + inside)
    path.write_bytes(data[: len(data) - cut])


def test_only_closed_chunks_count(tmp_path: Path) -> None:
    mcap(tmp_path / "a_0.mcap", ["/x", "/y"], [[(0, 5), (1, 6)], [(0, 7)]], cut=3)
    found = bags.read_closed(tmp_path)
    assert found.stamps == {"/x": [5], "/y": [6]} and found.chunks == 1 and found.cut


def test_lost_is_what_lies_between(tmp_path: Path) -> None:
    published = {("/x", 0): [1, 2, 3, 4, 5, 6], ("/x", 1): [7, 8, 9], ("/y", 0): [1, 2, 0, 3]}
    recorded = {"/x": [2, 4, 5, 8], "/y": [1, 2, 3]}
    assert bags.lost(recorded, published) == {"/x": [3]}
    assert bags.lost({}, published) == {}


def test_memory_growth_leaves_the_warm_up_out() -> None:
    flat = [(2.0 * k, 100.0 if k > 5 else 10.0 * k) for k in range(100)]
    rising = [(2.0 * k, float(k)) for k in range(100)]
    assert growth_mb(flat, 30.0, 60.0) == 0.0
    assert growth_mb(rising, 30.0, 60.0) == pytest.approx(68, abs=3)
    assert growth_mb(rising[:20], 30.0, 60.0) is None


def test_the_schedule_is_the_same_for_a_seed_and_ends_the_driver_once() -> None:
    def first(seed: int) -> list[str]:
        order = rounds(KINDS, seed)
        return [next(order).name for _ in range(2 * len(KINDS))]

    assert first(3) == first(3) != first(4)
    assert set(first(3)) == {kind.name for kind in KINDS} and first(3).count("kill_driver") == 1


@pytest.mark.parametrize("kind", ["random", "truncated", "empty"])
def test_broken_pictures_are_broken(kind: str) -> None:
    jpeg = b"\xff\xd8" + bytes(2000) + b"\xff\xd9"
    assert pictures.broken(kind, jpeg, random.Random(1)) != jpeg
    with pytest.raises(ValueError, match="poem"):
        pictures.broken("poem", jpeg, random.Random(1))
