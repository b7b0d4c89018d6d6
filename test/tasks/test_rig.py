"""Rig files: the shipped ones load, broken ones say what is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig

CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize(("name", "count"), [("three", 3), ("six", 6)])
def test_shipped_rigs(name: str, count: int) -> None:
    cameras = load_rig(CONFIG / f"rig_{name}.yaml")
    assert len(cameras) == count and cameras[0].name == "cam_front"
    left = next(camera for camera in cameras if camera.name == "cam_front_left")
    assert left.yaw == pytest.approx(math.radians(55)) and left.position[1] > 0


GOOD = "{name: a, width: 4, height: 2, fov_deg: 70, position: [1, 0, 1]}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cameras"),
        ("cameras: []", "at least one"),
        ("cameras: [3]", "camera 0"),
        ("cameras: [", "YAML"),
        (f"cameras: [{GOOD}, {GOOD}]", "different camera names"),
        (f"cameras: [{GOOD.replace('4', '4.5')}]", "whole pixels"),
        (f"cameras: [{GOOD.replace('70', '180')}]", "fov_deg"),
        (f"cameras: [{GOOD.replace('[1, 0, 1]', '[1, 0]')}]", "position"),
        (f"cameras: [{GOOD.replace('[1,', '[.nan,')}]", "finite"),
        (f"cameras: [{GOOD.replace('name: a', 'name: 3')}]", "name"),
        (f"cameras: [{GOOD[:-1]}, roll: 3}}]", "roll"),
    ],
)
def test_broken_rigs(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rig.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_rig(tmp_path / "rig.yaml")


def test_missing_rig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such"):
        load_rig(tmp_path / "no_such.yaml")
