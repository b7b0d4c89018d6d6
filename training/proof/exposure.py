"""Exposure bias: the error of an autoregressive and a diffusion plan, waypoint by waypoint, on the same frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wamdiff2_core.scene import PLAN_POINTS


def plan_errors(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """frame -> L2 (8,) in m of its plan, of rows of a frame evaluation; frames without a plan are left out."""
    return {
        row["frame"]: np.linalg.norm(np.subtract(row["plan"]["points"], row["plan"]["truth"]), axis=1)
        for row in rows
        if row["plan"]["points"] is not None
    }


def curve(
    autoregressive: Mapping[int, Mapping[str, np.ndarray]], diffusion: Mapping[int, Mapping[str, np.ndarray]]
) -> dict | None:
    """Both {seed: {frame: (8,)}}: mean curves over the frames that both planned, and of their gap.

    gap: autoregressive minus diffusion, averaged over seeds for each frame; gap_error: its standard error over frames;
    seeds: each seed's gap curve.
    """
    seeds = {}
    totals: dict[str, list[np.ndarray]] = {}
    curves: list[tuple[np.ndarray, np.ndarray]] = []
    for seed in sorted(set(autoregressive) & set(diffusion)):
        one, other = autoregressive[seed], diffusion[seed]
        common = [frame for frame in one if frame in other]
        if not common:
            continue
        mine, theirs = (np.stack([part[frame] for frame in common]) for part in (one, other))
        curves.append((mine.mean(axis=0), theirs.mean(axis=0)))
        seeds[seed] = (mine - theirs).mean(axis=0).tolist()
        for frame, gap in zip(common, mine - theirs, strict=True):
            totals.setdefault(frame, []).append(gap)
    if not seeds:
        return None
    gaps = np.stack([np.mean(values, axis=0) for values in totals.values()])
    assert gaps.shape[1] == PLAN_POINTS
    error = gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.full(PLAN_POINTS, np.nan)
    return {
        "frames": len(gaps),
        "autoregressive_m": np.mean([one for one, _ in curves], axis=0).tolist(),
        "diffusion_m": np.mean([other for _, other in curves], axis=0).tolist(),
        "gap_m": gaps.mean(axis=0).tolist(),
        "gap_error_m": [None if not np.isfinite(value) else float(value) for value in error],
        "seeds": seeds,
    }
