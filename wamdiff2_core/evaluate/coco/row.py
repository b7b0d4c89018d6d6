"""COCO's row in the table of all benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.coco import run
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request

KINDS = {"instances": str, "images": str, "categories": list, "names": dict, "most": int, "mode": str}
VERSION = "COCO bounding boxes, faster-coco-eval"


@dataclass(frozen=True)
class Coco:
    name: str = "coco"
    title: str = "COCO detection"
    decodes: bool = True
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, KINDS)
        reading.members(self.name, options, "categories", str)
        reading.least(self.name, options, "most", 0)
        return reading.absent(options, ("instances", "images"), ()) + run.missing()

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        chosen = request.options
        job = run.CocoJob(
            Path(chosen["instances"]), Path(chosen["images"]), request.out, request.checkpoint,
            categories=tuple(chosen.get("categories", ())), names=dict(chosen.get("names", {})),
            setting=request.setting, mode=chosen.get("mode", "auto"), devices=(request.device,), dtype=request.dtype,
            workers=request.workers, most=chosen.get("most", 0), tell=request.tell, kernels=request.kernels,
        )  # fmt: skip
        return measured(run.evaluate(job), request.out)


def measured(report: Mapping[str, Any], out: Path) -> Measured:
    """A result file's content as figures."""
    count, note = report["images"], f"score of a box: {report['score_of_a_box']}"
    figures = [
        Figure(name, value, "share", count=count, main=name == "AP", note=note if name == "AP" else "")
        for name, value in report["stats"].items()
    ]
    for name, values in report["per_category"].items():
        figures.append(Figure(f"AP of {name}", values["AP"], "share", count=count))
    problems = [f"{one['count']} x {kind}, the first: {one['first'][0]}" for kind, one in report["left_out"].items()]
    problems += [f"{report['not_scored']} pictures are in no figure"] if report["not_scored"] else []
    problems += [f"{n} answers failed: {kind}" for kind, n in report.get("answers_failed", {}).items()]
    if report.get("boxes_of_other_labels"):
        problems.append(f"{report['boxes_of_other_labels']} boxes of labels that were not asked for are left out")
    told = f"{count} images, {report['truths']} true boxes of {', '.join(report['categories'])}"
    data = f"{Path(report['instances']).name}: {told} ({report['fingerprint']})"
    files = tuple(str(out / name) for name in (run.DETECTIONS, run.RESULT))
    return Measured(
        tuple(figures), data, VERSION, report["not_scored"], tuple(problems), report.get("latency_ms"),
        report.get("forwards"), files, report["settings"].get("kernels", ""),
    )  # fmt: skip


def pairs(text: str) -> dict[str, str]:
    """`person=pedestrian,bicycle=cyclist` as a dict. ConfigError for another form."""
    found: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, sign, label = part.partition("=")
        if not sign or not name.strip() or not label.strip():
            raise ConfigError(f"--names: expected pairs like person=pedestrian,car=car; got {part!r}")
        found[name.strip()] = label.strip()
    return found
