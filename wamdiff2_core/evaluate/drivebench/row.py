"""DriveBench's rows in the table of all benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate.drivebench import run
from wamdiff2_core.evaluate.everything import options as reading
from wamdiff2_core.evaluate.everything.benchmark import Figure, Measured, Options, Request
from wamdiff2_core.evaluate.text_answers import AskJob

PATHS = ("prompts", "descriptions")
KINDS = {
    "questions": str, "images": str, "corruption": str, "endpoint": dict, **dict.fromkeys(PATHS, str),
    "tokenizer": str, "most": int, "fill": str,
}  # fmt: skip
VERSION = "DriveBench: official parts and letters, entries without an answer are wrong"


@dataclass(frozen=True)
class DriveBench:
    name: str = "drivebench"
    title: str = "DriveBench"
    decodes: bool = True
    seeded: bool = False
    own_world: bool = False

    def needs(self, options: Options) -> list[str]:
        """See `Benchmark.needs`."""
        reading.check(self.name, options, KINDS)
        reading.least(self.name, options, "most", 0)
        return reading.absent(options, ("questions", "images"), PATHS)

    def run(self, request: Request) -> Measured:
        """See `Benchmark.run`."""
        if request.checkpoint is None:
            raise ConfigError("drivebench: expected a checkpoint")
        chosen = request.options
        ask = AskJob(
            request.checkpoint, request.out / run.ROWS, request.setting, request.device, request.dtype,
            request.workers, fill=chosen.get("fill", "refuse"), kernels=request.kernels,
        )  # fmt: skip
        prompts, descriptions = (Path(chosen[name]) if chosen.get(name) else None for name in PATHS)
        job = run.DriveBenchJob(
            Path(chosen["questions"]), request.out, ask, Path(chosen["images"]), chosen.get("corruption", ""),
            chosen.get("endpoint"), prompts, descriptions, chosen.get("tokenizer", "ptb"), chosen.get("most", 0),
            request.tell,
        )  # fmt: skip
        return measured(run.evaluate(job), request.out)


def measured(report: Mapping[str, Any], out: Path) -> Measured:
    """A result file's content as figures."""
    files = tuple(str(out / name) for name in (run.PREDICTIONS, run.RESULT))
    return Measured(
        tuple(_figures(report)), report["data"], VERSION, report["no_answer"], tuple(_problems(report)),
        report["latency_ms"], report["forwards"], files, (report.get("settings") or {}).get("kernels", ""),
    )  # fmt: skip


def _figures(report: Mapping[str, Any]) -> list[Figure]:
    count = report["choices"]
    none = "" if count else "no multiple-choice question is there"
    official = none or "letter by the official rule"
    first = none or "only a letter that the answer begins with counts"
    made = [
        Figure("accuracy", report["accuracy"], "share", count=count, main=True, note=official),
        Figure("accuracy, first letter", report["accuracy_first_letter"], "share", count=count, note=first),
    ]
    for name, part in report["parts"].items():
        if part.get("accuracy") is not None:
            made.append(Figure(f"{name} accuracy", part["accuracy"], "share", count=part["choices"]))
        if part.get("scores"):
            words = report["text"]["words"]
            for kind in ("BLEU-4", "ROUGE-L", "CIDEr"):
                made.append(Figure(f"{name} {kind}", part["scores"][kind], count=part["samples"], note=words))
        elif "scores" in part:
            note = "; ".join(report["text"]["missing"])
            made.append(Figure(f"{name} BLEU, ROUGE-L, CIDEr", None, count=part["samples"], note=note))
        if "judge" in part:
            judged = part["judge"]
            note = f"{judged['not_judged']} not judged: {'; '.join(judged['problems'])}" if judged["problems"] else ""
            if judged["not_answered"]:
                note = "; ".join(filter(None, (note, f"{judged['not_answered']} without an answer count 0")))
            made.append(Figure(f"{name} {report['judge']}", judged["score"], "0-100", count=part["samples"], note=note))
    if report["judge"] is None:
        made.append(Figure("GPT score", None, "0-100", note="needs an outside judge; no endpoint was named"))
    return made


def _problems(report: Mapping[str, Any]) -> list[str]:
    lines = [f"{n} questions got no answer: {why}" for why, n in report["failures"].items()]
    lines += [f"{n} entries were left out: {why}" for why, n in report["entries_left_out"].items()]
    lines += [f"{n} entries: {why}" for why, n in report["unused"].items()]
    for name, part in report["parts"].items():
        if part.get("truth_without_letter"):
            lines.append(f"{part['truth_without_letter']} entries of {name}: the truth holds no letter")
    if report["pred_no_text"]:
        lines.append(f"{report['pred_no_text']} entries have a pred that is no text: they count as not answered")
    if report["twice"]:
        lines.append(f"{report['twice']} questions are there more than once and count each time, as officially")
    if report["black"]:
        lines.append(f"{report['black']} questions were shown black pictures for cameras that they have none of")
    return lines
