"""All that a run of the proof has measured, as one dict of plain values. What was not measured is None."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.proof import exposure, pareto
from training.proof.drives import FILE, LAST
from training.proof.forks import fork_figures
from training.proof.frames import OVERLAP, store_of
from training.proof.pairs import row_difference, spread
from training.proof.rows import ROWS, Run, run_of
from training.proof.targets import targets
from wamdiff2_core.evaluate.frame_store import FrameStore, Measured
from wamdiff2_sim.evaluate import EXPERT, score_of
from wamdiff2_sim.question_kinds import kind_of

BASE = "ar"
FRAME_FIGURES = {  # name in distill.json -> name in frame_figures
    "ade_m": "ade_m", "fde_m": "fde_m", "map50": "map50", "answers": "answers_correct",
    "parse_failures": "parse_failures_share", "failed_plans": "failed_plans_share",
    "forwards_per_plan": "forwards_per_plan", "forwards_per_detection": "forwards_per_detection",
    "forwards_per_answer": "forwards_per_answer",
}  # fmt: skip
Rows = dict[tuple[str, int], list[dict]]  # (row, seed) -> rows


def collect(root: Path, rows: Sequence[str], seeds: Sequence[int]) -> dict:
    """Everything for distill.json, of these rows and seeds."""
    drives = read_drives(root)
    mains = {
        (row, seed): one for row in rows for seed in seeds_of(row, seeds) for one in stored(root, row, seed, "main")
    }
    figures = {key: measured.figures(kind_of) for key, measured in mains.items()}
    found = {row: _row(root, row, seeds_of(row, seeds), drives, figures) for row in rows}
    base = {seed: _scores(drives, BASE, seed) for seed in seeds}
    errors = {key: exposure.plan_errors(measured.rows) for key, measured in mains.items()}
    for row in rows:
        theirs = {seed: _scores(drives, row, seed) for seed in seeds_of(row, seeds)}
        means = {seed: _ades(errors.get((row, seed), {})) for seed in seeds_of(row, seeds)}
        own = {seed: _ades(errors.get((BASE, seed), {})) for seed in seeds}
        found[row]["against_ar"] = None if row in (BASE, *LAST) else {
            "closed_loop": row_difference(theirs, base), "ade_m": row_difference(means, own)}  # fmt: skip
    return {
        "what": "distill",
        "rows": found,
        "targets": [target.values() for target in targets(found)],
        "expert": _expert(drives),
        "held_out_frames": max((len(one.rows) for one in mains.values()), default=None),
        "exposure": {row: _exposure(errors, row, seeds) for row in ("stage3", "stage1", "direct") if row in rows},
        "steps": {row: _sweep(root, row, seeds, "steps") for row in ("stage3",) if row in rows},
        "blocks": {row: _sweep(root, row, seeds, "blocks") for row in ("stage1", "same") if row in rows},
        "forks": {row: _forks(root, row, seeds_of(row, seeds)) for row in rows},
        "overlap": {row: _overlap(root, row, seeds_of(row, seeds)) for row in rows},
    }


def seeds_of(row: str, seeds: Sequence[int]) -> list[int]:
    """The seeds that a row is trained with."""
    return sorted({run_of(row, seed).seed for seed in seeds})


def read_drives(root: Path) -> Rows:
    """Lines of the drives' file; the last line may be cut short."""
    found: Rows = defaultdict(list)
    file = root / FILE
    if file.is_file():
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                found[row["row"], row["model_seed"]].append(row)
    return found


def stored(root: Path, row: str, seed: int, part: str) -> list[Measured]:
    """What the frames' file of a part holds; [] if there is none."""
    path = store_of(root, row, seed, part)
    return FrameStore.read(path).measured if path.is_file() else []


def _scores(drives: Rows, row: str, seed: int) -> dict[object, float]:
    """(town, route) -> driving score."""
    return {(one["town"], one["seed"]): score_of(one) for one in drives.get((row, seed), []) if "error" not in one}


def _ades(errors: dict[str, np.ndarray]) -> dict[object, float]:
    return {frame: float(value.mean()) for frame, value in errors.items()}


def _row(root: Path, row: str, seeds: Sequence[int], drives: Rows, figures: dict[tuple[str, int], dict]) -> dict:
    """A row's own figures: means over routes or frames, then mean and spread over seeds."""
    measured = {seed: figures[row, seed] for seed in seeds if (row, seed) in figures}
    kinds = sorted({kind for one in measured.values() for kind in one["answers_correct_by_kind"]})
    return {
        "closed_loop": spread({seed: _mean(list(_scores(drives, row, seed).values())) for seed in seeds}),
        "drives": _drives([one for seed in seeds for one in drives.get((row, seed), [])]),
        **{name: spread({seed: one[key] for seed, one in measured.items()}) for name, key in FRAME_FIGURES.items()},
        "per_waypoint_m": _curves([one["per_waypoint_m"] for one in measured.values()]),
        "answers_by_kind": {
            kind: spread({seed: one["answers_correct_by_kind"].get(kind) for seed, one in measured.items()})
            for kind in kinds
        },
        "decoding": vars(ROWS[row].decoding) | {},
        "training": {str(seed): _training(root, Run(row, seed)) for seed in seeds},
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _curves(curves: Sequence[list[float] | None]) -> list[float] | None:
    known = [curve for curve in curves if curve is not None]
    return np.mean(known, axis=0).tolist() if known else None


def _drives(rows: Sequence[dict]) -> dict | None:
    """Drives of all seeds together: what happened per route."""
    made = [row for row in rows if "error" not in row]
    if not rows:
        return None
    kinds: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for row in made:
        kinds.update(row["collisions_by_kind"])
        failures.update(row["failures"])
    plans = sum(row["plans"] for row in made)
    return {
        "drives": len(made),
        "failed_drives": len(rows) - len(made),
        "errors": dict(Counter(row["error"].split(":")[0] for row in rows if "error" in row)),
        "route_completion": _mean([row["route_completion"] for row in made]),
        "collisions_per_route": _mean([row["collisions"] for row in made]),
        "collisions_by_kind": dict(kinds),
        "red_lights_per_route": _mean([row["red_lights"] for row in made]),
        "off_road_s_per_route": _mean([row["off_road_s"] for row in made]),
        "plans": plans,
        "parse_failures": failures["parse"] / plans if plans else None,
        "forwards_per_plan": _mean([row["forwards_per_plan"] for row in made]),
    }


def _expert(drives: Rows) -> dict | None:
    """The same figures of the expert's drives: what world and controller allow."""
    facts = _drives(drives.get((EXPERT, 0), []))
    return None if facts is None else {"closed_loop": _mean(list(_scores(drives, EXPERT, 0).values())), **facts}


def _training(root: Path, run: Run) -> dict | None:
    """How a training ended: its last line of losses and what DONE says. None while it has not."""
    folder = run.folder(root)
    if not run.done(root):
        return {"state": "failed"} if (folder / "FAILED").is_file() else None
    facts = {"state": "done", **json.loads((folder / "DONE").read_text())}
    if (folder / "log.csv").is_file():
        with (folder / "log.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        facts["last"] = {name: float(value) for name, value in lines[-1].items() if value} if lines else {}
    return facts


def _exposure(errors: dict[tuple[str, int], dict], row: str, seeds: Sequence[int]) -> dict | None:
    mine = {seed: errors[BASE, seed] for seed in seeds if (BASE, seed) in errors}
    return exposure.curve(mine, {seed: errors[row, seed] for seed in seeds if (row, seed) in errors})


def _sweep(root: Path, row: str, seeds: Sequence[int], part: str) -> dict | None:
    """Points of the first seed that has them all, the front, and the steps that each block size needs."""
    by_seed = {seed: [pareto.point(one.figures(kind_of)) for one in stored(root, row, seed, part)] for seed in seeds}
    most = max((len(points) for points in by_seed.values()), default=0)
    if not most:
        return None
    seed = next(seed for seed, points in by_seed.items() if len(points) == most)
    points = by_seed[seed]
    fixed = [point for point in points if point["scaffold"]]
    needed = {str(s): pareto.steps_needed([p for p in found if p["scaffold"]]) for s, found in by_seed.items() if found}
    return {"seed": seed, "points": points, "front": pareto.front(fixed), "steps_needed": needed}


def _forks(root: Path, row: str, seeds: Sequence[int]) -> dict | None:
    """Figures of drawn plans: spread over seeds."""
    found = {}
    for seed in seeds:
        draws = stored(root, row, seed, "forks")
        if draws:
            plans = [[_points(one.rows[k]) for one in draws] for k in range(len(draws[0].rows))]
            found[seed] = fork_figures(plans)
    if not found:
        return None
    names = ("modes", "entropy", "several", "failed")
    facts = {name: spread({seed: one[name] for seed, one in found.items()}) for name in names}
    return {"frames": max(one["frames"] for one in found.values()), "draws": found[min(found)]["draws"], **facts}


def _points(row: dict) -> np.ndarray | None:
    return None if row["plan"]["points"] is None else np.array(row["plan"]["points"])


def _overlap(root: Path, row: str, seeds: Sequence[int]) -> dict | None:
    """{teacher: spread over seeds of the share of common best tokens}."""
    files = {seed: root / OVERLAP / f"{row}_seed{seed}.json" for seed in seeds}
    found = {seed: json.loads(file.read_text()) for seed, file in files.items() if file.is_file()}
    teachers = sorted({name for one in found.values() for name in one})
    return {name: spread({seed: one[name]["all"] for seed, one in found.items()}) for name in teachers} or None
