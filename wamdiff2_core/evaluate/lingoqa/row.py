"""LingoQA's rows in the table of all benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request
from wamdiff2_core.evaluate.lingoqa import run
from wamdiff2_core.evaluate.text_answers import AskJob

KINDS = {"references": str, "images": str, "judge": str, "endpoint": dict, "tokenizer": str, "most": int, "fill": str}
VERSION = "LingoQA: the best reference counts, and every question; judges under their own names"


@dataclass(frozen=True)
class LingoQa:
    name: str = "lingoqa"
    title: str = "LingoQA"
    decodes: bool = True
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, KINDS)
        reading.least(self.name, options, "most", 0)
        return reading.absent(options, ("references", "images"), ("judge",))

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        if request.checkpoint is None:
            raise ConfigError("lingoqa: expected a checkpoint")
        chosen = request.options
        ask = AskJob(
            request.checkpoint, request.out / run.ROWS, request.setting, request.device, request.dtype,
            request.workers, fill=chosen.get("fill", "refuse"), kernels=request.kernels,
        )  # fmt: skip
        job = run.LingoJob(
            Path(chosen["references"]), request.out, ask, Path(chosen["images"]),
            judge=Path(chosen["judge"]) if chosen.get("judge") else None, endpoint=chosen.get("endpoint"),
            tokenizer=chosen.get("tokenizer", "ptb"), most=chosen.get("most", 0), device=request.device,
            tell=request.tell,
        )  # fmt: skip
        return measured(run.evaluate(job), request.out)


def measured(report: Mapping[str, Any], out: Path) -> Measured:
    """A result file's content as figures."""
    files = tuple(str(out / name) for name in (run.PREDICTIONS, run.SCORES, run.RESULT))
    return Measured(
        tuple(_figures(report)), report["data"], VERSION, report["no_answer"], tuple(_problems(report)),
        report["latency_ms"], report["forwards"], files, (report.get("settings") or {}).get("kernels", ""),
    )  # fmt: skip


def _figures(report: Mapping[str, Any]) -> list[Figure]:
    count, judge, endpoint, text = (report[name] for name in ("questions", "judge", "endpoint", "text"))
    made = []
    if judge is None:
        made.append(Figure("Lingo-Judge", None, "share", count=count, note="no folder with the judge was named"))
    else:
        note = f"{judge['why_not_official']}; " if judge["why_not_official"] else ""
        note = f"{note}{judge['folder']}, weights {judge['weights']}"
        made.append(Figure(judge["name"], judge["share_right"], "share", count=count, main=True, note=note))
    if endpoint is not None:
        note = f"{endpoint['not_judged']} not judged: {'; '.join(endpoint['problems'])}" if endpoint["problems"] else ""
        made.append(Figure(f"score by {endpoint['name']}", endpoint["score"], "0-100", count=count, note=note))
    if text["scores"] is None:
        made.append(Figure("BLEU, ROUGE-L, CIDEr", None, count=count, note="; ".join(text["missing"])))
        return made
    for name in ("BLEU-4", "ROUGE-L", "CIDEr"):
        main = judge is None and name == "ROUGE-L"
        made.append(Figure(name, text["scores"][name], count=count, main=main, note=text["words"]))
    return made


def _problems(report: Mapping[str, Any]) -> list[str]:
    lines = [f"{n} questions got no answer: {why}" for why, n in report["failures"].items()]
    lines += [f"{n} rows of references were left out: {why}" for why, n in report["rows_left_out"].items()]
    if report["black"]:
        lines.append(f"{report['black']} questions were shown black pictures for cameras that LingoQA has not")
    if report["unknown_predictions"]:
        lines.append(f"{report['unknown_predictions']} predictions belong to no question")
    return lines
