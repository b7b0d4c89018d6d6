"""Acts on the open road: people and things in the way, cut-ins, hard braking, an ambulance, loss of control."""

from __future__ import annotations

import math

import numpy as np

from wamdiff2_core.scene import PLAN_STEP_S
from wamdiff2_sim.scenarios.acts import Act
from wamdiff2_sim.scenarios.directed import CONE_SIZE, WORK_COLOUR, Directed
from wamdiff2_sim.scenarios.paths import across, along
from wamdiff2_sim.scenarios.stage import Stage
from wamdiff2_sim.types import EGO_FRONT_M

PARKED_RIGHT_M = 3.1
ROAD_HALF_M = 7.0
ESCAPE_M = 15.0  # behind us, the situation is over


class OnRoute(Act):
    """Base: happens `distance_m` behind the trigger at arc length `trigger_s` of the route; over when it is passed."""

    def __init__(self, trigger_s: float, distance_m: float) -> None:
        super().__init__()
        self.trigger_s, self.s = trigger_s, trigger_s + distance_m

    def gap(self, stage: Stage) -> float:
        """Metres from the ego's bumper to the place."""
        return self.s - stage.state.route_s - EGO_FRONT_M

    def over(self, stage: Stage) -> bool:
        return self.gap(stage) < -ESCAPE_M


class Crossing(OnRoute):
    """A person steps out, from behind something parked if `hidden`, so that braking is needed and suffices."""

    PACE_MPS = 1.7

    def __init__(self, trigger_s: float, distance_m: float, hidden: bool) -> None:
        super().__init__(trigger_s, distance_m)
        self._hidden = hidden
        self._walker: Directed | None = None

    def prepare(self, stage: Stage) -> None:
        self._walker = stage.enter(
            "pedestrian", across(stage.route, self.s, ROAD_HALF_M), s=ROAD_HALF_M - PARKED_RIGHT_M, keeps_gap=False
        )
        if self._hidden:
            line = along(stage.route, self.s - 6.0, 12.0)
            stage.enter("truck", line, s=2.0, offset=-PARKED_RIGHT_M, wanted_offset=-PARKED_RIGHT_M, role="scenario")

    def on_step(self, stage: Stage, dt: float) -> None:
        if self._walker is None or self._walker.wanted:
            return
        to_lane_s = (PARKED_RIGHT_M - 0.5) / self.PACE_MPS
        speed = stage.state.speed
        if self.gap(stage) < speed * (to_lane_s + 0.4) and self.gap(stage) > speed * speed / 8.0 + 0.3 * speed:
            self._walker.wanted, self._walker.accel = self.PACE_MPS, 6.0


class LeadBrakes(OnRoute):
    """A vehicle ahead of us drives off with us, then brakes hard to a stop, waits and goes on."""

    def __init__(self, trigger_s: float, start_s: float) -> None:
        super().__init__(trigger_s, 0.0)
        self._from = start_s
        self._lead: Directed | None = None

    def prepare(self, stage: Stage) -> None:
        line = along(stage.route, self._from, 400.0)
        self._lead = stage.enter("car", line, s=24.0, keeps_gap=False, accel=2.2, brake=7.0)

    def step(self, stage: Stage, dt: float) -> None:
        lead = self._lead
        if lead is not None and not self.begun:
            ahead = lead.s + self._from - stage.state.route_s
            lead.wanted = stage.state.speed + 0.6 if ahead < 32.0 else 0.0
        super().step(stage, dt)

    def on_step(self, stage: Stage, dt: float) -> None:
        if self._lead is not None:
            self._lead.wanted = 0.0 if 1.5 < self.time < 7.0 else 8.0

    def over(self, stage: Stage) -> bool:
        return self.time > 16.0

    def on_finish(self, stage: Stage) -> None:
        if self._lead is not None:
            self._lead.wanted = 14.0  # and away


class Blocking(OnRoute):
    """Vehicles or a work site stand in our lane; on two-way roads a few oncoming cars come first, then a gap."""

    SPACING_M, ONCOMING_MPS = 22.0, 9.0

    def __init__(self, trigger_s: float, distance_m: float, what: str, oncoming: int) -> None:
        super().__init__(trigger_s, distance_m)
        self._what, self._count = what, oncoming
        self.uses_oncoming_lane = oncoming > 0
        self.length_m = 12.0

    def prepare(self, stage: Stage) -> None:
        line = along(stage.route, self.s - 20.0, 60.0)
        if self._what == "works":
            for k in range(5):  # a row that leads out of the lane, then the vehicle behind it
                side = -1.6 + 0.75 * k
                stage.enter("car", line, s=20.0 + 1.4 * k, offset=side, wanted_offset=side, size=CONE_SIZE,
                            colour=WORK_COLOUR, role="prop")  # fmt: skip
            stage.enter("truck", line, s=31.0, colour=WORK_COLOUR)
            self.length_m = 15.0
        elif self._what == "accident":
            for k, turned in enumerate((0.0, 0.5, -0.3)):
                stage.enter("car", line, s=22.0 + 6.0 * k, turned=turned, offset=0.4 * k, wanted_offset=0.4 * k)
            self.length_m = 17.0
        elif self._what == "bicycles":
            for k in range(2):
                stage.enter("cyclist", line, s=22.0 + 5.0 * k, offset=-0.9, wanted_offset=-0.9, keeps_gap=False)
        else:
            stage.enter("car", line, s=22.0, offset=-0.3, wanted_offset=-0.3)
            self.length_m = 5.0

    def on_begin(self, stage: Stage) -> None:
        if self._count:
            line = along(stage.route, self.s - 90.0, 190.0)[::-1]
            for k in range(self._count):
                stage.enter("car", line, s=self.SPACING_M * k, offset=3.6, wanted_offset=3.6,
                            speed=self.ONCOMING_MPS, wanted=self.ONCOMING_MPS)  # fmt: skip

    def over(self, stage: Stage) -> bool:
        return self.gap(stage) < -(ESCAPE_M + self.length_m)


class CutIn(OnRoute):
    """A vehicle that stands beside our lane pulls out in front of us."""

    def __init__(self, trigger_s: float, distance_m: float, side: int) -> None:
        super().__init__(trigger_s, distance_m)
        self._side = side
        self._car: Directed | None = None

    def prepare(self, stage: Stage) -> None:
        line = along(stage.route, self.s, 300.0)
        offset = self._side * PARKED_RIGHT_M
        for k in (0, 1):
            here = stage.enter("car", line, s=8.0 * k, offset=offset, wanted_offset=offset, indicator=-self._side)
            self._car = self._car or here

    def on_step(self, stage: Stage, dt: float) -> None:
        car, speed = self._car, stage.state.speed
        if car is not None and car.wanted == 0.0 and self.gap(stage) < max(10.0, 1.9 * speed):
            car.wanted, car.wanted_offset, car.accel, car.keeps_gap = 7.0, 0.0, 2.5, False
            self._car = car

    def over(self, stage: Stage) -> bool:
        return self._car is not None and self._car.wanted > 0.0 and self.gap(stage) < -ESCAPE_M


class Ambulance(OnRoute):
    """An ambulance comes from behind on our lane; it gets by if we leave it the lane."""

    timeout_s = 60.0

    def __init__(self, trigger_s: float, behind_m: float) -> None:
        super().__init__(trigger_s, 0.0)
        self._behind = behind_m

    def prepare(self, stage: Stage) -> None:
        line = along(stage.route, self.trigger_s - self._behind, 400.0)
        self.ambulance = stage.enter("truck", line, colour=(0.95, 0.95, 0.95), role="ambulance", accel=3.0)

    def on_begin(self, stage: Stage) -> None:
        if self.ambulance is not None:
            self.ambulance.wanted = max(12.0, stage.state.speed + 4.0)

    def over(self, stage: Stage) -> bool:
        car = self.ambulance
        passed = car is not None and car.s + self.trigger_s - self._behind > stage.state.route_s + 20.0
        return passed or self.time > 20.0


class ControlLoss(OnRoute):
    """The road is slippery for a few seconds: something pulls at the wheel."""

    LASTS_S, SHARE, PERIOD_S = 4.0, 0.12, 1.6

    def on_step(self, stage: Stage, dt: float) -> None:
        inside = self.time < self.LASTS_S
        stage.slip = self.SHARE * math.sin(math.tau * self.time / self.PERIOD_S) if inside else 0.0

    def over(self, stage: Stage) -> bool:
        return self.time > self.LASTS_S + PLAN_STEP_S

    def on_finish(self, stage: Stage) -> None:
        stage.slip = 0.0


class ParkingExit(OnRoute):
    """We stand between parked vehicles beside the lane and have to get out."""

    def __init__(self, trigger_s: float, front_m: float, behind_m: float) -> None:
        super().__init__(trigger_s, 0.0)
        self._gaps = (front_m, behind_m)

    def prepare(self, stage: Stage) -> None:
        base = stage.state.route_s
        line = along(stage.route, base - 30.0, 80.0)
        side = -PARKED_RIGHT_M
        for s in (30.0 + self._gaps[0] + EGO_FRONT_M, 30.0 - self._gaps[1]):
            stage.enter("car", line, s=s, offset=side, wanted_offset=side)
        ego = stage.state.ego
        right = np.array([[0.0, side]])
        (x, y), = ego.to_map(right)  # fmt: skip
        stage.teleport(type(ego)(float(x), float(y), ego.z, ego.yaw), 0.0)

    def over(self, stage: Stage) -> bool:
        return stage.state.route_s > self.trigger_s + 25.0
