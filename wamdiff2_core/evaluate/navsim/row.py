"""NAVSIM's row in the table of all benchmarks: scene files that show pictures, planned by the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request
from wamdiff2_core.evaluate.navsim import run
from wamdiff2_core.evaluate.navsim.planned import PlanJob

SHOWN = 5  # samples that were not scored, by name


@dataclass(frozen=True)
class Navsim:
    name: str = "navsim"
    title: str = "NAVSIM"
    decodes: bool = True
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, {"scenes": str})
        return reading.absent(options, ("scenes",), ())

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        if request.checkpoint is None:
            raise ConfigError("navsim: expected a checkpoint")
        planner = PlanJob(
            request.checkpoint, request.setting, (request.device,), request.dtype, request.workers, request.kernels
        )
        data, out = Path(request.options["scenes"]), request.out / "navsim.json"
        return measured(run.evaluate(run.NavsimJob(data, out, None, request.workers, planner, request.tell)), out)


def measured(report: Mapping[str, Any], out: Path) -> Measured:
    """A result file's content as figures."""
    count, failed, note = report["scenes"], report["failed"], _note(report)
    figures = [
        Figure(table["name"], table["score"], "share", count=table["scenes"], main=version == "v11", note=note)
        for version, table in report["scores"].items()
    ]
    two = report["two_stage"]
    if two:
        told = "; ".join(filter(None, (note, two["problem"])))
        figures.append(Figure(two["name"], two["combined"], "share", count=two["scenes"], main=True, note=told))
    curve = report["l2_to_human"]
    if curve["scenes"]:
        figures.append(Figure("L2 to the human, mean", curve["ade_m"], "m", False, curve["scenes"]))
    guards = report["guards"]
    words = {"reverses": "reverse", "last_clipped": "end in a waypoint that is clipped"}
    problems = [f"{len(guards[name])} plans {said}" for name, said in words.items() if guards[name]]
    problems += [f"not scored: {one['error']}" for one in report["failures"][:SHOWN]]
    problems += [f"not scored: {failed - SHOWN} more"] if failed > SHOWN else []
    data = f"{report['data']}, {count} scenes scored"
    return Measured(
        tuple(figures), data, report["version"], failed, tuple(problems), report["latency_ms"], report["forwards"],
        (str(out),), report["settings"].get("kernels", ""),
    )  # fmt: skip


def _note(report: Mapping[str, Any]) -> str:
    """What a reader of a score has to know: whose scenes, and how many are in no mean."""
    parts = [f"scenes of {', '.join(report['sources'])}: not NAVSIM's benchmark"] if report["sources"] else []
    parts += [f"{report['failed']} not scored and in no mean"] if report["failed"] else []
    return "; ".join(parts)
