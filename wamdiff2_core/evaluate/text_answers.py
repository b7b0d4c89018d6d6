"""Answers of a checkpoint to many questions about pictures: one at a time, by several processes, resumable.

One line of JSON per answer. A question that gets no answer is a line too, with the reason: it is never answered here.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.kernels_used import key_part, settled, told

Row = dict[str, Any]
FILLS = ("refuse", "black")
BLACK = (336, 640)  # rows, columns of a picture that stands for a camera that was not there


@dataclass(frozen=True)
class Question:
    """`id` is told apart from all others; images: picture files by camera name (`cam_front`, ...)."""

    id: str
    text: str
    images: Mapping[str, Path]


@dataclass(frozen=True)
class AskJob:
    """Who answers and how. rows: the file of answers that a later call goes on with.

    kernels: see `pick.WORDS`; `settle` says what auto and engine stand for.

    fill: what a camera gets that the checkpoint needs and a question has no picture of: `refuse` makes the question
    fail, `black` shows a black picture, and whoever reports must say so.
    """

    checkpoint: Path
    rows: Path
    setting: Setting = field(default_factory=Setting)
    device: str = "cpu"
    dtype: str = "float32"
    workers: int = 1
    threads: int = 1
    fill: str = "refuse"
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if not (self.checkpoint / "config.json").is_file():
            raise CheckpointError(f"{self.checkpoint} is no checkpoint folder: it has no config.json")
        if self.workers < 1 or self.threads < 1 or self.fill not in FILLS:
            raise ConfigError(f"expected workers and threads >= 1 and fill one of {', '.join(FILLS)}, got {self}")

    def key(self, question: Question) -> str:
        """What makes two answers the same one: weights by name and size, decoding, question, pictures."""
        files = sorted(self.checkpoint.glob("*.safetensors"))
        weights = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
        pictures = [[name, str(path)] for name, path in question.images.items()]
        told = [str(self.checkpoint.resolve()), weights, asdict(self.setting), self.dtype, self.device, self.fill]
        told += key_part(self.kernels, self.device)
        return hashlib.sha256(json.dumps([*told, question.id, question.text, pictures]).encode()).hexdigest()[:20]


def settle(job: AskJob) -> tuple[AskJob, Row]:
    """The job with kernels that are settled, and the settings for a result file. ConfigError if they cannot run."""
    choice = settled(job.checkpoint, (job.device,), job.dtype, job.kernels, (job.setting.block_size,))
    settings = {"checkpoint": str(job.checkpoint), **job.setting.values(), "device": job.device, "dtype": job.dtype}
    return replace(job, kernels=choice.word), {**settings, "fill": job.fill, **told(choice)}


def answer(job: AskJob, questions: Sequence[Question], tell: Callable[[str], None] = lambda text: None) -> list[Row]:
    """A row for each question, in their order: id, answer (None where there is none), failure, forwards, total_ms.

    Questions that did not reach the model (a picture is missing) are not kept: the next call tries them again.
    DataError if an id is there twice, or if no question reached the model, which is a wrong folder and no score of 0.
    """
    ids = [question.id for question in questions]
    if len(set(ids)) != len(ids):
        raise DataError(f"questions: expected different ids, {len(ids) - len(set(ids))} are there more than once")
    wanted = {job.key(question): question for question in questions}
    found = {row["key"]: row for row in read_rows(job.rows) if row.get("key") in wanted and row.get("forwards")}
    todo = [(key, question) for key, question in wanted.items() if key not in found]
    job.rows.parent.mkdir(parents=True, exist_ok=True)
    with job.rows.open("a", encoding="utf-8") as sink:
        for number, row in enumerate(_answered(job, todo), start=1):
            found[row["key"]] = row
            if row["forwards"]:
                sink.write(json.dumps(row, allow_nan=False) + "\n")
                sink.flush()
            if number % 50 == 0:
                tell(f"{number} of {len(todo)} questions answered")
    rows = [found[key] for key in wanted]
    if rows and not any(row["forwards"] for row in rows):
        told = rows[0]["message"] or rows[0]["failure"]
        raise DataError(f"none of {len(rows)} questions could be put to the checkpoint; the first: {told}")
    return rows


def read_rows(file: Path) -> list[Row]:
    """Rows of an earlier call; a last line that a kill cut short is taken away. DataError for another content."""
    if not file.is_file():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines = lines[:-1]
        file.write_bytes(b"".join(lines))
    try:
        rows = [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{file}: expected JSON in every line: {error}; delete it to start anew") from error
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{file}: expected an object in every line; delete it to start anew")
    return rows


def cost(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """(median milliseconds, mean forwards) of an answer, over questions that reached the model."""
    asked = [row for row in rows if row["forwards"]]
    if not asked:
        return None, None
    milliseconds = float(np.median([row["total_ms"] for row in asked]))
    return milliseconds, float(np.mean([row["forwards"] for row in asked]))


def failures(rows: Sequence[Row]) -> dict[str, int]:
    """How many questions got no answer, by reason."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["failure"]:
            counts[row["failure"]] = counts.get(row["failure"], 0) + 1
    return counts


def _answered(job: AskJob, todo: Sequence[tuple[str, Question]]) -> Iterator[Row]:
    if job.workers == 1 or len(todo) < 2:
        for key, question in todo:
            yield _work(job, key, question)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(job.workers, len(todo)), mp_context=context) as pool:
        pending = [pool.submit(_work, job, key, question) for key, question in todo]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


_drivers: dict[tuple[str, str, str, str, int], Any] = {}  # one per process: loading costs more than an answer


def _driver(job: AskJob) -> tuple[Any, bool]:
    """The process's driver, and whether it is fresh."""
    import torch

    from wamdiff2_core.driver import Driver

    # An engine is made for its block sizes.
    key = (str(job.checkpoint), job.device, job.dtype, job.kernels, job.setting.block_size)
    fresh = key not in _drivers
    if fresh:
        torch.set_num_threads(job.threads)
        _drivers.clear()
        _drivers[key] = Driver.from_checkpoint(
            job.checkpoint, job.device, job.dtype, kernels=job.kernels, block_sizes=(job.setting.block_size,)
        )
    _drivers[key].decoding = job.setting.config()
    return _drivers[key], fresh


def _work(job: AskJob, key: str, question: Question) -> Row:
    from wamdiff2_core.evaluate.frames import read_image
    from wamdiff2_core.scene import Answer, Scene

    driver, fresh = _driver(job)
    head = {"key": key, "id": question.id}
    # black stands for further cameras: a question without any picture goes to the driver as it is, which refuses it
    try:
        images = {name: read_image(path) for name, path in question.images.items()}
    except DataError as error:
        return {**head, "answer": None, "failure": "picture", "message": str(error), "forwards": 0, "total_ms": 0.0}
    filled = [name for name in driver.cameras if name not in images and images and job.fill == "black"]
    images |= {name: np.zeros((*BLACK, 3), np.uint8) for name in filled}
    scene = Scene(images, question=question.text)
    if fresh:
        driver.ask(scene)  # the first call allocates and fills caches: not measured
    made = driver.ask(scene)
    given = isinstance(made, Answer)
    return {
        **head,
        "answer": made.text if given else None,
        "failure": None if given else made.kind.value,
        "message": "" if given else made.message,
        "forwards": made.cost.forwards,
        "total_ms": round(made.cost.total_ms, 3),
        "black": filled,
    }
