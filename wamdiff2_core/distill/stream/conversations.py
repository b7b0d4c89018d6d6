"""Upstream's conversation files as a numbered set of training samples.

A file is a list (or lines) of `{id, datasource, image: [paths] | path, conversations: [{from, value}, ...]}` with one
`<image>` in the human turns for each image. Every gpt turn is a sample of its own: what was said before it, earlier
answers included, is its prompt. Whatever cannot be used is counted by reason and named.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wamdiff2_core.distill.stream.index import Scan, read, scan
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.prompt import IMAGE
from wamdiff2_core.tasks import TASKS

NAMES_KEPT = 1000
_NAN = r"[-+]?(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)"  # not Nan, which is a name
# NaN or infinity where a number stands: between brackets, commas, a colon, or the ends of the text; or beside a number.
_NOT_A_NUMBER = re.compile(
    rf"(?:^|[(\[,:=])\s*{_NAN}\s*(?:[,)\]]|$)|(?:^|\s){_NAN}\s+(?:[-+]?\d|{_NAN}\b)|\d\s+{_NAN}(?!\w)"
)


class BadSample(DataError):
    """A sample that cannot be trained on. `reason`: its class, under which it is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class Turn:
    """What a speaker ("human", "gpt" or "system") said."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Sample:
    """One answer to learn. turns: all that is said before it; images: those of its placeholders, in order."""

    name: str
    turns: tuple[Turn, ...]
    answer: str
    images: tuple[Path, ...] = ()
    task: str | None = None


@dataclass
class Tally:
    """What could not be used: each sample once, however often it was met."""

    bad: Counter[str] = field(default_factory=Counter)
    bad_names: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def add(self, name: str, error: BadSample) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        self.bad[error.reason] += 1
        if len(self.bad_names) < NAMES_KEPT:
            self.bad_names.append(f"{name}: {error}")

    def summary(self) -> str:
        """One line: `12 bad samples (9 missing image, 3 empty answer), the first: ...`."""
        if not self.bad:
            return "no bad samples"
        parts = ", ".join(f"{count} {reason}" for reason, count in self.bad.most_common())
        return f"{self.bad.total()} bad samples ({parts}), the first: {self.bad_names[0]}"


class Conversations:
    """Samples by number over several files; their places are kept, the samples are read when asked for."""

    def __init__(self, files: Sequence[Path | str], image_root: Path | str = "") -> None:
        """image_root: what relative image paths start from; "": the folder of their file.

        Raises DataError for a file of which nothing can be read, and when no sample is left at all.
        """
        self.files = [Path(file) for file in files]
        self.image_root = image_root
        self.tally = Tally()
        places: list[tuple[int, int, int, int, int]] = []
        for number in range(len(self.files)):
            places += self._places(number)
        self._table = np.array(places, dtype=np.int64).reshape(-1, 5)
        if not places:
            raise DataError(f"no usable sample in {', '.join(map(str, self.files))}: {self.tally.summary()}")

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, number: int) -> Sample:
        """Raises BadSample for what does not show before the whole conversation is looked at."""
        file, start, end, entry, answer = (int(value) for value in self._table[number])
        path = self.files[file]
        value = read(path, start, end)
        turns, images = checked(value)
        _check_paths(images, self._root(path))
        return sample_of(self._name(file, entry, value), turns, images, answer, self._root(path), _task(value))

    def _places(self, file: int) -> list[tuple[int, int, int, int, int]]:
        """(file, start, end, number in the file, turn of the answer) of every sample of a file."""
        path, found, places = self.files[file], Scan(), []
        for entry in scan(path, found):
            try:
                turns, images = checked(entry.value)
                _check_paths(images, self._root(path))
            except BadSample as error:
                self.tally.add(self._name(file, entry.number, entry.value), error)
                continue
            answers = [index for index, turn in enumerate(turns) if turn.speaker == "gpt"]
            places += [(file, entry.start, entry.end, entry.number, answer) for answer in answers]
        for broken in found.broken:
            where = f"{self._called(file)}[{broken.number}] at {broken.start}"
            self.tally.add(where, BadSample("broken JSON", broken.reason))
        return places

    def _name(self, file: int, number: int, value: object) -> str:
        known = value.get("id") if isinstance(value, dict) else None
        return f"{self._called(file)}[{number}]" + (f" {_printable(known)}"[:80] if known is not None else "")

    def _called(self, file: int) -> str:
        """A file's name, with its folder where another one has the same name."""
        path = self.files[file]
        return path.name if sum(other.name == path.name for other in self.files) == 1 else str(path)

    def _root(self, path: Path) -> Path:
        return Path(self.image_root) if str(self.image_root) else path.parent


def checked(value: object) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    """Turns and image paths of one conversation as it stands in a file. Raises BadSample."""
    if not isinstance(value, dict):
        raise BadSample("no object", f"expected an object with conversations, got {type(value).__name__}")
    said = value.get("conversations")
    if not isinstance(said, list) or not said:
        raise BadSample("no conversations", f"expected a list of turns, got {str(said)[:40]}")
    turns = tuple(_turn(turn) for turn in said)
    _check_order(turns)
    task = _task(value)
    for turn in turns:
        if turn.speaker == "gpt" and not turn.text.strip() and task != "detect":  # no boxes is an answer
            raise BadSample("empty answer")
        if not _encodes(turn.text):
            raise BadSample("not UTF-8", f"half a character in {_printable(turn.text[:60])!r}")
        if _NOT_A_NUMBER.search(turn.text):
            raise BadSample("not a number", f"NaN or infinity in {turn.text[:80]!r}")
    images = _images(value.get("image"))
    holders = sum(turn.text.count(IMAGE) for turn in turns if turn.speaker == "human")
    if holders != len(images):
        raise BadSample("placeholders and images differ", f"{holders} x {IMAGE} for {len(images)} images")
    return turns, images


def sample_of(
    name: str, turns: tuple[Turn, ...], images: tuple[str, ...], answer: int, root: Path, task: str | None
) -> Sample:
    """The sample whose answer is turn number `answer`."""
    before = turns[:answer]
    used = sum(turn.text.count(IMAGE) for turn in before if turn.speaker == "human")
    label = name if sum(turn.speaker == "gpt" for turn in turns) == 1 else f"{name} turn {answer}"
    return Sample(label, before, turns[answer].text, tuple(root / path for path in images[:used]), task)


def _turn(turn: object) -> Turn:
    if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
        raise BadSample("turn without text", f"expected {{from, value}} with a text, got {str(turn)[:60]}")
    if turn.get("from") not in ("human", "gpt", "system"):
        raise BadSample("unknown speaker", f"expected human, gpt or system, got {str(turn.get('from'))[:40]!r}")
    return Turn(turn["from"], turn["value"])


def _check_order(turns: tuple[Turn, ...]) -> None:
    """An optional system turn, then human and gpt by turns, ending with an answer."""
    speakers = [turn.speaker for turn in turns]
    if "gpt" not in speakers:
        raise BadSample("no gpt turn")
    rest = speakers[1:] if speakers[0] == "system" else speakers
    if len(rest) % 2 or rest != ["human", "gpt"] * (len(rest) // 2):
        raise BadSample("turns out of order", f"expected human and gpt by turns, got {', '.join(speakers)[:80]}")


def _images(value: object) -> tuple[str, ...]:
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(path, str) and path and _encodes(path) for path in listed):
        raise BadSample("no image paths", f"expected a path or a list of paths, got {_printable(value)[:60]}")
    return tuple(listed)


def _check_paths(images: Sequence[str], root: Path) -> None:
    """Pictures lie below the root, whether their paths are relative or absolute; links may lead out of it."""
    top = os.path.abspath(root)
    for path in images:
        full = os.path.abspath(os.path.join(top, path))
        if os.path.commonpath([top, full]) != top:
            raise BadSample("image outside the root", f"{path} is not below {top}; set image_root to a folder above it")


def _encodes(text: str) -> bool:
    """Bytes that are no UTF-8, and escapes of half a character, stand in texts as lone surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _printable(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _task(value: object) -> str | None:
    """Our world's samples say which task they are; others do not."""
    task = value.get("task") if isinstance(value, dict) else None
    if task is not None and task not in TASKS:
        raise BadSample("unknown task", f"expected one of {', '.join(TASKS)} or none, got {str(task)[:40]!r}")
    return task
