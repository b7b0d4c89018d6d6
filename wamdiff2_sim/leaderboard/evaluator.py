"""Drives routes of the official file through our world: the order of calls of the official evaluator, our server.

Sensors are validated, the agent set up and the route judged by the leaderboard's own classes, and its
StatisticsManager writes the result file. What differs from a run against CARLA stands in docs/leaderboard.md.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leaderboard.autoagents.agent_wrapper import AgentError, TickRuntimeError, validate_sensor_configuration
from leaderboard.envs.sensor_interface import SensorConfigurationInvalid
from leaderboard.scenarios.scenario_manager import ScenarioManager
from leaderboard.utils.route_indexer import RouteIndexer
from leaderboard.utils.statistics_manager import FAILURE_MESSAGES, StatisticsManager
from srunner.scenariomanager.carla_data_provider import CarlaDataProvider

from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.leaderboard.route_scenario import StandInRouteScenario
from wamdiff2_sim.leaderboard.sensors import Failings
from wamdiff2_sim.leaderboard.server import Client, StandInWorld

LOG = logging.getLogger("wamdiff2.leaderboard")
SAVE_PATH = "SAVE_PATH"  # where agents of Bench2Drive write metric_info.json


@dataclass(frozen=True)
class RunSettings:
    """What to drive. `agent`: file with `get_entry_point`; `config`: what its `setup` gets; `subset`: "24211,24224"."""

    routes: Path
    agent: Path
    config: str
    out: Path
    subset: str = ""
    repetitions: int = 1
    resume: bool = False
    seed: int = 0
    traffic: tuple[int, int] = (15, 6)
    timeout_s: float = 120.0
    failings: Failings = field(default_factory=Failings)
    chatter: bool = False  # let the leaderboard print

    @property
    def results(self) -> Path:
        return self.out / "results.json"


class Evaluator:
    """Runs all routes of a subset, one after the other."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        settings.out.mkdir(parents=True, exist_ok=True)
        LOG.addHandler(logging.FileHandler(settings.out / "failures.log", delay=True))
        LOG.propagate = False
        self.statistics = StatisticsManager(str(settings.results), str(settings.out / "live.txt"))
        self.config = settings.config  # the leaderboard lets it grow by '+' and a name with every route
        self.told: list[str] = []  # what failed, route by route, for whoever reads
        self._agents = _load(settings.agent)
        self._sensors: list | None = None

    def run(self) -> None:
        """All routes that the result file does not hold yet; it is complete and validated afterwards."""
        settings = self.settings
        os.environ[SAVE_PATH] = str(settings.out / "metric")
        indexer = RouteIndexer(str(settings.routes), settings.repetitions, settings.subset)
        if settings.resume and indexer.validate_and_resume(str(settings.results)):
            self.statistics.add_file_records(str(settings.results))
        else:
            indexer.index = 0
            self.statistics.clear_records()
        self.statistics.save_progress(indexer.index, indexer.total)
        self.statistics.write_statistics()
        while indexer.peek():
            self._drive(indexer.get_next_config())
            self.statistics.save_progress(indexer.index, indexer.total)
            self.statistics.write_statistics()
        self.statistics.compute_global_statistics()
        self.statistics.validate_and_write_statistics(self._sensors is not None, False)

    def _drive(self, config: Any) -> None:
        route_name = f"{config.name}_rep{config.repetition_index}"
        scenario = config.scenario_configs[0].name if config.scenario_configs else "none"
        save_name = f"{route_name}_{config.town}_{scenario}_0"
        self.statistics.create_route_data(route_name, scenario, 0, save_name, str(config.town), config.index)
        with self._quiet():
            status, message = self._route(config, save_name)
        if message:
            self.told.append(f"{route_name}: {message}")

    def _route(self, config: Any, save_name: str) -> tuple[str, str]:
        """One route from world to record; returns the entry status and crash message that were registered."""
        settings = self.settings
        world = StandInWorld(str(config.town), settings.seed, settings.traffic, settings.failings)
        manager = ScenarioManager(settings.timeout_s, self.statistics, 0)
        agent = scenario = None
        status, message = "Started", ""
        try:
            scenario, status, message = self._prepare(world, config)
            if scenario is not None:
                agent, status, message = self._set_up(scenario, save_name)
            if agent is not None:
                status, message = self._run(manager, scenario, agent, config)
            self.statistics.save_entry_status(status)
            self.statistics.compute_route_statistics(
                config.index, manager.scenario_duration_system, manager.scenario_duration_game, message
            )
            return status, message
        finally:
            if agent is not None:
                agent.destroy()
            world.close()
            CarlaDataProvider.cleanup()
            if scenario is not None:
                scenario.other_actors = []
                self.statistics.remove_scenario()
            manager.cleanup()

    def _prepare(self, world: StandInWorld, config: Any) -> tuple[Any, str, str]:
        """(scenario, entry status, crash message); None for the scenario when the world could not be made."""
        try:
            return self._scenario(world, config), "Started", ""
        except Exception:
            LOG.exception("%s: the scenario could not be loaded", config.name)
            return None, *FAILURE_MESSAGES["Simulation"]

    def _set_up(self, scenario: StandInRouteScenario, save_name: str) -> tuple[Any, str, str]:
        """(agent, entry status, crash message); None for the agent when it could not be set up."""
        try:
            return self._agent(scenario, save_name), "Started", ""
        except SensorConfigurationInvalid:
            LOG.exception("%s: the sensors are invalid", save_name)
            return None, *FAILURE_MESSAGES["Sensors"]
        except Exception:
            LOG.exception("%s: the agent could not be set up", save_name)
            return None, *FAILURE_MESSAGES["Agent_init"]

    def _scenario(self, world: StandInWorld, config: Any) -> StandInRouteScenario:
        CarlaDataProvider.set_client(Client(world))
        CarlaDataProvider.set_world(world)
        world.tick()
        scenario = StandInRouteScenario(world=world, config=config, debug_mode=0)
        self.statistics.set_scenario(scenario)
        return scenario

    def _agent(self, scenario: StandInRouteScenario, save_name: str) -> Any:
        """A new agent, set up; its sensors are validated on the first route."""
        made = getattr(self._agents, self._agents.get_entry_point())("localhost", 2000, 0)
        made.set_global_plan(scenario.gps_route, scenario.route)
        self.config = f"{self.config}+{save_name}"
        made.setup(self.config)
        if self._sensors is None:
            sensors = made.sensors()
            validate_sensor_configuration(sensors, made.track, "SENSORS")
            self._sensors = sensors
            self.statistics.save_sensors([_icon(sensor["type"]) for sensor in sensors])
            self.statistics.write_statistics()
        return made

    def _run(self, manager: ScenarioManager, scenario: Any, agent: Any, config: Any) -> tuple[str, str]:
        status, message = "Started", ""
        try:
            manager.load_scenario(scenario, agent, config.index, config.repetition_index)
            manager.tick_count = 0
            manager.run_scenario()
        except AgentError:
            LOG.exception("%s: the agent has crashed", config.name)
            status, message = FAILURE_MESSAGES["Agent_runtime"]
        except TickRuntimeError:
            message = "TickRuntime"
        except Exception:
            LOG.exception("%s: the simulation has crashed", config.name)
            status, message = FAILURE_MESSAGES["Simulation"]
        manager.stop_scenario()
        return status, message

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """The leaderboard prints a line per tick; unless wanted, that goes to a file."""
        if self.settings.chatter:
            yield
            return
        with (
            (self.settings.out / "leaderboard.log").open("a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
        ):
            yield


def _icon(sensor_type: str) -> str:
    """Name of a sensor in result files: sensor.camera.rgb -> carla_camera."""
    names = {"camera.rgb": "camera", "lidar.ray_cast": "lidar"}
    name = sensor_type.removeprefix("sensor.")
    return "carla_" + names.get(name, name.removeprefix("other."))


def _load(file: Path) -> Any:
    """The agent's module, found as the leaderboard finds it: its folder first on the path, then by name."""
    if not file.is_file():
        raise ConfigError(f"agent: {file} is no file")
    sys.path.insert(0, str(file.parent))
    return importlib.import_module(file.stem)
