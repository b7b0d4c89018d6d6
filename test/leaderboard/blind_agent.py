"""An agent that follows the route and sees nobody: what the situations are there to catch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wamdiff2_core.scene import Plan, Scene
from wamdiff2_ros.bench2drive_reference_agent import ReferenceAgent
from wamdiff2_sim.expert import Expert


def get_entry_point() -> str:
    return "BlindAgent"


class BlindPlanner:
    def __init__(self, stage: Any) -> None:
        self._stage, self._expert = stage, Expert(stage.map)

    def plan(self, scene: Scene) -> Plan:
        state = replace(self._stage.state, actors=())
        points = self._expert.plan(state, self._stage.route, state.route_s).points
        return Plan(np.asarray(points), np.ones(8))


class BlindAgent(ReferenceAgent):
    def make_planner(self) -> BlindPlanner:
        return BlindPlanner(self.hero_actor._world.stage)
