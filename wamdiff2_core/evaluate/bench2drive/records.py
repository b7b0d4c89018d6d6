"""Result files of the leaderboard as typed records; what cannot be used is told, never guessed.

Read like the official merge: every *.json of a folder by name, except its own outputs (`merged.json`,
`..._ability.json`). A file that is no result file and a record without a usable route, status, score or list of
infractions become a `Problem` and count as not driven; the official tools end with an exception there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.bench2drive.benchmark import FINISHED, INFRACTIONS, MIN_SPEED

ROUTE_ID = re.compile(r"RouteScenario_(\d+)_rep\d+")
OWN_OUTPUTS = ("merged.json", "_ability.json")  # of the official tools, found beside the results
SUMMARY = "summary.json"  # of `wamdiff2 leaderboard`, beside its results


@dataclass(frozen=True)
class Problem:
    """Something in the input that the reader of the figures should know of. `kind`: damaged_file, damaged_record,
    partial_file, duplicate_route, unknown_route, missing_route, missing_lists, wrong_score, damaged_metric,
    missing_metric, no_average_speed, map_needed."""

    kind: str
    where: str
    text: str

    def told(self) -> dict[str, str]:
        """Plain values for summary.json."""
        return {"kind": self.kind, "where": self.where, "text": self.text}


@dataclass(frozen=True)
class Record:
    """One driven route. Scores in per cent (penalty: 0..1, None if not said); `raw` is what the file holds."""

    route_id: str
    number: str
    status: str
    score_route: float
    score_composed: float
    score_penalty: float | None
    infractions: Mapping[str, tuple[str, ...]]
    save_name: str | None
    town: str | None
    scenario: str | None
    file: str
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def success(self) -> bool:
        """Finished, and no infraction other than being slow."""
        clean = not any(messages for name, messages in self.infractions.items() if name != MIN_SPEED)
        return self.status in FINISHED and clean


@dataclass
class Run:
    """All records of one evaluation in the order of the files, and what was wrong with the files."""

    folder: Path
    records: list[Record] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def merged(self) -> list[Record]:
        """The official order: by the text of `route_id`, descending; equal ones as read."""
        return sorted(self.records, key=lambda record: record.route_id, reverse=True)


def result_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """(result files, files left out) of a folder, by name. DataError if it cannot be listed."""
    try:
        found = sorted((p for p in folder.iterdir() if p.suffix == ".json" and p.is_file()), key=lambda p: p.name)
    except OSError as error:
        raise DataError(f"{folder}: expected a folder of leaderboard result files: {error}") from error
    left_out = [path for path in found if path.name == SUMMARY or any(name in path.name for name in OWN_OUTPUTS)]
    return [path for path in found if path not in left_out], left_out


def read_run(folder: Path) -> Run:
    """Everything in `folder`. DataError if it holds no result file, or if none of them can be used."""
    run = Run(folder)
    used, left_out = result_files(folder)
    run.skipped = [path.name for path in left_out]
    if not used:
        raise DataError(f"{folder}: expected leaderboard result files (*.json), found none; left out: {run.skipped}")
    for path in used:
        try:
            _read_file(path, run)
        except DataError as error:
            run.problems.append(Problem("damaged_file", path.name, str(error)))
    if not run.files:
        raise DataError(f"{folder}: none of {len(used)} files is a leaderboard result file: {run.problems[0].text}")
    return run


def load_json(path: Path) -> Any:
    """A JSON file's value. DataError for everything that can go wrong."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name}: expected a JSON file: {error}") from error


def _read_file(path: Path, run: Run) -> None:
    value = load_json(path)
    checkpoint = value.get("_checkpoint") if isinstance(value, dict) else None
    rows = checkpoint.get("records") if isinstance(checkpoint, dict) else None
    if not isinstance(checkpoint, dict) or not isinstance(rows, list):
        raise DataError(f"{path.name}: expected _checkpoint.records in it")
    good = 0
    for number, row in enumerate(rows):
        try:
            record = parse_record(row, path.name)
        except DataError as error:
            run.problems.append(Problem("damaged_record", f"{path.name} record {number}", str(error)))
            continue
        good += 1
        run.records.append(record)
        lacking = [name for name in INFRACTIONS if name not in record.infractions]
        if lacking:
            text = f"no list of {', '.join(lacking)}: counted as none, as the official tools do"
            run.problems.append(Problem("missing_lists", f"{path.name} {record.route_id}", text))
    status = _text(value.get("entry_status"))
    run.files.append({"file": path.name, "records": good, "damaged_records": len(rows) - good, "entry_status": status})
    run.problems += _unfinished(path.name, checkpoint.get("progress"), len(rows))


def _unfinished(name: str, progress: object, rows: int) -> Iterator[Problem]:
    """Whether the leaderboard was ended before the file's last route."""
    if not isinstance(progress, list) or len(progress) != 2 or not all(type(v) is int for v in progress):
        yield Problem("partial_file", name, f"expected progress [done, all], got {progress!r}: it may be partial")
    elif progress[0] < progress[1] or rows < progress[1]:
        yield Problem("partial_file", name, f"{rows} records, progress {progress[0]} of {progress[1]} routes")


def parse_record(row: object, file: str) -> Record:
    """A record as typed values. DataError with what was expected and found."""
    if not isinstance(row, dict):
        raise DataError(f"expected an object, got {type(row).__name__}")
    route_id, status, scores = row.get("route_id"), row.get("status"), row.get("scores")
    match = ROUTE_ID.fullmatch(route_id) if isinstance(route_id, str) else None
    if match is None:
        raise DataError(f"route_id: expected RouteScenario_<number>_rep<n>, got {_short(route_id)}")
    if not isinstance(status, str) or not isinstance(scores, dict):
        raise DataError(f"{match[0]}: expected a status and scores, got {_short(status)} and {_short(scores)}")
    penalty = scores.get("score_penalty")
    return Record(
        route_id=match[0],
        number=match[1],
        status=status,
        score_route=_score(scores.get("score_route"), 100.0, f"{match[0]} score_route"),
        score_composed=_score(scores.get("score_composed"), 100.0, f"{match[0]} score_composed"),
        score_penalty=None if penalty is None else _score(penalty, 1.0, f"{match[0]} score_penalty"),
        infractions=_infractions(row.get("infractions"), match[0]),
        save_name=_text(row.get("save_name")),
        town=_text(row.get("town_name")),
        scenario=_text(row.get("scenario_name")),
        file=file,
        raw=row,
    )


def number(value: object, what: str) -> float:
    """A finite number as float. DataError for anything else, a truth value included."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{what}: expected a finite number, got {_short(value)}")
        return float(value)
    except OverflowError as error:
        raise DataError(f"{what}: expected a finite number, got {_short(value)}") from error


def _score(value: object, most: float, what: str) -> float:
    score = number(value, what)
    if not 0.0 <= score <= most:
        raise DataError(f"{what}: expected 0..{most:g}, got {score:g}")
    return score


def _infractions(value: object, route_id: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise DataError(f"{route_id} infractions: expected an object of lists, got {_short(value)}")
    for name, messages in value.items():
        if not isinstance(messages, list) or not _all_texts(messages):
            raise DataError(f"{route_id} infractions.{name}: expected a list of texts, got {_short(messages)}")
    return {name: tuple(messages) for name, messages in value.items()}


def _all_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
