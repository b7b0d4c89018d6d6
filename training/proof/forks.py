"""How many ways are left at a fork: plans drawn for frames before a junction, where the instruction says no direction.

The instruction is replaced by "drive on", whose truth in training is whichever way the route goes; the drawn plans are
clustered by where they end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wamdiff2_core.distill.samples import DRIVE_ON
from wamdiff2_core.evaluate.frames import Frame
from wamdiff2_core.scene import Command
from wamdiff2_core.tasks.navigation import parse_navigation

NEAR_M = 25.0  # a junction that begins within this distance; one that we are inside is decided already
LINK_M = 3.0
_AHEAD = re.compile(r" in (\d+) m$")


def at_forks(frames: Sequence[Frame], near_m: float = NEAR_M, slowest_mps: float = 2.0) -> list[Frame]:
    """Frames shortly before a junction, in motion, told to drive on; without questions."""
    found = []
    for frame in frames:
        ahead = _AHEAD.search(frame.instruction)
        if parse_navigation(frame.instruction) in (None, Command.FOLLOW) or ahead is None:
            continue
        if float(ahead[1]) <= near_m and frame.ego.velocity[0] >= slowest_mps:
            found.append(replace(frame, instruction=DRIVE_ON, questions=()))
    return found


def clusters(ends: np.ndarray, link_m: float = LINK_M) -> np.ndarray:
    """Number of the cluster (N,) of each point (N, 2): single linkage, points within `link_m` belong together."""
    ends = np.asarray(ends, float).reshape(-1, 2)
    near = np.linalg.norm(ends[:, None] - ends[None], axis=2) <= link_m
    number = np.arange(len(ends))
    for _ in range(len(ends)):
        lower = np.where(near, number[None], len(ends)).min(axis=1) if len(ends) else number
        if (lower == number).all():
            break
        number = lower
    return np.unique(number, return_inverse=True)[1]


def entropy(labels: np.ndarray) -> float:
    """Entropy in nats of how often each cluster was drawn."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def fork_figures(plans: Sequence[Sequence[np.ndarray | None]], link_m: float = LINK_M) -> dict:
    """plans[frame][draw]: points (8, 2), None where a draw gave no plan. Figures over frames with two plans or more.

    modes: mean number of clusters; modes_error: its standard error; entropy in nats; several: share of frames with
    more than one cluster; failed: share of draws without a plan.
    """
    counts, entropies = [], []
    for draws in plans:
        ends = np.array([points[-1] for points in draws if points is not None])
        if len(ends) >= 2:
            labels = clusters(ends, link_m)
            counts.append(int(labels.max()) + 1)
            entropies.append(entropy(labels))
    draws_made = sum(len(draws) for draws in plans)
    failed = sum(points is None for draws in plans for points in draws)
    known = len(counts) > 0
    return {
        "frames": len(counts),
        "draws": max((len(draws) for draws in plans), default=0),
        "modes": float(np.mean(counts)) if known else None,
        "modes_error": float(np.std(counts, ddof=1) / math.sqrt(len(counts))) if len(counts) > 1 else None,
        "entropy": float(np.mean(entropies)) if known else None,
        "several": float(np.mean(np.array(counts) > 1)) if known else None,
        "failed": failed / draws_made if draws_made else None,
    }
