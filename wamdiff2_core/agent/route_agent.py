"""One route driven with the leaderboard's data: everything an agent does, with plain numbers in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wamdiff2_core.agent.geo import Positioning, reference_of_route
from wamdiff2_core.agent.guide import Guide
from wamdiff2_core.agent.motion import Motion
from wamdiff2_core.agent.pictures import pictures
from wamdiff2_core.agent.pilot import FULL_BRAKE, Pilot, Planner
from wamdiff2_core.agent.sensors import GNSS, IMU, SPEED
from wamdiff2_core.agent.settings import AgentSettings
from wamdiff2_core.carla_frames import CarlaControl, ros_to_carla_control
from wamdiff2_core.control import Pose2D, relative_pose
from wamdiff2_core.controllers import make_controller
from wamdiff2_core.errors import DataError
from wamdiff2_core.scene import Camera, Scene

Node = tuple[float, float, int]  # x, y (m, CARLA's map) and RoadOption number
GpsNode = tuple[float, float]  # latitude, longitude


class RouteAgent:
    """Made when the route is known; `tick` at 20 Hz gives the controls. `planner`: answers scenes with plans."""

    def __init__(
        self,
        settings: AgentSettings,
        planner: Planner,
        cameras: Sequence[Camera],
        nodes: Sequence[Node],
        gps: Sequence[GpsNode],
    ) -> None:
        """nodes, gps: the leaderboard's plan, node by node in both forms. DataError for a plan that is none."""
        if len(nodes) < 2 or len(nodes) != len(gps):
            raise DataError(f"route: expected two plans of one length >= 2, got {len(nodes)} and {len(gps)}")
        points = np.array([(x, -y) for x, y, _ in nodes])
        self._settings, self._cameras = settings, tuple(cameras)
        self.guide = Guide(points, [4 if option < 0 else option for _, _, option in nodes])
        reference = reference_of_route(*gps[0], float(points[0, 0]), float(points[0, 1]))
        self.positioning = Positioning(reference, points)
        self.motion = Motion()
        controller = make_controller(settings.controller, math.radians(settings.full_steer_deg))
        self.pilot = Pilot(planner, controller, settings.plan_period_s, settings.latency_s, settings.max_plan_age_s)
        first = points[1:][np.hypot(*(points[1:] - points[0]).T) > 0.5]
        ahead = (first[0] if len(first) else points[-1]) - points[0]
        self._start_yaw = math.atan2(ahead[1], ahead[0])
        self._last_s: float | None = None

    def tick(self, data: Mapping[str, Any], now_s: float) -> CarlaControl:
        """Controls for what the sensors say: {id: (frame, value)} as the leaderboard hands it over."""
        dt = 0.05 if self._last_s is None else max(now_s - self._last_s, 1e-3)
        self._last_s = now_s
        fix = _value(data, GNSS)
        place = None if fix is None else self.positioning.place(fix)
        self.motion.update(dt, _speed(data), _value(data, IMU), place, self._start_yaw)
        pose = self.motion.on_map
        if pose is None:
            return ros_to_carla_control(FULL_BRAKE)  # no fix yet: we do not know where we are
        self.guide.update(pose.x, pose.y)
        look = self._looker(data, now_s)
        control = self.pilot.step(now_s, look, self.motion.odometry, self.motion.speed_mps, self._target(pose), dt)
        return ros_to_carla_control(control)

    def report(self) -> dict[str, object]:
        """Counts of all that went wrong, and what was believed."""
        return {
            **self.pilot.report.values(),
            "gaps": dict(self.motion.gaps),
            "lane_changes_not_said": self.guide.lane_changes,
            "gnss_projection": self.positioning.projection.value,
            "progress_m": round(self.guide.progress, 2),
        }

    def _looker(self, data: Mapping[str, Any], now_s: float) -> Callable[[], Scene | None]:
        def look() -> Scene | None:
            gaps = self.pilot.report.missing_pictures
            seen = pictures(data, self._cameras, self._settings.jpeg_quality, gaps)
            if seen is None:
                return None
            return Scene(seen, self.guide.instruction, self.motion.ego, None, now_s)

        return look

    def _target(self, pose: Pose2D) -> tuple[float, float]:
        x, y = self.guide.target()
        there = relative_pose(pose, Pose2D(x, y, 0.0))
        return there.x, there.y


def _value(data: Mapping[str, Any], name: str) -> Any:
    entry = data.get(name)
    return None if entry is None else entry[1]


def _speed(data: Mapping[str, Any]) -> float | None:
    value = _value(data, SPEED)
    return None if value is None else float(value["speed"])
