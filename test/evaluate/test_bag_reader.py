"""Bags of drives, whole and cut short, as records, summaries and scenes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bags import SPEED, TRUTH, write_drive

from wamdiff2_core.errors import DataError
from wamdiff2_core.rig import load_rig
from wamdiff2_ros.bag_messages import Bag
from wamdiff2_ros.bag_reader import NotADrive, finish_drive, read_drive
from wamdiff2_ros.bag_scenes import Footage
from wamdiff2_ros.bag_topics import find_parts
from wamdiff2_ros.mcap_scan import Scan

RIG = load_rig(Path(__file__).parents[2] / "config" / "rig_three.yaml")
NAMES = [camera.name for camera in RIG]


def cut(bag: Path, to: Path, share: float) -> Path:
    """The first part of the bag's file, without its metadata: what a killed recorder leaves."""
    to.mkdir()
    data = next(bag.glob("*.mcap")).read_bytes()
    (to / "cut.mcap").write_bytes(data[: int(len(data) * share)])
    return to


def test_a_record_brings_together_what_belongs_together(bag: Path) -> None:
    record = read_drive(bag, RIG, pictures=4)
    assert len(record.plans) == 8 and sum(plan.points is None for plan in record.plans) == 1
    assert np.allclose(record.plans[0].points - record.plans[0].expert, [0.0, 0.3])
    assert record.plans[1].latency_ms == pytest.approx(155.0) and record.plans[1].stamp_ns == 1_500_000_000
    assert record.boxes[0].predicted[0].xyxy == record.boxes[0].truth[0].xyxy
    assert [(a.answer, a.truth, a.kind) for a in record.answers] == [(TRUTH, TRUTH, "light")]
    assert record.route.shape == (60, 2) and record.lanes
    assert record.failures == {"parse": 1} and record.frames_dropped == 35
    assert [list(s.pictures) for s in record.snapshots] == [["cam_front_left", "cam_front", "cam_front_right"]] * 4


def test_finish_writes_summary_and_report(bag: Path, tmp_path: Path) -> None:
    finish_drive(bag, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["plans"] == 7 and summary["plans_withheld"] == 1 and summary["seed"] == 7
    assert summary["ade_to_expert_m"] == pytest.approx(0.3) and summary["detection_map50"] == pytest.approx(1.0)
    assert summary["answers_correct"] == 1.0 and summary["parse_failures"] == 1 and summary["map"] == "Town02"
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 4 + 3 * 8 and TRUTH in page


def test_a_bag_that_was_cut_short_tells_what_is_there(bag: Path, tmp_path: Path) -> None:
    folder = cut(bag, tmp_path / "cut", 0.5)
    record = read_drive(folder, RIG)
    assert 0 < len(record.track) < 40 and record.settings["bag_finished"] is False
    assert set(Bag(folder).topics()) <= set(Bag(bag).topics())


def test_scanning_a_whole_file_gives_every_message(bag: Path) -> None:
    topics = {"/world/status", "/world/odometry"}
    scanned = [topic for topic, _, _ in Scan(next(bag.glob("*.mcap"))).messages() if topic in topics]
    assert sorted(scanned) == sorted(topic for topic, _ in Bag(bag).messages(topics))


def test_what_is_no_bag_of_a_drive_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metadata\.yaml"):
        read_drive(tmp_path, RIG)
    with pytest.raises(NotADrive, match="/world/status"):
        read_drive(write_drive(tmp_path / "bare", 0.5, plans=False, world=False), RIG)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "x.mcap").write_bytes(b"no bag at all")
    with pytest.raises(DataError, match="MCAP"):
        read_drive(tmp_path / "text", RIG)


def footage(bag: Path, names: list[str] = NAMES, **options: Any) -> Footage:
    opened = Bag(bag)
    return Footage(opened, find_parts(opened.topics(), names, **options), names)


def test_scenes_are_what_a_driver_saw(bag: Path) -> None:
    film = footage(bag)
    moments = film.moments([1_500_000_000, 3_000_000_000])
    assert [moment.ns for moment in moments] == [1_500_000_000, 3_000_000_000]
    scene = film.scene(moments[0])
    assert list(scene.images) == NAMES and scene.images["cam_front"].shape == (64, 64, 3)
    assert scene.instruction == "turn left in 40 m" and scene.ego.speed == pytest.approx(5.0)
    assert film.motion_known(moments[0]) and film.skipped == {}
    assert len(film.moments(period_s=1.0)) == 4


def test_the_driven_path_is_the_odometry_of_the_next_seconds(tmp_path: Path) -> None:
    film = footage(write_drive(tmp_path / "bag", 6.0))
    ahead = film.driven(1_500_000_000)
    assert np.allclose(ahead, np.column_stack([SPEED * 0.5 * np.arange(1, 9), np.zeros(8)]))
    assert np.allclose(film.driven(1_550_000_000), ahead)  # between two messages
    assert film.driven(3_000_000_000) is None and film.driven(0) is None  # it ends before, it begins later


def test_what_is_missing_is_named(bag: Path) -> None:
    film = footage(bag, ["cam_front", "cam_back"])
    assert "no telling which of" in film.parts.missing["cam_back"] and film.moments() == []
    elsewhere = find_parts(Bag(bag).topics(), NAMES, prefix="/vehicle")
    assert elsewhere.topics["cam_front"] == "/world/cam_front/image/compressed"
    assert any("cam_front is taken to be /world/cam_front" in guess for guess in elsewhere.guessed)
    assert "instruction" in elsewhere.missing  # a text is never guessed: it could be any text
