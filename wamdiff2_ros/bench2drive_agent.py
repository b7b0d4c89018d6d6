"""The file that is handed to the Bench2Drive leaderboard: `--agent .../bench2drive_agent.py --agent-config FILE.yaml`.

A thin class: the parts are in wamdiff2_core/agent, the settings in config/bench2drive_agent.yaml.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# The leaderboard puts this file's folder first on the path, where names like `mailbox` would hide Python's own.
_HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [folder for folder in sys.path if folder == "" or str(Path(folder).resolve()) != _HERE]
if str(Path(_HERE).parent) not in sys.path:
    sys.path.append(str(Path(_HERE).parent))

import carla  # noqa: E402
from leaderboard.autoagents.autonomous_agent import AutonomousAgent, Track  # noqa: E402

from wamdiff2_core.agent.pilot import Planner  # noqa: E402
from wamdiff2_core.agent.records import RouteRecords, record_folder  # noqa: E402
from wamdiff2_core.agent.route_agent import RouteAgent  # noqa: E402
from wamdiff2_core.agent.sensors import sensor_list  # noqa: E402
from wamdiff2_core.agent.settings import AgentSettings, load_settings, split_config  # noqa: E402
from wamdiff2_core.rig import load_rig  # noqa: E402

_planners: dict[AgentSettings, Planner] = {}  # loading a checkpoint takes longer than a route's set-up should


def get_entry_point() -> str:
    """Name of the agent class."""
    return "Wamdiff2Agent"


class Wamdiff2Agent(AutonomousAgent):
    """Our Driver, controller and conversions behind the leaderboard's interface. One object per route."""

    def setup(self, path_to_conf_file: str) -> None:
        """Settings file and save name come in one string, joined by '+'."""
        self.track = Track.SENSORS
        file, save_name = split_config(path_to_conf_file)
        self.settings = load_settings(file)
        self.cameras = self.make_cameras()
        self._records = RouteRecords(record_folder(os.environ.get("SAVE_PATH"), save_name))
        gps = [(node["lat"], node["lon"]) for node, _ in self._global_plan]
        nodes = [(t.location.x, t.location.y, int(option.value)) for t, option in self._global_plan_world_coord]
        self._route = RouteAgent(self.settings, self.make_planner(), self.cameras, nodes, gps)

    def make_cameras(self) -> tuple:
        """The rig's cameras."""
        return load_rig(self.settings.rig_file)

    def make_planner(self) -> Planner:
        """The model, in this process or behind ROS topics; kept for the next route."""
        if self.settings not in _planners:
            _planners.clear()
            _planners[self.settings] = _planner(self.settings)
        return _planners[self.settings]

    def sensors(self) -> list[dict[str, Any]]:
        """See wamdiff2_core.agent.sensors."""
        return sensor_list(self.cameras, self.settings.base_link_x_m)

    def run_step(self, input_data: dict[str, Any], timestamp: float) -> carla.VehicleControl:
        """One tick: 20 times per second of the simulation."""
        control = self._route.tick(input_data, timestamp)
        self._records.tick(self.get_metric_info())
        return carla.VehicleControl(
            throttle=control.throttle, steer=control.steer, brake=control.brake, hand_brake=control.hand_brake,
            reverse=control.reverse,
        )  # fmt: skip

    def destroy(self) -> None:
        """End of the route: metric_info.json and our report are written."""
        if hasattr(self, "_route"):
            self._records.write({"settings": vars(self.settings), **self._route.report()})


def _planner(settings: AgentSettings) -> Planner:
    if settings.mode == "ros":
        from wamdiff2_ros.agent_topics import TopicPlanner

        return TopicPlanner(settings)
    from wamdiff2_core.driver import Driver
    from wamdiff2_core.expected import Expected

    decoding = settings.decoding()
    driver = Driver.from_checkpoint(
        settings.checkpoint_folder, settings.device, settings.dtype, decoding, settings.kernels
    )
    driver.get_ready(Expected(("plan",), block_sizes=(decoding.block_size,)))  # no plan's latency includes a capture
    return driver
