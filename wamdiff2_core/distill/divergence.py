"""How far a student's token distribution is from its teacher's, in fp32, a value per token.

p is the student's distribution, q the teacher's, both softmax(logits / temperature) over V classes.

- "jsd": Jensen-Shannon divergence 0.5 KL(p || m) + 0.5 KL(q || m), m = (p + q) / 2, in nats, between 0 and ln 2
  (J. Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Inf. Theory 37(1), 1991, equal weights).
  WAM-Diff2 (arXiv 2608.01035) distils masked tokens with it: a block student from a smaller-block or larger teacher.
- "forward_kl": KL(q || p), the classical choice (Hinton, Vinyals, Dean 2015, arXiv 1503.02531), unbounded.

With `top_k` both distributions are first coarsened to the teacher's k likeliest classes and one bucket that holds the
rest. That is a proper divergence of the coarsened distributions and, by the data processing inequality, never more
than the full one.

Gradients go to the student only and are computed in closed form beside the value: with h = d value / d log p they are
h - p * sum(h), which needs no division by p and so stays finite at any logits. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from wamdiff2_core.errors import ConfigError

# exp of it is 0 in fp32 and fp64, so it changes no probability; it stands for -inf, whose differences would be NaN.
FLOOR = -1e4


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Value (...,) and its slope to log p (..., V). Both are exactly 0 for equal arguments, and the value is symmetric
    to the last bit: log m is written as the larger of the two plus u, so nothing large is subtracted.

    The slope to log p is 0.5 p (log p - log m), likewise for q, and the value is the sum of all these slopes.
    In place where it can be: over a large vocabulary each (..., V) tensor counts.
    """
    gap = log_q - log_p
    u = gap.abs().neg_().expm1_().mul_(0.5).log1p_()  # log m - max(log p, log q), between -ln 2 and 0
    slope = gap.relu().add_(u).mul_(log_p.exp()).mul_(-0.5)
    other = gap.neg_().relu_().add_(u).mul_(log_q.exp()).mul_(-0.5)
    return other.add_(slope).sum(-1), slope


def forward_kl(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """KL(q || p) (...,) and its slope to log p (..., V), which is -q."""
    q = log_q.exp()
    return (log_q - log_p).mul_(q).sum(-1), q.neg_()


KINDS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "jsd": jensen_shannon,
    "forward_kl": forward_kl,
}
DIVERGENCES = tuple(KINDS)


@dataclass(frozen=True)
class Divergence:
    """Which divergence: kind, temperature of both softmaxes, top_k (0: all classes). No factor T^2 is applied."""

    kind: str = "jsd"
    temperature: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"divergence: expected one of {', '.join(DIVERGENCES)}; got {self.kind!r}")
        if not (math.isfinite(self.temperature) and self.temperature > 0.0):
            raise ConfigError(f"temperature: expected a finite number above 0; got {self.temperature!r}")
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise ConfigError(f"top_k: expected a whole number, 0 (all classes) or more; got {self.top_k!r}")

    def value_and_gradient(self, student: Tensor, teacher: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Value (...,) and, if asked for, its gradient (..., V) to the student's logits; plain tensors, no graph."""
        log_p, log_q = self._log_softmax(student), self._log_softmax(teacher)
        if 0 < self.top_k < student.shape[-1]:
            value, slope, total = self._coarsened(log_p, log_q, gradient)
        else:
            value, slope = KINDS[self.kind](log_p, log_q)
            total = slope.sum(-1, keepdim=True)
        if not gradient:
            return value, None
        return value, slope.sub_(log_p.exp_().mul_(total)).div_(self.temperature)

    def _log_softmax(self, logits: Tensor) -> Tensor:
        scaled = wide(logits) if self.temperature == 1.0 else wide(logits) / self.temperature
        return torch.log_softmax(scaled, -1).clamp_(min=FLOOR)

    def _coarsened(self, log_p: Tensor, log_q: Tensor, gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Value (...,), slope to log p (..., V) and its total (..., 1), over the teacher's top k and the rest."""
        chosen = log_q.topk(self.top_k, dim=-1, sorted=False).indices
        inside = torch.zeros_like(log_q, dtype=torch.bool).scatter_(-1, chosen, True)
        parts = []
        for log in (log_p, log_q):
            rest = log.masked_fill(inside, -math.inf).logsumexp(-1, keepdim=True)
            parts.append(torch.cat([log.gather(-1, chosen), rest], -1))
        value, slope = KINDS[self.kind](parts[0], parts[1])
        total = slope.sum(-1, keepdim=True)
        if gradient:  # a class of the rest carries its share of the bucket's slope
            share = (log_p - parts[0][..., -1:]).exp() * slope[..., -1:]
            slope = share.scatter_(-1, chosen, slope[..., :-1])
        return value, slope, total


class _TokenDivergence(torch.autograd.Function):
    """Keeps one (..., V) tensor for backward: the gradient of each token's value."""

    @staticmethod
    def forward(ctx, student: Tensor, teacher: Tensor, divergence: Divergence) -> Tensor:
        ctx.dtype = student.dtype
        value, gradient = divergence.value_and_gradient(student, teacher, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[..., None]).to(ctx.dtype), None, None


def wide(x: Tensor) -> Tensor:
    """fp32, or fp64 where it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def token_divergence(
    student: Tensor, teacher: Tensor, kind: str = "jsd", temperature: float = 1.0, top_k: int = 0
) -> Tensor:
    """Divergence of each token: (N,) fp32 from logits (N, V), likewise for more leading dimensions.

    -inf logits (banned tokens) are fine; with "forward_kl" a token that only the student bans counts as log p = -1e4.
    Raises ConfigError for an unknown kind, a bad temperature or top_k, or logits of different shapes.
    """
    if student.shape != teacher.shape:
        raise ConfigError(
            f"divergence: expected logits of one shape; got student {tuple(student.shape)}, "
            f"teacher {tuple(teacher.shape)}"
        )
    return _TokenDivergence.apply(student, teacher.detach(), Divergence(kind, temperature, top_k))


def weighted_divergence(
    student: Tensor,
    teacher: Tensor,
    weight: Tensor,
    kind: str = "jsd",
    temperature: float = 1.0,
    top_k: int = 0,
) -> Tensor:
    """token_divergence times weight (...,); where the weight is 0 nothing flows, not even NaN."""
    live = (weight > 0)[..., None]
    student, teacher = torch.where(live, student, 0.0), torch.where(live, teacher, 0.0)
    return token_divergence(student, teacher, kind, temperature, top_k) * weight
