"""Images, categories and true boxes of a COCO instances file, every bad record left out, counted and named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import DataError

NAMED = 5  # examples kept of each kind of bad record
LARGEST = 1e9  # of a number in pixels
LARGEST_ID = 2**53  # COCO's own go up to 9e11; whole numbers of JavaScript and of double precision end here


@dataclass(frozen=True)
class CocoImage:
    """A picture of `width` x `height` pixels. files: by camera name; COCO's own `file_name` is the front camera's."""

    id: int
    width: int
    height: int
    files: Mapping[str, Path]


@dataclass
class Problems:
    """Records that were left out: how many of each kind, and the first few by name."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, name: object) -> None:
        self.counts[kind] += 1
        named = self.examples.setdefault(kind, [])
        if len(named) < NAMED:
            named.append(str(name))

    def plain(self) -> dict[str, dict[str, Any]]:
        return {kind: {"count": n, "first": self.examples[kind]} for kind, n in sorted(self.counts.items())}


@dataclass(frozen=True)
class CocoData:
    """Images by id, names by category id, and annotations as COCO has them (all with iscrowd and area)."""

    images: dict[int, CocoImage]
    categories: dict[int, str]
    annotations: list[dict[str, Any]]
    problems: Problems


def read_json(path: Path) -> Any:
    """DataError if the file is missing, cut or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a whole JSON file: {error}") from error


def read_instances(path: Path, pictures: Path) -> CocoData:
    """The instances file, pictures named from a folder. DataError if it is not one or nothing in it can be used."""
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in ("images", "categories")):
        raise DataError(f"{path}: expected an object with lists `images`, `categories` and `annotations`")
    if not isinstance(content.get("annotations"), list):
        raise DataError(f"{path}: expected a list `annotations`: without truth nothing can be scored")
    problems = Problems()
    categories = _by_id(content["categories"], "category", problems, _name)
    images = _by_id(content["images"], "image", problems, lambda one: _image(one, pictures))
    same = [name for name, count in Counter(categories.values()).items() if count > 1]
    if not images or not categories or same:
        told = f"{len(images)} usable images, {len(categories)} usable categories"
        told += f", two categories that are called {same[0]!r}" if same else ""
        raise DataError(f"{path}: expected images, and categories of different names; got {told}")
    annotations, seen = [], set()
    for one in content["annotations"]:
        row = _annotation(one, images, categories, problems)
        if row is not None and row["id"] in seen:
            problems.add("annotation: its id is there twice", row["id"])
        elif row is not None:
            seen.add(row["id"])
            annotations.append(row)
    return CocoData(images, categories, annotations, problems)


def _by_id(records: list, what: str, problems: Problems, read: Callable[[dict], Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in records:
        value = read(one) if isinstance(one, dict) and is_id(one.get("id")) else None
        if value is None:
            problems.add(f"{what}: not usable", str(one)[:80])
        elif one["id"] in found:
            problems.add(f"{what}: its id is there twice", one["id"])
        else:
            found[one["id"]] = value
    return found


def _name(one: dict) -> str | None:
    name = one.get("name")
    usable = isinstance(name, str) and name.strip() and name == name.encode(errors="replace").decode()
    return name if usable else None


def _image(one: dict, pictures: Path) -> CocoImage | None:
    name, others = one.get("file_name"), one.get("cameras", {})
    width, height = one.get("width"), one.get("height")
    if (
        type(width) is not int
        or type(height) is not int
        or not 1 <= min(width, height) <= max(width, height) <= LARGEST
    ):
        return None
    if not isinstance(name, str) or not name:
        return None
    if not isinstance(others, dict) or not all(isinstance(text, str) for text in others.values()):
        return None
    files = {"cam_front": pictures / name, **{camera: pictures / text for camera, text in others.items()}}
    return CocoImage(one["id"], width, height, files)


def _annotation(one: Any, images: Mapping, categories: Mapping, problems: Problems) -> dict[str, Any] | None:
    name = one.get("id") if isinstance(one, dict) else str(one)[:80]
    if not isinstance(one, dict) or not is_id(name):
        problems.add("annotation: not usable", name)
    elif not is_id(one.get("image_id")) or one["image_id"] not in images:
        problems.add("annotation: of no usable image", name)
    elif not is_id(one.get("category_id")) or one["category_id"] not in categories:
        problems.add("annotation: of no category", name)
    elif not is_box(one.get("bbox")):
        problems.add("annotation: its box is no four finite numbers with a size", name)
    else:
        given = one.get("area")
        area = given if isinstance(given, (int, float)) and is_number(given) else one["bbox"][2] * one["bbox"][3]
        kept = {key: one[key] for key in ("id", "image_id", "category_id", "bbox")}
        return {**kept, "area": float(area), "iscrowd": int(one.get("iscrowd") in (1, True))}
    return None


def is_id(value: object) -> bool:
    return type(value) is int and abs(value) <= LARGEST_ID


def is_number(value: object) -> bool:
    """Finite, and of a size that pixels have; numbers that are texts or booleans are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_box(value: object) -> bool:
    """[x, y, width, height], a size above zero."""
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value)) and min(value[2:]) > 0
