"""Settings of the driver node: checked as a whole, changed as a whole."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.parameters import DESCRIPTIONS, FIXED_AFTER_CONFIGURE, Settings, changed

CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_every_setting_is_described_and_no_other() -> None:
    assert set(DESCRIPTIONS) == {f.name for f in fields(Settings)}
    assert set(DESCRIPTIONS) >= FIXED_AFTER_CONFIGURE


@pytest.mark.parametrize(
    "name, value",
    [
        ("block_size", 0),
        ("block_size", 257),
        ("steps", 0),
        ("threshold", 1.1),
        ("threshold", float("nan")),
        ("rule", "greedy"),
        ("tasks", []),
        ("tasks", ["plan", "sing"]),
        ("tasks", ["plan", "plan"]),
        ("cameras", ["front camera"]),
        ("detect_rate_hz", -1.0),
        ("max_frame_age_s", 0.0),
        ("image_transport", "theora"),
        ("block_size", "8"),
        ("block_size", 8.0),
        ("block_size", True),
        ("overlay", 1),
        ("cameras", [1, 2]),
    ],
)
def test_a_bad_value_is_refused_by_name_and_changes_nothing(name: str, value: object) -> None:
    before = Settings()
    with pytest.raises(ConfigError, match=name):
        changed(before, {"steps": 4, name: value}, configured=False)
    assert before == Settings()


def test_good_values_apply_together() -> None:
    new = changed(Settings(), {"block_size": 8, "threshold": 1, "tasks": ["plan"], "unknown": 3}, configured=True)
    assert (new.block_size, new.threshold, new.tasks) == (8, 1.0, ("plan",))


@pytest.mark.parametrize("name, value", [("checkpoint", "/other"), ("device", "cuda"), ("cameras", ["cam_front"])])
def test_what_is_loaded_is_fixed_after_configure(name: str, value: object) -> None:
    assert changed(Settings(), {name: value}, configured=False) != Settings()
    with pytest.raises(ConfigError, match=f"{name}: fixed"):
        changed(Settings(), {name: value}, configured=True)


@pytest.mark.parametrize("file", ["drive.yaml", "demo.yaml"])
def test_parameter_files_hold_valid_settings(file: str) -> None:
    content = yaml.safe_load((CONFIG / file).read_text(encoding="utf-8"))
    values = content["/wamdiff2"]["ros__parameters"]
    assert set(values) <= {*DESCRIPTIONS, "autostart", "use_sim_time"}
    changed(Settings(), values, configured=False)
