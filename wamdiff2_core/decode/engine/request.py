"""What a call asks of each row: one small tensor, sent to the device once, that every pass of the call reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wamdiff2_core.decode.config import RULES, DecodingConfig
from wamdiff2_core.decode.engine.staging import Staged
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError

_SCALARS = ("limit", "held", "prompt", "position", "most", "rule", "threshold", "temperature")
_REMEMBERED = 64  # scaffolds whose sets need not be looked up again


@dataclass(frozen=True)
class RowRequest:
    """One row: most tokens of its answer, tokens the cache holds already, prompt tokens that follow these, rotary

    position of the answer's first token, temperature, scaffold.
    """

    limit: int
    held: int
    prompt: int
    position: int
    temperature: float = 0.0
    scaffold: Scaffold | None = None


class Request:
    """The requests of R rows with answers of up to N places in blocks of B; rows behind the given ones are idle.

    given, rank, sets (R, N) int64: a position's token or -1, its rank or -1, the row of AllowedSets for it. limit (0:
    an idle row), held, prompt, position, most (steps), rule (R,) int64; threshold (R,) fp32; temperature (R,) fp64.
    """

    def __init__(self, rows: int, places: int, block_size: int, device: torch.device) -> None:
        self.rows, self.block_size, self.device = rows, block_size, device
        self.places = -(-places // block_size) * block_size
        self._staged = Staged((rows, 3 * self.places + len(_SCALARS)), torch.int64, device)
        self.clear()

    @property
    def packed(self) -> Tensor:
        """All of it: (R, 3 N + 8) int64, given, rank and sets, then the scalars in the order of their names above."""
        return self._staged.device

    @property
    def given(self) -> Tensor:
        return self._part(0)

    @property
    def rank(self) -> Tensor:
        return self._part(1)

    @property
    def sets(self) -> Tensor:
        return self._part(2)

    @property
    def limit(self) -> Tensor:
        return self._scalar("limit")

    @property
    def held(self) -> Tensor:
        return self._scalar("held")

    @property
    def prompt(self) -> Tensor:
        return self._scalar("prompt")

    @property
    def position(self) -> Tensor:
        return self._scalar("position")

    @property
    def most(self) -> Tensor:
        return self._scalar("most")

    @property
    def rule(self) -> Tensor:
        return self._scalar("rule")

    @property
    def threshold(self) -> Tensor:
        return self._scalar("threshold").view(torch.float64).float()

    @property
    def temperature(self) -> Tensor:
        return self._scalar("temperature").view(torch.float64)

    def load(self, rows: Sequence[RowRequest], config: DecodingConfig, sets: AllowedSets) -> None:
        """Send the rows of a call. Raises ConfigError for what does not fit."""
        longest = max(row.limit for row in rows)
        if longest > self.places:
            raise ConfigError(f"max_new_tokens: the engine was made for at most {self.places}, got {longest}")
        host = self._staged.host
        self._fill(host)
        at = 3 * self.places
        for number, row in enumerate(rows):
            numbers = [row.limit, row.held, row.prompt, row.position, config.steps, RULES.index(config.rule)]
            host[number, at : at + len(numbers)] = torch.tensor(numbers)
            real = torch.tensor([config.threshold, row.temperature], dtype=torch.float64)
            host[number, at + len(numbers) :] = real.view(torch.int64)
            if row.scaffold is not None:
                self._scaffold(host[number], row.scaffold, sets)
        self._staged.send()

    def clear(self) -> None:
        """All rows are idle."""
        self._fill(self._staged.host)
        self._staged.send()

    def _scaffold(self, host: Tensor, scaffold: Scaffold, sets: AllowedSets) -> None:
        table = sets.table_of(scaffold)[:, : self.places]
        host[: 3 * self.places].view(3, self.places)[:, : table.shape[1]] = table

    def _fill(self, host: Tensor) -> None:
        host.zero_()
        host[:, : 2 * self.places] = -1
        host[:, 3 * self.places + _SCALARS.index("most")] = 1

    def _part(self, number: int) -> Tensor:
        return self._staged.device[:, number * self.places : (number + 1) * self.places]

    def _scalar(self, name: str) -> Tensor:
        return self._staged.device[:, 3 * self.places + _SCALARS.index(name)]


class AllowedSets:
    """bits (S, ceil(V / 32)) int32: sets of token ids as `Ops.choose` reads them. Set 0 holds all ids."""

    def __init__(self, vocab_size: int, device: torch.device, count: int = 256) -> None:
        self._vocab_size = vocab_size
        self.bits = torch.zeros(count, -(-vocab_size // 32), dtype=torch.int32, device=device)
        self.bits[0] = -1
        self._numbers: dict[tuple[int, ...], int] = {}
        self._scaffolds: dict[int, tuple[Scaffold, Tensor]] = {}

    def table_of(self, scaffold: Scaffold) -> Tensor:
        """Given token, rank and number of the set (3, positions) of each position, -1 for no token and no rank.

        Sets of calls that have ended may give way to new ones.
        """
        known = self._scaffolds.get(id(scaffold))
        if known is None:
            if len(self._scaffolds) >= _REMEMBERED:
                self._scaffolds.clear()
            ranks = scaffold.ranks or (-1,) * len(scaffold.allowed)
            numbers = [self._number(ids, position) for position, ids in enumerate(scaffold.allowed)]
            known = (scaffold, torch.tensor([scaffold.given, ranks, numbers], dtype=torch.int64))
            self._scaffolds[id(scaffold)] = known  # keeps the scaffold, and so its id
        return known[1]

    def make_room(self, scaffolds: Sequence[Scaffold | None]) -> None:
        """Before a call: forget all sets if those of its scaffolds might not fit. ConfigError if they never do."""
        new = {ids for one in scaffolds if one and id(one) not in self._scaffolds for ids in one.allowed if ids}
        if 1 + len(self._numbers) + len(new - self._numbers.keys()) <= len(self.bits):
            return
        wanted = {ids for one in scaffolds if one for ids in one.allowed if ids}
        if 1 + len(wanted) > len(self.bits):
            raise ConfigError(f"scaffold: expected at most {len(self.bits) - 1} different sets, got {len(wanted)}")
        self._numbers.clear()
        self._scaffolds.clear()

    def _number(self, ids: tuple[int, ...] | None, position: int) -> int:
        if ids is None:
            return 0
        if ids not in self._numbers:
            if not 0 <= min(ids) <= max(ids) < self._vocab_size:
                raise ConfigError(
                    f"scaffold position {position}: ids {ids} outside the vocabulary of {self._vocab_size}"
                )
            words = torch.zeros(self.bits.shape[1], dtype=torch.int64)
            for token in set(ids):
                words[token // 32] |= 1 << (token % 32)
            number = 1 + len(self._numbers)
            self.bits[number] = words.to(torch.int32)  # the low 32 bits, as they are
            self._numbers[ids] = number
        return self._numbers[ids]
