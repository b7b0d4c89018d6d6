"""Bench2Drive's result files as rows of the table: what a leaderboard run left behind, one folder per seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.evaluate.bench2drive import command
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request

UNITS = {"driving_score": "0-100", "success_rate": "share", "driving_efficiency": "%", "driving_smoothness": "share"}


@dataclass(frozen=True)
class Bench2Drive:
    name: str = "bench2drive"
    title: str = "Bench2Drive"
    decodes: bool = False
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, {"results": list, "map_lookups": str})
        reading.members(self.name, options, "results", str)
        if "results" not in options:
            return ["`results` is not named in the configuration: a list of folders of result files, one per seed"]
        lines = [f"results: {path} is not there" for path in options["results"] if not Path(path).exists()]
        return lines + reading.absent(options, (), ("map_lookups",))

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        chosen = request.options
        lookups = Path(chosen["map_lookups"]) if chosen.get("map_lookups") else None
        made = command.evaluate([Path(path) for path in chosen["results"]], request.out / "bench2drive", lookups).report
        records = sum(run["records"] for run in made["runs"])
        figures = [(name, made["figures"][name], unit) for name, unit in UNITS.items()]
        figures.append(("ability, mean", made["ability"]["mean"], "share"))
        problems = [f"{n} x {kind}" for run in made["runs"] for kind, n in run["problem_counts"].items()]
        return Measured(
            tuple(
                Figure(name.replace("_", " "), spread["mean"], unit, True, records, name == "driving_score",
                       values=tuple(spread["values"]))
                for name, spread, unit in figures
            ),
            f"{records} records of {', '.join(Path(seed).name for seed in made['seeds'])}", made["benchmark"],
            problems=tuple(problems), files=(str(request.out / "bench2drive"),),
        )  # fmt: skip
