"""The world with a stage on it: directed road users among the world's own people, and lights that can be held."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera
from wamdiff2_sim.corridor import Bodies
from wamdiff2_sim.lights import Lights
from wamdiff2_sim.pedestrians import Pedestrians
from wamdiff2_sim.roads.roadmap import RoadMap
from wamdiff2_sim.roads.route import Route
from wamdiff2_sim.scenarios.directed import FIRST_ID, Directed, Line
from wamdiff2_sim.types import ActorState, LightState, VehicleControl, WeatherSpec, WorldState
from wamdiff2_sim.world import World


class Cast:
    """The world's people and the directed actors behind one door, so that vehicles brake for both."""

    def __init__(self, people: Pedestrians, road_map: RoadMap) -> None:
        self.people, self.map = people, road_map
        self.directed: list[Directed] = []

    def populate(self, ego_x: float, ego_y: float, ego_yaw: float) -> None:
        """See Pedestrians."""
        self.people.populate(ego_x, ego_y, ego_yaw)

    def bodies(self) -> Bodies:
        """Footprints of everybody."""
        return Bodies.join([self.people.bodies(), *(one.bodies() for one in self.directed)])

    def step(self, dt: float, vehicles: Bodies) -> None:
        """Move the people; directed actors are moved by the stage."""
        self.people.step(dt, vehicles)

    def actors(self) -> list[ActorState]:
        """Everybody."""
        return [*self.people.actors(), *(one.state(self.map) for one in self.directed)]

    def snapshot(self) -> tuple:
        """Everything that `restore` needs."""
        return self.people.snapshot(), copy.deepcopy(self.directed)

    def restore(self, saved: tuple) -> None:
        people, directed = saved
        self.people.restore(people)
        self.directed = copy.deepcopy(directed)


class HeldLights:
    """Traffic lights of which some are held in one colour."""

    def __init__(self, lights: Lights) -> None:
        self._lights = lights
        self.group_ids, self.index = lights.group_ids, lights.index
        self.held: dict[int, LightState] = {}

    def array(self, t: float) -> np.ndarray:
        """States of all groups, see Lights."""
        state = self._lights.array(t)
        for group, colour in self.held.items():
            state[self.index[group]] = int(colour)
        return state

    def state_of(self, group: int, t: float) -> LightState:
        """Colour of one group at time `t` (s)."""
        return LightState(int(self.array(t)[self.index[group]]))

    def states(self, t: float) -> dict[int, LightState]:
        """Colours of all groups at time `t` (s), by group id."""
        return {group: LightState(int(v)) for group, v in zip(self.group_ids, self.array(t), strict=True)}


class Stage(World):
    """A World with `cast.directed` actors and held lights. Acts (see acts.py) are stepped before the world is."""

    def __init__(
        self,
        map_name: str | RoadMap,
        route: Route,
        seed: int = 0,
        rig: Sequence[Camera] | None = None,
        weather: WeatherSpec | None = None,
        traffic: tuple[int, int] = (0, 0),
    ) -> None:
        self._first_route: Route | None = route
        self._next_id = FIRST_ID
        super().__init__(map_name, seed, rig, weather, traffic)

    def reset(self, route: Route | None = None, seed: int | None = None) -> WorldState:
        """See World; the stage is empty again."""
        super().reset(route or self._first_route, seed)
        self._first_route = self.route
        self.cast = Cast(self.pedestrians, self.map)
        self.pedestrians: Any = self.cast
        self.held = HeldLights(self.lights)
        self.lights: Any = self.held
        self.acts: list[Any] = []
        self.slip = 0.0  # steering that is added to the driver's: loss of control
        self._forget()
        return self.state

    def enter(self, kind: str, points: np.ndarray, **features: Any) -> Directed:
        """Put an actor on the stage that will move along `points` (N, 3) m. ConfigError for an unknown kind."""
        if kind not in ("car", "truck", "cyclist", "pedestrian"):
            raise ConfigError(f"kind: expected car, truck, cyclist or pedestrian, got {kind!r}")
        actor = Directed(self._next_id, kind, Line(points), **features)
        self._next_id += 1
        self.cast.directed.append(actor)
        self._forget()
        return actor

    def leave(self, actor: Directed) -> None:
        """Take an actor off the stage."""
        actor.gone = True
        self.cast.directed = [one for one in self.cast.directed if one is not actor]
        self._forget()

    def hold(self, group: int, colour: LightState | None) -> None:
        """Let a light group show one colour from now on; None: let it run freely again."""
        if colour is None:
            self.held.held.pop(group, None)
        else:
            self.held.held[group] = colour
        self._forget()

    def step(self, control: VehicleControl, dt: float = 0.05) -> WorldState:
        """Drive on for `dt` seconds: acts decide, directed actors move, then the world."""
        for act in self.acts:
            act.step(self, dt)
        ego, speed = self.state.ego, self.state.speed
        for one in self.cast.directed:
            one.step(dt, ego, speed)
        if self.slip:
            control = VehicleControl(
                control.steer + self.slip, control.throttle, control.brake, control.reverse, control.hand_brake
            )
        return super().step(control, dt)
