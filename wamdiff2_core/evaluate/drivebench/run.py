"""DriveBench from files to figures: questions answered by a checkpoint, or a file that holds answers already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate import text_answers
from wamdiff2_core.evaluate.drivebench import data
from wamdiff2_core.evaluate.drivebench.score import Asking, score
from wamdiff2_core.evaluate.judges.endpoint import Endpoint, EndpointJudge
from wamdiff2_core.evaluate.judges.rubric import official_rubric, own_rubric
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.evaluate.text_answers import AskJob, Question

RESULT, PREDICTIONS, ROWS = "drivebench.json", "predictions.json", "answers.jsonl"
CLEAN = "nuscenes/samples"


@dataclass(frozen=True)
class DriveBenchJob:
    """What to score, and into which folder.

    ask: answers anew (then `images` is the folder that `image_path` starts from); None: by the file's own `pred`.
    corruption: a folder of DriveBench's `corruption/` whose pictures are shown instead of the clean ones.
    endpoint: an entry of a configuration; prompts: DriveBench's evaluate/prompts.py, else our own rubric is used.
    """

    questions: Path
    out: Path
    ask: AskJob | None = None
    images: Path | None = None
    corruption: str = ""
    endpoint: Mapping[str, Any] | None = None
    prompts: Path | None = None
    descriptions: Path | None = None
    tokenizer: str = "ptb"
    most: int = 0
    tell: Callable[[str], None] = field(default=lambda text: None)

    def __post_init__(self) -> None:
        if self.ask is not None and self.images is None:
            raise ConfigError("DriveBench: expected a folder of pictures to ask a checkpoint about")
        if "/" in self.corruption or self.corruption.startswith("."):
            raise ConfigError(f"DriveBench: corruption: expected the name of a folder, got {self.corruption!r}")


def evaluate(job: DriveBenchJob) -> dict[str, Any]:
    """Answer, score, write predictions.json and drivebench.json; returns what the last one holds."""
    settings: text_answers.Row | None = None
    if job.ask is not None:
        ask, settings = text_answers.settle(job.ask)
        job = replace(job, ask=ask)
    asking = _asking(job)
    samples, left_out = data.read_samples(job.questions)
    samples = samples[: job.most] if job.most else samples
    rows: list[text_answers.Row] = []
    if job.ask is not None and job.images is not None:
        questions = [question(sample, job.images, job.corruption) for sample in samples]
        rows = text_answers.answer(job.ask, questions, job.tell)
        answers = [row["answer"] for row in rows]
        write_json(job.out / PREDICTIONS, data.answered(samples, answers))
        samples = [replace(sample, pred=said) for sample, said in zip(samples, answers, strict=True)]
    report: dict[str, Any] = {"what": "drivebench", "data": describe(job, samples), "entries_left_out": left_out}
    told = 0 if rows else data.answers_of_no_text(samples)
    report |= {"twice": data.duplicates(samples), "pred_no_text": told, **score(samples, job.tokenizer, asking)}
    report |= {"failures": text_answers.failures(rows), "black": sum(bool(row.get("black")) for row in rows)}
    report["latency_ms"], report["forwards"] = text_answers.cost(rows)
    report["settings"] = settings
    write_json(job.out / RESULT, report)
    return report


def describe(job: DriveBenchJob, samples: Sequence[data.Sample]) -> str:
    """Which questions these are: file, pictures, number, fingerprint."""
    seen = hashlib.sha256(repr([(s.key, s.truth, s.tags) for s in samples]).encode()).hexdigest()[:12]
    pictures = f", {job.corruption} pictures" if job.corruption else ""
    return f"{job.questions.name}: {len(samples)} questions{pictures} ({seen})"


def question(sample: data.Sample, images: Path, corruption: str = "") -> Question:
    """The entry as a question to a driver: CAM_FRONT is its cam_front, and so on."""
    shown = {
        camera.lower(): images / (path.replace(CLEAN, f"corruption/{corruption}") if corruption else path)
        for camera, path in sample.images.items()
    }
    return Question(f"{sample.number}/{sample.scene}/{sample.frame}", sample.question, shown)


def _asking(job: DriveBenchJob) -> Asking | None:
    if job.endpoint is None:
        return None
    judge = EndpointJudge(Endpoint.of(job.endpoint), job.out / "endpoint.jsonl")
    rubric = own_rubric() if job.prompts is None else official_rubric(job.prompts)
    return Asking(judge, rubric, None if job.descriptions is None else data.Descriptions(job.descriptions))
