"""Settings, reference of the map, guide and sensors of the agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.agent.geo import reference_of_route
from wamdiff2_core.agent.guide import Guide
from wamdiff2_core.agent.pictures import as_jpeg
from wamdiff2_core.agent.sensors import sensor_list
from wamdiff2_core.agent.settings import AgentSettings, load_settings, split_config
from wamdiff2_core.carla_gnss import GeoReference, ros_to_carla_gnss
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Command

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("conf.yaml", ("conf.yaml", "")),
        ("conf.yaml+first", ("conf.yaml", "first")),
        ("conf.yaml+first+second+third", ("conf.yaml", "third")),
        ("+first", ("", "first")),
    ],
)
def test_config_grows_by_a_name_with_every_route(text: str, parts: tuple[str, str]) -> None:
    assert split_config(text) == parts


def test_the_shipped_file_holds_the_defaults() -> None:
    assert load_settings(ROOT / "config/bench2drive_agent.yaml") == AgentSettings()
    assert load_settings("") == load_settings("none") == AgentSettings()


def test_measured_latency_and_whole_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("latency_s: measured\nplan_period_s: 1\n")
    assert load_settings(file) == replace(AgentSettings(), latency_s=None, plan_period_s=1.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mode: remote", "mode: expected one of in_process, ros"),
        ("block_size: many", "block_size: expected int"),
        ("blocks: 3", "expected entries among"),
        ("jpeg_quality: 0", "1..100"),
        ("controller: mpc", "follower"),
        ("latency_s: -1.0", "latency_s"),
        ("plan_period_s: 2.0", "max_plan_age_s"),
        ("[1]", "expected entries"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(line)
    with pytest.raises(ConfigError, match=said):
        load_settings(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_settings(tmp_path / "gone.yaml")


@pytest.mark.parametrize("reference", [GeoReference(42.0, 2.0), GeoReference(0.0, 0.0), GeoReference(-33.9, 151.2)])
@pytest.mark.parametrize("place", [(0.0, 0.0), (5000.0, -7000.0), (-300.0, 12.0)])
def test_the_maps_reference_follows_from_one_node(reference: GeoReference, place: tuple[float, float]) -> None:
    latitude, longitude, _ = ros_to_carla_gnss((*place, 0.0), reference)
    found = reference_of_route(latitude, longitude, *place)
    assert (found.latitude, found.longitude) == pytest.approx((reference.latitude, reference.longitude), abs=1e-7)


def test_guide_announces_reaches_and_leaves_a_turn() -> None:
    guide = Guide(np.array([[0.0, 0.0], [60.0, 0.0], [70.0, 10.0], [70.0, 80.0]]), [4, 2, 4, 4])
    assert guide.instruction == "follow the road"
    for x in range(0, 41, 5):
        guide.update(float(x), 0.0)
    assert guide.command() == (Command.RIGHT, pytest.approx(20.0)) and guide.instruction == "turn right in 20 m"
    for x in range(45, 66, 5):
        guide.update(float(x), max(0.0, x - 60.0))
    assert guide.instruction == "turn right now"
    assert guide.target() == (70.0, 10.0)
    for y in range(10, 75, 5):
        guide.update(70.0, float(y))
    assert guide.instruction == "follow the road" and guide.target() == (70.0, 80.0)


def test_guide_is_not_drawn_to_a_crossing_part_of_the_route() -> None:
    points = np.array([[0.0, 0.0], [100.0, 0.0], [100.0, 60.0], [50.0, 60.0], [50.0, -60.0]])
    guide = Guide(points, [4] * 5)
    for x in range(0, 61, 2):
        guide.update(float(x), 0.5)
    assert guide.progress == pytest.approx(60.0, abs=0.6)


def test_lane_changes_are_counted_and_a_short_route_is_an_error() -> None:
    assert Guide(np.array([[0.0, 0.0], [9.0, 0.0], [20.0, 3.5]]), [4, 5, 4]).lane_changes == 1
    with pytest.raises(DataError, match="N >= 2"):
        Guide(np.array([[0.0, 0.0]]), [4])


def test_sensors_of_the_shipped_rigs_are_within_the_rules() -> None:
    for name in ("rig_three.yaml", "rig_six.yaml"):
        cameras = load_rig(ROOT / "config" / name)
        sensors = sensor_list(cameras, -1.4)
        assert [s["id"] for s in sensors] == [c.name for c in cameras] + ["IMU", "GPS", "SPEED"]
        left = next(s for s in sensors if s["id"] == "cam_front_left")
        assert left["y"] < 0 and left["yaw"] == pytest.approx(-55.0)  # CARLA: left is negative


def test_a_rig_that_the_leaderboard_rejects_is_named() -> None:
    camera = load_rig(ROOT / "config/rig_three.yaml")[0]
    with pytest.raises(ConfigError, match="cam_front is"):
        sensor_list([replace(camera, position=(9.0, 0.0, 1.6))], -1.4)
    with pytest.raises(ConfigError, match="at most 8"):
        sensor_list([replace(camera, name=f"c{k}") for k in range(9)], -1.4)


def test_pictures_have_jpegs_losses() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 4), dtype=np.uint8)
    coarse, fine = as_jpeg(noise, 20), as_jpeg(noise, 95)
    truth = noise[..., 2::-1].astype(int)
    assert np.abs(coarse - truth).mean() > np.abs(fine - truth).mean() > 0
    assert np.array_equal(as_jpeg(noise, 20), coarse)
