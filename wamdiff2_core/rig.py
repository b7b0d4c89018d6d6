"""Camera rigs: which cameras there are, in the order in which the model sees them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera

_NUMBERS = ("fov_deg", "yaw_deg", "pitch_deg")
_KEYS = {"name", "width", "height", "position", *_NUMBERS}


def load_rig(path: Path | str) -> tuple[Camera, ...]:
    """Cameras of a rig file (config/rig_*.yaml). Raises ConfigError that names the file, the camera and the entry."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected a YAML rig file, got {error}") from error
    entries = content.get("cameras") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: expected an entry `cameras` with at least one camera")
    cameras = tuple(_camera(entry, f"{path}: camera {index}") for index, entry in enumerate(entries))
    names = [camera.name for camera in cameras]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: expected different camera names, got {', '.join(names)}")
    return cameras


def _camera(entry: Any, where: str) -> Camera:
    if not isinstance(entry, dict) or not {"name", "width", "height", "fov_deg", "position"} <= entry.keys() <= _KEYS:
        raise ConfigError(
            f"{where}: expected name, width, height, fov_deg, position [, yaw_deg, pitch_deg]; got {entry!r}"
        )
    if not isinstance(entry["name"], str) or not entry["name"]:
        raise ConfigError(f"{where}: expected a name, got {entry['name']!r}")
    for side in ("width", "height"):
        if not isinstance(entry[side], int) or isinstance(entry[side], bool) or entry[side] < 1:
            raise ConfigError(f"{where}: expected {side} in whole pixels, got {entry[side]!r}")
    fov, yaw, pitch = (_number(entry.get(key, 0.0), f"{where}: {key}") for key in _NUMBERS)
    if not 0.0 < fov < 180.0:
        raise ConfigError(f"{where}: expected fov_deg between 0 and 180, got {fov}")
    position = entry["position"]
    if not isinstance(position, list) or len(position) != 3:
        raise ConfigError(f"{where}: expected position [x, y, z] in metres, got {position!r}")
    x, y, z = (_number(value, f"{where}: position") for value in position)
    return Camera(
        entry["name"], entry["width"], entry["height"], fov, (x, y, z), math.radians(yaw), math.radians(pitch)
    )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, got {value!r}")
    return float(value)
