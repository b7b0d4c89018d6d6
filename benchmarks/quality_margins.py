"""How sure the plain decoder is in fp32 where two answers part: the state at that step put together again, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.quality_figures import parting
from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.decode.reference import block_logits
from wamdiff2_core.driver import Driver
from wamdiff2_core.evaluate.frames import Frame


@dataclass(frozen=True)
class Asked:
    """A frame's prompt ids (N,), patches and grid: what every way to decode is given."""

    ids: torch.Tensor
    pixels: torch.Tensor
    grid: torch.Tensor

    @classmethod
    def of(cls, driver: Driver, frame: Frame) -> Asked:
        scene = frame.scene(driver.cameras)
        pixels, grid = driver.pixels(scene)
        return cls(torch.tensor(driver.prompt(scene, "plan", grid).ids), pixels, grid)


def margin(
    driver: Driver, asked: Asked, one: Sequence[int], other: Sequence[int], config: DecodingConfig
) -> float | None:
    """How far apart the two tokens' probabilities are in fp32 where the answers part first; None: they do not.

    Of several positions that part in the same step the widest one counts.
    """
    scaffold = driver.scaffold("plan")
    assert scaffold is not None
    where = parting(one, other, scaffold.ranks, config.block_size)
    if where is None:
        return None
    chances = probabilities(driver, asked, one, where.block, where.rank, config)
    at = torch.tensor(where.positions)
    mine, theirs = (chances[at % config.block_size, torch.tensor(tokens)[at]] for tokens in (one, other))
    return float((mine - theirs).abs().max())


def probabilities(
    driver: Driver, asked: Asked, tokens: Sequence[int], block: int, rank: int, config: DecodingConfig
) -> torch.Tensor:
    """Probabilities (B, V) at the step of that block that decides the places of that rank, decoded without a cache."""
    scaffold, vocabulary = driver.scaffold("plan"), Vocabulary.of(driver.loaded)
    assert scaffold is not None and vocabulary.mask is not None
    first, size = block * config.block_size, config.block_size
    states = []
    for place in range(first, first + size):
        known = place < len(tokens) and scaffold.ranks[place] < rank
        given = scaffold.given[place]
        states.append(given if given >= 0 else tokens[place] if known else vocabulary.mask)
    answer, noisy = torch.tensor(list(tokens[:first]), dtype=torch.int64), torch.tensor(states)
    logits = block_logits(driver.loaded, asked.ids, answer, noisy, asked.pixels, asked.grid, size)
    allowed = scaffold.table(vocabulary.size, logits.device)[first : first + size].clone()
    allowed[:, vocabulary.mask] = False
    return logits.masked_fill(~allowed, -torch.inf).softmax(-1)
