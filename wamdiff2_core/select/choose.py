"""Which candidate to drive: the scorers by name, and one call that proposes, scores and chooses."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from wamdiff2_core.decode.likelihood import remasked_log_likelihood
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Camera, Detections, Failure, Plan, Scene
from wamdiff2_core.select.features import asked_for, features
from wamdiff2_core.select.ground import things_of
from wamdiff2_core.select.learned import LearnedScorer
from wamdiff2_core.select.propose import ProposalConfig, Proposals, propose
from wamdiff2_core.select.rules import Surroundings, rule_scores

SCORERS = ("likelihood", "remasked", "rules", "learned")


@dataclass(frozen=True)
class Selected:
    """The plan to drive, or why there is none; which candidate it is; all of them with their scores (NaN: no plan).

    propose_ms: model; score_ms: scorer, with its own passes of the model.
    """

    plan: Plan | Failure
    index: int
    proposals: Proposals
    scores: np.ndarray
    propose_ms: float
    score_ms: float


class Selector:
    """A scorer, ready to be used. `camera`: the front camera, for the rules on detections; without it and without
    `world` they know of nobody.
    """

    def __init__(
        self, scorer: str, proposals: ProposalConfig, camera: Camera | None = None, weights: LearnedScorer | None = None
    ) -> None:
        """ConfigError for an unknown scorer."""
        if scorer not in SCORERS:
            raise ConfigError(f"scorer: expected one of {', '.join(SCORERS)}; got {scorer!r}")
        self.scorer, self.config, self.camera = scorer, proposals, camera
        self.weights = (weights or LearnedScorer.load()) if scorer == "learned" else None

    def plan(
        self, driver: Driver, scene: Scene, world: Surroundings | None = None, seen: Detections | None = None
    ) -> Selected:
        """The best candidate of a scene. `world`: recorded surroundings; `seen`: detections, used where it is None."""
        began = time.perf_counter()
        proposals = propose(driver, scene, self.config)
        made = time.perf_counter()
        scores = np.full(len(proposals.plans), np.nan)
        if proposals.valid:
            scores = self._scores(driver, scene, proposals, world, seen)
        index = best(scores)
        plan = proposals.plans[index]
        if isinstance(plan, Plan):
            plan = replace(plan, cost=proposals.cost)
        ended = time.perf_counter()
        return Selected(plan, index, proposals, scores, (made - began) * 1e3, (ended - made) * 1e3)

    def _scores(
        self, driver: Driver, scene: Scene, made: Proposals, world: Surroundings | None, seen: Detections | None
    ) -> np.ndarray:
        if self.scorer == "rules":
            if world is None:
                boxes = seen.boxes if seen is not None else ()
                world = Surroundings(things_of(boxes, self.camera) if self.camera else ())
            return rule_scores(points_of(made), scene.ego, world)
        if self.scorer == "remasked":
            return remasked_scores(driver, made)
        likelihood = np.array([one.log_likelihood if isinstance(one, Plan) else np.nan for one in made.plans])
        if self.weights is None:
            return likelihood
        return learned_scores(self.weights, made, scene)


def best(scores: np.ndarray) -> int:
    """Index of the best score, the first of equals; 0, the plain plan, where all are NaN."""
    return 0 if np.isnan(scores).all() else int(np.nanargmax(scores))


def points_of(made: Proposals) -> np.ndarray:
    """(K, 8, 2), NaN for candidates that are no plans."""
    return np.array([one.points if isinstance(one, Plan) else np.full((8, 2), np.nan) for one in made.plans])


def learned_scores(weights: LearnedScorer, made: Proposals, scene: Scene) -> np.ndarray:
    """Foretold scores (K,), NaN for candidates that are no plans."""
    points = points_of(made)
    valid = np.isfinite(points).all(axis=(1, 2))
    sure = np.array([one.confidence if isinstance(one, Plan) else np.zeros(8) for one in made.plans])
    likelihood = np.array([one.log_likelihood if isinstance(one, Plan) else 0.0 for one in made.plans])
    motion = np.array([scene.ego.speed, *scene.ego.acceleration])
    seen = features(np.nan_to_num(points), sure, likelihood, motion, asked_for(scene.instruction))
    return np.where(valid, weights.scores(seen), np.nan)


def remasked_scores(driver: Driver, made: Proposals) -> np.ndarray:
    """Re-masked log likelihoods (K,) under the driver's own block size; a plan at another pace has the plain one's."""
    scores = np.full(len(made.plans), np.nan)
    own = [k for k in made.valid if k < len(made.tokens)]
    if own and made.prefix is not None:
        scores[own] = remasked_log_likelihood(
            driver.decoder, made.prefix, [made.rests[k] for k in own], [made.tokens[k] for k in own],
            driver.decoding.block_size, driver.scaffold("plan"),
        )  # fmt: skip
    return scores
