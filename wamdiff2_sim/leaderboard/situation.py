"""One of our situations as a scenario of the official runner: triggered, timed and judged by its own mechanisms."""

from __future__ import annotations

from typing import Any

import py_trees
from srunner.scenariomanager.scenarioatomics.atomic_criteria import ScenarioTimeoutTest, YieldToEmergencyVehicleTest
from srunner.scenarios.basic_scenario import BasicScenario

from wamdiff2_sim.leaderboard.actors import pose_of
from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.catalog import make_act


class Playing(py_trees.behaviour.Behaviour):
    """Begins the act when it is reached in the tree, and ends when the act is over or took too long."""

    def __init__(self, act: Act, stage: Any, name: str, timed_out_key: str) -> None:
        super().__init__(name)
        self._act, self._stage, self._key = act, stage, timed_out_key

    def initialise(self) -> None:
        self._act.begin(self._stage)
        if self._act.uses_oncoming_lane:
            self._judge_direction(False)

    def terminate(self, new_status: Any) -> None:
        if self._act.uses_oncoming_lane and self._act.begun:
            self._judge_direction(True)

    @staticmethod
    def _judge_direction(on: bool) -> None:
        """Whether the oncoming lane counts as outside of the route: not while it is the only way round."""
        py_trees.blackboard.Blackboard().set("AC_SwitchWrongDirectionTest", on, overwrite=True)

    def update(self) -> Any:
        if self._act.done:
            return py_trees.common.Status.SUCCESS
        if self._act.too_late:
            py_trees.blackboard.Blackboard().set(self._key, True, overwrite=True)
            self._act.finish(self._stage)
            return py_trees.common.Status.SUCCESS
        return py_trees.common.Status.RUNNING


class Situation(BasicScenario):
    """Base of all types: `catalog` says what happens in which."""

    def __init__(self, world: Any, ego_vehicles: list, config: Any, timeout: float = 180.0, **unused: Any) -> None:
        self.timeout = timeout
        trigger = pose_of(config.trigger_points[0])
        self.act = make_act(config.type, world.stage, trigger, _plain(config.other_parameters))
        self.act.prepare(world.stage)
        world.stage.acts.append(self.act)
        super().__init__(config.name, ego_vehicles, config, world, criteria_enable=True)

    def _initialize_actors(self, config: Any) -> None:
        """They are on the stage already."""

    def _create_behavior(self) -> Any:
        return Playing(self.act, self.world.stage, self.config.type, f"ScenarioTimeout_{self.config.name}")

    def _create_test_criteria(self) -> list:
        ego = self.ego_vehicles[0]
        criteria: list = [ScenarioTimeoutTest(ego, self.config.name)]
        if self.act.ambulance is not None:
            self.world.update_users()
            criteria.append(YieldToEmergencyVehicleTest(ego, self.world.user(self.act.ambulance.id)))
        return criteria


def _plain(parameters: dict[str, dict[str, str]]) -> dict[str, str]:
    """{"distance": {"value": "40"}} as {"distance": "40"}; ranges keep both ends: "from" and "to"."""
    made: dict[str, str] = {}
    for name, attributes in parameters.items():
        for key, value in attributes.items():
            made[name if key == "value" else f"{name}.{key}"] = value
    return made
