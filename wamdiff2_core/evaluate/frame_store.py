"""Rows of frame evaluations in one small file, so that figures can be made on another machine.

`python -m wamdiff2_core.evaluate.frame_store FILE.jsonl.gz` prints the figures of every setting in it.

A chain of gzip members of JSON lines. The first: what the file belongs to, then a line of truth per frame. Each further
one: a setting, then a line per frame, in the same order. A member appears whole or is cut away by the next writer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wamdiff2_core.errors import DataError, Wamdiff2Error
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.frame_figures import figures


@dataclass(frozen=True)
class Measured:
    """Rows of one setting as `frame_figures` reads them; `info`: device, batch, seconds it took."""

    setting: Setting
    info: dict[str, object]
    rows: list[dict]

    def figures(self, kind_of: Callable[[str], str] = lambda question: "") -> dict[str, object]:
        """Figures over the rows, the setting's values first."""
        (only,) = figures(self.rows, kind_of)
        return {**self.setting.values(), **only, "info": self.info}


@dataclass
class FrameStore:
    """A file of rows. `head`: checkpoint (its folder), and what all rows share: fingerprint of its `weights`, of the
    `frames`, `dtype`. truths: `frames.truth_of` each frame.
    """

    path: Path
    head: dict[str, object]
    truths: list[dict]
    measured: list[Measured] = field(default_factory=list)
    end: int = 0  # bytes of whole members

    @classmethod
    def read(cls, path: Path) -> FrameStore:
        """DataError if there is no such file or it is something else."""
        try:
            members, end = _members(path.read_bytes())
            first, *others = ([json.loads(line) for line in member.splitlines()] for member in members)
            store = cls(path, first[0]["head"], first[1:], end=end)
            store.measured = [_unpacked(store.truths, lines) for lines in others]
        except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise DataError(f"{path}: expected rows of a frame evaluation: {type(error).__name__}: {error}") from error
        return store

    @classmethod
    def open(cls, path: Path, head: dict[str, object], truths: list[dict]) -> FrameStore:
        """The file to go on with, or a new one. DataError if it belongs to another checkpoint or other frames."""
        if path.exists() and _members(path.read_bytes())[0]:
            store = cls.read(path)
            for name in ("weights", "frames", "dtype"):
                if head[name] != store.head.get(name):
                    raise DataError(f"{path} is of other {name} ({store.head.get(name)}, not {head[name]}): delete it")
            return store
        path.parent.mkdir(parents=True, exist_ok=True)
        store = cls(path, head, truths)
        store._append([{"head": head}, *truths])
        return store

    @property
    def settings(self) -> list[Setting]:
        return [one.setting for one in self.measured]

    def add(self, measured: Measured) -> None:
        """Keep a setting's rows, on disk too."""
        self._append([{"setting": measured.setting.values(), "info": measured.info}, *map(_packed, measured.rows)])
        self.measured.append(measured)

    def _append(self, lines: Sequence[object]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self.end)
            file.seek(self.end)
            file.write(gzip.compress(text.encode()))
            self.end = file.tell()


def _packed(row: dict) -> dict:
    """What a setting adds to the truth."""
    plan, found = row["plan"], row["detect"]
    asked = [[one["answer"], one["failure"], one["forwards"]] for one in row["ask"]]
    return {
        "plan": [plan["points"], plan["failure"], plan["forwards"], plan["tokens"]],
        "detect": [found["boxes"], found["failure"], found["forwards"]],
        "ask": asked,
    }


def _unpacked(truths: Sequence[dict], lines: Sequence[dict]) -> Measured:
    setting = Setting.of(lines[0]["setting"])
    rows = []
    for truth, line in zip(truths, lines[1:], strict=True):
        points, failure, forwards, tokens = line["plan"]
        made = {"points": points, "truth": truth["plan"], "failure": failure, "forwards": forwards, "tokens": tokens}
        boxes, missed, passes = line["detect"]
        asked = [
            {"question": question, "answer": answer, "truth": right, "failure": why, "forwards": n}
            for (question, right), (answer, why, n) in zip(truth["ask"], line["ask"], strict=True)
        ]
        found = {"boxes": boxes, "truth": truth["boxes"], "failure": missed, "forwards": passes}
        rows.append({"block_size": setting.block_size, "frame": truth["frame"], "plan": made, "detect": found,
                     "ask": asked})  # fmt: skip
    return Measured(setting, lines[0]["info"], rows)


def _members(raw: bytes) -> tuple[list[str], int]:
    """Whole gzip members of a file and where they end; what a kill cut short is left out."""
    found: list[str] = []
    at = 0
    while at < len(raw):
        reader = zlib.decompressobj(wbits=31)
        text = reader.decompress(raw[at:])
        if not reader.eof:
            break
        found.append(text.decode())
        at = len(raw) - len(reader.unused_data)
    return found, at


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    try:
        for file in parser.parse_args(argv).files:
            store = FrameStore.read(file)
            for one in store.measured:
                print(json.dumps({"checkpoint": store.head["checkpoint"], **one.figures()}))
    except Wamdiff2Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
