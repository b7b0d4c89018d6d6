"""Scores of a folder of scenes: shared out to processes, taken up again after an interruption, summed up.

A scene or file that cannot be scored is counted and named, and is in no mean. Nothing stands in for it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.machine import commit, cpu_name
from wamdiff2_core.evaluate.navsim import stages
from wamdiff2_core.evaluate.navsim.planned import PlanJob, plan_scenes
from wamdiff2_core.evaluate.navsim.plots import l2_curve
from wamdiff2_core.evaluate.navsim.rows import Row, read_json, read_rows, rows_of_file

NAMES = {
    "v11": "PDMS (NAVSIM v1.1)",
    "v2": "EPDMS (NAVSIM v2), one stage, not human-filtered",
    "v2_human_filtered": "EPDMS (NAVSIM v2), one stage, human-filtered",
}
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
    rows_path = job.out.with_suffix(".jsonl")
    plans, digest = _chosen(job, files)
    rows = read_rows(rows_path, {"kind": "navsim", "plans": digest})
    rows = [row for row in rows if "error" not in row]
    done: dict[str, set[int]] = {}
    for row in rows:
        done.setdefault(row["sha256"], set()).add(row["index"])
    began = time.perf_counter()
    with rows_path.open("a", encoding="utf-8") as file:
        for fresh in _scored(files, plans, done, job.workers):
            for row in fresh:
                file.write(json.dumps(row) + "\n")
            file.flush()
            rows += fresh
    report = summary(_of_these(rows, files), stages.groups_file(job.data) if job.data.is_dir() else None)
    report["settings"] = {"data": str(job.data), "plans": digest, "workers": job.workers}
    if job.planner is not None:
        settings = {"checkpoint": str(job.planner.checkpoint), **job.planner.setting.values()}
        report["settings"] |= {**settings, "devices": list(job.planner.devices), "dtype": job.planner.dtype}
    report["machine"] = {"cpu": cpu_name(), "commit": commit(), "seconds": time.perf_counter() - began}
    job.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if report["l2_to_human"]["scenes"]:
        l2_curve(report["l2_to_human"], job.out.with_suffix(".png"))
    return report


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
    return {**named, **stages.aggregate(groups, members)}


def _files(data: Path) -> list[Path]:
    if data.is_file():
        return [data]
    found = [path for ending in ("*.json", "*.json.gz") for path in data.glob(ending) if path.name != stages.NAME]
    shards = sorted(data.glob("shard_*/scenes.json.gz"))
    if shards and not found:  # of wamdiff2_sim.data.navsim_scenes
        return shards
    if not found:
        raise DataError(f"{data}: expected a folder with scenes (.json or .json.gz)")
    return sorted(found)


def _chosen(job: NavsimJob, files: Sequence[Path]) -> tuple[dict[str, Any] | None, str]:
    """Plans instead of the scenes' own, and what tells them from others."""
    if job.planner is not None:
        job.out.parent.mkdir(parents=True, exist_ok=True)
        rows = job.out.with_name(f"{job.out.stem}.plans.jsonl")
        return plan_scenes(job.planner, files, rows, job.tell), f"checkpoint {job.planner.key()}"
    return (None, "scenes") if job.plans is None else _plans(job.plans)


def _plans(path: Path) -> tuple[dict[str, Any], str]:
    plans, digest = read_json(path)
    if not isinstance(plans, dict):
        raise DataError(f"{path}: expected an object of plans by scene id, got {type(plans).__name__}")
    return plans, hashlib.sha256(digest.encode()).hexdigest()[:16]


def _of_these(rows: Sequence[Row], files: Sequence[Path]) -> list[Row]:
    """Rows of the files that are there now, in their order; rows of files that changed or went are left out."""
    names = {path.name for path in files}
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    kept = [row for row in rows if row["file"] in names and ("sha256" not in row or row["sha256"] in digests)]
    return sorted(kept, key=lambda row: (row["file"], row["index"]))


def _scored(
    files: Sequence[Path], plans: dict[str, Any] | None, done: dict[str, set[int]], workers: int
) -> Iterator[list[Row]]:
    """Rows part by part, as they are ready."""
    parts = 1 if len(files) >= workers * PARTS_PER_WORKER else workers
    work = [(path, (part, parts)) for path in files for part in range(parts)]
    if workers == 1:
        for path, part in work:
            yield list(rows_of_file(path, part, plans, done))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (plans, done)) as pool:
        for future in as_completed([pool.submit(_work, path, part) for path, part in work]):
            yield future.result()


_shared: dict[str, Any] = {}


def _start_worker(plans: dict[str, Any] | None, done: dict[str, set[int]]) -> None:
    _shared.update(plans=plans, done=done)


def _work(path: Path, part: tuple[int, int]) -> list[Row]:
    return list(rows_of_file(path, part, _shared["plans"], _shared["done"]))
