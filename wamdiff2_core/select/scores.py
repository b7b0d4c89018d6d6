"""What candidates score in NAVSIM scenes of a shard: columns `SCORES`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wamdiff2_core.evaluate.navsim.devkit import poses_of
from wamdiff2_core.evaluate.navsim.rows import read_json
from wamdiff2_core.evaluate.navsim.scene import Scene, read_scene
from wamdiff2_core.evaluate.navsim.scoring import score_plans
from wamdiff2_core.scene import EgoState, Plan
from wamdiff2_core.select.rules import Surroundings, Thing, recorded, rule_scores

V11 = ("nc", "dac", "ep", "ttc", "comfort", "score")
V2 = ("nc", "dac", "ddc", "tlc", "ep", "ttc", "lk", "hc", "score")
SCORES = (*(f"v11_{name}" for name in V11), *(f"v2_{name}" for name in V2), "v2_human_filtered_score")


def score_shard(
    shard: Path, rows: Sequence[tuple[str, np.ndarray, EgoState, tuple[Thing, ...]]]
) -> list[tuple[np.ndarray, ...]]:
    """Of each (scene id, points (K, 8, 2), motion, things detected): scores (K, S), NaN for candidates that are NaN;
    the expert's own scores (S,); distances to its drive (K, 8) m; scores by rules (K,) that know the recorded boxes and
    the map, the recorded boxes alone, the detected ones alone.
    """
    content, _ = read_json(shard / "scenes.json.gz")
    scenes = {scene["id"]: scene for scene in content["scenes"]}
    return [_scored(read_scene(scenes[name]), points, ego, things) for name, points, ego, things in rows]


def _scored(scene: Scene, points: np.ndarray, ego: EgoState, things: tuple[Thing, ...]) -> tuple[np.ndarray, ...]:
    points = np.asarray(points, dtype=np.float64)
    valid = np.isfinite(points).all(axis=(1, 2))
    scores = np.full((len(points), len(SCORES)), np.nan)
    plans = [poses_of(Plan(one, np.ones(8)), ego.speed).astype(np.float64) for one in points[valid]]
    table = plan_scores(scene, np.array([*plans, scene.plan]))
    scores[valid] = table[:-1]
    distance = np.linalg.norm(points - scene.plan[:, :2], axis=2)
    known = recorded(scene)
    worlds = (known, Surroundings(known.things), Surroundings(things))
    by_rules = [rule_scores(points, ego, world) if valid.any() else scores[:, 0] for world in worlds]
    return scores, table[-1], distance, *by_rules


def plan_scores(scene: Scene, plans: np.ndarray) -> np.ndarray:
    """Scores (N, S) of plans (N, 8, 3)."""
    scored = score_plans(scene, plans)
    filtered = scored.human_filtered if scored.human_filtered is not None else scored.v2
    columns = [*(scored.v11[name] for name in V11), *(scored.v2[name] for name in V2), filtered["score"]]
    return np.stack(columns, axis=1)
