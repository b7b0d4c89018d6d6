"""The usual waypoint PID against our follower: the same routes, traffic and expert plans, in the embedded world.

python benchmarks/controllers.py [--towns Town01,Town02] [--routes-per-town 4] [--timings waits,late] [--out FILE.json]

Timings: "waits": a plan for every step, acting at once, as on the Bench2Drive leaderboard, whose world waits for the
agent; "late": a plan each 0.25 s that acts 0.2 s after it was seen, as on a vehicle. The PID looks at six waypoints;
of a late plan at those that are still ahead. It was tuned for CARLA's cars, whose front wheels turn up to 70 degrees;
ours turn 34: "usual" sends its steering as it is, "usual_scaled" asks for the same angle as it would in CARLA.

Rows go to FILE.jsonl, and drives that are there are not made again; FILE.json holds means per controller and timing.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wamdiff2_core.control import FollowerConfig, Pose2D, VehicleControl, relative_pose
from wamdiff2_core.controllers import FOLLOWER, WAYPOINT_PID, HeldPlan, PlanController, make_controller
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.evaluate.tables import markdown
from wamdiff2_sim.roads.roadmap import load_map
from wamdiff2_sim.roads.route import Route, plan_route
from wamdiff2_sim.types import WorldState
from wamdiff2_sim.world import World

STEP_S = 0.05
NODE_M, PASSED_M = 50.0, 4.0  # route nodes lie so far apart; one nearer than this is behind us
MOST_AGE_S = 1.0
LIMIT_S = 240.0


CONTROLLERS: dict[str, Callable[[], PlanController]] = {
    "follower": lambda: make_controller(FOLLOWER),
    "usual": lambda: make_controller(WAYPOINT_PID, full_steer_rad=0.0),
    "usual_scaled": lambda: make_controller(WAYPOINT_PID, FollowerConfig().max_steer_rad),
}


def route_nodes(route: Route) -> np.ndarray:
    """Arc lengths of the nodes that the leaderboard would hand over: each 50 m, junction entries and exits, the end."""
    turns = [s for manoeuvre in route.manoeuvres for s in (manoeuvre.start_s, manoeuvre.end_s)]
    return np.unique([*np.arange(0.0, route.length, NODE_M), *turns, route.length])


def next_node(route: Route, nodes: np.ndarray, state: WorldState) -> tuple[float, float]:
    """The first node that is not passed yet, in base_link."""
    ahead = nodes[nodes > state.route_s + PASSED_M]
    point = route.point_at(float(ahead[0]) if len(ahead) else route.length)
    seen = relative_pose(state.ego, Pose2D(float(point[0]), float(point[1])))
    return seen.x, seen.y


@dataclass(frozen=True)
class Timing:
    """Seconds between two plans, and from picture to effect."""

    period_s: float
    latency_s: float


TIMINGS = {"waits": Timing(STEP_S, 0.0), "late": Timing(0.25, 0.2)}


@dataclass(frozen=True)
class Job:
    """One drive."""

    controller: str
    timing: str
    town: str
    seed: int

    @property
    def key(self) -> list[object]:
        return [self.controller, self.timing, self.town, self.seed]


def drive(world: World, controller: PlanController, timing: Timing) -> dict[str, object]:
    """Drive the world's route on expert plans; the drive's score, and how it felt and held its lane."""
    nodes = route_nodes(world.route)
    pending: deque[HeldPlan] = deque()
    active: HeldPlan | None = None
    next_plan_s = world.state.time
    rows = []
    while not world.done and world.state.time < LIMIT_S:
        state = world.state
        if state.time >= next_plan_s - 1e-9:
            next_plan_s = state.time + timing.period_s
            pending.append(HeldPlan(np.asarray(world.expert_plan()), state.ego, state.time, state.speed))
        while pending and pending[0].time_s + timing.latency_s <= state.time + 1e-9:
            active = pending.popleft()
        control = VehicleControl(brake=1.0)
        if active is not None and state.time - active.time_s <= MOST_AGE_S:
            target = next_node(world.route, nodes, state)
            control = controller.control(active, state.ego, state.time, state.speed, target, STEP_S)
        lateral = world.route.project(np.array([state.ego.x, state.ego.y]), state.route_s)[1]
        rows.append((state.time, lateral, control.steer, state.acceleration, state.speed))
        world.step(control, STEP_S)
    return {"ended": world.end_reason or "time limit", **_felt(np.array(rows)), **world.score.summary()}


def _felt(rows: np.ndarray) -> dict[str, float]:
    """Figures of the rows (time, lateral offset to the route, steering, acceleration, speed)."""
    moving = rows[rows[:, 4] > 0.5]
    lateral = np.abs(moving[:, 1]) if len(moving) else np.zeros(1)
    return {
        "lateral_rms_m": float(np.sqrt((lateral**2).mean())),
        "lateral_p95_m": float(np.percentile(lateral, 95)),
        "lateral_max_m": float(lateral.max()),
        "steer_change_per_s": float(np.abs(np.diff(rows[:, 2])).sum() / (len(rows) * STEP_S)),
        "jerk_rms_mps3": float(np.sqrt((np.diff(rows[:, 3]) ** 2).mean()) / STEP_S) if len(rows) > 1 else 0.0,
        "first_moved_s": float(moving[0, 0]) if len(moving) else LIMIT_S,
    }


def run(job: Job) -> dict[str, object]:
    """Make one drive."""
    route = plan_route(load_map(job.town), np.random.default_rng([job.seed, 77]), 150.0, 220.0)
    world = World(job.town, job.seed, rig=None, traffic=(25, 15))
    try:
        world.reset(route)
        figures = drive(world, CONTROLLERS[job.controller](), TIMINGS[job.timing])
    finally:
        world.close()
    return {"key": job.key, "controller": job.controller, "timing": job.timing, **figures}


SHOWN = (
    ("routes", "routes", "{:d}"),
    ("driving score", "driving_score", "{:.1f}"),
    ("route completion", "route_completion", "{:.1%}"),
    ("collisions per route", "collisions", "{:.2f}"),
    ("red lights per route", "red_lights", "{:.2f}"),
    ("off road s per route", "off_road_s", "{:.2f}"),
    ("comfort, share of seconds", "comfort", "{:.1%}"),
    ("lateral offset, rms m", "lateral_rms_m", "{:.2f}"),
    ("lateral offset, 95 % m", "lateral_p95_m", "{:.2f}"),
    ("steering changed per s", "steer_change_per_s", "{:.3f}"),
    ("jerk, rms m/s^3", "jerk_rms_mps3", "{:.2f}"),
    ("time for the route s", "time_s", "{:.1f}"),
)


def means(rows: list[dict]) -> list[dict]:
    """Means by controller and timing, over the drives that all of them made."""
    made: dict[tuple[str, str], dict[str, dict]] = {}
    for row in rows:
        made.setdefault((row["timing"], row["controller"]), {})[json.dumps(row["key"][2:])] = row
    common = set.intersection(*(set(drives) for drives in made.values())) if made else set()
    results = []
    for (timing, controller), drives in sorted(made.items()):
        chosen = [drives[key] for key in sorted(common)]
        figures = {key: float(np.mean([row[key] for row in chosen])) for _, key, _ in SHOWN[1:]} if chosen else {}
        results.append({"timing": timing, "controller": controller, "routes": len(chosen), **figures})
    return results


def table(results: list[dict]) -> str:
    """The means as Markdown, a column for each controller and timing."""
    heading = ["expert's plans", *(f"{row['controller'].replace('_', ', ')}, {row['timing']}" for row in results)]
    rows = [[name, *(form.format(row[key]) if key in row else "" for row in results)] for name, key, form in SHOWN]
    return markdown([heading, *rows])


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """All drives asked for, the first route of every town first."""
    for seed in range(args.seed, args.seed + args.routes_per_town):
        for town in args.towns.split(","):
            for timing in args.timings.split(","):
                for controller in args.controllers.split(","):
                    yield Job(controller, timing, town, seed)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towns", default="Town01,Town02,Town03,Town05,Town10HD")
    parser.add_argument("--routes-per-town", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--timings", default=",".join(TIMINGS))
    parser.add_argument("--controllers", default=",".join(CONTROLLERS))
    parser.add_argument("--out", type=Path, default=Path("out/bench/controllers.json"))
    args = parser.parse_args()
    file = args.out.with_suffix(".jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    old = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    wanted = list(jobs(args))
    rows = [row for row in old if row["key"] in [job.key for job in wanted]]
    done = [row["key"] for row in rows]
    with file.open("a") as sink:
        for job in (job for job in wanted if job.key not in done):
            row = run(job)
            rows.append(row)
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            print(*job.key, row["driving_score"], row["ended"], flush=True)
    results = means(rows)
    write_json(args.out, {"what": "controllers", "results": results, "machine": machine(), "rows": rows})
    print(table(results))


if __name__ == "__main__":
    main()
