"""A stand-in for a CARLA server and its client library, in this process: the same calls, a car on a plane.

Its car moves by formulas of its own in CARLA's left-handed frame (x forward, y right, yaw clockwise, degrees), so that
a mistake in our conversions shows. What it proves is the bridge's logic, not CARLA's physics or rendering. Places,
rotations, controls and the map are the real client library's; `test_carla_stand_in` compares the surface with it.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import carla
from carla_roads import crossing
from carla_stand_in_actor import StandInActor as StandInActor

VERSION = "0.9.16"
ATTRIBUTES = {
    "vehicle": {"role_name", "color", "ros_name"},
    "sensor.camera.rgb": {"role_name", "ros_name", "image_size_x", "image_size_y", "fov", "sensor_tick", "gamma"},
    "sensor.other": {"role_name", "ros_name", "sensor_tick"},
}


class StandInServer:
    """What outlives a client: actors, time, settings. `down`: no call is answered. `tick_s`: delay of a tick's data."""

    def __init__(self, opendrive: str = "", spawn: carla.Transform | None = None) -> None:
        self.map = carla.Map("Carla/Maps/Crossing", opendrive or crossing())
        self.spawn_points = [spawn or carla.Transform(carla.Location(1.75, 80.0, 0.0), carla.Rotation(yaw=-90.0))]
        self.maps = ["/Game/Carla/Maps/Crossing", "/Game/Carla/Maps/Town10HD"]
        self.restart()
        self.down = False
        self.compass = 0.0
        self.loaded: list[str] = []

    def restart(self) -> None:
        """As after a crash: no actors, time from zero, asynchronous."""
        self.actors: dict[int, StandInActor] = {}
        self.ids = itertools.count(100)
        self.frame, self.elapsed = 1000, 0.0
        self.settings = Settings()
        self.ticks_by: list[str] = []
        self.turned = threading.Condition()

    def check(self) -> None:
        """What the client library says when nobody answers."""
        if self.down:
            raise RuntimeError("time-out of 500ms while waiting for the simulator, make sure the simulator is ready")

    def step(self, dt: float = 0.05) -> int:
        """Simulate one tick and deliver the sensors' data."""
        self.frame, self.elapsed = self.frame + 1, self.elapsed + dt
        for actor in list(self.actors.values()):
            if actor.is_car:
                actor.drive(dt)
        for actor in list(self.actors.values()):
            actor.sense()
        with self.turned:
            self.turned.notify_all()
        return self.frame

    def map_edge(self) -> carla.Transform:
        """A place where nobody spawns."""
        return carla.Transform(carla.Location(500.0, 500.0, 0.0), carla.Rotation())

    def named(self, role: str) -> list[StandInActor]:
        return [actor for actor in self.actors.values() if actor.attributes.get("role_name") == role]


@dataclass
class Settings:
    synchronous_mode: bool = False
    fixed_delta_seconds: float | None = None


@dataclass
class StandInBlueprint:
    id: str
    known: set[str]
    values: dict[str, str] = field(default_factory=dict)

    def has_attribute(self, name: str) -> bool:
        return name in self.known

    def set_attribute(self, name: str, value: str) -> None:
        if name not in self.known or not isinstance(value, str):
            raise IndexError(f"blueprint '{self.id}' does not contain attribute '{name}'")
        self.values[name] = value


class StandInLibrary:
    def find(self, name: str) -> StandInBlueprint:
        for start, attributes in ATTRIBUTES.items():
            if name.startswith(start) and "unknown" not in name:
                return StandInBlueprint(name, attributes)
        raise IndexError(f"blueprint '{name}' not found")


class StandInActors(list):  # type: ignore[type-arg]
    def filter(self, pattern: str) -> StandInActors:
        return StandInActors(actor for actor in self if actor.type_id.startswith(pattern.rstrip("*")))


class StandInMap:
    """The real client's map, with spawn points, which only a server knows."""

    def __init__(self, server: StandInServer) -> None:
        self._server, self.name = server, server.map.name

    def get_spawn_points(self) -> list[carla.Transform]:
        return self._server.spawn_points

    def get_waypoint(self, location: carla.Location) -> carla.Waypoint:
        return self._server.map.get_waypoint(location)

    def to_opendrive(self) -> str:
        return self._server.map.to_opendrive()


class StandInWorld:
    def __init__(self, server: StandInServer) -> None:
        self._server = server

    def get_map(self) -> StandInMap:
        self._server.check()
        return StandInMap(self._server)

    def get_settings(self) -> Settings:
        self._server.check()
        return Settings(**vars(self._server.settings))

    def apply_settings(self, settings: Settings) -> int:
        self._server.check()
        self._server.settings = Settings(**vars(settings))
        return self._server.frame

    def get_blueprint_library(self) -> StandInLibrary:
        self._server.check()
        return StandInLibrary()

    def get_actors(self, ids: list[int] | None = None) -> StandInActors:
        self._server.check()
        return StandInActors(a for a in self._server.actors.values() if ids is None or a.id in ids)

    def spawn_actor(self, blueprint: StandInBlueprint, place: Any, attach_to: Any = None) -> StandInActor:
        self._server.check()
        return StandInActor(self._server, blueprint.id, dict(blueprint.values), place, attach_to)

    def try_spawn_actor(self, blueprint: StandInBlueprint, place: Any, attach_to: Any = None) -> StandInActor | None:
        for actor in self._server.actors.values():
            if actor.is_car and math.hypot(actor.x - place.location.x, actor.y - place.location.y) < 3.0:
                return None
        return self.spawn_actor(blueprint, place, attach_to)

    def tick(self, seconds: float = 10.0) -> int:
        self._server.check()
        self._server.ticks_by.append("client")
        return self._server.step(self._server.settings.fixed_delta_seconds or 0.05)

    def wait_for_tick(self, seconds: float = 10.0) -> Any:
        self._server.check()
        with self._server.turned:
            if not self._server.turned.wait(min(seconds, 0.5)):
                raise RuntimeError("time-out of 500ms while waiting for the simulator")
        return self.get_snapshot()

    def get_snapshot(self) -> Any:
        self._server.check()
        cars = {actor.id: actor.snapshot() for actor in self._server.actors.values() if actor.is_car}
        return SimpleNamespace(
            frame=self._server.frame,
            timestamp=SimpleNamespace(elapsed_seconds=self._server.elapsed, frame=self._server.frame),
            has_actor=lambda number: number in cars,
            find=lambda number: cars.get(number),
        )


class StandInClient:
    def __init__(self, server: StandInServer) -> None:
        self._server = server

    def set_timeout(self, seconds: float) -> None:
        assert seconds > 0.0

    def get_server_version(self) -> str:
        self._server.check()
        return VERSION

    def get_client_version(self) -> str:
        return VERSION

    def get_available_maps(self) -> list[str]:
        self._server.check()
        return self._server.maps

    def get_world(self) -> StandInWorld:
        self._server.check()
        return StandInWorld(self._server)

    def load_world(self, town: str) -> StandInWorld:
        self._server.check()
        self._server.loaded.append(town)
        self._server.restart()
        return StandInWorld(self._server)


def stand_in(server: StandInServer) -> Any:
    """What the bridge takes for the module `carla`."""
    real = {name: getattr(carla, name) for name in ("Location", "Rotation", "Transform", "VehicleControl")}
    return SimpleNamespace(Client=lambda host, port: StandInClient(server), **real)
