"""A stand-in for a CARLA server and its client library, in this process: the same calls, a car on a plane.

Its car moves by formulas of its own in CARLA's left-handed frame (x forward, y right, yaw clockwise, degrees), so that
a mistake in our conversions shows. What it proves is the bridge's logic, not CARLA's physics or rendering. Places,
rotations, controls and the map are the real client library's; `test_carla_stand_in` compares the surface with it.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import carla
import numpy as np
from carla_roads import crossing

WHEELBASE_M, REAR_AXLE_M, FULL_LOCK_DEG = 2.86, -1.4, 70.0
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


class StandInActor:
    """A car or a sensor; cars move by a bicycle model about the rear axle."""

    def __init__(
        self, server: StandInServer, type_id: str, attributes: dict[str, str], place: Any, parent: Any
    ) -> None:
        self._server, self.type_id, self.attributes, self.parent = server, type_id, attributes, parent
        self.id = next(server.ids)
        self.x, self.y, self.z = place.location.x, place.location.y, place.location.z
        self.rotation = place.rotation
        self.yaw_deg, self.speed, self.yaw_rate_deg = place.rotation.yaw, 0.0, 0.0
        self.control = carla.VehicleControl()
        self.controls: list[carla.VehicleControl] = []
        self.callback: Callable[[Any], None] | None = None
        self.for_ros = False
        self._last_s = -1e9
        server.actors[self.id] = self

    @property
    def is_car(self) -> bool:
        return self.type_id.startswith("vehicle.")

    @property
    def is_listening(self) -> bool:
        return self.callback is not None

    @property
    def is_alive(self) -> bool:
        return self.id in self._server.actors

    def destroy(self) -> bool:
        self._server.check()
        if self.id not in self._server.actors:
            raise RuntimeError(f"unable to destroy actor: not found. id={self.id}")
        del self._server.actors[self.id]
        return True

    def listen(self, callback: Callable[[Any], None]) -> None:
        self._server.check()
        self.callback = callback

    def stop(self) -> None:
        self.callback = None

    def enable_for_ros(self) -> None:
        self._server.check()
        self.for_ros = True

    def apply_control(self, control: carla.VehicleControl) -> None:
        self._server.check()
        self.control = control
        self.controls.append(control)

    def get_physics_control(self) -> carla.VehiclePhysicsControl:
        self._server.check()
        front, rear = carla.WheelPhysicsControl(max_steer_angle=70.0), carla.WheelPhysicsControl(max_steer_angle=0.0)
        physics = carla.VehiclePhysicsControl()
        physics.wheels = [front, front, rear, rear]
        physics.steering_curve = [carla.Vector2D(0.0, 1.0), carla.Vector2D(120.0, 0.5)]
        return physics

    def drive(self, dt: float) -> None:
        """Throttle up to 4 m/s^2, brakes 8; the rear axle follows the wheels, right is positive."""
        control = self.control
        push = (-4.0 if control.reverse else 4.0) * control.throttle
        hold = (8.0 if not control.hand_brake else 12.0) * max(control.brake, float(control.hand_brake))
        speed = self.speed + push * dt
        self.speed = math.copysign(max(0.0, abs(speed) - hold * dt), speed)
        share = np.interp(abs(self.speed) * 3.6, (0.0, 120.0), (1.0, 0.5))
        wheel = math.radians(FULL_LOCK_DEG) * float(share) * control.steer
        rate = self.speed * math.tan(wheel) / WHEELBASE_M
        rear_x, rear_y = self._ahead(REAR_AXLE_M)
        yaw = math.radians(self.yaw_deg) + rate * dt / 2.0
        rear_x, rear_y = rear_x + self.speed * math.cos(yaw) * dt, rear_y + self.speed * math.sin(yaw) * dt
        self.yaw_deg += math.degrees(rate * dt)
        self.yaw_rate_deg = math.degrees(rate)
        yaw = math.radians(self.yaw_deg)
        self.x, self.y = rear_x - REAR_AXLE_M * math.cos(yaw), rear_y - REAR_AXLE_M * math.sin(yaw)

    def snapshot(self) -> Any:
        """What a WorldSnapshot shows of a car."""
        yaw = math.radians(self.yaw_deg)
        slip = math.radians(self.yaw_rate_deg) * -REAR_AXLE_M  # of the actor's middle, to the right
        velocity = carla.Vector3D(
            self.speed * math.cos(yaw) - slip * math.sin(yaw), self.speed * math.sin(yaw) + slip * math.cos(yaw), 0.0
        )
        place = carla.Transform(carla.Location(self.x, self.y, self.z), carla.Rotation(yaw=self.yaw_deg))
        turning = carla.Vector3D(0.0, 0.0, self.yaw_rate_deg)
        return SimpleNamespace(
            id=self.id,
            get_transform=lambda: place,
            get_velocity=lambda: velocity,
            get_angular_velocity=lambda: turning,
        )

    def sense(self) -> None:
        """Deliver a measurement, if one is due."""
        period = float(self.attributes.get("sensor_tick", "0") or 0.0)
        if self.callback is None or self._server.elapsed < self._last_s + period - 1e-6:
            return
        self._last_s = self._server.elapsed
        base = {"frame": self._server.frame, "timestamp": self._server.elapsed}
        self.callback(SimpleNamespace(**base, **self._measured()))

    def _measured(self) -> dict[str, Any]:
        if self.type_id == "sensor.camera.rgb":
            width, height = int(self.attributes["image_size_x"]), int(self.attributes["image_size_y"])
            bgra = np.tile(np.array([30, 20, 10, 255], np.uint8), width * height)
            return {"width": width, "height": height, "fov": float(self.attributes["fov"]), "raw_data": bgra.tobytes()}
        car = self.parent
        if self.type_id == "sensor.other.gnss":
            fix = self._server.map.transform_to_geolocation(carla.Location(car.x, car.y, car.z))
            return {"latitude": fix.latitude, "longitude": fix.longitude, "altitude": fix.altitude}
        rate = math.radians(car.yaw_rate_deg)
        sideways = carla.Vector3D(0.0, car.speed * rate, 9.81)
        compass = self._server.compass + math.radians(car.yaw_deg + 90.0)
        return {"accelerometer": sideways, "gyroscope": carla.Vector3D(0.0, 0.0, rate), "compass": compass}

    def _ahead(self, distance: float) -> tuple[float, float]:
        yaw = math.radians(self.yaw_deg)
        return self.x + distance * math.cos(yaw), self.y + distance * math.sin(yaw)


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
