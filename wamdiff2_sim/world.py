"""The driving world: a town, its traffic and people, one ego vehicle on a route, cameras and scores.

Two worlds with equal arguments that get equal controls go through bytewise equal states. The renderer is made when the
first picture is asked for, so that everything else works without EGL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera, EgoState, Scene
from wamdiff2_core.tasks.navigation import navigation_text
from wamdiff2_sim.corridor import Bodies
from wamdiff2_sim.expert import Expert, ExpertPlan
from wamdiff2_sim.geometry import Surface
from wamdiff2_sim.lane_graph import LaneGraph
from wamdiff2_sim.lights import Lights
from wamdiff2_sim.pedestrians import Pedestrians
from wamdiff2_sim.questions import ask
from wamdiff2_sim.right_of_way import Holder
from wamdiff2_sim.roads.roadmap import RoadMap, load_map
from wamdiff2_sim.roads.route import Route, plan_route
from wamdiff2_sim.scores import DriveScore, StopLines
from wamdiff2_sim.traffic import Traffic
from wamdiff2_sim.types import (
    EGO_CENTRE_M,
    EGO_FRONT_M,
    EGO_LENGTH_M,
    EGO_REAR_OVERHANG_M,
    EGO_WIDTH_M,
    GtBox,
    LightState,
    Pose,
    VehicleControl,
    WeatherSpec,
    WorldState,
    random_weather,
)
from wamdiff2_sim.vehicle import VehicleState, at_height, step_vehicle

ARRIVAL_M = 3.0
OFF_ROUTE_M = 20.0
CLAIM_WAIT_S = (2.0, 8.0, 10.0)  # a standing ego claims the junction from .. to .. of every .. seconds
SLOWEST_MEAN_MPS = 1.5  # time limit of a route, on top of a minute
DEFAULT_ROUTE_M = (300.0, 700.0)


@dataclass(frozen=True)
class Snapshot:
    """A moment to come back to. Opaque; belongs to the world (and the route) that made it."""

    own: tuple
    way: tuple
    score: DriveScore
    traffic: tuple
    people: tuple


class _Town:
    """What depends on the map alone."""

    def __init__(self, road_map: RoadMap) -> None:
        self.map = road_map
        self.graph = LaneGraph(road_map, {group: i for i, group in enumerate(sorted(road_map.light_groups))})
        self.surface = Surface(road_map)
        self.stop_lines = StopLines(road_map)


@lru_cache(maxsize=4)
def _named_map(name: str) -> RoadMap:
    return load_map(name)


@lru_cache(maxsize=4)
def _town(road_map: RoadMap) -> _Town:
    return _Town(road_map)


class World:
    """One drive. `map_name` a name for `load_map` or a RoadMap; `rig` cameras in order (None: no pictures);
    `traffic` (vehicles, people); `weather` None: drawn from the seed; `route_m` length range (m) of routes that it
    plans itself.
    """

    def __init__(
        self,
        map_name: str | RoadMap,
        seed: int = 0,
        rig: Sequence[Camera] | None = None,
        weather: WeatherSpec | None = None,
        traffic: tuple[int, int] = (30, 20),
        route_m: tuple[float, float] = DEFAULT_ROUTE_M,
    ) -> None:
        if min(traffic) < 0 or seed < 0:
            raise ConfigError(f"seed and traffic must not be negative, got seed {seed}, traffic {traffic}")
        self.map = map_name if isinstance(map_name, RoadMap) else _named_map(map_name)
        self.rig = tuple(rig) if rig is not None else ()
        self.seed = seed
        self.weather = weather if weather is not None else random_weather(np.random.default_rng([seed, 1]))
        self._town = _town(self.map)
        self._counts, self._route_m = traffic, route_m
        self._expert = Expert(self.map)
        self._renderer: Any = None
        self._state: WorldState | None = None
        self._plan: ExpertPlan | None = None
        self.reset()

    def reset(self, route: Route | None = None, seed: int | None = None) -> WorldState:
        """Start over at the route's beginning, standing. Without a route one is planned from the seed (None: the one
        before)."""
        self.seed = self.seed if seed is None else seed
        plan_rng, *rngs = (np.random.default_rng([self.seed, k]) for k in (2, 3, 4))
        self.route = route if route is not None else plan_route(self.map, plan_rng, *self._route_m)
        graph = self._town.graph
        self.lights = Lights(self.map, self.seed)
        self.traffic = Traffic(graph, self._counts[0], rngs[0])
        self.pedestrians = Pedestrians(graph, self._counts[1], rngs[1])
        self._runs = _lane_runs(self.route, graph)
        x, y, z = self.route.point_at(0.0).tolist()
        self._time, self._route_s, self._lateral, self._stand_s = 0.0, 0.0, 0.0, 0.0
        self._vehicle = VehicleState(Pose(x, y, z, math.remainder(self.route.heading_at(0.0), math.tau)))
        self.score = DriveScore(self.route.length - ARRIVAL_M)
        self.end_reason = ""
        pose = self._vehicle.pose
        self.traffic.focus = self._way_ahead()
        self.traffic.populate(pose.x, pose.y, pose.yaw)
        self.pedestrians.populate(pose.x, pose.y, pose.yaw)
        self._forget()
        return self.state

    def step(self, control: VehicleControl, dt: float = 0.05) -> WorldState:
        """Drive on for `dt` seconds (at most 0.1)."""
        if not 0.0 < dt <= 0.1:
            raise ConfigError(f"a step must be above 0 and at most 0.1 s, got {dt}")
        self._vehicle = step_vehicle(self._vehicle, control, dt)
        self._find_ego()
        self._stand_s = self._stand_s + dt if abs(self._vehicle.speed) < 0.3 else 0.0
        ego, lights = self._ego_body(), self.lights.array(self._time)
        self.pedestrians.step(dt, Bodies.join([ego, self.traffic.bodies()]))
        others = Bodies.join([ego, self.pedestrians.bodies()])
        self.traffic.focus = self._way_ahead()
        self.traffic.step(dt, self._time, lights, others, self._claims(lights))
        self._time += dt
        self._forget()
        self.score.update(self.state, self._town.surface, self._town.stop_lines, dt, self._held_by_light())
        self.end_reason = self._why_done()
        return self.state

    @property
    def done(self) -> bool:
        """Arrived, stuck, far off the route or out of time: `end_reason` says which."""
        return self.end_reason != ""

    @property
    def state(self) -> WorldState:
        """The world now."""
        if self._state is None:
            v = self._vehicle
            actors = (*self.traffic.actors(), *self.pedestrians.actors())
            lights = self.lights.states(self._time)
            self._state = WorldState(
                self._time,
                v.pose,
                v.speed,
                v.acceleration,
                v.yaw_rate,
                v.steer_rad / 0.6,
                self._route_s,
                actors,
                lights,
            )
        return self._state

    def teleport(self, pose: Pose, speed: float) -> WorldState:
        """Put the ego elsewhere with that speed (m/s), wheels straight. Progress on the route counts on from the
        nearest place."""
        before = self._vehicle.pose
        near = math.hypot(pose.x - before.x, pose.y - before.y) < 30.0  # then a route that crosses itself is no riddle
        hint = self._route_s if near else None
        self._route_s, self._lateral = self.route.project(np.array([pose.x, pose.y]), hint)
        self._vehicle = VehicleState(pose, speed)
        self._find_ego()
        self._stand_s = 0.0
        self.score.after_teleport()
        self._forget()
        return self.state

    def snapshot(self) -> Snapshot:
        """The moment, to come back to with `restore`. Takes well under a millisecond; pictures are not part of it."""
        own = (self._time, self._route_s, self._lateral, self._stand_s, self._vehicle, self.end_reason)
        way = (self.route, self._runs)
        return Snapshot(own, way, copy.deepcopy(self.score), self.traffic.snapshot(), self.pedestrians.snapshot())

    def restore(self, saved: Snapshot) -> WorldState:
        """Go back to a snapshot of this world (same seed)."""
        self._time, self._route_s, self._lateral, self._stand_s, self._vehicle, self.end_reason = saved.own
        self.route, self._runs = saved.way
        self.score = copy.deepcopy(saved.score)
        self.traffic.restore(saved.traffic)
        self.pedestrians.restore(saved.people)
        self._forget()
        return self.state

    @property
    def renderer(self) -> Any:
        """The renderer, made now if not before. Raises ConfigError without a rig."""
        if self._renderer is None:
            if not self.rig:
                raise ConfigError(
                    "this world has no cameras: pass rig=load_rig('config/rig_three.yaml').cameras or the like"
                )
            from wamdiff2_sim.render.renderer import Renderer  # needs EGL, which not every machine has

            self._renderer = Renderer(self.map, self.rig, self.weather)
        return self._renderer

    def render(self) -> dict[str, np.ndarray]:
        """Pictures (H, W, 3) uint8 RGB of all cameras, in rig order."""
        state = self.state
        return self.renderer.render([a.view() for a in state.actors], state.ego, state.lights, state.time)

    @property
    def ego_state(self) -> EgoState:
        """Motion in the ego frame, as a driver's odometry gives it."""
        v = self._vehicle
        return EgoState((v.speed, 0.0), (v.acceleration, v.speed * v.yaw_rate), v.yaw_rate)

    @property
    def instruction(self) -> str:
        """What navigation says now."""
        return navigation_text(*self.route.command_at(self._route_s))

    def close(self) -> None:
        """Release the renderer's graphics context; a later picture makes a new one."""
        if self._renderer is not None:
            self._renderer.release()
            self._renderer = None

    def scene(self, question: str | None = None) -> Scene:
        """What a driver gets: pictures, instruction, own motion, time."""
        return Scene(self.render(), self.instruction, self.ego_state, question, self._time)

    def expert(self) -> ExpertPlan:
        """The expert's plan from here, with its reason."""
        if self._plan is None:
            self._plan = self._expert.plan(self.state, self.route, self._route_s)
        return self._plan

    def expert_plan(self) -> np.ndarray:
        """Eight points (8, 2) in the ego frame, 0.5 s apart."""
        return self.expert().points

    def boxes(self, camera: str = "cam_front") -> list[GtBox]:
        """True boxes of what that camera sees, with the part that is not hidden."""
        state = self.state
        from wamdiff2_sim.truth import true_boxes  # needs EGL, like the renderer

        return true_boxes(self.renderer, camera, [a.view() for a in state.actors], state.ego)

    def question(self, rng: np.random.Generator) -> tuple[str, str]:
        """A question about this moment and its true answer."""
        boxes = tuple(self.boxes(self.rig[0].name)) if self.rig else ()
        profile = self._expert.profile(self.route)
        return ask(
            self.state, self.map, self.route, self._route_s, self.expert(), rng,
            profile=profile, boxes=boxes, weather=self.weather,
        )  # fmt: skip

    def _forget(self) -> None:
        """Drop what was derived from the moment before."""
        self._state, self._plan = None, None

    def _find_ego(self) -> None:
        """Progress on the route and ground height under the ego."""
        pose = self._vehicle.pose
        self._route_s, self._lateral = self.route.project(np.array([pose.x, pose.y]), self._route_s)
        if abs(self._lateral) < 8.0:
            z = float(self.route.point_at(self._route_s)[2])
        else:
            place = self.map.nearest_lane(np.array([pose.x, pose.y]), z=pose.z)
            z = float(self.map.lanes[place.lane_id].point_at(place.s)[2])
        self._vehicle = at_height(self._vehicle, z)

    def _ego_body(self) -> Bodies:
        middle = self._vehicle.pose.ahead(EGO_CENTRE_M)
        speed = self._vehicle.speed
        values = (middle.x, middle.y, middle.z, middle.yaw, speed, EGO_LENGTH_M / 2.0, EGO_WIDTH_M / 2.0)
        return Bodies(*(np.array([value]) for value in values))

    def _way_ahead(self) -> np.ndarray:
        """Places (K, 2) along the route up to 110 m ahead, 10 m apart."""
        first = int(self._route_s) + 15
        return self.route.points[first : first + 95 : 10, :2]

    def _claims(self, lights: np.ndarray) -> list[Holder]:
        """Junction lanes of the route that the ego uses or is about to use, for others to keep clear."""
        if abs(self._lateral) > 4.0:
            return []
        speed = self._vehicle.speed
        front, rear = self._route_s + EGO_FRONT_M, self._route_s - EGO_REAR_OVERHANG_M
        reach = front + max(4.0, speed * speed / 5.0 + 0.8 * speed + 2.0)
        begin, end, period = CLAIM_WAIT_S
        waits = self._stand_s > 0.0 and not begin < self._stand_s % period < end
        graph, found = self._town.graph, []
        for k, (lane, first, last) in enumerate(self._runs):
            if graph.junction[lane] < 0 or first > reach or last < rear - 0.5:
                continue
            if front < first + 0.5 and (waits or self._red_before(k, lights)):
                break
            found.append(Holder(-1, lane, rear - first, speed))
        return found

    def _red_before(self, k: int, lights: np.ndarray) -> bool:
        """Whether the light before lane run `k` of the route is not green."""
        group = self._town.graph.light[self._runs[k - 1][0]] if k > 0 else -1
        return bool(group >= 0 and lights[group] != LightState.GREEN)

    def _held_by_light(self) -> bool:
        line = self.route.next_stop(self._route_s)
        return line is not None and line[0] - self._route_s < 50.0 and self.state.lights[line[1]] != LightState.GREEN

    def _why_done(self) -> str:
        if self._route_s >= self.route.length - ARRIVAL_M:
            return "arrived"
        if self.score.stuck:
            return "stuck"
        if abs(self._lateral) > OFF_ROUTE_M:
            return "off_route"
        if self._time > 60.0 + self.route.length / SLOWEST_MEAN_MPS:
            return "time_limit"
        return ""


def _lane_runs(route: Route, graph: LaneGraph) -> list[tuple[int, float, float]]:
    """The route as (lane index, from s, to s), in order; stretches without a lane are left out."""
    lanes = np.asarray(route.point_lanes)
    edges = np.flatnonzero(np.diff(lanes)) + 1
    runs = []
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(lanes)], strict=True):
        if int(lanes[first]) in graph.index:
            end = route.s[min(last, len(lanes) - 1)]
            runs.append((graph.index[int(lanes[first])], float(route.s[first]), float(end)))
    return runs
