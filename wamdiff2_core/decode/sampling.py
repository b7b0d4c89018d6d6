"""Random numbers for drawing tokens: one generator a row, so that a row's answer does not depend on its batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from wamdiff2_core.decode.config import SEEDS, DecodingConfig

_BETWEEN_ROWS = 0x9E3779B1  # odd, so that all rows of a call have different seeds


def row_seed(seed: int, row: int) -> int:
    """Seed of row `row` of a call with `seed`: that row alone, called with this seed, draws the same tokens."""
    return (seed + row * _BETWEEN_ROWS) % SEEDS


class Sampler:
    """One uniform number per row, denoising step and block position, the same on every device.

    A row draws for the whole block in each of its own steps and never while others go on without it, so its numbers
    depend on its seed and its own history only.
    """

    def __init__(self, config: DecodingConfig, rows: int) -> None:
        seed = secrets.randbelow(SEEDS) if config.seed is None else config.seed
        self._generators = [torch.Generator().manual_seed(row_seed(seed, row)) for row in range(rows)]

    def uniforms(self, rows: Sequence[int], masked: Tensor) -> Tensor:
        """Numbers in [0, 1), (R, B) float64, for these rows of the call; rows with nothing masked (R, B) take none."""
        numbers = torch.zeros(masked.shape, dtype=torch.float64)
        for index, (row, moves) in enumerate(zip(rows, masked.any(1).tolist(), strict=True)):
            if moves:
                numbers[index] = self.next(row, masked.shape[1])
        return numbers.to(masked.device)

    def next(self, row: int, width: int) -> Tensor:
        """The numbers (width,) of a row's next step."""
        return torch.rand(width, dtype=torch.float64, generator=self._generators[row])


def sampler_of(config: DecodingConfig, temperatures: Sequence[float]) -> Sampler | None:
    """What a call whose rows have these temperatures draws from; None when all are greedy."""
    return Sampler(config, len(temperatures)) if max(temperatures) > 0.0 else None


def draw(logits: Tensor, uniforms: Tensor, temperature: Tensor) -> Tensor:
    """Tokens (R, W) from softmax(logits / temperature) over (R, W, V), by inverse distribution: one number a token.

    temperature (R,), 0 takes the most probable token. A token whose logit is -inf is never drawn. float64, because a
    float32 sum over a large vocabulary would round rare tokens away.
    """
    best = logits.max(-1, keepdim=True)
    heat = temperature.double()[:, None, None]
    below = torch.exp((logits - best.values).double() / torch.where(heat > 0.0, heat, 1.0)).cumsum(-1)
    target = uniforms[..., None] * below[..., -1:]
    drawn = torch.searchsorted(below, target, right=True)[..., 0].clamp(max=logits.shape[-1] - 1)
    return torch.where(temperature[:, None] > 0.0, drawn, best.indices[..., 0])
