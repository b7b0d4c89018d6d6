"""CSV files that grow while a run goes on, outlive kills, and take new columns as they come."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from wamdiff2_core.errors import DataError

Row = Mapping[str, object]
STEP = "step"


class GrowingCsv:
    """Rows by step. Columns are those of the file and of all rows added: a missing value is an empty cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []

    def begin(self, step: int) -> None:
        """Go on behind `step`: later lines of an earlier sitting go, whatever its columns were, and so does a last
        line that a kill cut short. DataError for a line without a step.
        """
        kept = [row for row in read_csv(self.path) if step_of(self.path, row) <= step]
        self._columns = list(dict.fromkeys(name for row in kept for name in row))
        if kept:
            self._rewrite(kept)
        else:
            self.path.unlink(missing_ok=True)

    def add(self, row: Row) -> None:
        """Append a row; a column that is new becomes the file's last."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite([*read_csv(self.path), row])
            return
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(_lines(self._columns, [row]))

    def _rewrite(self, rows: Iterable[Row]) -> None:
        """The whole file anew: it appears at once or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".csv.new")
        fresh.write_text(_lines([], [dict(zip(self._columns, self._columns))]) + _lines(self._columns, rows), "utf-8")
        os.replace(fresh, self.path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a file without their empty cells, [] where there is none; a last line without its end is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = csv.DictReader(io.StringIO(whole))
    return [{name: value for name, value in row.items() if name and value} for row in rows]


def step_of(path: Path, row: Row) -> int:
    """Of a row that was read."""
    text = str(row.get(STEP, ""))
    if not text.isdecimal():
        raise DataError(f"{path}: expected a step in every line, got {text!r}; repair or delete the file")
    return int(text)


def _lines(columns: list[str], rows: Iterable[Row]) -> str:
    """Rows as text; without columns: those of the first row."""
    buffer = io.StringIO()
    for row in rows:
        csv.writer(buffer, lineterminator="\n").writerow([row.get(name, "") for name in columns or row])
    return buffer.getvalue()
