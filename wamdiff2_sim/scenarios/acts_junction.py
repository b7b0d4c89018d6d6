"""Acts at junctions: traffic to give way to, somebody who runs a red light, lights held in one colour."""

from __future__ import annotations

import numpy as np

from wamdiff2_core.scene import Command
from wamdiff2_sim.roads.route import Manoeuvre
from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.directed import Directed
from wamdiff2_sim.scenarios.paths import ACROSS, ONCOMING, along, crossing_lanes, next_junction, start_of, through
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import EGO_FRONT_M, LightState

UPSTREAM_M, DOWNSTREAM_M = 80.0, 120.0
CARRY_ON_M = 12.0


class AtJunction(Act):
    """Base: at the first junction behind the trigger; over when it has been left. Without one: over at the route's end.

    `light`: what our light shows from the trigger on (None: what it likes).
    """

    def __init__(self, stage: Stage, trigger_s: float, light: LightState | None = None) -> None:
        super().__init__()
        self.junction: Manoeuvre | None = next_junction(stage.route, trigger_s)
        self.trigger_s, self._light = trigger_s, light
        self._group = -1

    @property
    def entry_s(self) -> float:
        """Arc length of the way in; the trigger where there is no junction."""
        return self.junction.start_s if self.junction else self.trigger_s

    def on_begin(self, stage: Stage) -> None:
        line = stage.route.next_stop(stage.state.route_s)
        if self._light is not None and self.junction and line is not None and line[0] < self.junction.end_s:
            self._group = line[1]
            stage.hold(self._group, self._light)

    def over(self, stage: Stage) -> bool:
        end = self.junction.end_s if self.junction else self.trigger_s + 60.0
        return stage.state.route_s > min(end + 3.0, stage.route.length - 4.0)

    def on_finish(self, stage: Stage) -> None:
        stage.hold(self._group, None)


class RedFirst(AtJunction):
    """Our light is red until we have stood before it for a moment."""

    WAIT_S = 3.0

    def __init__(self, stage: Stage, trigger_s: float) -> None:
        super().__init__(stage, trigger_s, LightState.RED)
        self._stood_s = 0.0

    def on_step(self, stage: Stage, dt: float) -> None:
        near = self.entry_s - stage.state.route_s - EGO_FRONT_M < 12.0
        self._stood_s += dt if near and stage.state.speed < 0.3 else 0.0
        if self._stood_s > self.WAIT_S and self._group >= 0:
            stage.hold(self._group, LightState.GREEN)


class Flow(AtJunction):
    """Vehicles on a way that ours crosses or joins: groups of three, with a gap after each that is big enough."""

    GROUP, PAUSE_S = 3, 7.0

    def __init__(
        self, stage: Stage, trigger_s: float, speed_mps: float, apart_m: float, points: np.ndarray | None = None
    ) -> None:
        """points: the way (N, 3) where it is known; else the approach that we have to give way to is looked for."""
        super().__init__(stage, trigger_s, LightState.GREEN)
        self._speed, self._apart = speed_mps, apart_m
        self._points = points if points is not None else self._way(stage)
        self._next_s, self._sent = 0.0, 0

    def _way(self, stage: Stage) -> np.ndarray | None:
        if self.junction is None:
            return None
        lanes = crossing_lanes(stage.map, stage.route, self.junction)
        left = self.junction.command == Command.LEFT
        fitting = [(n, c) for n, c in lanes if (c < ONCOMING if left else ONCOMING < c < -ACROSS)] or lanes
        if not fitting:
            return None
        straight = [n for n, _ in fitting if stage.map.lanes[n].turn in (Command.STRAIGHT, Command.FOLLOW)]
        return through(stage.map, (straight or [n for n, _ in fitting])[0], UPSTREAM_M, DOWNSTREAM_M)

    def on_step(self, stage: Stage, dt: float) -> None:
        if self._points is None or self.time < self._next_s:
            return
        place = stage.route.point_at(self.entry_s)[:2]
        s = start_of(self._points, place, UPSTREAM_M)
        ego = stage.state.ego
        first = self._points[0, :2]
        if np.hypot(*(first - (ego.x, ego.y))) < 12.0:
            return  # nobody appears beside us
        stage.enter("car", self._points, s=s, speed=self._speed, wanted=self._speed)
        self._sent += 1
        pause = self.PAUSE_S if self._sent % self.GROUP == 0 else 0.0
        self._next_s = self.time + self._apart / self._speed + pause
        self._clear(stage)

    def _clear(self, stage: Stage) -> None:
        """Take those away that have come to the end of their way."""
        for one in list(stage.cast.directed):
            if one.line.length - one.s < CARRY_ON_M and one.wanted == self._speed:
                stage.leave(one)


class RunsRed(AtJunction):
    """Our light is green, but somebody on the crossing road does not stop for us."""

    def __init__(self, stage: Stage, trigger_s: float) -> None:
        super().__init__(stage, trigger_s, LightState.GREEN)
        self._car: Directed | None = None
        self._meets_at = 0.0

    def prepare(self, stage: Stage) -> None:
        if self.junction is None:
            return
        lanes = crossing_lanes(stage.map, stage.route, self.junction)
        sides = [n for n, cosine in lanes if abs(cosine) < -ACROSS] or [n for n, _ in lanes]
        if not sides:
            return
        points = through(stage.map, sides[0], UPSTREAM_M, DOWNSTREAM_M)
        middle = stage.route.point_at(0.5 * (self.junction.start_s + self.junction.end_s))[:2]
        self._meets_at = start_of(points, middle, 0.0)
        self._car = stage.enter("car", points, s=max(self._meets_at - 38.0, 0.0), accel=4.0, keeps_gap=False)

    def on_step(self, stage: Stage, dt: float) -> None:
        if self._car is None or self.junction is None or self._car.wanted:
            return
        middle = 0.5 * (self.junction.start_s + self.junction.end_s)
        ours_s = (middle - stage.state.route_s - EGO_FRONT_M) / max(stage.state.speed, 1.0)
        if ours_s < (self._meets_at - self._car.s) / 9.0 + 0.6:
            self._car.wanted = 11.0


class Blocked(AtJunction):
    """Somebody stands behind the junction and drives on only after we have waited."""

    WAIT_S, LONGEST_S = 4.0, 30.0

    def __init__(self, stage: Stage, trigger_s: float) -> None:
        super().__init__(stage, trigger_s, LightState.GREEN)
        self._stood_s = 0.0
        self._car: Directed | None = None

    def prepare(self, stage: Stage) -> None:
        if self.junction is not None:
            line = along(stage.route, self.junction.end_s, 200.0)
            self._car = stage.enter("car", line, s=3.0, keeps_gap=False)

    def on_step(self, stage: Stage, dt: float) -> None:
        self._stood_s += dt if stage.state.speed < 0.3 else 0.0
        if self._car is not None and (self._stood_s > self.WAIT_S or self.time > self.LONGEST_S):
            self._car.wanted = 10.0
