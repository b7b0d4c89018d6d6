"""Step 1 of masked-diffusion training: hide answer tokens, block by block, under the linear noise schedule.

R rows of C answer positions; row r has `length[r]` live positions, a multiple of its block size `block[r]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.errors import ConfigError

T_MIN = 0.02


@dataclass(frozen=True)
class Corruption:
    """noisy (R, C) ids with masks in place; masked (R, C) bool; t (R, C) noise level of each position's block.

    Several draws of the same answers stand side by side in one of (R, K * C).
    """

    noisy: Tensor
    masked: Tensor
    t: Tensor

    @classmethod
    def side_by_side(cls, draws: Sequence[Corruption]) -> Corruption:
        """K corruptions of (R, C) as one."""
        return cls(*(torch.cat([getattr(one, name) for one in draws], 1) for name in ("noisy", "masked", "t")))


def block_noise(
    length: Tensor, block: Tensor, positions: int, t_min: float = T_MIN, generator: torch.Generator | None = None
) -> Tensor:
    """Noise level t (R, C): one draw per block, stratified over the row's blocks, permuted, and only then clamped.

    With n blocks, block k gets U(rank_k / n, (rank_k + 1) / n) for a random permutation of ranks: every row sees low
    and
    high noise. Clamping afterwards keeps 1 / t at most 1 / t_min whatever the stratum.
    """
    if not 0.0 < t_min < 1.0:
        raise ConfigError(f"t_min: expected a value within (0, 1), got {t_min}")
    device, rows = length.device, length.shape[0]
    count = torch.div(length + block - 1, block, rounding_mode="floor")  # (R,) blocks of each row
    slots = positions  # a block of one position is the most there can be
    keys = torch.rand(rows, slots, device=device, generator=generator)
    live = torch.arange(slots, device=device) < count[:, None]
    rank = keys.masked_fill(~live, 2.0).argsort(1).argsort(1)  # a permutation of 0..count-1 over the live blocks
    offset = torch.rand(rows, slots, device=device, generator=generator)
    t = ((rank + offset) / count.clamp(min=1)[:, None]).clamp(t_min, 1.0)
    return t.gather(1, block_index(block, positions))


def block_index(block: Tensor, positions: int) -> Tensor:
    """(R, C): number of the block that each answer position belongs to."""
    return torch.arange(positions, device=block.device)[None] // block[:, None]


def corrupt(
    answer: Tensor,
    length: Tensor,
    given: Tensor,
    block: Tensor,
    mask_token_id: int,
    *,
    t_min: float = T_MIN,
    generator: torch.Generator | None = None,
    ranks: Tensor | None = None,
    ordered_share: float = 0.0,
    part: tuple[int, int] = (0, 1),
) -> Corruption:
    """Mask each free live position with probability t of its block, at least one per block that has a free position.

    answer, given: (R, C); length, block: (R,). Given (scaffold) and dead positions are never masked. ranks (R, C):
    order in which the rule "ordered" decides positions, -1 for none; a share of the rows is masked as it meets them.
    part (k, n): this is draw k of n; together the draws meet early and late steps of that rule equally often.
    """
    rows, positions = answer.shape
    device = answer.device
    t = block_noise(length, block, positions, t_min, generator)
    free = maskable(length, given)
    masked = free & (torch.rand(rows, positions, device=device, generator=generator) < t)
    if ranks is not None and ordered_share > 0.0:
        chosen = torch.rand(rows, 1, device=device, generator=generator) < ordered_share
        late, level = later_ranks(ranks, block, generator, part)
        masked = torch.where(chosen & (ranks >= 0), free & late, masked)
        t = torch.where(chosen & (ranks >= 0), level.clamp(t_min, 1.0), t)
    masked |= first_choice(free, masked, block, generator)
    return Corruption(torch.where(masked, mask_token_id, answer), masked, t)


def later_ranks(
    ranks: Tensor, block: Tensor, generator: torch.Generator | None = None, part: tuple[int, int] = (0, 1)
) -> tuple[Tensor, Tensor]:
    """(R, C) bool: positions of each block from a random rank on, as the rule "ordered" finds them before one of its
    steps; and (R, C) the share of ranks that are still open there. part (k, n): from stratum k of n.
    """
    rows, positions = ranks.shape
    levels = ranks.amax(1, keepdim=True) + 1  # (R, 1)
    point = torch.rand(rows, positions, device=ranks.device, generator=generator).gather(
        1, block_index(block, positions)
    )
    # of each block: so many ranks are decided, never all
    decided = ((point + part[0]) / part[1] * levels).long().minimum(levels - 1)
    return ranks >= decided, (levels - decided) / levels.clamp(min=1)


def maskable(length: Tensor, given: Tensor) -> Tensor:
    """(R, C) bool: live positions that the scaffold does not give."""
    return ~given & (torch.arange(given.shape[1], device=given.device) < length[:, None])


def first_choice(free: Tensor, masked: Tensor, block: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """(R, C) bool: one random free position of every block that has free positions but no mask yet."""
    rows, positions = free.shape
    index = block_index(block, positions)
    score = torch.rand(rows, positions, device=free.device, generator=generator).masked_fill(~free, -1.0)
    best = torch.full_like(score, -1.0).scatter_reduce(1, index, score, "amax")
    hit = torch.zeros_like(score).scatter_reduce(1, index, masked.to(score.dtype), "amax")
    return free & (score == best.gather(1, index)) & (hit.gather(1, index) == 0)


def complement(
    answer: Tensor, corruption: Corruption, length: Tensor, given: Tensor, mask_token_id: int, t_min: float = T_MIN
) -> Corruption:
    """The other half: what was masked is shown and what was shown is masked, so a pair trains every free token once."""
    masked = maskable(length, given) & ~corruption.masked
    return Corruption(torch.where(masked, mask_token_id, answer), masked, (1.0 - corruption.t).clamp(t_min, 1.0))
