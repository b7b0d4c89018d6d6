"""Puts the ego and its sensors into a CARLA world, as the rig file says. Takes the client module, imports no carla."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from wamdiff2_core.carla_frames import CarlaPose, CarlaRotation
from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.carla_rig import EgoRig
from wamdiff2_ros.carla_settings import BridgeSettings

IMU, GNSS = "imu", "gnss"
SPAWN_TRIES = 20


class Spawner:
    """ConfigError where the rig or a setting does not fit the world; RuntimeError as the client library raises it."""

    def __init__(self, carla: Any, world: Any, settings: BridgeSettings, rig: EgoRig) -> None:
        self._carla, self._world, self._settings, self._rig = carla, world, settings, rig

    def ego(self) -> Any | None:
        """The car at the first free place; None where every place tried is taken."""
        blueprint = self._blueprint(self._rig.blueprint)
        if blueprint.has_attribute("ros_name"):
            blueprint.set_attribute("ros_name", self._settings.role_name)
        _set(blueprint, {"role_name": self._settings.role_name, **dict(self._rig.attributes)})
        for place in self._places()[:SPAWN_TRIES]:
            ego = self._world.try_spawn_actor(blueprint, place)
            if ego is not None:
                return ego
        return None

    def _places(self) -> list[Any]:
        """Transforms to spawn the ego at, in the order of trying."""
        wanted = self._settings.spawn_place()
        if isinstance(wanted, tuple):
            x, y, z, yaw = wanted
            return [self._transform(CarlaPose((x, y, z), CarlaRotation(yaw=yaw)))]
        known = list(self._world.get_map().get_spawn_points())
        if isinstance(wanted, int):
            if wanted >= len(known):
                raise ConfigError(f"spawn: the map has {len(known)} spawn points, got index {wanted}")
            return [known[wanted]]
        random.Random(self._settings.seed).shuffle(known)
        return known

    def sensors(self, ego: Any, heard: Callable[[str, Any], None], made: list[Any]) -> None:
        """The rig's sensors on `ego`; each goes into `made` at once, so that none is lost when a later one fails."""
        for kind, name, mount, values in self._wanted():
            blueprint = self._blueprint(kind)
            if blueprint.has_attribute("ros_name"):
                blueprint.set_attribute("ros_name", name)
            _set(blueprint, {"role_name": f"{self._settings.role_name}/{name}", **values})
            sensor = self._world.spawn_actor(blueprint, self._transform(mount), attach_to=ego)
            made.append(sensor)
            if not self._settings.native:
                sensor.listen(lambda measurement, name=name: heard(name, measurement))
            elif hasattr(sensor, "enable_for_ros"):
                sensor.enable_for_ros()
            else:
                raise ConfigError("native: this client library cannot enable sensors for ROS: expected 0.9.16 or newer")

    def _wanted(self) -> Iterator[tuple[str, str, CarlaPose, dict[str, Any]]]:
        """(type, name, place on the car, attributes) of each sensor."""
        rig = self._rig
        for camera in rig.cameras:
            size = {"image_size_x": camera.width, "image_size_y": camera.height, "fov": camera.fov_deg}
            period = {"sensor_tick": self._settings.image_period_s}
            yield "sensor.camera.rgb", camera.name, rig.mount(camera), {**size, **period, **dict(rig.camera_attributes)}
        for name, kind, there in ((IMU, "sensor.other.imu", rig.imu), (GNSS, "sensor.other.gnss", rig.gnss)):
            if there:
                yield kind, name, rig.mount_base(), {}

    def _blueprint(self, name: str) -> Any:
        try:
            return self._world.get_blueprint_library().find(name)
        except (IndexError, KeyError) as error:
            raise ConfigError(f"this CARLA has no blueprint {name!r}") from error

    def _transform(self, pose: CarlaPose) -> Any:
        x, y, z = pose.position
        pitch, yaw, roll = pose.rotation
        return self._carla.Transform(
            self._carla.Location(x=x, y=y, z=z), self._carla.Rotation(pitch=pitch, yaw=yaw, roll=roll)
        )


def _set(blueprint: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not blueprint.has_attribute(name):
            raise ConfigError(f"blueprint {blueprint.id}: there is no attribute {name!r}")
        blueprint.set_attribute(name, str(value))
