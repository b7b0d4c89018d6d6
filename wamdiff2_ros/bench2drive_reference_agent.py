"""A reference for the stand-in world: our agent with our world's expert in the model's place. No entrant: it sees all.

Shows what routes, situations, controller and scorer allow, without a model's mistakes and without pictures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from wamdiff2_core.agent.pilot import Planner
from wamdiff2_core.scene import Failure, Plan, Scene
from wamdiff2_ros.bench2drive_agent import Wamdiff2Agent
from wamdiff2_sim.scenarios.reference import Reference


def get_entry_point() -> str:
    """Name of the agent class."""
    return "ReferenceAgent"


class ReferencePlanner:
    """The stage's reference driver as a planner. WAMDIFF2_REFERENCE=plain: the expert without situations."""

    def __init__(self, world: Any) -> None:
        knows = os.environ.get("WAMDIFF2_REFERENCE") != "plain"
        self._driver = Reference(world.stage, knows, world.stop_places())

    def plan(self, scene: Scene) -> Plan | Failure:
        """The scene is not looked at."""
        return self._driver.plan()


class ReferenceAgent(Wamdiff2Agent):
    """Drives with the reference's plans."""

    def make_cameras(self) -> tuple:
        """None: the reference needs no pictures."""
        return ()

    def make_planner(self) -> Planner:
        """A new one for each route: it belongs to the route's world."""
        return ReferencePlanner(self.hero_actor._world)
