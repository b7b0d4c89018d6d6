"""LingoQA from files to figures: questions answered by a checkpoint, or predictions that are there already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.evaluate import text_answers
from wamdiff2_core.evaluate.judges.endpoint import Endpoint, EndpointJudge
from wamdiff2_core.evaluate.judges.lingo import LingoJudge
from wamdiff2_core.evaluate.lingoqa import data
from wamdiff2_core.evaluate.lingoqa.score import Judges, score
from wamdiff2_core.evaluate.summary import write_json
from wamdiff2_core.evaluate.text_answers import AskJob, Question

RESULT, PREDICTIONS, SCORES, ROWS = "lingoqa.json", "predictions.csv", "scores.csv", "answers.jsonl"
FRONT = "cam_front"


@dataclass(frozen=True)
class LingoJob:
    """What to score, and into which folder. Exactly one of `ask` (with `images`) and `predictions`.

    images: the folder that pictures are named from; the newest of a question's pictures is shown as the front camera.
    most: questions at most, the first ones; 0: all. judge: a folder, endpoint: an entry of a configuration, or None.
    """

    references: Path
    out: Path
    ask: AskJob | None = None
    images: Path | None = None
    predictions: Path | None = None
    judge: Path | None = None
    endpoint: Mapping[str, Any] | None = None
    tokenizer: str = "ptb"
    most: int = 0
    device: str = "cpu"
    tell: Callable[[str], None] = field(default=lambda text: None)

    def __post_init__(self) -> None:
        if (self.ask is None) == (self.predictions is None) or (self.ask is not None and self.images is None):
            raise ConfigError("LingoQA: expected either predictions, or a checkpoint and a folder of pictures")


def evaluate(job: LingoJob) -> dict[str, Any]:
    """Answer, score, write predictions.csv, scores.csv and lingoqa.json; returns what the last one holds."""
    settings: text_answers.Row | None = None
    if job.ask is not None:
        ask, settings = text_answers.settle(job.ask)
        job = replace(job, ask=ask)
    judges = Judges(_lingo(job), _endpoint(job), job.tokenizer)
    samples, left_out = data.read_references(job.references)
    samples = samples[: job.most] if job.most else samples
    rows: list[text_answers.Row] = []
    if job.ask is not None and job.images is not None:
        rows = text_answers.answer(job.ask, [_question(sample, job.images) for sample in samples], job.tell)
        answers = {sample.key: row["answer"] for sample, row in zip(samples, rows, strict=True)}
        data.write_predictions(job.out / PREDICTIONS, samples, answers)
    else:
        assert job.predictions is not None
        answers = data.read_predictions(job.predictions)
    report, verdicts = score(samples, answers, judges)
    data.write_csv(job.out / SCORES, ("question_id", "segment_id", "logit", "right"), verdicts)
    report = {"what": "lingoqa", "data": describe(job.references, samples), "rows_left_out": left_out, **report}
    report |= {"failures": text_answers.failures(rows), "black": sum(bool(row.get("black")) for row in rows)}
    report["latency_ms"], report["forwards"] = text_answers.cost(rows)
    report["settings"] = settings
    write_json(job.out / RESULT, report)
    return report


def describe(references: Path, samples: Sequence[data.Sample]) -> str:
    """Which questions these are: file, number, fingerprint."""
    seen = hashlib.sha256(repr([(s.key, s.question, s.references) for s in samples]).encode()).hexdigest()[:12]
    part = "" if len(samples) == data.OFFICIAL_QUESTIONS else f", not the {data.OFFICIAL_QUESTIONS} of the benchmark"
    return f"{references.name}: {len(samples)} questions{part} ({seen})"


def _question(sample: data.Sample, images: Path) -> Question:
    """A question without a picture reaches the driver as it is, which refuses it."""
    shown = {FRONT: images / sample.images[-1]} if sample.images else {}
    return Question("/".join(sample.key), sample.question, shown)


def _lingo(job: LingoJob) -> LingoJudge | None:
    return None if job.judge is None else LingoJudge(job.judge, job.device)


def _endpoint(job: LingoJob) -> EndpointJudge | None:
    return None if job.endpoint is None else EndpointJudge(Endpoint.of(job.endpoint), job.out / "endpoint.jsonl")
