"""The car and its sensors in CARLA, read from a file: a camera rig with an entry `ego`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.carla_frames import CarlaPose, CarlaRotation, ros_to_carla_pose
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig
from wamdiff2_core.scene import Camera

_EGO_KEYS = {"blueprint", "base_link_x_m", "attributes", "camera_attributes", "imu", "gnss"}


@dataclass(frozen=True)
class EgoRig:
    """base_link_x_m: base_link (below the middle of the rear axle) in the CARLA actor's frame: negative, m.

    attributes, camera_attributes: blueprint attributes by name, set as they are. imu, gnss: whether there is one.
    """

    cameras: tuple[Camera, ...]
    blueprint: str = "vehicle.lincoln.mkz_2020"
    base_link_x_m: float = -1.4
    attributes: tuple[tuple[str, str], ...] = ()
    camera_attributes: tuple[tuple[str, str], ...] = ()
    imu: bool = True
    gnss: bool = True

    def mount(self, camera: Camera) -> CarlaPose:
        """Where CARLA attaches the camera: metres and degrees in the actor's frame."""
        x, y, z = camera.position
        return ros_to_carla_pose((x + self.base_link_x_m, y, z), (0.0, camera.pitch, camera.yaw))

    def mount_base(self) -> CarlaPose:
        """Where IMU and GNSS sit: at base_link."""
        return CarlaPose((self.base_link_x_m, 0.0, 0.0), CarlaRotation())


def load_ego(path: Path | str) -> EgoRig:
    """A rig file with or without `ego`. ConfigError names the file and the entry."""
    cameras = load_rig(path)
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    ego: Any = content.get("ego", {})
    if not isinstance(ego, dict) or not ego.keys() <= _EGO_KEYS:
        raise ConfigError(f"{path}: ego: expected entries among {', '.join(sorted(_EGO_KEYS))}, got {ego!r}")
    values: dict[str, Any] = {}
    if "blueprint" in ego:
        values["blueprint"] = _text(ego["blueprint"], f"{path}: ego: blueprint")
    if "base_link_x_m" in ego:
        values["base_link_x_m"] = _metres(ego["base_link_x_m"], f"{path}: ego: base_link_x_m")
    for name in ("imu", "gnss"):
        if name in ego:
            values[name] = _truth(ego[name], f"{path}: ego: {name}")
    for name in ("attributes", "camera_attributes"):
        if name in ego:
            values[name] = _pairs(ego[name], f"{path}: ego: {name}")
    return EgoRig(cameras, **values)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: expected a name, got {value!r}")
    return value


def _metres(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}: expected metres, got {value!r}")
    return float(value)


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: expected true or false, got {value!r}")
    return value


def _pairs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected names and values, got {value!r}")
    return tuple((str(name), str(given)) for name, given in value.items())
