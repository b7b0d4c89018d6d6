"""Tables of the proof in Markdown, from the dict of results.collect. What was not measured says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from training.proof.plots import MISSING, NAMES
from wamdiff2_core.evaluate.tables import markdown

COLUMNS = (  # heading, key of a row, factor, digits
    ("driving score %", "closed_loop", 1.0, 1),
    ("ADE m", "ade_m", 1.0, 3),
    ("mAP50 %", "map50", 100.0, 1),
    ("right answers %", "answers", 100.0, 1),
    ("parse failures %", "parse_failures", 100.0, 2),
    ("plans withheld %", "failed_plans", 100.0, 1),
    ("forwards per plan", "forwards_per_plan", 1.0, 1),
    ("forwards per answer", "forwards_per_answer", 1.0, 1),
)
QUESTIONS: dict[str, Sequence[str]] = {
    "stages": ("ar", "direct", "stage1", "stage2", "stage3"),
    "divergence": ("stage3", "kl"),
    "teacher": ("stage3", "ar_teacher", "teacher_ar", "teacher_blocks"),
    "prediction": ("stage1", "same"),
    "answers": ("ar", "teacher_ar", "stage1", "answers"),
    "summary": ("ar", "direct", "stage1", "stage2", "stage3", "kl", "ar_teacher", "answers", "same"),
}


def value(spread: dict | None, factor: float = 1.0, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds (without it for a single seed)."""
    if spread is None:
        return MISSING
    text = f"{factor * spread['mean']:.{digits}f}"
    return text if spread["spread"] is None else f"{text} ± {factor * spread['spread']:.{digits}f}"


def rows_table(results: dict, rows: Sequence[str]) -> str:
    """Main figures of some rows."""
    heading = ["row", *(name for name, *_ in COLUMNS), "drives", "seeds"]
    body = []
    for row in (row for row in rows if row in results["rows"]):  # a row that nobody asked for is left out
        found = results["rows"][row]
        cells = [value((found or {}).get(key), factor, digits) for _, key, factor, digits in COLUMNS]
        drives = ((found or {}).get("drives") or {}).get("drives")
        done = sum((one or {}).get("state") == "done" for one in (found or {}).get("training", {}).values())
        body.append([NAMES[row], *cells, MISSING if drives is None else str(drives), str(done)])
    return markdown([heading, *body])


def drives_table(results: dict, rows: Sequence[str]) -> str:
    """What happened on the routes."""
    names = ("route_completion", "collisions_per_route", "red_lights_per_route", "off_road_s_per_route",
             "parse_failures", "failed_drives")  # fmt: skip
    heading = ["row", "completion", "collisions per route", "red lights per route", "off road s per route",
               "plans not parsed", "failed drives"]  # fmt: skip
    found = {NAMES[row]: (results["rows"][row] or {}).get("drives") for row in rows if row in results["rows"]}
    if results["expert"] is not None:
        found["expert"] = results["expert"]
    body = [[name, *(_number((one or {}).get(key)) for key in names)] for name, one in found.items()]
    return markdown([heading, *body])


def against_table(results: dict, rows: Sequence[str]) -> str:
    """Differences to the autoregressive row over the same routes and frames."""
    body = []
    for row in (row for row in rows if row in results["rows"]):
        found = (results["rows"][row] or {}).get("against_ar") or {}
        body.append([NAMES[row], *(_difference(found.get(key)) for key in ("closed_loop", "ade_m"))])
    heading = [
        "row minus AR",
        "driving score, points: mean ± standard error (seeds)",
        "ADE m: mean ± standard error (seeds)",
    ]
    return markdown([heading, *body])


def overlap_table(results: dict) -> str:
    """Common top-5 tokens of students and teachers."""
    body = []
    for row in ("stage2", "stage3", "kl", "ar_teacher"):
        found = results["overlap"].get(row) or {}
        body.append([NAMES[row], *(value(found.get(name), 100.0, 1) for name in ("teacher_blocks", "teacher_ar"))])
    return markdown([["student", "with the diffusion teacher %", "with the AR teacher %"], *body])


def forks_table(results: dict) -> str:
    """Distinct plans at forks."""
    body = []
    for row, name in NAMES.items():
        found = results["forks"].get(row)
        if found is not None or row in ("stage3", "kl"):
            keys = (("modes", 1.0, 2), ("entropy", 1.0, 3), ("several", 100.0, 1), ("failed", 100.0, 1))
            body.append([name, *(value((found or {}).get(key), factor, digits) for key, factor, digits in keys)])
    heading = ["row", "distinct plans", "entropy nats", "frames with several %", "draws without a plan %"]
    made = {(one["draws"], one["frames"]) for one in results["forks"].values() if one is not None}
    what = "; ".join(
        f"at most {draws} draws for each of at most {frames} frames" for draws, frames in sorted(made, reverse=True)[:1]
    )
    return f"{what or MISSING}\n\n{markdown([heading, *body])}"


def exposure_table(results: dict) -> str:
    """Per waypoint: both curves and the gap."""
    found = results["exposure"].get("stage3")
    if found is None:
        return f"{MISSING}\n"
    heading = ["seconds ahead", "AR m", "diffusion m", "gap m", "standard error m"]
    parts = ("autoregressive_m", "diffusion_m", "gap_m", "gap_error_m")
    body = [
        [f"{0.5 * (k + 1):.1f}", *(_number(found[part][k], 4) for part in parts)] for k in range(len(found["gap_m"]))
    ]
    return f"{found['frames']} frames with a plan of both.\n\n{markdown([heading, *body])}"


def steps_table(results: dict) -> str:
    """The front of quality against forwards."""
    found = results["steps"].get("stage3")
    if found is None:
        return f"{MISSING}\n"
    front, points = found["front"], found["points"]
    plain = [p for p in points if p["block_size"] == 1]
    ordered = [p for p in points if p["rule"] == "ordered" and p not in front]
    free = [p for p in points if not p["scaffold"] and p["block_size"] > 1 and p["threshold"] == 0.9]
    parts = [("on the front", [p for p in front if p["block_size"] > 1]), ("leading digits first", ordered)]
    parts += [("B = 1", plain), ("free text", free)]
    heading = ["", "steps", "threshold", "rule", "scaffold", "forwards per plan", "ADE m", "mAP50", "right answers",
               "not parsed", "plans withheld"]  # fmt: skip
    body = [[name, str(p["steps"]), f"{p['threshold']:g}", p["rule"], "yes" if p["scaffold"] else "no",
             _number(p["forwards_per_plan"], 1), _number(p["ade_m"], 3), _number(p["map50"], 3),
             _number(p["answers_correct"], 3), _number(p["parse_failures_share"], 4),
             _number(p["failed_plans_share"], 3)]
            for name, points in parts for p in points]  # fmt: skip
    return markdown([heading, *body])


def blocks_table(results: dict) -> str:
    """Steps that each block size needs, and what it reaches, for both ways to predict."""
    body = []
    for row in ("stage1", "same"):
        needed = ((results["blocks"].get(row) or {}).get("steps_needed")) or {}
        sizes = sorted({int(block) for one in needed.values() for block in one})
        for block in sizes:
            mine = [p for one in needed.values() for b, p in one.items() if int(b) == block]
            steps = ", ".join(str(p["steps"]) for p in mine)
            ade = ", ".join(_number(p["ade_m"], 3) for p in mine)
            body.append(
                [NAMES[row], str(block), steps, ade, ", ".join(_number(p["forwards_per_plan"], 1) for p in mine)]
            )
        if not sizes:
            body.append([NAMES[row], *[MISSING] * 4])
    return markdown([["row", "B", "steps needed (per seed)", "ADE m there", "forwards per plan"], *body])


def targets_table(results: dict) -> str:
    """What had to be reached. A verdict that lies within two standard errors of the limit says so."""
    verdict = {True: "reached", False: "missed", None: MISSING}
    body = []
    for one in results["targets"]:
        error = "" if one["error"] is None else f" ± {one['error']:.4f}"
        doubt = ", not proven" if one["proven"] is False else ""
        body.append([one["what"], f"{_number(one['measured'], 4)}{error}",
                     f"{'at most' if one['most'] else 'at least'} {one['limit']:g}",
                     f"{verdict[one['reached']]}{doubt}"])  # fmt: skip
    return markdown([["`stage3` beside `ar`", "measured", "to reach", ""], *body])


ALL = ("ar", "direct", "stage1", "stage2", "stage3", "kl", "ar_teacher", "answers", "same")
TABLES: dict[str, Callable[[dict], str]] = {
    **{name: partial(rows_table, rows=rows) for name, rows in QUESTIONS.items()},
    "drives": lambda results: drives_table(results, (*ALL, "teacher_ar", "teacher_blocks")),
    "against": lambda results: against_table(results, ALL[1:]),
    "targets": targets_table,
    "overlap": overlap_table,
    "forks": forks_table,
    "exposure": exposure_table,
    "steps": steps_table,
    "blocks": blocks_table,
}


def _number(number: float | None, digits: int = 3) -> str:
    if number is None:
        return MISSING
    return str(number) if isinstance(number, int) else f"{number:.{digits}f}"


def _difference(found: dict | None) -> str:
    if found is None:
        return MISSING
    error = "" if found["error"] is None else f" ± {found['error']:.3f}"
    return f"{found['mean']:+.3f}{error} ({', '.join(f'{seed:+.3f}' for seed in found['seeds'])})"
