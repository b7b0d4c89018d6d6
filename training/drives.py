"""Short closed-loop drives as an evaluator of training: a few routes in towns that training does not see."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_sim.evaluate import TOWNS, Job, run, table

KEPT = ("driving_score", "route_completion", "collisions_per_route", "red_lights_per_route", "failed_plans_share")


@dataclass(frozen=True)
class ShortDrives:
    """Figures over `routes` drives, the same every time, through the towns in turn, in `workers` processes.

    Tens of metres say how it goes, not how good it is: spread between so few drives is large. threads: see Job.
    """

    setting: Setting
    routes: int = 4
    workers: int = 2
    towns: tuple[str, ...] = TOWNS
    length_m: tuple[float, float] = (80.0, 120.0)
    traffic: tuple[int, int] = (25, 15)
    device: str = "cpu"
    dtype: str = "float32"
    first_seed: int = 2000

    def __post_init__(self) -> None:
        if min(self.routes, self.workers) < 1 or not self.towns:
            raise ConfigError(f"drives: expected routes and workers >= 1 and towns, got {self}")
        if not self.setting.scaffold or self.setting.rule != "dynamic" or self.setting.temperature:
            raise ConfigError(f"drives: expected a setting of block size, steps and threshold, got {self.setting}")

    def jobs(self, checkpoint: Path) -> list[Job]:
        """The drives of a checkpoint."""
        how = self.setting
        return [
            Job(str(checkpoint), self.towns[k % len(self.towns)], self.first_seed + k, how.block_size, how.steps,
                how.threshold, self.device, self.dtype, self.length_m, self.traffic)
            for k in range(self.routes)
        ]  # fmt: skip

    def __call__(self, checkpoint: Path, step: int) -> Mapping[str, float]:
        jobs = self.jobs(checkpoint)
        context = multiprocessing.get_context("spawn")  # a training process may hold a GPU and threads
        with ProcessPoolExecutor(min(self.workers, len(jobs)), mp_context=context) as pool:
            rows = list(pool.map(run, jobs))
        (figures,) = table(rows)
        return {name: float(figures[name]) for name in KEPT if figures[name] is not None}
