"""Scores of a folder of scenes: shared out to processes, taken up again after an interruption, summed up.

A scene or file that cannot be scored is counted and named, and is in no mean. Nothing stands in for it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.kernels_used import settled, told
from wamdiff2_core.evaluate.machine import commit, cpu_name
from wamdiff2_core.evaluate.navsim import stages
from wamdiff2_core.evaluate.navsim.planned import PlanJob, Planned, Plans, plan_scenes
from wamdiff2_core.evaluate.navsim.plots import l2_curve
from wamdiff2_core.evaluate.navsim.rows import Done, Row, fingerprints, read_json, rows_of_file
from wamdiff2_core.evaluate.text_answers import read_rows

NAMES = {
    "v11": "PDMS (NAVSIM v1.1)",
    "v2": "EPDMS (NAVSIM v2), one stage, not human-filtered",
    "v2_human_filtered": "EPDMS (NAVSIM v2), one stage, human-filtered",
}
VERSION = "rules of NAVSIM v1.1 and v2.2, own scorer"
PARTS_PER_WORKER = 4


@dataclass(frozen=True)
class NavsimJob:
    """What to score: a folder, or one file, of scenes (.json, .json.gz); `plans`: {id: plan} to use instead of the
    scenes' own; `planner`: a checkpoint that plans for scenes with pictures instead; `out`: the result, rows go to a
    .jsonl beside it, the curve of distances to a .png.
    """

    data: Path
    out: Path
    plans: Path | None = None
    workers: int = 1
    planner: PlanJob | None = None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        if self.plans is not None and self.planner is not None:
            raise ConfigError("navsim: expected plans from a file or from a checkpoint, got both")


def evaluate(job: NavsimJob) -> dict[str, Any]:
    """Score what is not scored yet, write and return the result. DataError if no scene could be scored or an id is
    there twice.
    """
    files = _files(job.data)
    choice = None
    if job.planner is not None:
        one = job.planner
        choice = settled(one.checkpoint, one.devices, one.dtype, one.kernels, (one.setting.block_size,))
        job = replace(job, planner=replace(one, kernels=choice.word))
    job.out.parent.mkdir(parents=True, exist_ok=True)
    plans, key, planned = _chosen(job, list(files.values()))
    there = fingerprints(files)
    rows = _rows(job, files, there, plans, key)
    groups = stages.groups_file(job.data) if job.data.is_dir() else None
    began = time.perf_counter()
    report = {**_described(job, files, there), **summary(rows, groups)}
    report["plans_without_scene"] = _without_scene(plans if job.plans else None, rows)
    report["settings"] = {"data": str(job.data), "plans": key, "workers": job.workers}
    report |= {"latency_ms": None, "forwards": None}
    if job.planner is not None and planned is not None and choice is not None:
        settings = {"checkpoint": str(job.planner.checkpoint), **job.planner.setting.values()}
        report["settings"] |= {**settings, "devices": list(job.planner.devices), "dtype": job.planner.dtype}
        report["settings"] |= told(choice)
        report |= {"latency_ms": planned.latency_ms, "forwards": planned.forwards}
    report["machine"] = {"cpu": cpu_name(), "commit": commit(), "seconds": time.perf_counter() - began}
    job.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if report["l2_to_human"]["scenes"]:
        l2_curve(report["l2_to_human"], job.out.with_suffix(".png"))
    return report


def _rows(
    job: NavsimJob, files: Mapping[str, Path], there: Mapping[str, str], plans: Plans | None, key: str
) -> list[Row]:
    """Rows of the files that are there now, for these plans, in their order. Rows of other plans stay in the file;
    what could not be scored is tried again.
    """
    place = job.out.with_suffix(".jsonl")
    rows = [row for row in read_rows(place) if row.get("key") == key and "error" not in row]
    rows = [row for row in rows if there.get(row["file"]) == row["sha256"]]
    done: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        done.setdefault((row["file"], row["sha256"]), set()).add(row["index"])
    with place.open("a", encoding="utf-8") as sink:
        for fresh in _scored(files, plans, done, job.workers):
            for row in fresh:
                sink.write(json.dumps({"key": key, **row}) + "\n")
            sink.flush()
            rows += fresh
    return sorted(rows, key=lambda row: (row["file"], row["index"]))


def _described(job: NavsimJob, files: Mapping[str, Path], there: Mapping[str, str]) -> dict[str, str]:
    seen = hashlib.sha256(json.dumps(sorted(there.items())).encode()).hexdigest()[:12]
    count = f"{len(files)} file" + ("" if len(files) == 1 else "s")
    return {"version": VERSION, "data": f"{job.data.name}: {count} ({seen})"}


def _without_scene(plans: Plans | None, rows: Sequence[Row]) -> dict[str, Any]:
    """Plans of a file that no scene asked for: how many, and the first few."""
    ids = {row.get("id") for row in rows}
    left = [name for name in plans or {} if name not in ids]
    return {"count": len(left), "first": left[:5]}


def summary(rows: Sequence[Row], groups: Path | None = None) -> dict[str, Any]:
    """Means over scored rows, failures by name, guards, distances to the human, two stages if there are groups."""
    scored = [row for row in rows if "error" not in row]
    failed = [row for row in rows if "error" in row]
    twice = [name for name, count in Counter(row["id"] for row in scored).items() if count > 1]
    if twice:
        raise DataError(f"scenes: {len(twice)} ids are there twice, the first is {twice[0]!r}")
    if not scored:
        raise DataError(f"scenes: none could be scored{': ' + failed[0]['error'] if failed else ''}")
    return {
        "what": "navsim",
        "scenes": len(scored),
        "sources": sorted({row.get("source", "") for row in scored} - {""}),
        "failed": len(failed),
        "failures": [{key: row[key] for key in ("file", "id", "error") if key in row} for row in failed],
        "scores": {
            version: _means(scored, version) for version in NAMES if any(version in r["scores"] for r in scored)
        },
        "l2_to_human": _curve(scored),
        "guards": _guards(scored),
        "two_stage": None if groups is None else _two_stage(groups, scored),
    }


def _means(rows: Sequence[Row], version: str) -> dict[str, Any]:
    """Mean of every sub-score over the rows that have it; `scenes` and `scenes_with_ec` say how many those are."""
    tables = [row["scores"][version] for row in rows if version in row["scores"]]
    known = {name: [table[name] for table in tables if table[name] is not None] for name in tables[0]}
    means = {name: float(np.mean(values)) if values else None for name, values in known.items()}
    counts = {"scenes": len(tables), **({"scenes_with_ec": len(known["ec"])} if "ec" in known else {})}
    return {"name": NAMES[version], **means, **counts}


def _curve(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean distance to the human's drive at 0.5 ... 4.0 s, over the scenes that have one."""
    curves = [row["l2_to_human_m"] for row in rows if row["l2_to_human_m"] is not None]
    if not curves:
        return {"scenes": 0, "per_waypoint_m": None, "ade_m": None, "fde_m": None}
    mean = np.mean(curves, axis=0)
    return {
        "scenes": len(curves), "per_waypoint_m": mean.tolist(), "ade_m": float(mean.mean()), "fde_m": float(mean[-1])
    }  # fmt: skip


def _guards(rows: Sequence[Row]) -> dict[str, Any]:
    """Scenes whose plan reverses or ends in a waypoint that is clipped, and mean scores without them."""
    result: dict[str, Any] = {}
    for name in ("reverses", "last_clipped"):
        result[name] = [row["id"] for row in rows if row[name]]
    clean = [row for row in rows if not row["reverses"] and not row["last_clipped"]]
    for version in ("v11", "v2"):
        scores = [row["scores"][version]["score"] for row in clean]
        result[f"{version}_score_without"] = float(np.mean(scores)) if scores else None
    return result


def _two_stage(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    groups = stages.read_groups(read_json(path)[0])
    members = {row["id"]: stages.member_of(row) for row in rows}
    filtered = sum("v2_human_filtered" in row["scores"] for row in rows)
    named = {"name": "EPDMS (NAVSIM v2), two stages", "human_filtered_scenes": filtered}
    try:
        return {**named, **stages.aggregate(groups, members), "problem": ""}
    except DataError as error:  # the weights of a group need all of its scenes; scores of one stage do not
        scenes = sum(1 for group in groups for _ in group.tokens())
        return {**named, "combined": None, "groups": len(groups), "scenes": scenes, "problem": str(error)}


def _files(data: Path) -> dict[str, Path]:
    """Files of scenes by their names below the folder, in order."""
    if data.is_file():
        return {data.name: data}
    found = [path for ending in ("*.json", "*.json.gz") for path in data.glob(ending) if path.name != stages.NAME]
    found = found or list(data.glob("shard_*/scenes.json.gz"))  # of wamdiff2_sim.data.navsim_scenes
    if not found:
        raise DataError(f"{data}: expected a folder with scenes (.json or .json.gz)")
    return {str(path.relative_to(data)): path for path in sorted(found)}


def _chosen(job: NavsimJob, files: Sequence[Path]) -> tuple[Plans | None, str, Planned | None]:
    """Plans instead of the scenes' own, what tells them from others, and what they cost if they are made here."""
    if job.planner is not None:
        rows = job.out.with_name(f"{job.out.stem}.plans.jsonl")
        made = plan_scenes(job.planner, files, rows, job.tell)
        return made.plans, f"checkpoint {job.planner.key()}", made
    return (None, "scenes", None) if job.plans is None else (*_plans(job.plans), None)


def _plans(path: Path) -> tuple[Plans, str]:
    plans, digest = read_json(path, distinct_keys=True)
    if not isinstance(plans, dict):
        raise DataError(f"{path}: expected an object of plans by scene id, got {type(plans).__name__}")
    return plans, hashlib.sha256(digest.encode()).hexdigest()[:16]


def _scored(files: Mapping[str, Path], plans: Plans | None, done: Done, workers: int) -> Iterator[list[Row]]:
    """Rows part by part, as they are ready."""
    parts = 1 if len(files) >= workers * PARTS_PER_WORKER else workers
    work = [(path, name, (part, parts)) for name, path in files.items() for part in range(parts)]
    if workers == 1:
        for path, name, part in work:
            yield list(rows_of_file(path, name, part, plans, done))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (plans, done)) as pool:
        for future in as_completed([pool.submit(_work, *one) for one in work]):
            yield future.result()


_shared: dict[str, Any] = {}


def _start_worker(plans: Plans | None, done: Done) -> None:
    _shared.update(plans=plans, done=done)


def _work(path: Path, name: str, part: tuple[int, int]) -> list[Row]:
    return list(rows_of_file(path, name, part, _shared["plans"], _shared["done"]))
