"""PDMS (NAVSIM v1.1) and EPDMS (v2) of plans in a scene.

    PDMS  = NC DAC (5 EP + 5 TTC + 2 C) / 12
    EPDMS = NC DAC DDC TLC (5 EP + 5 TTC + 2 LK + 2 HC + 2 EC) / 16, without a plan before it: without EC, over 14

Source: Dauner et al., NAVSIM (2024), and Cao et al., pseudo-simulation (2025), in the form of the official code's
tags v1.1 and v2.2. Every plan is scored as in a call of its own: its progress is measured against the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wamdiff2_core.errors import DataError
from wamdiff2_core.evaluate.navsim import collisions, comfort, rules
from wamdiff2_core.evaluate.navsim.areas import Where, locate
from wamdiff2_core.evaluate.navsim.scene import Scene, path_of, read_scene
from wamdiff2_core.evaluate.navsim.simulate import simulate
from wamdiff2_core.evaluate.navsim.vehicle import PLAN_POSES, POSES

VERSIONS = ("v11", "v2")
CHUNK = 64  # plans at once: their arrays stay in the processor's caches
V2_TTC_STEPS = POSES - int(collisions.LOOK_AHEAD[-1])  # v2 looks no further than the plan; v1 does
V1_WEIGHTS = {"ep": 5.0, "ttc": 5.0, "comfort": 2.0}
V2_WEIGHTS = {"ep": 5.0, "ttc": 5.0, "lk": 2.0, "hc": 2.0, "ec": 2.0}
V2_FACTORS = ("nc", "dac", "ddc", "tlc")


Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Driven:
    """What N drives of the car did: plans, or plans, then the human if there is one, last the reference.

    First axis: the drive.

    states: (N, 41, 11). faults, meets: (N, 41, O) contacts at fault and objects met by driving on straight.
    agent, at_start: (O,) whether an object is an agent, and whether it overlaps the car at the start. progress_m: (N,).
    """

    states: np.ndarray
    where: Where
    faults: np.ndarray
    meets: np.ndarray  # of the plans and the human, without the reference
    agent: np.ndarray
    at_start: np.ndarray
    progress_m: np.ndarray


@dataclass(frozen=True)
class Own:
    """What a scene's own drives come to, the same for all plans: made once for each scene.

    before: states (41, 11) of the plan before. human: its sub-scores of v2. v1_m, v2_m: the reference's progress times
    the product of its factors. at_start: (all objects,) see Driven.
    """

    before: np.ndarray | None
    human: dict[str, float] | None
    v1_m: float
    v2_m: float
    at_start: np.ndarray


@dataclass(frozen=True)
class Scored:
    """Results of N plans: tables of (N,) by name. "ec" is NaN without a plan before.

    human_filtered, human: the same forgiven where the human fails too, and the human's own sub-scores; None without a
    human's drive. states: simulated, (N, 41, 11), relative to the scene's origin.
    """

    v11: Table
    v2: Table
    human_filtered: Table | None
    human: dict[str, float] | None
    states: np.ndarray


def score(scene: dict) -> dict[str, dict[str, float | None]]:
    """Sub-scores and scores of a scene's own plan: {"v11": {...}, "v2": {...}, "v2_human_filtered": {...}}.

    The last is there if the scene has a human's drive; `ec` is None without a plan before. DataError on bad input.
    """
    record = read_scene(scene)
    return rows_of(score_plans(record, record.plan[None]))


def rows_of(scored: Scored, index: int = 0) -> dict[str, dict[str, float | None]]:
    """One plan's results as plain numbers, by version; NaN becomes None."""
    tables = {"v11": scored.v11, "v2": scored.v2, "v2_human_filtered": scored.human_filtered}
    return {
        version: {name: None if np.isnan(values[index]) else float(values[index]) for name, values in table.items()}
        for version, table in tables.items()
        if table
    }


def score_plans(scene: Scene, plans: np.ndarray, versions: Sequence[str] = VERSIONS) -> Scored:
    """Results of plans (N, 8, 3) in the frame of the ego, N >= 1. DataError on another shape or values not finite.

    versions: the tables of others stay empty (a call of the official code scores one version).
    """
    plans = np.asarray(plans, dtype=np.float64)
    if plans.ndim != 3 or not len(plans) or plans.shape[1:] != (PLAN_POSES, 3) or not np.isfinite(plans).all():
        raise DataError(f"{scene.id}: expected finite plans (N, {PLAN_POSES}, 3), got shape {plans.shape}")
    parts = [_score_chunk(scene, plans[at : at + CHUNK], versions) for at in range(0, len(plans), CHUNK)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def drive(scene: Scene, plans: np.ndarray) -> tuple[Driven, np.ndarray | None]:
    """All drives of a scene, and the states (41, 11) of the plan before, if there is one."""
    own = plans if scene.human is None else np.concatenate([plans, scene.human[None]])
    paths = np.concatenate([path_of(own, scene.start), scene.reference[None]])
    starts = np.broadcast_to(scene.start, (len(paths), len(scene.start)))
    if scene.before is not None:
        paths = np.concatenate([paths, scene.before.path[None]])
        starts = np.concatenate([starts, scene.before.start[None]])
    states = simulate(paths, starts)
    before = None if scene.before is None else states[-1]
    at_start = collisions.touched_at_start(scene.start, scene.objects)
    return _driven(scene, states if before is None else states[:-1], at_start, met=-1), before


def _driven(scene: Scene, states: np.ndarray, at_start: np.ndarray, met: int | None = None) -> Driven:
    """`met`: of how many drives the objects met by driving straight on are asked for."""
    where = locate(states, scene.areas)
    near = collisions.near(states, scene.objects)
    objects = scene.objects if near.all() else scene.objects.only(near)
    return Driven(
        states=states,
        where=where,
        faults=collisions.at_fault(states, where, objects),
        meets=collisions.would_meet(states[:met], where, objects),
        agent=objects.agent,
        at_start=at_start[near],
        progress_m=rules.progress(where.centre, scene.centreline),
    )


def _own(scene: Scene) -> Own:
    """The scene's own drives, scored when first asked for."""
    if "own" not in scene.kept:
        driven, before = drive(scene, np.zeros((0, PLAN_POSES, 3)))
        parts, masked = _parts_v2(scene, driven), driven.progress_m * _factors_v1(driven)
        human = None if scene.human is None else {name: float(values[0]) for name, values in parts.items()}
        reference = float(driven.progress_m[-1] * _product(parts)[-1])
        at_start = collisions.touched_at_start(scene.start, scene.objects)
        scene.kept["own"] = Own(before, human, float(masked[-1]), reference, at_start)
    return scene.kept["own"]


def _score_chunk(scene: Scene, plans: np.ndarray, versions: Sequence[str]) -> Scored:
    own, count = _own(scene), len(plans)
    states = simulate(path_of(plans, scene.start), np.broadcast_to(scene.start, (count, len(scene.start))))
    driven = _driven(scene, states, own.at_start)
    v11 = _v1(driven, own.v1_m) if "v11" in versions else {}
    if "v2" not in versions:
        return Scored(v11, {}, None, own.human, states)
    rows = _parts_v2(scene, driven)
    rows["ep"] = rules.progress_v2(driven.progress_m, _product(rows), own.v2_m)
    rows["hc"] = _comfortable(comfort.history_signals(states, scene.past))
    rows["ec"] = np.full(count, np.nan)
    if own.before is not None and scene.before is not None:
        rows["ec"] = comfort.extended_comfort(comfort.changes(states, own.before, scene.before.steps))
    forgiven = None if own.human is None else _forgiven(rows, own.human)
    return Scored(v11, _v2(rows), forgiven, own.human, states)


def _factors_v1(driven: Driven) -> np.ndarray:
    return collisions.no_collision_score(driven.faults, driven.agent) * rules.drivable_area(driven.where)


def _v1(driven: Driven, reference_m: float) -> Table:
    """PDMS of plans; `reference_m`: the reference's progress times its factors."""
    nc, dac = collisions.no_collision_score(driven.faults, driven.agent), rules.drivable_area(driven.where)
    parts = {
        "nc": nc,
        "dac": dac,
        "ddc_not_in_score": rules.driving_direction(driven.where, outside_intersections=False),
        "ep": rules.progress_v1(driven.progress_m * nc * dac, nc * dac, reference_m),
        "ttc": 1.0 - np.logical_or.reduce(driven.meets, axis=(1, 2)),
        "comfort": _comfortable(comfort.plan_signals(driven.states)),
    }
    return {**parts, "score": parts["nc"] * parts["dac"] * _weighted(parts, V1_WEIGHTS)}


def _parts_v2(scene: Scene, driven: Driven) -> Table:
    """Sub-scores that need no comparison, of all drives; TTC and LK of those whose `meets` are known.

    Objects that overlap the car at the start do not count.
    """
    left = ~driven.at_start
    return {
        "nc": collisions.no_collision_score(driven.faults[..., left], driven.agent[left]),
        "dac": rules.drivable_area(driven.where),
        "ddc": rules.driving_direction(driven.where, outside_intersections=True),
        "tlc": rules.traffic_lights(driven.states, driven.where.centre, scene.red),
        "ttc": 1.0 - np.logical_or.reduce(driven.meets[:, :V2_TTC_STEPS, left], axis=(1, 2)),
        "lk": rules.lane_keeping(driven.where, scene.centreline, len(driven.meets)),
    }


def _v2(parts: Table) -> Table:
    """EPDMS of sub-scores, and the official column that is made before extended comfort is known."""
    product = _product(parts)
    without = {name: weight for name, weight in V2_WEIGHTS.items() if name != "ec"}
    column = product * _weighted(parts, without)
    whole = np.where(np.isnan(parts["ec"]), column, product * _weighted(parts, V2_WEIGHTS))
    named = {name: parts[name] for name in ("nc", "dac", "ddc", "tlc", "ep", "ttc", "lk", "hc")}
    return {
        **named,
        "multiplicative_product": product,
        "pdm_score_column_without_ec": column,
        "ec": parts["ec"],
        "score": whole,
    }


def _forgiven(parts: Table, human: dict[str, float]) -> Table:
    """EPDMS with each sub-score 1 where the human's is 0. The official column without EC stays as it was."""
    forgiven = {name: np.ones_like(values) if human.get(name) == 0.0 else values for name, values in parts.items()}
    return {**_v2(forgiven), "pdm_score_column_without_ec": _v2(parts)["pdm_score_column_without_ec"]}


def _product(parts: Table) -> np.ndarray:
    return np.prod([parts[name] for name in V2_FACTORS], axis=0)


def _weighted(parts: Table, weights: dict[str, float]) -> np.ndarray:
    return np.add.reduce([weight * parts[name] for name, weight in weights.items()]) / sum(weights.values())


def _comfortable(signals: Table) -> np.ndarray:
    return np.logical_and.reduce(list(comfort.within_limits(signals).values())).astype(float)


def _joined(parts: list[Scored]) -> Scored:
    def table(name: str) -> Table:
        tables = [getattr(part, name) for part in parts]
        return {key: np.concatenate([one[key] for one in tables]) for key in tables[0]}

    filtered = None if parts[0].human_filtered is None else table("human_filtered")
    return Scored(table("v11"), table("v2"), filtered, parts[0].human, np.concatenate([part.states for part in parts]))
