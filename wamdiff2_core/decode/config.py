"""How to decode: checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wamdiff2_core.errors import ConfigError

RULES = ("dynamic", "static", "sequential", "ordered")
SEEDS = 2**32


@dataclass(frozen=True)
class DecodingConfig:
    """Settings of one `generate` call.

    block_size: tokens denoised together; 1 is autoregressive decoding.
    steps: most denoising steps a block may take; what is still masked then takes the last prediction.
    rule: which predictions a step keeps. "dynamic": all with probability >= threshold, else the single best;
        "static": an equal share of the block, the most probable ones; "sequential": an equal share, left to right;
        "ordered": what the answer's scaffold ranks next (of numbers the leading digits first, so that a digit never
        stands beside one that was guessed apart from it); answers without ranks take the dynamic rule.
    max_new_tokens: most tokens an answer may have, its end token included.
    time_limit_s: wall clock for the whole call; an answer that is not finished by then is "truncated".
    temperature: 0 takes the most probable token (greedy); T > 0 draws from softmax(logits / T).
    seed: of the draws, 0 to 2^32 - 1: the same call with the same seed gives the same answer; None: another each time.
    """

    block_size: int = 32
    steps: int = 8
    rule: str = "dynamic"
    threshold: float = 0.9
    max_new_tokens: int = 64
    time_limit_s: float | None = None
    temperature: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "steps", "max_new_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: expected an integer >= 1, got {value!r}")
        if self.rule not in RULES:
            raise ConfigError(f"rule: expected one of {RULES}, got {self.rule!r}")
        if not _is_number(self.threshold) or not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(f"threshold: expected a number from 0 to 1, got {self.threshold!r}")
        if self.time_limit_s is not None and not (_is_number(self.time_limit_s) and self.time_limit_s > 0.0):
            raise ConfigError(f"time_limit_s: expected None or a number > 0, got {self.time_limit_s!r}")
        if not _is_number(self.temperature) or not 0.0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature: expected a finite number >= 0, got {self.temperature!r}")
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < SEEDS):
            raise ConfigError(f"seed: expected None or an integer from 0 to {SEEDS - 1}, got {self.seed!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
