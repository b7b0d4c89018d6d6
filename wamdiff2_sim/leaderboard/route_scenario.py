"""The official RouteScenario over our world: its route, criteria and tree, with our situations in place of CARLA's.

Only what needs CARLA's traffic manager or its props is replaced: background traffic (our world has its own), parked
meshes, and the behaviours of the scenario types.
"""

from __future__ import annotations

from typing import Any

import py_trees
from leaderboard.scenarios.route_scenario import RouteScenario
from leaderboard.utils.route_parser import DIST_THRESHOLD
from srunner.scenariomanager.scenarioatomics.atomic_behaviors import ScenarioTriggerer
from srunner.scenariomanager.scenarioatomics.atomic_criteria import RouteCompletionTest

from wamdiff2_sim.leaderboard.situation import Situation
from wamdiff2_sim.scenarios.catalog import TYPES

# The package's copy of the criteria has 90 here; Bench2Drive 0.0.4 has 99.
RouteCompletionTest.PERCENTAGE_THRESHOLD = 99


class StandInRouteScenario(RouteScenario):
    """One route. `world` is a StandInWorld."""

    def _spawn_ego_vehicle(self) -> Any:
        self.world.take_route([transform for transform, _ in self.route])
        return super()._spawn_ego_vehicle()

    def _create_behavior(self) -> Any:
        behavior = py_trees.composites.Parallel(
            name="Route Behavior", policy=py_trees.common.ParallelPolicy.SUCCESS_ON_ALL
        )
        self.behavior_node = behavior
        self.scenario_triggerer = ScenarioTriggerer(self.ego_vehicles[0], self.route, [], DIST_THRESHOLD)
        behavior.add_child(self.scenario_triggerer)
        return behavior

    def get_all_scenario_classes(self) -> dict[str, type]:
        """Ours, by the names of the official types."""
        return dict.fromkeys(TYPES, Situation)

    def spawn_parked_vehicles(self, ego_vehicle: Any, max_scenario_distance: float = 10.0) -> None:
        """Our world has none."""
