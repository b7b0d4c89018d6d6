"""Sensors on the ego: after every tick they hand on what CARLA's would give, with its noise and its failings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from wamdiff2_core.carla_frames import ros_to_carla_compass
from wamdiff2_core.carla_gnss import GeoReference, Projection, geo_reference, ros_to_carla_gnss
from wamdiff2_core.scene import Camera
from wamdiff2_sim.geometry import boxes_touch
from wamdiff2_sim.leaderboard.actors import Actor
from wamdiff2_sim.types import EGO_CENTRE_M

if TYPE_CHECKING:
    from wamdiff2_sim.leaderboard.server import StandInWorld

GRAVITY_MPS2 = 9.81
METRES_PER_DEGREE = 111_319.5
STOREY_M = 2.5


@dataclass(frozen=True)
class Failings:
    """What goes wrong on purpose. `late_camera`: in the first n agent ticks the first camera's picture is missing."""

    compass_nan_every: int = 0  # ticks; 0: never
    gnss_flipped: bool = True  # as CARLA 0.9.16
    late_camera: int = 0
    noise: bool = True


class Sensor(Actor):
    """Base: `listen` takes the callback, `measure` is called once per tick."""

    def __init__(self, number: int, blueprint: Any, place: Any, world: StandInWorld) -> None:
        super().__init__(number, blueprint.id, dict(blueprint.attributes))
        self._place, self._world = place, world
        self._callback: Callable[[Any], None] | None = None
        self._rng = np.random.default_rng([world.seed, number])

    def listen(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def stop(self) -> None:
        self._callback = None

    def measure(self, frame: int) -> None:
        """Hand the measurement of this tick to the listener."""
        if self._callback is None:
            return
        for value in self._values():
            self._hand_on(value, frame)

    def _hand_on(self, value: Any, frame: int) -> None:
        from leaderboard.envs.sensor_interface import GenericMeasurement

        if self._callback is not None:
            self._callback(GenericMeasurement(value, frame))

    def _values(self) -> list[Any]:
        raise NotImplementedError

    def _noise(self, name: str, size: int | None = None) -> Any:
        scale = float(self.attributes.get(name, 0.0)) if self._world.failings.noise else 0.0
        return self._rng.normal(0.0, scale, size)


class Gnss(Sensor):
    """[latitude, longitude, altitude] of the antenna. Flipped in latitude where the failings say so."""

    def _values(self) -> list[Any]:
        world, at = self._world, self._place.location
        pose = world.ego_middle()
        (x, y), = pose.to_map(np.array([[at.x, -at.y]]))  # fmt: skip
        flipped = world.failings.gnss_flipped
        projection = Projection.TRANSVERSE_FLIPPED if flipped else Projection.MERCATOR
        reference: GeoReference = geo_reference(world.get_map().to_opendrive(), projection)
        fix = np.array(ros_to_carla_gnss((float(x), float(y), pose.z + at.z), reference))
        fix[0] += self._noise("noise_lat_stddev")
        fix[1] += self._noise("noise_lon_stddev")
        fix[2] += self._noise("noise_alt_stddev")
        return [fix]


class Imu(Sensor):
    """[ax, ay, az, gx, gy, gz, compass] in CARLA's vehicle frame: m/s^2, rad/s, rad."""

    def _values(self) -> list[Any]:
        state, world = self._world.stage.state, self._world
        every = world.failings.compass_nan_every
        compass = math.nan if every and world.frame % every == 0 else ros_to_carla_compass(state.ego.yaw)
        values = np.array(
            [state.acceleration, -state.speed * state.yaw_rate, GRAVITY_MPS2, 0.0, 0.0, -state.yaw_rate, compass]
        )
        values[:3] += [self._noise(f"noise_accel_stddev_{axis}") for axis in "xyz"]
        values[3:6] += [self._noise(f"noise_gyro_stddev_{axis}") for axis in "xyz"]
        return [values]


class CameraSensor(Sensor):
    """BGRA pictures (H, W, 4) uint8 of our renderer."""

    @property
    def camera(self) -> Camera:
        """As our rigs describe cameras: in base_link, which lies behind CARLA's vehicle origin."""
        at, turn = self._place.location, self._place.rotation
        size = int(self.attributes["image_size_x"]), int(self.attributes["image_size_y"])
        position = (at.x + EGO_CENTRE_M, -at.y, at.z)
        fov = float(self.attributes["fov"])
        return Camera(
            f"sensor_{self.id}", *size, fov, position, -math.radians(turn.yaw), -math.radians(turn.pitch)
        )  # fmt: skip

    def _values(self) -> list[Any]:
        picture = self._world.pictures()[f"sensor_{self.id}"]
        return [np.dstack([picture[..., ::-1], np.full(picture.shape[:2], 255, np.uint8)])]


class CollisionSensor(Sensor):
    """An event for everybody that the ego's box touches in this tick."""

    def _values(self) -> list[Any]:
        state = self._world.stage.state
        ego = state.ego_corners()
        middle = ego.mean(axis=0)
        events = []
        for actor in state.actors:
            reach = 4.0 + 0.5 * (actor.length + actor.width)
            near = abs(actor.x - middle[0]) < reach and abs(actor.y - middle[1]) < reach
            if near and abs(actor.z - state.ego.z) < STOREY_M and boxes_touch(ego, actor.corners()):
                events.append(SimpleNamespace(other_actor=self._world.user(actor.id)))
        return events

    def _hand_on(self, value: Any, frame: int) -> None:
        if self._callback is not None:
            value.frame = frame
            self._callback(value)


SENSORS: dict[str, type[Sensor]] = {
    "sensor.other.gnss": Gnss,
    "sensor.other.imu": Imu,
    "sensor.camera.rgb": CameraSensor,
    "sensor.other.collision": CollisionSensor,
}
