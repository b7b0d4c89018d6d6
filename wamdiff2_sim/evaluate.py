"""Closed-loop evaluation of a checkpoint on held-out towns: many routes, several block sizes, several processes.

`python -m wamdiff2_sim.evaluate CHECKPOINT --out FILE.json` (or `wamdiff2 evaluate drive`) writes one line per finished
drive to FILE.jsonl, skips drives that are there already, and sums up in FILE.json. All block sizes drive the same
routes with the same traffic.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.decode.config import RULES
from wamdiff2_core.errors import CheckpointError, Wamdiff2Error
from wamdiff2_core.evaluate.kernels_used import key_part, settled, told
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.evaluate.waypoints import waypoint_errors
from wamdiff2_sim.drive import DriveResult, ExpertPlanner, LoopConfig, drive
from wamdiff2_sim.scores import driving_score

TOWNS = ("Town01", "Town02", "Town03", "Town05", "Town10HD")
EXPERT = "expert"
RIG = Path(__file__).resolve().parent.parent / "config" / "rig_three.yaml"


@dataclass(frozen=True)
class Job:
    """One drive. `checkpoint` "expert" lets the expert drive (block size 0)."""

    checkpoint: str
    town: str
    seed: int
    block_size: int
    steps: int
    threshold: float
    device: str = "cpu"
    dtype: str = "float32"
    length_m: tuple[float, float] = (150.0, 220.0)
    traffic: tuple[int, int] = (25, 15)
    latency_s: float | None = 0.2
    plan_period_s: float = 0.25
    rule: str = "dynamic"
    kernels: str = "auto"

    @property
    def key(self) -> list:
        """What makes two drives the same one."""
        timing = [self.latency_s, self.plan_period_s, *self.length_m, *self.traffic]
        rule = [] if self.rule == "dynamic" else [self.rule]  # rows of before there was a choice stay valid
        how = [self.block_size, self.steps, self.threshold, *timing, *rule]
        return [self.checkpoint, self.town, self.seed, *how, *self._machine()]

    def _machine(self) -> list[str]:
        """What decodes where, in which numbers; nothing of what old rows that do not say it count as."""
        if self.checkpoint == EXPERT:
            return []
        where = [] if (self.device, self.dtype) == ("cpu", "float32") else [self.device, self.dtype]
        return [*where, *key_part(self.kernels, self.device)]


_drivers: dict[tuple, Any] = {}  # a few per process, the newest last: loading a checkpoint costs more than a plan
DRIVERS_KEPT = 6


def _driver(job: Job):
    import torch

    from wamdiff2_core import DecodingConfig, Driver
    from wamdiff2_core.readiness import BLOCK_SIZES

    torch.set_num_threads(1)
    unusual = tuple({job.block_size} - set(BLOCK_SIZES))  # an engine is made for its block sizes
    key = (job.checkpoint, job.device, job.dtype, job.kernels, unusual)
    if key not in _drivers:
        _drivers[key] = Driver.from_checkpoint(
            job.checkpoint, job.device, job.dtype, kernels=job.kernels, block_sizes=unusual
        )
    driver = _drivers[key] = _drivers.pop(key)
    while len(_drivers) > DRIVERS_KEPT:
        del _drivers[next(iter(_drivers))]
    driver.decoding = replace(
        DecodingConfig(),
        block_size=job.block_size,
        steps=min(job.steps, job.block_size),
        threshold=job.threshold,
        rule=job.rule,
    )
    return driver


def run(job: Job) -> dict:
    """Make the drive and return its row (plain values)."""
    from wamdiff2_core.rig import load_rig
    from wamdiff2_sim.roads.roadmap import load_map
    from wamdiff2_sim.roads.route import plan_route
    from wamdiff2_sim.world import World

    route = plan_route(load_map(job.town), np.random.default_rng([job.seed, 77]), *job.length_m)
    expert = job.checkpoint == EXPERT
    world = World(job.town, job.seed, rig=None if expert else load_rig(RIG), traffic=job.traffic)
    try:
        world.reset(route)
        planner = ExpertPlanner(world) if expert else _driver(job)
        loop = LoopConfig(plan_period_s=job.plan_period_s, latency_s=job.latency_s)
        result = drive(world, planner, loop, look=not expert)
    finally:
        world.close()
    return _row(job, result)


def _row(job: Job, result: DriveResult) -> dict:
    errors = waypoint_errors(np.array(result.points), np.array(result.expert))
    return {
        "key": job.key,
        "town": job.town,
        "block_size": job.block_size,
        "seed": job.seed,
        "plans": result.plans,
        "failures": dict(result.failures),
        "forwards_per_plan": float(np.mean(result.forwards)) if result.forwards else 0.0,
        "latency_ms_p50": float(np.median(result.latency_ms)) if result.latency_ms else None,
        "ade_m": errors.ade_m if errors.count else None,
        "per_waypoint_m": list(errors.per_waypoint_m) if errors.count else None,
        **result.score,
    }


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """All drives asked for, the first route of every town first."""
    blocks = [0] if args.checkpoint == EXPERT else args.block_sizes
    for seed in range(args.seed, args.seed + args.routes_per_town):
        for town in args.towns:
            for block in blocks:
                latency = None if args.latency < 0 else args.latency
                yield Job(args.checkpoint, town, seed, block, args.steps, args.threshold, args.device, args.dtype,
                          tuple(args.route_m), tuple(args.traffic), latency_s=latency,
                          plan_period_s=args.plan_period, rule=args.rule, kernels=args.kernels)  # fmt: skip


def table(rows: list[dict]) -> list[dict]:
    """Means over drives for each block size."""
    by_block: dict[int, list[dict]] = defaultdict(list)
    for row in rows:
        by_block[row["block_size"]].append(row)
    return [_mean(block, group) for block, group in sorted(by_block.items())]


def score_of(row: dict) -> float:
    """A drive's driving score in per cent, also of rows written before drives said it."""
    return driving_score(row["route_completion"], row["collisions_by_kind"], row["red_lights"])


def _mean(block: int, rows: list[dict]) -> dict:
    def mean(key: str) -> float | None:
        values = [row[key] for row in rows if row[key] is not None]
        return float(np.mean(values)) if values else None

    plans = sum(row["plans"] for row in rows)
    failures: Counter[str] = Counter()
    for row in rows:
        failures.update(row["failures"])
    scored = [row for row in rows if row["per_waypoint_m"]]
    weights = [row["plans"] for row in scored]
    curve = np.average([row["per_waypoint_m"] for row in scored], axis=0, weights=weights).tolist() if scored else None
    return {
        "block_size": block,
        "routes": len(rows),
        "driving_score": float(np.mean([score_of(row) for row in rows])),
        "route_completion": mean("route_completion"),
        "completed_routes": sum(row["route_completion"] >= 0.99 for row in rows),
        "collisions_per_route": mean("collisions"),
        "red_lights_per_route": mean("red_lights"),
        "off_road_s_per_route": mean("off_road_s"),
        "comfort": mean("comfort"),
        "ade_m": float(np.mean(curve)) if curve else None,
        "per_waypoint_m": curve,
        "plans": plans,
        "failures": dict(failures),
        "parse_failures_share": failures["parse"] / plans if plans else None,
        "failed_plans_share": failures.total() / plans if plans else None,
        "forwards_per_plan": mean("forwards_per_plan"),
        "latency_ms_p50": mean("latency_ms_p50"),
    }


def main(argv: list[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    try:
        report = evaluate(_arguments(argv))
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in report["results"]:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}))
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help='checkpoint folder, or "expert"')
    parser.add_argument("--out", type=Path, required=True, help="rows go to FILE.jsonl, the table to FILE.json")
    parser.add_argument("--towns", type=lambda text: text.split(","), default=list(TOWNS))
    parser.add_argument("--routes-per-town", type=int, default=4)
    parser.add_argument("--block-sizes", type=lambda t: [int(v) for v in t.split(",")], default=[1, 4, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--rule", choices=RULES, default="dynamic", help="which tokens a step accepts")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds; negative: as measured")
    parser.add_argument("--plan-period", type=float, default=0.25, help="seconds between two plans")
    parser.add_argument("--route-m", type=float, nargs=2, default=Job.length_m, help="least and greatest length")
    parser.add_argument("--traffic", type=int, nargs=2, default=Job.traffic, help="vehicles, people")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kernels", default="auto", help="what decodes; see wamdiff2_core.decode.pick.WORDS")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args(argv)


def arguments(**values: object) -> argparse.Namespace:
    """The arguments of `evaluate` with these values, defaults for the rest."""
    args = _arguments([str(values["checkpoint"]), "--out", str(values["out"])])
    vars(args).update(values)
    return args


def evaluate(args: argparse.Namespace) -> dict:
    """Make the drives that the rows' file does not hold yet; write and return the report over all asked for."""
    if args.checkpoint != EXPERT and not (Path(args.checkpoint) / "config.json").is_file():
        raise CheckpointError(f"{args.checkpoint} is no checkpoint folder: it has no config.json")
    choice = None
    if args.checkpoint != EXPERT:
        choice = settled(args.checkpoint, (args.device,), args.dtype, args.kernels, args.block_sizes)
        args = argparse.Namespace(**{**vars(args), "kernels": choice.word})
    file = args.out.with_suffix(".jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    wanted = {json.dumps(job.key): job for job in jobs(args)}
    rows = [row for row in read_rows(file) if json.dumps(row["key"]) in wanted]
    for row in rows:
        del wanted[json.dumps(row["key"])]
    total = len(rows) + len(wanted)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, mp_context=context) as pool, file.open("a") as sink:
        for future in as_completed([pool.submit(run, job) for job in wanted.values()]):
            row = future.result()
            rows.append(row)
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            _tell(f"{len(rows)}/{total}", row)
    names = ("checkpoint", "towns", "routes_per_town", "steps", "threshold", "rule", "seed", "device", "dtype")
    settings = {**{name: getattr(args, name) for name in (*names, "workers")}, "latency_s": args.latency,
                "plan_period_s": args.plan_period, "route_m": "{:.0f}-{:.0f}".format(*args.route_m),
                **({} if choice is None else told(choice))}  # fmt: skip
    where = machine(args.device if choice else "cpu")  # the expert needs no device
    report = {"what": "drive", "settings": settings, "machine": where, "results": table(rows)}
    write_json(args.out.with_suffix(".json"), report)
    return report


def _tell(progress: str, row: dict) -> None:
    """One line per finished drive: drives are few and long, and logs are read later."""
    scored = f"completion {row['route_completion']:.2f} collisions {row['collisions']} red {row['red_lights']}"
    print(f"{progress}: {row['town']} seed {row['seed']} B={row['block_size']} {scored}", file=sys.stderr, flush=True)


def read_rows(file: Path) -> list[dict]:
    """Rows of an earlier call; a last line that a kill cut short is taken away and driven again."""
    if not file.is_file():
        return []
    lines = file.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines = lines[:-1]
        file.write_text("".join(lines))
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    raise SystemExit(main())
