"""Sensor data of a made-up drive, as the leaderboard would hand it over."""

from __future__ import annotations

from typing import Any

import numpy as np

from wamdiff2_core.carla_frames import ros_to_carla_compass
from wamdiff2_core.carla_gnss import GeoReference, Projection, ros_to_carla_gnss
from wamdiff2_core.scene import Camera, Failure, FailureKind, Plan, Scene

CAMERA = Camera("cam_front", 32, 24, 70.0, (2.0, 0.0, 1.6))
REFERENCE = GeoReference(49.0, 8.0)
# 100 m east from (10, -20) of the ROS map, then a left turn and 50 m north: (x, y) in CARLA's map, RoadOption.
NODES = [(10.0, 20.0, 4), (60.0, 20.0, 4), (100.0, 20.0, 1), (110.0, 10.0, 4), (110.0, -40.0, 4)]
GPS = [ros_to_carla_gnss((x, -y, 0.0), REFERENCE)[:2] for x, y, _ in NODES]


def data(x: float, y: float, yaw: float, speed: float = 5.0, flipped: bool = False, **changes: Any) -> dict[str, Any]:
    """`run_step`'s input for base_link at (x, y, yaw) of the ROS map. `changes`: other values; None: no entry."""
    projection = Projection.TRANSVERSE_FLIPPED if flipped else Projection.MERCATOR
    fix = ros_to_carla_gnss((x, y, 0.0), REFERENCE._replace(projection=projection))
    picture = np.full((CAMERA.height, CAMERA.width, 4), (10, 20, 200, 255), np.uint8)
    values: dict[str, Any] = {
        "cam_front": picture,
        "GPS": np.array(fix),
        "IMU": np.array([0.0, 0.0, 9.81, 0.0, 0.0, 0.0, ros_to_carla_compass(yaw)]),
        "SPEED": {"speed": speed},
    }
    values.update(changes)
    return {name: (1, value) for name, value in values.items() if value is not None}


class StraightPlanner:
    """Plans straight on at 5 m/s; keeps the scenes. `fails`: raises that instead; `refuses`: a typed failure."""

    def __init__(self, fails: Exception | None = None, refuses: bool = False) -> None:
        self.scenes: list[Scene] = []
        self.fails, self.refuses = fails, refuses

    def plan(self, scene: Scene) -> Plan | Failure:
        self.scenes.append(scene)
        if self.fails is not None:
            raise self.fails
        if self.refuses:
            return Failure(FailureKind.PARSE, "no plan in there")
        points = np.column_stack([2.5 * np.arange(1, 9), np.zeros(8)])
        return Plan(points, np.ones(8))
