"""The server's side: `Client` and `StandInWorld` answer what the scenario runner asks a CARLA server for.

One StandInWorld serves one route: our `Stage` on the town's road map, with the real carla.Map beside it for the
scorer. The route is known when the ego is spawned; until then ticks pass without motion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import carla
import numpy as np

from wamdiff2_core.carla_frames import CARLA_WHEEL_DEG, CarlaControl, carla_to_ros_control, carla_to_ros_points
from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.leaderboard.actors import Actor, ActorList, Ego, Prop, RoadUser, StopSign, pose_of
from wamdiff2_sim.leaderboard.blueprints import Blueprint, BlueprintLibrary
from wamdiff2_sim.leaderboard.sensors import SENSORS, CameraSensor, Failings, Sensor
from wamdiff2_sim.leaderboard.signals import stop_signs, traffic_lights
from wamdiff2_sim.leaderboard.towns import town_map
from wamdiff2_sim.roads.roadmap import RoadMap, load_map
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import (
    EGO_CENTRE_M,
    EGO_HEIGHT_M,
    EGO_LENGTH_M,
    EGO_WIDTH_M,
    LightState,
    Pose,
    VehicleControl,
    WeatherSpec,
)
from wamdiff2_sim.vehicle import MAX_STEER_RAD

TICK_S = float(np.float32(0.05))  # as the server rounds it: the speedometer waits for MORE than 0.05 s
EGO_NUMBER, FIRST_SENSOR = 100, 30_000_000
ON_WAY_M = 2.0
MOST_TICKS = 4000  # of a route, the limit of Bench2Drive
WHEEL_RATIO = MAX_STEER_RAD / math.radians(CARLA_WHEEL_DEG)


class StandInWorld:
    """carla.World for one route."""

    EGO_SIZE = (EGO_LENGTH_M, EGO_WIDTH_M, EGO_HEIGHT_M)

    def __init__(
        self, town: str, seed: int, traffic: tuple[int, int], failings: Failings, wheel_ratio: float = WHEEL_RATIO
    ) -> None:
        self.town, self.seed, self.traffic, self.failings = town, seed, traffic, failings
        self.frame = 0
        self.ticks = 0  # since the ego was there
        self.weather = carla.WeatherParameters(sun_altitude_angle=70.0)
        self._wheel_ratio = wheel_ratio
        self._map = town_map(town)
        self.road_map: RoadMap = load_map(town)
        self._stage: Stage | None = None
        self._ego: Ego | None = None
        self._route: Route | None = None
        self._sensors: list[Sensor] = []
        self._users: dict[int, RoadUser] = {}
        self._signals: list[Actor] = [*traffic_lights(self.road_map, self), *stop_signs(self._map)]
        self._next_sensor = FIRST_SENSOR
        self._pictures: dict[str, np.ndarray] = {}
        self._settings = SimpleNamespace(synchronous_mode=True, fixed_delta_seconds=0.05, no_rendering_mode=False)
        self._spectator = Actor(1, "spectator")
        self.debug = SimpleNamespace(draw_point=_nothing, draw_string=_nothing, draw_line=_nothing)

    # -- what our own parts use

    @property
    def stage(self) -> Stage:
        """The world that is driven in. ConfigError before the ego is spawned."""
        if self._stage is None:
            raise ConfigError("stand-in world: no ego yet")
        return self._stage

    def take_route(self, transforms: Sequence[carla.Transform]) -> None:
        """The dense route, along which the ego will be spawned and the traffic be set down."""
        places = [(t.location.x, t.location.y, t.location.z) for t in transforms]
        points = carla_to_ros_points(np.array(places))
        keep = np.concatenate([[True], np.hypot(*np.diff(points[:, :2], axis=0).T) > 0.05])
        self._route = Route.from_points(points[keep], self.road_map)

    def ego_middle(self) -> Pose:
        """CARLA's origin of the ego: the middle of its box, on the ground."""
        return self.stage.state.ego.ahead(EGO_CENTRE_M)

    def light_of(self, group: int) -> LightState:
        """Colour of a light group now; red before there is a stage."""
        return self._stage.state.lights[group] if self._stage is not None else LightState.RED

    def user(self, number: int) -> RoadUser:
        """The actor for one of our road users."""
        return self._users[number]

    def pictures(self) -> dict[str, np.ndarray]:
        """RGB pictures of all cameras in this tick, by "sensor_<id>"."""
        if not self._pictures:
            self._pictures = self.stage.render()
        return self._pictures

    def stop_places(self) -> list[float]:
        """Arc lengths (m) on the route of the stop signs that are for us."""
        found = []
        for sign in (one for one in self._signals if isinstance(one, StopSign)):
            pose = pose_of(sign.get_transform())
            s, lateral = self.stage.route.project(np.array([pose.x, pose.y]))
            ahead = math.cos(self.stage.route.heading_at(s) - pose.yaw) > 0.7
            if abs(lateral) < ON_WAY_M and ahead and 0.5 < s < self.stage.route.length - 0.5:
                found.append(s)
        return found

    def close(self) -> None:
        """End of the route: nothing is alive any more."""
        for one in (*self._users.values(), *self._sensors, *([self._ego] if self._ego else [])):
            one.is_alive = False
        self._sensors = []
        if self._stage is not None:
            self._stage.close()

    def update_users(self) -> None:
        """Actors of the newest state; those that are gone are not alive any more."""
        from srunner.scenariomanager.carla_data_provider import CarlaDataProvider

        roles = {one.id: one.role or "scenario" for one in self.stage.cast.directed}
        present = set()
        for state in self.stage.state.actors:
            present.add(state.id)
            known = self._users.get(state.id)
            if known is not None:
                known.update(state)
                continue
            role = roles.get(state.id, "")
            self._users[state.id] = made = Prop(state) if role == "prop" else RoadUser(state, role)
            CarlaDataProvider.register_actor(made, made.get_transform())
        for number in [number for number in self._users if number not in present]:
            self._users.pop(number).is_alive = False

    # -- what the scenario runner and the leaderboard use

    def get_map(self) -> carla.Map:
        return self._map

    def get_settings(self) -> Any:
        return self._settings

    def apply_settings(self, settings: Any) -> int:
        self._settings = settings
        return self.frame

    def get_blueprint_library(self) -> BlueprintLibrary:
        return BlueprintLibrary()

    def get_weather(self) -> carla.WeatherParameters:
        return self.weather

    def set_weather(self, weather: carla.WeatherParameters) -> None:
        self.weather = weather

    def get_spectator(self) -> Actor:
        return self._spectator

    def get_lightmanager(self) -> Any:
        return SimpleNamespace(set_day_night_cycle=_nothing, get_all_lights=list, turn_on=_nothing, turn_off=_nothing)

    def reset_all_traffic_lights(self) -> None:
        """The lights run by the clock alone."""

    def get_actors(self, numbers: Sequence[int] | None = None) -> ActorList:
        everybody = [*([self._ego] if self._ego else []), *self._users.values(), *self._signals, *self._sensors]
        alive = ActorList(one for one in everybody if one.is_alive)
        return alive if numbers is None else ActorList(one for one in alive if one.id in set(numbers))

    def get_snapshot(self) -> Any:
        time = self.frame * TICK_S
        return SimpleNamespace(
            frame=self.frame, timestamp=SimpleNamespace(frame=self.frame, elapsed_seconds=time, delta_seconds=TICK_S)
        )

    def try_spawn_actor(self, blueprint: Blueprint, place: carla.Transform, attach_to: Any = None) -> Actor | None:
        return self.spawn_actor(blueprint, place, attach_to)

    def spawn_actor(self, blueprint: Blueprint, place: carla.Transform, attach_to: Any = None) -> Actor:
        """The ego, or a sensor on it; other road users come from our scenarios. RuntimeError otherwise."""
        if blueprint.id in SENSORS:
            self._next_sensor += 1
            sensor = SENSORS[blueprint.id](self._next_sensor, blueprint, place, self)
            self._sensors.append(sensor)
            return sensor
        if blueprint.attributes.get("role_name") != "hero":
            raise RuntimeError(f"stand-in world: {blueprint.id} is not spawned from outside")
        return self._spawn_ego(blueprint, place)

    def wait_for_tick(self, seconds: float = 0.0) -> Any:
        """Called from the thread that builds scenarios; it must not drive the world on."""
        return self.get_snapshot()

    def tick(self, seconds: float = 0.0) -> int:
        """The next 0.05 s. TickRuntimeError beyond Bench2Drive's limit."""
        self.frame += 1
        if self._stage is None or self._ego is None:
            return self.frame
        self.ticks += 1
        if self.ticks > MOST_TICKS:
            from leaderboard.autoagents.agent_wrapper import TickRuntimeError

            raise TickRuntimeError(f"RuntimeError, tick_count > {MOST_TICKS}")
        self._pictures = {}
        self._equip()
        self._stage.step(self._control(), 0.05)
        self.update_users()
        for sensor in [one for one in self._sensors if one.is_alive]:
            sensor.measure(self.frame)
        return self.frame

    # -- inside

    def _spawn_ego(self, blueprint: Blueprint, place: carla.Transform) -> Ego:
        if self._route is None:
            raise ConfigError("stand-in world: the route must be known before the ego is spawned")
        spec = weather_spec(self.weather)
        self._stage = Stage(self.road_map, self._route, self.seed, None, spec, self.traffic)
        yaw = -math.radians(place.rotation.yaw)
        start = Pose(place.location.x, -place.location.y, self._route.point_at(0.0)[2], yaw).ahead(-EGO_CENTRE_M)
        self._stage.teleport(start, 0.0)
        self._ego = Ego(EGO_NUMBER, blueprint.id, dict(blueprint.attributes), self)
        self.update_users()
        return self._ego

    def _equip(self) -> None:
        """Give the stage the cameras that have been spawned."""
        cameras = tuple(one.camera for one in self._sensors if isinstance(one, CameraSensor) and one.is_alive)
        if cameras != self.stage.rig:
            self.stage.close()
            self.stage.rig = cameras

    def _control(self) -> VehicleControl:
        c = self._ego.control if self._ego else carla.VehicleControl(brake=1.0)
        return carla_to_ros_control(
            CarlaControl(c.throttle, c.steer, c.brake, c.hand_brake, c.reverse), self._wheel_ratio
        )


class Client:
    """carla.Client: keeps the one world."""

    def __init__(self, world: StandInWorld) -> None:
        self._world = world

    def get_world(self) -> StandInWorld:
        return self._world

    def apply_batch(self, commands: list[Any]) -> None:
        """Nothing that we let be spawned has to be destroyed by command."""

    def apply_batch_sync(self, commands: list[Any], tick: bool = False) -> list[Any]:
        """See `apply_batch`."""
        return []


def weather_spec(weather: carla.WeatherParameters) -> WeatherSpec:
    """The look that comes nearest to CARLA's weather."""
    sun = math.radians(weather.sun_altitude_angle)
    wet = max(weather.wetness, weather.precipitation_deposits) / 100.0
    rain = weather.precipitation / 100.0
    return WeatherSpec(
        sun_elevation=sun, sun_azimuth=math.radians(-weather.sun_azimuth_angle), cloud=weather.cloudiness / 100.0,
        fog=min(weather.fog_density / 100.0, 1.0), rain=rain, wetness=max(wet, rain), night=sun < 0.0,
    )  # fmt: skip


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Drawing and lamps have no place in our world."""
