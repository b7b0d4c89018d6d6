"""The same outputs in the messages of other stacks, where their packages are installed and a parameter asks for it.

Written against vision_msgs 4 (Humble and later) and autoware_planning_msgs 1. Both are imported on demand only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from wamdiff2.msg import Boxes, Trajectory
from wamdiff2_core.errors import ConfigError
from wamdiff2_ros.parameters import Settings

PACKAGES = {"twin_vision_msgs": "vision_msgs", "twin_autoware": "autoware_planning_msgs"}


def packages(settings: Settings) -> dict[str, ModuleType]:
    """Message modules of the twins asked for, by parameter. ConfigError names the parameter and the missing package."""
    asked = {name: package for name, package in PACKAGES.items() if getattr(settings, name)}
    return {name: _messages(name, package) for name, package in asked.items()}


def _messages(parameter: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(f"{package}.msg")
    except ImportError as error:
        raise ConfigError(f"{parameter}: the ROS package {package} is not installed ({error})") from error


def detections(boxes: Boxes, messages: Any) -> Any:
    """vision_msgs/Detection2DArray of our boxes, in the same pixels. UNKNOWN is an empty one: it has no other word."""
    found = messages.Detection2DArray()
    found.header = boxes.header
    for index, box in enumerate(boxes.boxes):
        detection = messages.Detection2D()
        detection.header = boxes.header
        detection.id = f"{box.camera}/{index}"
        detection.bbox.center.position.x = float(box.x1_px + box.x2_px) / 2.0
        detection.bbox.center.position.y = float(box.y1_px + box.y2_px) / 2.0
        detection.bbox.center.theta = 0.0
        detection.bbox.size_x = float(box.x2_px - box.x1_px)
        detection.bbox.size_y = float(box.y2_px - box.y1_px)
        result = messages.ObjectHypothesisWithPose()
        result.hypothesis.class_id = box.label
        result.hypothesis.score = float(box.confidence)
        detection.results = [result]
        found.detections.append(detection)
    return found


def autoware_trajectory(trajectory: Trajectory, messages: Any) -> Any:
    """autoware_planning_msgs/Trajectory of the smooth points, in our header's frame; no points where there is no plan.

    A stop trajectory's points are passed on: they brake, and that message has no status to say so.
    """
    from wamdiff2_ros.conversions import quaternion

    twin = messages.Trajectory()
    twin.header = trajectory.header
    for point in trajectory.points:
        other = messages.TrajectoryPoint()
        nanoseconds = round(float(point.time_from_start_s) * 1e9)
        other.time_from_start.sec, other.time_from_start.nanosec = divmod(nanoseconds, 1_000_000_000)
        other.pose.position.x, other.pose.position.y = float(point.x_m), float(point.y_m)
        other.pose.orientation = quaternion(float(point.heading_rad))
        other.longitudinal_velocity_mps = float(point.speed_mps)
        other.lateral_velocity_mps = 0.0
        other.acceleration_mps2 = float(point.acceleration_mps2)
        other.heading_rate_rps = float(point.speed_mps * point.curvature_1pm)
        other.front_wheel_angle_rad = other.rear_wheel_angle_rad = 0.0  # the wheelbase is not known here
        twin.points.append(other)
    return twin


class Twins:
    """Publishers of the twins. `topic`: full name of an output, e.g. ~/output/detections."""

    def __init__(self, node: Any, settings: Settings, prefix: str, qos: Any) -> None:
        """Raises ConfigError for a twin without its package."""
        self._modules = packages(settings)
        kinds = {
            "twin_vision_msgs": ("Detection2DArray", "detections"),
            "twin_autoware": ("Trajectory", "autoware_trajectory"),
        }
        self._publishers: Mapping[str, Any] = {
            name: node.create_lifecycle_publisher(getattr(module, kinds[name][0]), f"{prefix}/{kinds[name][1]}", qos)
            for name, module in self._modules.items()
        }

    def all(self) -> list[Any]:
        return list(self._publishers.values())

    def boxes(self, message: Boxes) -> None:
        name = "twin_vision_msgs"
        if name in self._publishers:
            self._publishers[name].publish(detections(message, self._modules[name]))

    def trajectory(self, message: Trajectory) -> None:
        name = "twin_autoware"
        if name in self._publishers:
            self._publishers[name].publish(autoware_trajectory(message, self._modules[name]))
