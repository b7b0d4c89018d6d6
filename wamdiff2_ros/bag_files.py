"""The files of a bag, told by what they hold and not by their names, and what its metadata says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from wamdiff2_core.errors import DataError
from wamdiff2_ros import bag_mcap, bag_sqlite
from wamdiff2_ros.bag_mcap import McapFile
from wamdiff2_ros.bag_sqlite import SqliteFile
from wamdiff2_ros.bag_storage import ZSTD_MAGIC, Storage, inflate_file

METADATA = "metadata.yaml"
SUFFIXES = (".mcap", ".db3", ".zstd")


@dataclass
class Metadata:
    """What metadata.yaml says, where there is one. `messages`: the number stated, None where it states none."""

    finished: bool = False
    storage: str = ""
    files: list[str] = field(default_factory=list)
    messages: int | None = None
    problems: list[str] = field(default_factory=list)


def read_metadata(folder: Path) -> Metadata:
    """Whatever can be read of it; nothing in it is needed."""
    path = folder / METADATA
    if not path.is_file():
        return Metadata(problems=[f"there is no {METADATA}: the recorder was not able to close the bag"])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        entry: Any = content["rosbag2_bagfile_information"]
        count = entry.get("message_count")
        names = [str(name) for name in entry.get("relative_file_paths") or []]
        stated = count if isinstance(count, int) else None
        if stated is None or (stated and not names) or entry.get("relative_file_paths") is None:
            return Metadata(problems=[f"{METADATA} is torn: its end is missing, it is not used"])
        return Metadata(True, str(entry.get("storage_identifier", "")), names, stated)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        return Metadata(problems=[f"{METADATA} cannot be read ({type(error).__name__}): it is not used"])


def bag_files(path: Path, metadata: Metadata) -> list[Path]:
    """The files in the order in which they were recorded, as far as that is known."""
    if path.is_file():
        return [path]
    listed = [path / Path(name).name for name in metadata.files]
    there = [file for file in listed if file.is_file()]
    # rosbag2 lists a compressed file with or without its last ending, depending on its version.
    there += [z for file in listed if not file.is_file() and (z := file.with_name(file.name + ".zstd")).is_file()]
    lost = [file.name for file in listed if file not in there and file.with_name(file.name + ".zstd") not in there]
    if lost:
        metadata.problems.append(f"{METADATA} names files that are not there: {', '.join(lost)}")
    found = sorted((file for file in path.iterdir() if file.suffix in SUFFIXES), key=_number)
    more = [file for file in found if file not in there and not _twin(file, found)]
    if more and listed:
        told = ", ".join(file.name for file in more)
        metadata.problems.append(f"{METADATA} does not name these files, which are read as well: {told}")
    return there + more


def open_file(path: Path, scratch: Path, problems: list[str]) -> tuple[Storage, str]:
    """The indexed file and its storage identifier (mcap, sqlite3). DataError if it is neither."""
    kind = _beginning(path)
    if kind.startswith(ZSTD_MAGIC):
        inflated = scratch / path.name.removesuffix(".zstd")
        if problem := inflate_file(path, inflated):
            problems.append(problem)
        path, kind = inflated, _beginning(inflated)
    if kind.startswith(bag_mcap.MAGIC):
        return McapFile(path), "mcap"
    if kind.startswith(bag_sqlite.MAGIC):
        return SqliteFile(path), "sqlite3"
    if not kind:
        raise DataError(f"{path.name}: the file is empty")
    raise DataError(f"{path.name}: expected an MCAP or SQLite bag file, got one that begins with {kind[:8]!r}")


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _number(path: Path) -> tuple[str, int, str]:
    """Sorts bag_2 before bag_10."""
    stem = path.name.split(".")[0]
    base, _, number = stem.rpartition("_")
    return (base, int(number), path.name) if number.isdigit() else (stem, -1, path.name)


def _twin(file: Path, found: list[Path]) -> bool:
    """Whether this is the compressed form of a file that is there as well."""
    return file.suffix == ".zstd" and file.with_name(file.name.removesuffix(".zstd")) in found
