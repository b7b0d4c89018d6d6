"""One closed-loop drive in the world without ROS: look, plan, follow, step. The evaluation's inner loop.

The world does not wait for the planner: a plan made from the frame at time t acts from t + latency on.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from wamdiff2_core.control import Follower
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Failure, Plan, Scene
from wamdiff2_core.trajectory import Trajectory, smooth_trajectory
from wamdiff2_sim.types import Pose, VehicleControl
from wamdiff2_sim.world import World

BRAKE = VehicleControl(brake=1.0)


class Planner(Protocol):
    """Anything that answers a scene with a plan: `wamdiff2_core.Driver`, or the expert."""

    def plan(self, scene: Scene) -> Plan | Failure: ...


@dataclass(frozen=True)
class LoopConfig:
    """Timing of the loop in simulated seconds. `latency_s` None: the planner's own wall-clock time counts.

    A plan older than `max_plan_age_s` is not followed any more: the vehicle brakes.
    """

    plan_period_s: float = 0.25
    latency_s: float | None = 0.2
    max_plan_age_s: float = 1.0
    step_s: float = 0.05
    limit_s: float = 240.0

    def __post_init__(self) -> None:
        if not 0 < self.step_s <= self.plan_period_s <= self.max_plan_age_s:
            raise ConfigError(f"expected 0 < step_s <= plan_period_s <= max_plan_age_s, got {self}")


@dataclass
class DriveResult:
    """What a drive scored, with the plans' errors against the expert's plan at the same moments."""

    score: dict[str, object]
    plans: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    forwards: list[int] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    points: list[np.ndarray] = field(default_factory=list)
    expert: list[np.ndarray] = field(default_factory=list)


class ExpertPlanner:
    """The expert behind the same door as the model: shows what the loop, controller and world allow."""

    def __init__(self, world: World) -> None:
        self._world = world

    def plan(self, scene: Scene) -> Plan:
        del scene  # the expert knows the world
        return Plan(np.asarray(self._world.expert_plan()), np.ones(8))


def drive(
    world: World,
    planner: Planner,
    config: LoopConfig | None = None,
    observe: Callable[[Scene, Plan | Failure], None] | None = None,
    look: bool = True,
) -> DriveResult:
    """Drive the world's route to its end, to a standstill the world calls stuck, or to the time limit.

    `look` False hands the planner a scene without images (for planners that need none).
    """
    config = config or LoopConfig()
    follower = Follower()
    result = DriveResult({})
    pending: deque[tuple[float, Trajectory, Pose, float]] = deque()
    active: tuple[Trajectory, Pose, float] | None = None
    next_plan_s = world.state.time
    end_s = world.state.time + config.limit_s
    while not world.done and world.state.time < end_s:
        now = world.state.time
        if now >= next_plan_s - 1e-9:
            next_plan_s = now + config.plan_period_s
            made = _plan(world, planner, config, result, observe, look)
            if made is not None:
                pending.append(made)
        while pending and pending[0][0] <= now + 1e-9:
            active = pending.popleft()[1:]
        control = BRAKE
        if active is not None and now - active[2] <= config.max_plan_age_s:
            control = follower.control(active[0], active[1], world.state.ego, world.state.speed, config.step_s)
        world.step(control, config.step_s)
    result.score = world.score.summary()
    return result


def _plan(
    world: World,
    planner: Planner,
    config: LoopConfig,
    result: DriveResult,
    observe: Callable[[Scene, Plan | Failure], None] | None,
    look: bool,
) -> tuple[float, Trajectory, Pose, float] | None:
    """Ask the planner now: (time it acts from, trajectory, pose it belongs to, time it was seen), None on a failure."""
    state = world.state
    scene = world.scene() if look else Scene({})
    expert = np.asarray(world.expert_plan())
    begin = time.perf_counter()
    answer = planner.plan(scene)
    wall_s = time.perf_counter() - begin
    result.plans += 1
    result.latency_ms.append(wall_s * 1000)
    result.forwards.append(answer.cost.forwards)
    if observe is not None:
        observe(scene, answer)
    if isinstance(answer, Failure):
        result.failures[answer.kind.value] += 1
        return None
    result.points.append(answer.points)
    result.expert.append(expert)
    delay = wall_s if config.latency_s is None else config.latency_s
    return state.time + delay, smooth_trajectory(answer.points, state.speed), state.ego, state.time
