"""Candidate plans of one scene, all behind one pass over its pictures and its prompt.

The first candidate is the plain plan, as `Driver.plan` makes it. Further ones are drawn at a temperature, asked for in
other words, decoded in other block sizes, or are the plain plan driven at another pace, which costs no pass at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from wamdiff2_core.decode.config import SEEDS
from wamdiff2_core.decode.decoder import Prefix
from wamdiff2_core.decode.result import DecodeResult
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.scene import Cost, Failure, FailureKind, Plan, Scene
from wamdiff2_core.tasks.checks import scene_problem
from wamdiff2_core.tasks.reading import read_answer

MOST = 64
SLOWEST, FASTEST = 0.0, 3.0
PACES = (0.7, 0.85, 1.1)  # that are used where nothing else is said


@dataclass(frozen=True)
class ProposalConfig:
    """Which candidates there are, the plain plan first.

    drawn: so many at each of `temperatures`. instructions: greedy plans for other words than the scene's, such as
    "follow the road". block_sizes: greedy plans in other block sizes, a batch each. paces: the plain plan's path at
    so many times its speed. seed: of the draws; None: others each time.
    """

    drawn: int = 0
    temperatures: tuple[float, ...] = (1.0,)
    instructions: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    paces: tuple[float, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if type(self.drawn) is not int or not 0 <= self.drawn < MOST or self.count > MOST:
            raise ConfigError(f"candidates: expected 1 to {MOST}, got {self}")
        if self.drawn and not (self.temperatures and all(0.0 < t < math.inf for t in self.temperatures)):
            raise ConfigError(f"temperatures: expected finite numbers > 0, got {self.temperatures}")
        if not all(SLOWEST <= pace <= FASTEST for pace in self.paces):
            raise ConfigError(f"paces: expected numbers from {SLOWEST:g} to {FASTEST:g}, got {self.paces}")
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < SEEDS):
            raise ConfigError(f"seed: expected None or an integer from 0 to {SEEDS - 1}, got {self.seed!r}")

    @property
    def count(self) -> int:
        """Candidates, the plain plan included."""
        drawn = self.drawn * len(self.temperatures)
        return 1 + drawn + len(self.instructions) + len(self.block_sizes) + len(self.paces)

    @property
    def sources(self) -> tuple[str, ...]:
        """What each candidate is, in order."""
        return (
            "plain",
            *(f"T={t:g}" for t in self.temperatures for _ in range(self.drawn)),
            *(f"words: {words}" for words in self.instructions),
            *(f"B={size}" for size in self.block_sizes),
            *(f"pace {pace:g}" for pace in self.paces),
        )


@dataclass(frozen=True)
class Proposals:
    """Candidates in the order of `ProposalConfig.sources`, with what all of them took.

    tokens: of each candidate's own answer; empty for those that are another's at another pace. prefix: what stands
    before the answers, None where nothing could be asked; `rests`: the words behind it, by candidate with tokens.
    """

    plans: tuple[Plan | Failure, ...]
    sources: tuple[str, ...]
    cost: Cost
    tokens: tuple[tuple[int, ...], ...] = ()
    prefix: Prefix | None = None
    rests: tuple[torch.Tensor, ...] = ()

    @property
    def valid(self) -> list[int]:
        """Candidates that are plans."""
        return [index for index, one in enumerate(self.plans) if isinstance(one, Plan)]


def propose(driver: Driver, scene: Scene, config: ProposalConfig) -> Proposals:
    """Candidates of a scene. Every one that is no plan is a Failure that says why."""
    problem = scene_problem(scene, "plan", driver.required(scene))
    if problem:
        failure = Failure(FailureKind.INPUT, problem)
        return Proposals((failure,) * config.count, config.sources, Cost())
    pixels, grid = driver.pixels(scene)
    scenes = [scene, *(replace(scene, instruction=words) for words in config.instructions)]
    prompts = [driver.prompt(one, "plan", grid).ids for one in scenes]
    for size in (driver.decoding.block_size, *config.block_sizes):
        problem = driver.too_long("plan", max(map(len, prompts)), size)
        if problem:
            failure = Failure(FailureKind.INPUT, problem)
            return Proposals((failure,) * config.count, config.sources, Cost())
    shared = _common(prompts)
    prefix = driver.decoder.prefill(torch.tensor(prompts[0][:shared]), pixels, grid, driver.decoding.block_size)
    drawn = config.drawn * len(config.temperatures)
    rests = [torch.tensor(ids[shared:]) for ids in (*[prompts[0]] * (1 + drawn), *prompts[1:])]
    heat = [0.0, *(t for t in config.temperatures for _ in range(config.drawn)), *[0.0] * len(config.instructions)]
    batches = [_decode(driver, prefix, rests, heat, config.seed, driver.decoding.block_size)]
    for size in config.block_sizes:
        own = prefix if prefix.block_size in (None, size) else _again(driver, prompts[0][:shared], pixels, grid, size)
        batches.append(_decode(driver, own, rests[:1], [0.0], None, size))
    plans = [_read(driver, scene, output) for batch in batches for output in batch]
    plans += [at_pace(plans[0], pace) for pace in config.paces]
    tokens = tuple(tuple(output.tokens) for batch in batches for output in batch)
    rests += [rests[0]] * len(config.block_sizes)
    return Proposals(tuple(plans), config.sources, _cost(prefix, batches), tokens, prefix, tuple(rests))


def at_pace(plan: Plan | Failure, pace: float) -> Plan | Failure:
    """The path of a plan at `pace` times its speed; a failed plan stays failed. Confidences are the plan's own."""
    return plan if isinstance(plan, Failure) else replace(plan, points=paced(plan.points, pace), text="")


def paced(points: np.ndarray, pace: float) -> np.ndarray:
    """Points (8, 2) on the same path, `pace` times as far apart from the third step on and blended in before.

    Above 1 they go straight on behind the end of the path.
    """
    knots = np.vstack([[0.0, 0.0], points])
    legs = np.linalg.norm(np.diff(knots, axis=0), axis=1)
    factor = 1.0 + (pace - 1.0) * np.minimum(np.arange(1, len(legs) + 1) / 3.0, 1.0)
    along = np.concatenate([[0.0], np.cumsum(legs)])
    wanted = np.cumsum(legs * factor)
    end = knots[-1] - knots[-2]
    unit = end / max(float(np.linalg.norm(end)), 1e-6)
    inside = np.stack([np.interp(wanted, along, knots[:, axis]) for axis in (0, 1)], axis=1)
    return inside + np.maximum(wanted - along[-1], 0.0)[:, None] * unit


def _decode(
    driver: Driver, prefix: Prefix, rests: Sequence[torch.Tensor], heat: Sequence[float], seed: int | None, size: int
) -> list[DecodeResult]:
    count = len(rests)
    config = replace(driver.decoding, block_size=size, steps=min(driver.decoding.steps, size), seed=seed)
    scaffold, limit = driver.scaffold("plan"), driver.max_new_tokens["plan"]
    outputs = driver.decoder.generate(
        rests, None, None, config, [scaffold] * count, prefix, [limit] * count, temperatures=heat
    )
    return [outputs] if isinstance(outputs, DecodeResult) else list(outputs)


def _again(driver: Driver, ids: tuple[int, ...], pixels: torch.Tensor, grid: torch.Tensor, size: int) -> Prefix:
    """The prefix for another block size, of a model whose context goes by blocks."""
    return driver.decoder.prefill(torch.tensor(ids), pixels, grid, size)


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """Leading tokens that all prompts share, but never the last one, which each row needs for itself."""
    most = min(len(ids) for ids in prompts) - 1
    return next((k for k in range(most) if len({ids[k] for ids in prompts}) > 1), most)


def _read(driver: Driver, scene: Scene, output: DecodeResult) -> Plan | Failure:
    answer = driver.tokenizer.answer(output.tokens, output.confidences)
    cost = Cost(output.forwards, tuple(output.steps_per_block), len(output.tokens))
    read = read_answer("plan", driver.formats["plan"], output.status.value, answer, scene, driver.limits, cost)
    if isinstance(read, Plan):
        sure = np.clip(np.asarray(output.confidences), 1e-30, 1.0)
        return replace(read, log_likelihood=float(np.log(sure).sum()))
    assert isinstance(read, Failure)
    return read


def _cost(prefix: Prefix, batches: Sequence[Sequence[DecodeResult]]) -> Cost:
    longest = [max(batch, key=lambda one: one.forwards) for batch in batches]
    return Cost(
        forwards=prefix.forwards + sum(one.forwards for one in longest),
        tokens=sum(len(one.tokens) for batch in batches for one in batch),
        vision_ms=prefix.vision_ms,
        prefill_ms=prefix.prefill_ms + sum(one.prefill_ms for one in longest),
        decode_ms=sum(one.decode_ms for one in longest),
    )
