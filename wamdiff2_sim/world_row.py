"""Our own world as rows of the table of all benchmarks: held-out towns, three tasks on frames, and closed loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request
from wamdiff2_core.evaluate.everything.rows import frames as frame_rows
from wamdiff2_sim import dataset
from wamdiff2_sim import evaluate as closed_loop
from wamdiff2_sim.data.shards import shard_path
from wamdiff2_sim.question_kinds import kind_of

VERSION = "wamdiff2's own test world: not CARLA, NAVSIM or Bench2Drive"
KINDS: reading.Kinds = {
    "data": str, "towns": list, "frames": int, "routes_per_town": int, "seed": int, "latency_s": (float, type(None)),
    "route_m": list, "traffic": list,
}  # fmt: skip
FRAMES_SEED = 9  # of the table's seed 0; routes count from 1000
SHARD_FRAMES = 16  # whatever the number of workers: the same frames
DRIVES = (
    ("driving score", "driving_score", "0-100", True),
    ("route completion", "route_completion", "share", True),
    ("collisions per route", "collisions_per_route", "", False),
    ("red lights run per route", "red_lights_per_route", "", False),
    ("off road", "off_road_s_per_route", "s per route", False),
)


@dataclass(frozen=True)
class World:
    """Options: towns; frames (labelled, rendered into `data` once) and routes_per_town, 0 for none of them; seed of the
    first route; latency_s that a plan takes in the world, null for as measured; route_m and traffic as for `drive`.
    """

    name: str = "world"
    title: str = "Own world, held-out towns"
    decodes: bool = True
    seeded: bool = True
    own_world: bool = True

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`. It brings its own data."""
        reading.check(self.name, options, KINDS)
        reading.members(self.name, options, "towns", str)
        for key in ("route_m", "traffic"):
            reading.members(self.name, options, key, int, 2)
        for key in ("frames", "routes_per_town", "seed"):
            reading.least(self.name, options, key, 0)
        if not options.get("frames", 200) and not options.get("routes_per_town", 1):
            raise ConfigError("world: expected frames or routes_per_town above 0")
        return []

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`. Another seed gives other frames and other routes."""
        frame_rows.drawing_only(request, self.name)
        chosen = request.options
        towns = tuple(chosen.get("towns") or closed_loop.TOWNS)
        figures: list[Figure] = []
        problems: list[str] = []
        told, failed = [f"towns {', '.join(towns)}"], 0
        latency, forwards, kernels = None, None, ""
        if chosen.get("routes_per_town", 1):
            drives = _drives(request, towns)
            figures += _drive_figures(drives)
            told.append(f"{drives['routes']} routes from seed {_seed(request)}")
            problems += [f"{n} plans on routes: {kind}" for kind, n in drives["failures"].items()]
            latency, forwards, kernels = drives["latency_ms_p50"], drives["forwards_per_plan"], drives["kernels"]
        if chosen.get("frames", 200):
            result = frame_rows.measure_frames(request, _frames(request, towns), kind_of=kind_of)
            figures += frame_rows.figures_of(result)
            told.append(f"{result['frames']} frames from seed {FRAMES_SEED + request.seed}")
            problems += frame_rows.problems_of(result)
            failed = frame_rows.failed_of(result)
            latency, forwards, kernels = result["plan_total_ms"], result["forwards_per_plan"], result["kernels"]
        return Measured(
            tuple(figures), "; ".join(told), VERSION, failed, tuple(problems), latency, forwards, kernels=kernels
        )


def _seed(request: Request) -> int:
    """Of the first route: seeds of the table do not share routes."""
    return request.options.get("seed", 1000) + request.seed * request.options.get("routes_per_town", 1)


def _drives(request: Request, towns: tuple[str, ...]) -> dict[str, Any]:
    chosen, setting = request.options, request.setting
    latency = chosen.get("latency_s", 0.2)
    values = {"route_m": chosen["route_m"]} if chosen.get("route_m") else {}
    values |= {"traffic": chosen["traffic"]} if chosen.get("traffic") else {}
    arguments = closed_loop.arguments(
        checkpoint=str(request.checkpoint), out=request.out / "drive.json", towns=list(towns),
        routes_per_town=chosen.get("routes_per_town", 1), block_sizes=[setting.block_size], steps=setting.steps,
        threshold=setting.threshold, rule=setting.rule, seed=_seed(request),
        latency=-1.0 if latency is None else latency, device=request.device, dtype=request.dtype,
        workers=request.workers, kernels=request.kernels, **values,
    )  # fmt: skip
    report = closed_loop.evaluate(arguments)
    return {**report["results"][0], "kernels": report["settings"]["kernels"]}


def _drive_figures(drives: dict[str, Any]) -> list[Figure]:
    return [
        Figure(name, drives[key], unit, better, drives["routes"], key == "driving_score")
        for name, key, unit, better in DRIVES
    ]


def _frames(request: Request, towns: tuple[str, ...]) -> Path:
    """Labelled frames of the towns, rendered unless they are there."""
    chosen = request.options
    count, seed = chosen.get("frames", 200), FRAMES_SEED + request.seed
    folder = Path(chosen.get("data", "out/evaluate/world_frames")) / f"{'_'.join(towns)}_{count}_{seed}"
    job = dataset.Job(folder, count, seed, request.workers, towns, SHARD_FRAMES, perturb=False)
    if not all(shard_path(folder, index).exists() for index in range(job.shards or 0)):
        dataset.run(job, Console(quiet=True))
    return folder
