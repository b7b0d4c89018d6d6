"""Schedule, optimiser and the average of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wamdiff2_core.distill.parallel import local, sharded_as
from wamdiff2_core.distill.recipe import Recipe


@dataclass
class Clock:
    """How far the run is: steps done and seconds of training spent, over all sittings, as of the last `tick`."""

    recipe: Recipe
    step: int = 0
    spent_s: float = 0.0
    since: float = 0.0

    def start(self) -> None:
        self.since = time.monotonic()

    def tick(self, agreed: Callable[[float], float] = float) -> None:
        """Look at the time. agreed: rank 0's value; ranks whose clocks differ would do different numbers of steps."""
        if self.since:
            now = time.monotonic()
            self.spent_s, self.since = agreed(self.spent_s + now - self.since), now

    @property
    def seconds(self) -> float:
        return self.spent_s

    @property
    def progress(self) -> float:
        """0 at the start, 1 at whichever limit comes first."""
        by_step = self.step / self.recipe.max_steps if self.recipe.max_steps else 0.0
        by_time = self.seconds / (60.0 * self.recipe.max_minutes) if self.recipe.max_minutes else 0.0
        return min(1.0, max(by_step, by_time))

    def lr_factor(self) -> float:
        """Warm-up, then a cosine down to `final_lr`."""
        floor = self.recipe.final_lr
        warm = min(1.0, (self.step + 1) / max(1, self.recipe.warmup_steps))
        return warm * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * self.progress)))


class Averages:
    """Exponential moving average of the weights: what is evaluated and saved. Each rank has its own shards."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.source = [weight for _, weight in model.named_parameters()]
        self.values = [weight.detach().clone() for weight in self.source]
        # read on the device, so that a captured step sees it
        self._keep = torch.zeros((), device=self.source[0].device)

    def plan(self, step: int) -> None:
        """Before the update of this step: early on the average forgets faster, so as not to carry the random start."""
        self._keep.fill_(min(self.decay, (1.0 + step) / (10.0 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """values = keep * values + (1 - keep) * weights."""
        weights, values = ([local(one.detach()) for one in those] for those in (self.source, self.values))
        gap = torch._foreach_sub(weights, values)
        torch._foreach_mul_(gap, 1.0 - self._keep)
        torch._foreach_add_(values, gap)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values, strict=True))

    @torch.no_grad()
    def load(self, values: dict[str, Tensor] | None) -> None:
        """Whole tensors by name, or None to begin with the weights as they are."""
        for name, mine, weight in zip(self.names, self.values, self.source, strict=True):
            mine.copy_(weight if values is None else sharded_as(values[name], mine))


def part_of(name: str) -> str:
    """ "vision", "merger" (from vision to text, deepstack levels included) or "text", by a weight's name."""
    if ".visual." not in name:
        return "text"
    return "merger" if "merger" in name else "vision"


def optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with a rate for text, vision and merger, and weight decay on matrices but not on vectors and embeddings.

    Each group remembers its full rate as "base". On CUDA the rate is a tensor: a captured step reads it there.
    """
    rates = {"text": recipe.lr, "vision": recipe.vision_lr, "merger": recipe.merger_lr or recipe.vision_lr}
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.setdefault((part_of(name), weight.ndim >= 2 and "embed" not in name), []).append(weight)
    cuda = recipe.device.startswith("cuda")
    parts = [
        {
            "params": weights,
            "base": rates[part],
            "lr": torch.tensor(rates[part], device=recipe.device) if recipe.capture else rates[part],
            "weight_decay": recipe.weight_decay if decays else 0.0,
        }
        for (part, decays), weights in groups.items()
    ]
    return torch.optim.AdamW(parts, lr=recipe.lr, betas=recipe.betas, fused=cuda, capturable=recipe.capture)


def set_rates(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Every group's rate = its base x factor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["base"] * factor)
        else:
            group["lr"] = group["base"] * factor
