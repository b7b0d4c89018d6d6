"""One row per scene of a folder, made by any process, kept as a line of JSON."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import vehicle as car
from wamdiff2_core.evaluate.navsim.fields import distinct, field, text
from wamdiff2_core.evaluate.navsim.guards import l2_to_human, last_is_clipped, reverses
from wamdiff2_core.evaluate.navsim.scene import Scene, read_scene
from wamdiff2_core.evaluate.navsim.scoring import rows_of, score_plans

Row = dict[str, Any]
Done = Mapping[tuple[str, str], set[int]]  # scenes of a file, by its name and SHA-256


def read_json(path: Path, distinct_keys: bool = False) -> tuple[Any, str]:
    """The content of a JSON file, plain or gzip, and the SHA-256 of its bytes. DataError if it is cut or no JSON, or,
    where `distinct_keys` asks for it, if an object has a key twice.
    """
    try:
        raw = path.read_bytes()
        plain = gzip.decompress(raw) if path.suffix == ".gz" else raw
        content = json.loads(plain, object_pairs_hook=_distinct if distinct_keys else None)
        return content, hashlib.sha256(raw).hexdigest()
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise DataError(f"{path.name}: expected a whole JSON file: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct((key for key, _ in pairs), "an object")
    return dict(pairs)


def fingerprints(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 by name, of the files that can be read."""
    found = {}
    for name, path in files.items():
        with contextlib.suppress(OSError):  # told by `rows_of_file`
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def scenes_of(content: object, name: str) -> list[dict]:
    """The scenes of a file: an object with "scenes", or one scene. DataError if it is neither, or on equal ids."""
    if not isinstance(content, dict):
        raise DataError(f"{name}: expected an object, got {type(content).__name__}")
    scenes = content["scenes"] if "scenes" in content else [content]
    if not isinstance(scenes, list) or any(not isinstance(one, dict) for one in scenes):
        raise DataError(f"{name}: expected a list of scenes")
    distinct((str(one.get("id")) for one in scenes), name)
    return scenes


def rows_of_file(
    path: Path, name: str, part: tuple[int, int], plans: Mapping[str, Any] | None, done: Done
) -> Iterator[Row]:
    """Rows of every `part[1]`-th scene from `part[0]` on that is not done yet. A file or scene that cannot be scored
    becomes a row with "error". name: what tells the file from others.
    """
    try:
        content, digest = read_json(path)
        scenes = scenes_of(content, name)
    except DataError as error:
        if part[0] == 0:
            yield {"file": name, "index": -1, "error": str(error)}
        return
    for index in range(part[0], len(scenes), part[1]):
        if index not in done.get((name, digest), ()):
            place = {"file": name, "sha256": digest, "index": index}
            try:
                yield {**place, **score_record(scenes[index], plans)}
            except DataError as error:
                yield {**place, "id": str(scenes[index].get("id")), "error": str(error)}


def score_record(record: dict, plans: Mapping[str, Any] | None) -> Row:
    """Scores, distances to the human's drive, guards, and what two-stage aggregation needs. DataError on bad input."""
    if plans is not None:
        name = text(record, "id", "scene")
        plan = field(plans, name, "plans")
        if isinstance(plan, dict) and "failure" in plan:
            raise DataError(f"{name}: {plan['failure']}")
        record = {**record, "plan": plan}
    scene = read_scene(record)
    scored = score_plans(scene, scene.plan[None])
    return {
        "id": scene.id,
        "scores": rows_of(scored),
        "l2_to_human_m": None if scene.human is None else l2_to_human(scene.plan, scene.human),
        "reverses": reverses(scene.plan),
        "last_clipped": last_is_clipped(scene.plan),
        "stage": _stage(scene, scored.states[0]),
        "source": str(record["source"]) if "source" in record else "",
    }


def _stage(scene: Scene, states: np.ndarray) -> dict[str, list[float]]:
    x, y, heading = scene.start[: car.HEADING + 1]
    ahead, left = scene.plan[-1, :2]
    start = np.array([x, y]) + scene.origin
    end = start + [ahead * np.cos(heading) - left * np.sin(heading), ahead * np.sin(heading) + left * np.cos(heading)]
    magnitude = np.hypot(states[:, car.ACCEL_X], states[:, car.ACCEL_Y])
    return {
        "start": start.tolist(),
        "end": end.tolist(),
        "acceleration": magnitude.round(9).tolist(),
        "heading": states[:, car.HEADING].round(9).tolist(),
    }
