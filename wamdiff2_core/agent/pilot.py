"""Asks for plans and drives them. The world does not wait: a plan acts from when it would have been ready."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from wamdiff2_core.control import Pose2D, VehicleControl
from wamdiff2_core.controllers import HeldPlan, PlanController
from wamdiff2_core.scene import Failure, Plan, Scene

LOG = logging.getLogger("wamdiff2.agent")
FULL_BRAKE = VehicleControl(brake=1.0)


class Planner(Protocol):
    """Anything that answers a scene with a plan: the Driver, a node behind ROS topics, a test."""

    def plan(self, scene: Scene) -> Plan | Failure: ...


@dataclass
class Report:
    """What happened on a route, for the file beside metric_info.json."""

    plans: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by kind: the model answered, but not with a plan
    exceptions: int = 0
    last_exception: str = ""
    ticks: int = 0
    braking_ticks: int = 0  # without a plan young enough
    missing_pictures: Counter[str] = field(default_factory=Counter)
    latency_ms: list[float] = field(default_factory=list)

    def values(self) -> dict[str, object]:
        """Plain values."""
        ordered = sorted(self.latency_ms)
        middle = ordered[len(ordered) // 2] if ordered else None
        return {
            "ticks": self.ticks, "plans": self.plans, "failures": dict(self.failures), "exceptions": self.exceptions,
            "last_exception": self.last_exception, "braking_ticks": self.braking_ticks,
            "missing_pictures": dict(self.missing_pictures), "planning_ms_p50": middle,
        }  # fmt: skip


class Pilot:
    """One drive. latency_s None: a plan is ready after the time that it took, else after this time (simulated s)."""

    def __init__(
        self,
        planner: Planner,
        controller: PlanController,
        plan_period_s: float = 0.25,
        latency_s: float | None = 0.0,
        max_plan_age_s: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._planner, self._controller = planner, controller
        self._period_s, self._latency_s, self._max_age_s = plan_period_s, latency_s, max_plan_age_s
        self._clock = clock
        self.report = Report()
        self.active: HeldPlan | None = None
        self._coming: tuple[float, HeldPlan | None] | None = None  # (ready at, plan or None: it failed)
        self._next_s = -math.inf

    def step(
        self,
        now_s: float,
        look: Callable[[], Scene | None],
        pose: Pose2D,
        speed_mps: float,
        target: tuple[float, float] | None = None,
        dt: float = 0.05,
    ) -> VehicleControl:
        """Controls for this tick. `look` gives the scene when a plan is due, None when there are no pictures.

        pose: base_link in a frame that moves smoothly (odometry); target: next route point in base_link (m).
        """
        self.report.ticks += 1
        self._arrive(now_s)
        if self._coming is None and now_s >= self._next_s - 1e-6:
            self._ask(now_s, look, pose, speed_mps)
            self._arrive(now_s)
        plan = self.active
        if plan is None or now_s - plan.time_s > self._max_age_s:
            self.report.braking_ticks += 1
            return FULL_BRAKE
        return self._controller.control(plan, pose, now_s, speed_mps, target, dt)

    def _arrive(self, now_s: float) -> None:
        if self._coming is not None and self._coming[0] <= now_s + 1e-6:
            self.active = self._coming[1] or self.active
            self._coming = None

    def _ask(self, now_s: float, look: Callable[[], Scene | None], pose: Pose2D, speed_mps: float) -> None:
        scene = look()
        if scene is None:
            return  # asked again in the next tick; counted by whoever looked
        self._next_s = now_s + self._period_s
        begin = self._clock()
        try:
            answer = self._planner.plan(scene)
        except Exception as error:
            LOG.exception("the model failed; braking until there is a plan again")
            self.report.exceptions += 1
            self.report.last_exception = f"{type(error).__name__}: {error}"
            self.active = None
            return
        took_s = self._clock() - begin
        self.report.plans += 1
        self.report.latency_ms.append(1000.0 * took_s)
        plan = None
        if isinstance(answer, Failure):
            self.report.failures[answer.kind.value] += 1
        else:
            plan = HeldPlan(answer.points, pose, now_s, speed_mps)
        self._coming = (now_s + (took_s if self._latency_s is None else self._latency_s), plan)
