"""Cars and sensors of the stand-in server: a bicycle model in CARLA's own left-handed frame, grey pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import carla
import numpy as np

WHEELBASE_M, REAR_AXLE_M, FULL_LOCK_DEG = 2.86, -1.4, 70.0


class StandInActor:
    """A car or a sensor; cars move by a bicycle model about the rear axle."""

    def __init__(self, server: Any, type_id: str, attributes: dict[str, str], place: Any, parent: Any) -> None:
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
