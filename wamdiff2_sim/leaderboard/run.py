"""One call for a whole run: choose routes, drive them, sum up. What `wamdiff2 leaderboard` and the benchmark use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_sim.leaderboard.package import prepare
from wamdiff2_sim.leaderboard.select import OfficialRoute, drivable, read_routes, spread


@dataclass(frozen=True)
class Job:
    """count 0: all routes in towns that our world has; `ids` names routes instead. `traffic`: (vehicles, people)."""

    agent: Path
    config: str
    out: Path
    count: int = 5
    ids: tuple[str, ...] = ()
    towns: tuple[str, ...] = ()
    resume: bool = False
    seed: int = 0
    traffic: tuple[int, int] = (15, 6)
    chatter: bool = False
    failings: dict[str, Any] = field(default_factory=dict)


def choose(job: Job) -> list[OfficialRoute]:
    """The routes of a job, in the official order. ConfigError for routes or towns that cannot be driven."""
    known = drivable(read_routes(prepare().routes))
    if job.towns:
        unknown = set(job.towns) - {route.town for route in known}
        if unknown:
            raise ConfigError(f"towns: no drivable routes in {', '.join(sorted(unknown))}")
        known = [route for route in known if route.town in job.towns]
    if job.ids:
        unknown = set(job.ids) - {route.id for route in known}
        if unknown:
            raise ConfigError(f"routes: {', '.join(sorted(unknown))} are not among the {len(known)} drivable ones")
        return [route for route in known if route.id in job.ids]
    return known if job.count == 0 else spread(known, job.count)


def run(job: Job) -> dict[str, Any]:
    """Drive and sum up; returns what summary.json holds."""
    package = prepare()
    from wamdiff2_sim.leaderboard.evaluator import Evaluator, RunSettings
    from wamdiff2_sim.leaderboard.sensors import Failings
    from wamdiff2_sim.leaderboard.summary import write_summary

    asked = choose(job)
    settings = RunSettings(
        package.routes, job.agent, job.config, job.out, ",".join(route.id for route in asked), resume=job.resume,
        seed=job.seed, traffic=job.traffic, chatter=job.chatter, failings=Failings(**job.failings),
    )  # fmt: skip
    Evaluator(settings).run()
    told = {"agent": str(job.agent), "config": job.config, "seed": job.seed, "traffic": list(job.traffic)}
    return write_summary(job.out, asked, {**told, "failings": job.failings})
