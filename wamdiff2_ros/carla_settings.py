"""The CARLA bridge's settings: parameters of the node, read once at start and checked as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from wamdiff2_core.errors import ConfigError

OWNERS = ("bridge", "other")
CONTROL_MESSAGES = ("wamdiff2", "carla_msgs")
SPAWNS = ("random", "attach")


@dataclass(frozen=True)
class BridgeSettings:
    """Times in seconds of real time, unless they say simulated; places in CARLA's own metres and degrees."""

    host: str = "127.0.0.1"
    port: int = 2000
    timeout_s: float = 20.0  # of a call while a town is loaded and the car is spawned
    tick_timeout_s: float = 10.0  # of a tick; a server that takes longer is gone
    reconnect_s: float = 2.0  # pause before the server is tried again
    town: str = ""  # empty: the one that is loaded
    role_name: str = "hero"
    rig: str = ""
    spawn: str = "random"  # "random", an index of the map's spawn points, "x,y,z,yaw", or "attach": wait for the role
    seed: int = 0
    tick_owner: str = "bridge"  # "bridge": synchronous, we tick; "other": somebody else does, or nobody (asynchronous)
    step_s: float = 0.05  # simulated, of a tick of ours
    real_time: bool = True  # ticks of ours not faster than real time
    image_rate_hz: float = 10.0  # of simulated time
    compressed: bool = True
    jpeg_quality: int = 90
    sensor_wait_s: float = 2.0  # for the pictures of a tick
    control_wait_s: float = 1.0  # for the control of a tick, when the bridge ticks
    max_control_age_s: float = 0.5  # simulated; with another owner of the tick real seconds count too
    full_steer_rad: float = 0.6  # wheel angle that a control's steer 1 means; 0: CARLA's own full lock
    control_messages: str = "wamdiff2"  # on <role>/control; "carla_msgs": on <role>/vehicle_control_cmd, as is
    native: bool = False  # the server itself publishes clock, images, IMU and GNSS (started with --ros2)
    correct_gnss: bool = True  # undo 0.9.16's latitude
    goal: str = ""  # "x,y": the route leads there; empty: a random route
    route_m: float = 500.0  # length of a random route

    def __post_init__(self) -> None:
        _above_zero(
            self,
            "timeout_s",
            "tick_timeout_s",
            "reconnect_s",
            "step_s",
            "image_rate_hz",
            "sensor_wait_s",
            "control_wait_s",
        )
        _above_zero(self, "max_control_age_s", "route_m")
        if not 0.0 < self.step_s <= 0.1:
            raise ConfigError(f"step_s: expected at most 0.1, got {self.step_s}")  # CARLA's physics needs it so
        if not (math.isfinite(self.full_steer_rad) and self.full_steer_rad >= 0.0):
            raise ConfigError(f"full_steer_rad: expected a number >= 0, got {self.full_steer_rad}")
        if not 0 < self.port < 65536 or not 1 <= self.jpeg_quality <= 100 or self.seed < 0:
            raise ConfigError(f"port {self.port}, jpeg_quality {self.jpeg_quality} or seed {self.seed}: out of range")
        if self.tick_owner not in OWNERS:
            raise ConfigError(f"tick_owner: expected one of {', '.join(OWNERS)}, got {self.tick_owner!r}")
        if self.control_messages not in CONTROL_MESSAGES:
            raise ConfigError(
                f"control_messages: expected one of {', '.join(CONTROL_MESSAGES)}, got {self.control_messages!r}"
            )
        if not self.role_name or "/" in self.role_name or not self.rig:
            raise ConfigError(f"expected a role_name and a rig file, got {self.role_name!r} and {self.rig!r}")
        self.spawn_place()
        self.goal_place()

    @property
    def owns_tick(self) -> bool:
        return self.tick_owner == "bridge"

    @property
    def image_period_s(self) -> float:
        """Simulated seconds between two pictures: whole ticks of ours."""
        return max(1, round(1.0 / (self.image_rate_hz * self.step_s))) * self.step_s

    def spawn_place(self) -> str | int | tuple[float, float, float, float]:
        """The parameter `spawn` as what it means. ConfigError if it means nothing."""
        if self.spawn in SPAWNS:
            return self.spawn
        if self.spawn.isdigit():
            return int(self.spawn)
        x, y, z, yaw = _numbers("spawn", self.spawn, 4)
        return x, y, z, yaw

    def goal_place(self) -> tuple[float, float] | None:
        """The parameter `goal`, None if it is empty. ConfigError if it is no place."""
        if not self.goal:
            return None
        x, y = _numbers("goal", self.goal, 2)
        return x, y


def declared(node: Any) -> BridgeSettings:
    """Declare every setting as a parameter of `node`, and read them."""
    values: dict[str, Any] = {}
    for field in fields(BridgeSettings):
        value = node.declare_parameter(field.name, field.default).value
        values[field.name] = float(value) if isinstance(field.default, float) else value
    return BridgeSettings(**values)


def _above_zero(settings: BridgeSettings, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"{name}: expected a number > 0, got {value}")


def _numbers(name: str, text: str, count: int) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(number) for number in numbers):
        raise ConfigError(f"{name}: expected {count} numbers with commas between, got {text!r}")
    return numbers
