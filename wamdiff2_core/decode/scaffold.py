"""Answer scaffolds: what may stand at each position, so that an answer of a fixed format cannot fail to parse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wamdiff2_core.errors import ConfigError


@dataclass(frozen=True)
class Scaffold:
    """Allowed token ids per answer position; None = any token. Positions after the last entry are free.

    A position with a single id is given: it stands there from the start and is never denoised.
    ranks: which positions the rule "ordered" decides first, 0 before 1; empty: this answer has no order.
    """

    allowed: tuple[tuple[int, ...] | None, ...]
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks and (len(self.ranks) != len(self.allowed) or min(self.ranks) < 0):
            raise ConfigError(f"scaffold: expected {len(self.allowed)} ranks from 0 up, got {list(self.ranks)}")
        for position, ids in enumerate(self.allowed):
            if ids is not None and not ids:
                raise ConfigError(f"scaffold position {position}: expected at least one token id, got none")

    @cached_property
    def given(self) -> tuple[int, ...]:
        """Token id of each position that is fixed, -1 elsewhere."""
        return tuple(ids[0] if ids is not None and len(ids) == 1 else -1 for ids in self.allowed)

    @cached_property
    def _tables(self) -> dict[tuple[int, str], Tensor]:
        return {}

    def table(self, vocab_size: int, device: torch.device) -> Tensor:
        """Allowed tokens as bool (positions, vocab_size), built once per vocabulary and device."""
        key = (vocab_size, str(device))
        if key not in self._tables:
            self._tables[key] = self._build(vocab_size).to(device)
        return self._tables[key]

    def _build(self, vocab_size: int) -> Tensor:
        table = torch.ones(len(self.allowed), vocab_size, dtype=torch.bool)
        for position, ids in enumerate(self.allowed):
            if ids is None:
                continue
            if not 0 <= min(ids) <= max(ids) < vocab_size:
                raise ConfigError(f"scaffold position {position}: ids {ids} outside the vocabulary of {vocab_size}")
            table[position] = False
            table[position, list(ids)] = True
        return table
