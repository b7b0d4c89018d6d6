"""Values that pass between the parts of the world.

Frames: map frame, right-handed, metres, z up, yaw counter-clockwise from +x (CARLA's y and yaw negated). The ego pose
is the point on the ground below the middle of the rear axle (`base_link`); an actor's pose is the middle of its box,
on the ground.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from wamdiff2_core.control import VehicleControl as VehicleControl  # one type for world, follower and nodes

ACTOR_KINDS = ("car", "truck", "pedestrian", "cyclist")
EGO_ID = 0  # actors count from 1

EGO_LENGTH_M = 4.9
EGO_WIDTH_M = 1.9
EGO_HEIGHT_M = 1.6
EGO_WHEELBASE_M = 2.85
EGO_REAR_OVERHANG_M = 1.0
EGO_CENTRE_M = EGO_LENGTH_M / 2.0 - EGO_REAR_OVERHANG_M  # middle of the ego's box ahead of base_link
EGO_FRONT_M = EGO_LENGTH_M - EGO_REAR_OVERHANG_M  # front bumper ahead of base_link


class LightState(IntEnum):
    """Colour that a light group shows."""

    RED = 0
    YELLOW = 1
    GREEN = 2


@dataclass(frozen=True)
class Pose:
    """A point on the ground (m) and a heading (rad, counter-clockwise from +x) in the map frame."""

    x: float
    y: float
    z: float = 0.0
    yaw: float = 0.0

    def to_map(self, points: np.ndarray) -> np.ndarray:
        """Points (N, 2) of this pose's own frame as map points (N, 2)."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return np.asarray(points, dtype=np.float64) @ np.array([[c, s], [-s, c]]) + (self.x, self.y)

    def to_local(self, points: np.ndarray) -> np.ndarray:
        """Map points (N, 2) in this pose's own frame (x forward, y left)."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return (np.asarray(points, dtype=np.float64) - (self.x, self.y)) @ np.array([[c, -s], [s, c]])

    def ahead(self, distance_m: float) -> Pose:
        """The pose `distance_m` further along the heading (negative: behind)."""
        return Pose(
            self.x + distance_m * math.cos(self.yaw), self.y + distance_m * math.sin(self.yaw), self.z, self.yaw
        )


@dataclass(frozen=True)
class ActorView:
    """What the renderer needs to know of one actor. `colour` RGB 0..1; `indicator` -1 right, 0 off, +1 left."""

    id: int
    kind: str
    x: float
    y: float
    z: float
    yaw: float
    length: float
    width: float
    height: float
    colour: tuple[float, float, float]
    brake_lights: bool = False
    indicator: int = 0


@dataclass(frozen=True)
class ActorState:
    """One other road user. `lane_id`, `s`: lane and arc length of its middle (pedestrians: -1, 0.0). `speed` m/s,
    `accel` m/s^2."""

    id: int
    kind: str
    lane_id: int
    s: float
    x: float
    y: float
    z: float
    yaw: float
    speed: float
    accel: float
    length: float
    width: float
    height: float
    colour: tuple[float, float, float]
    braking: bool = False
    indicator: int = 0  # -1 right, 0 off, +1 left

    @property
    def pose(self) -> Pose:
        return Pose(self.x, self.y, self.z, self.yaw)

    @property
    def velocity(self) -> tuple[float, float]:
        """Velocity (vx, vy) in the map frame, m/s."""
        return self.speed * math.cos(self.yaw), self.speed * math.sin(self.yaw)

    def corners(self) -> np.ndarray:
        """Footprint (4, 2): front left, rear left, rear right, front right."""
        return box_corners(self.x, self.y, self.yaw, self.length, self.width)

    def view(self) -> ActorView:
        return ActorView(
            self.id, self.kind, self.x, self.y, self.z, self.yaw, self.length, self.width, self.height, self.colour,
            self.braking, self.indicator,
        )  # fmt: skip


@dataclass(frozen=True)
class WorldState:
    """The world at one moment. `ego` is base_link; `lights` by light group id; `route_s` is the ego's progress on the
    route (m)."""

    time: float
    ego: Pose
    speed: float
    acceleration: float = 0.0
    yaw_rate: float = 0.0
    steer: float = 0.0  # steering wheel position after the actuator's lag, -1..1, left positive
    route_s: float = 0.0
    actors: tuple[ActorState, ...] = ()
    lights: dict[int, LightState] = field(default_factory=dict)

    def ego_corners(self) -> np.ndarray:
        """Footprint of the ego vehicle (4, 2)."""
        middle = self.ego.ahead(EGO_CENTRE_M)
        return box_corners(middle.x, middle.y, middle.yaw, EGO_LENGTH_M, EGO_WIDTH_M)


@dataclass(frozen=True)
class GtBox:
    """A true 2D box: label car|truck|pedestrian|cyclist|light, xyxy in pixels of the named camera, part not occluded
    0..1, metres."""

    label: str
    xyxy: tuple[float, float, float, float]
    visible: float
    distance: float
    actor_id: int = -1
    camera: str = "cam_front"


@dataclass(frozen=True)
class WeatherSpec:
    """Look of a day. Angles in radians; the rest 0..1. `wetness`: shine of the road (rain without a wet road does not
    occur)."""

    sun_elevation: float = 0.8
    sun_azimuth: float = 0.6
    cloud: float = 0.2
    fog: float = 0.0
    rain: float = 0.0
    wetness: float = 0.0
    night: bool = False


def random_weather(rng: np.random.Generator) -> WeatherSpec:
    """A day drawn from `rng`: mostly dry daylight, some low sun, rain, fog and night."""
    night = bool(rng.random() < 0.15)
    rain = float(rng.uniform(0.2, 1.0)) if rng.random() < 0.2 else 0.0
    cloud = float(rng.uniform(0.6, 1.0)) if rain > 0 else float(rng.beta(1.2, 1.6))
    fog = float(rng.uniform(0.1, 0.7)) if rng.random() < 0.15 else float(rng.uniform(0.0, 0.08))
    wet = max(rain, float(rng.uniform(0.2, 0.9)) if rng.random() < 0.15 else 0.0)
    elevation = float(rng.uniform(-0.3, -0.1) if night else rng.uniform(0.12, 1.25))
    return WeatherSpec(elevation, float(rng.uniform(-math.pi, math.pi)), cloud, fog, rain, wet, night)


def box_corners(x: float, y: float, yaw: float, length: float, width: float) -> np.ndarray:
    """Corners (4, 2) of an oriented box around (x, y): front left, rear left, rear right, front right."""
    half = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]) * (length / 2.0, width / 2.0)
    return Pose(x, y, 0.0, yaw).to_map(half)
