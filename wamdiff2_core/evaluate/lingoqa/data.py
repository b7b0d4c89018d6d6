"""LingoQA's files: the questions with their reference answers (Parquet), and predictions (CSV)."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError, DataError

Key = tuple[str, str]
COLUMNS = ("question_id", "segment_id", "question", "answer")
OFFICIAL_QUESTIONS = 500


@dataclass(frozen=True)
class Sample:
    """A question with its reference answers; images: as named in the file, oldest first."""

    key: Key
    question: str
    references: tuple[str, ...]
    images: tuple[str, ...] = ()


def read_references(path: Path) -> tuple[list[Sample], dict[str, int]]:
    """Questions in the order of the file, and how many of its rows were left out, by reason.

    A row is one reference; rows of one (question_id, segment_id) belong together. DataError for a file that is none,
    holds no usable row, or has two questions under one key; ConfigError without the library.
    """
    left_out: Counter[str] = Counter()
    questions: dict[Key, str] = {}
    answers: dict[Key, list[str]] = {}
    images: dict[Key, tuple[str, ...]] = {}
    for row in _rows(path):
        if not all(isinstance(row[name], str) and row[name].strip() for name in COLUMNS):
            left_out["a text is missing"] += 1
            continue
        key = (row["question_id"], row["segment_id"])
        if questions.setdefault(key, row["question"]) != row["question"]:
            raise DataError(f"{path}: {key} stands for two questions: {questions[key]!r} and {row['question']!r}")
        answers.setdefault(key, []).append(row["answer"])
        images.setdefault(key, tuple(name for name in row.get("images") or () if isinstance(name, str)))
    if not questions:
        raise DataError(f"{path}: none of its rows has question_id, segment_id, question and answer")
    samples = [Sample(key, text, tuple(answers[key]), images[key]) for key, text in questions.items()]
    return samples, dict(left_out)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed (pip install 'wamdiff2[language]')") from error
    try:
        names = pyarrow.parquet.read_schema(path).names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise DataError(f"{path}: expected columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}")
        wanted = [*COLUMNS, *(["images"] if "images" in names else [])]
        return pyarrow.parquet.read_table(path, columns=wanted).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file: {error}") from error


def read_predictions(path: Path) -> dict[Key, str | None]:
    """Answers by (question_id, segment_id); None for an empty one. DataError for another file or a key that is there
    twice.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True)
        missing = [name for name in ("question_id", "segment_id", "answer") if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path}: expected columns question_id, segment_id, answer; missing: {', '.join(missing)}")
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV file of predictions: {error}") from error
    found: dict[Key, str | None] = {}
    for number, row in enumerate(rows, start=2):
        if not row["question_id"] or not row["segment_id"] or row["answer"] is None or None in row:
            raise DataError(f"{path}: row {number}: expected question_id, segment_id and answer")
        key = (row["question_id"], row["segment_id"])
        if key in found:
            raise DataError(f"{path}: row {number}: question {key[0]} of segment {key[1]} is there twice")
        found[key] = row["answer"].strip() or None
    return found


def write_predictions(path: Path, samples: Sequence[Sample], answers: Mapping[Key, str | None]) -> None:
    """The official file, a row for each question; an answer that there is not stays empty."""
    rows = [[*sample.key, answers.get(sample.key) or ""] for sample in samples]
    write_csv(path, ("question_id", "segment_id", "answer"), rows)


def write_csv(path: Path, heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(heading)
        writer.writerows(rows)
