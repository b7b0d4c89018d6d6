"""Losses from hidden states, a chunk of tokens at a time: logits of all tokens over a large vocabulary never exist.

At 151,936 classes the fp32 logits of 8,192 tokens are 5 GB, and a loss with its gradient holds several such tensors.
Here forward makes logits chunk by chunk and keeps none; backward makes each chunk's logits again, turns them into
their gradient and adds that to the gradients of hidden states and head. Products run in the model's dtype (autocast's
where it is on), everything behind them in fp32, and the head's gradient is summed over chunks in fp32.

Value and gradient are those of the full computation. Weights are constants: no gradient reaches them, nor the teacher.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from wamdiff2_core.distill.divergence import Divergence, wide
from wamdiff2_core.errors import ConfigError


@dataclass(frozen=True)
class _Settings:
    """divergence: which; products of student and teacher run in dtype and teacher_dtype; chunk: tokens at a time."""

    divergence: Divergence
    dtype: torch.dtype
    teacher_dtype: torch.dtype
    chunk: int

    @property
    def wide(self) -> torch.dtype:
        """Of losses and of the head's gradient while it is summed."""
        return torch.promote_types(self.dtype, torch.float32)


@dataclass(frozen=True)
class _Tensors:
    """What backward needs again. hidden (N, H), head (V, H); target and weight (N,) of the cross-entropy, or None;
    teacher_hidden (N, Ht), teacher_head (V, Ht) and distance_weight (N,) of the divergence, or None."""

    hidden: Tensor
    head: Tensor
    target: Tensor | None
    weight: Tensor | None
    teacher_hidden: Tensor | None
    teacher_head: Tensor | None
    distance_weight: Tensor | None

    def chunks(self, settings: _Settings) -> Iterator[tuple[slice, Tensor, Tensor, Tensor | None]]:
        """Of each chunk: which tokens, their hidden states (n, H), logits (n, V) and the teacher's logits (n, V).

        Outputs of dead rows are read as 0, so that NaN there goes nowhere.
        """
        live = _live(self.weight, self.distance_weight)
        head = self.head.to(settings.dtype)
        taught = None if self.distance_weight is None else self.distance_weight > 0
        teacher_head = None if self.teacher_head is None else self.teacher_head.to(settings.teacher_dtype)
        for start in range(0, self.hidden.shape[0], settings.chunk):
            at = slice(start, start + settings.chunk)
            hidden = torch.where(live[at, None], self.hidden[at], 0.0).to(settings.dtype)
            theirs = None
            if self.teacher_hidden is not None and teacher_head is not None and taught is not None:
                outputs = torch.where(taught[at, None], self.teacher_hidden[at], 0.0).to(settings.teacher_dtype)
                theirs = F.linear(outputs, teacher_head)
            yield at, hidden, F.linear(hidden, head), theirs

    def classes(self, at: slice) -> Tensor:
        """(n, 1) target class; an ignored label such as -100 stands in a dead row and may be any class."""
        assert self.target is not None  # only asked for where there is a cross-entropy
        return self.target[at].clamp(min=0)[:, None]


def _live(*weights: Tensor | None) -> Tensor:
    """(N,) bool: any of the weights is above 0."""
    there = [weight > 0 for weight in weights if weight is not None]
    return there[0] if len(there) == 1 else there[0] | there[1]


class _ChunkedLosses(torch.autograd.Function):
    """(cross-entropy (N,), divergence (N,)), each times its weight; zeros for the one that is not asked for."""

    @staticmethod
    def forward(ctx, settings: _Settings, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given)
        ctx.settings = settings
        tensors = _Tensors(*given)
        device = tensors.hidden.device
        count = tensors.hidden.shape[0]
        entropy, distance = (torch.zeros(count, dtype=settings.wide, device=device) for _ in range(2))
        for at, _, logits, theirs in tensors.chunks(settings):
            if tensors.weight is not None:
                loss = F.cross_entropy(wide(logits), tensors.classes(at)[:, 0], reduction="none")
                entropy[at] = loss * tensors.weight[at]
            if theirs is not None and tensors.distance_weight is not None:
                value, _ = settings.divergence.value_and_gradient(logits, theirs, gradient=False)
                distance[at] = value * tensors.distance_weight[at]
        return entropy, distance

    @staticmethod
    @once_differentiable
    def backward(ctx, entropy: Tensor | None, distance: Tensor | None) -> tuple[Tensor | None, ...]:
        """entropy, distance: upstream gradients (N,), None for an output that was not used."""
        tensors, settings = _Tensors(*ctx.saved_tensors), ctx.settings
        _, need_hidden, need_head, *_ = ctx.needs_input_grad
        to_hidden = torch.zeros_like(tensors.hidden) if need_hidden else None
        to_head = torch.zeros_like(tensors.head, dtype=settings.wide) if need_head else None
        entropy, distance = _times(entropy, tensors.weight), _times(distance, tensors.distance_weight)
        if entropy is None and distance is None:
            return (None,) * 8
        with torch.autocast(tensors.hidden.device.type, enabled=False):  # products as in forward, wherever this runs
            head = tensors.head.to(settings.dtype)
            for at, hidden, logits, theirs in tensors.chunks(settings):
                parts = []
                if entropy is not None:
                    parts.append(_entropy_gradient(logits, tensors.classes(at)).mul_(entropy[at, None]))
                if distance is not None and theirs is not None:
                    parts.append(_distance_gradient(settings, logits, theirs).mul_(distance[at, None]))
                gradient = (parts[0] if len(parts) == 1 else parts[0].add_(parts[1])).to(settings.dtype)
                if to_hidden is not None:
                    to_hidden[at] = (gradient @ head).to(to_hidden.dtype)
                if to_head is not None:
                    _add_product(to_head, gradient.t(), hidden)
        to_head = None if to_head is None else to_head.to(tensors.head.dtype)
        return None, to_hidden, to_head, None, None, None, None, None


def _times(upstream: Tensor | None, weight: Tensor | None) -> Tensor | None:
    return None if upstream is None or weight is None else upstream * weight


def _entropy_gradient(logits: Tensor, classes: Tensor) -> Tensor:
    """(n, V): softmax less one at the target class (n, 1)."""
    gradient = wide(logits).softmax(-1)
    return gradient.scatter_add_(-1, classes, gradient.new_full(classes.shape, -1.0))


def _distance_gradient(settings: _Settings, logits: Tensor, theirs: Tensor) -> Tensor:
    _, gradient = settings.divergence.value_and_gradient(logits, theirs, gradient=True)
    assert gradient is not None  # as asked for
    return gradient


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a temporary where the dtypes agree."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def product_dtype(head: Tensor) -> torch.dtype:
    """The dtype in which logits are made: autocast's where it is on, else the head's."""
    device = head.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype


def _losses(tensors: _Tensors, divergence: Divergence, chunk: int) -> tuple[Tensor, Tensor]:
    if chunk < 1:
        raise ConfigError(f"chunk: expected 1 token or more; got {chunk!r}")
    count, classes = tensors.hidden.shape[0], tensors.head.shape[0]
    for name in ("target", "weight", "teacher_hidden", "distance_weight"):
        value = getattr(tensors, name)
        if value is not None and value.shape[0] != count:
            raise ConfigError(f"{name}: expected {count} tokens, as hidden states; got {value.shape[0]}")
    theirs = tensors.head if tensors.teacher_head is None else tensors.teacher_head
    if theirs.shape[0] != classes:
        raise ConfigError(f"teacher_head: expected {classes} classes, as the student's; got {theirs.shape[0]}")
    settings = _Settings(divergence, product_dtype(tensors.head), product_dtype(theirs), chunk)
    return _ChunkedLosses.apply(settings, *(getattr(tensors, field.name) for field in fields(tensors)))


def chunked_cross_entropy(hidden: Tensor, head_weight: Tensor, target: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """(N,) fp32 cross-entropy times weight. hidden (N, H), head_weight (V, H), target (N,), weight (N,)."""
    return _losses(_Tensors(hidden, head_weight, target, weight, None, None, None), Divergence(), chunk)[0]


def chunked_divergence(
    hidden: Tensor,
    head_weight: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Tensor,
    weight: Tensor,
    *,
    kind: str = "jsd",
    temperature: float = 1.0,
    top_k: int = 0,
    chunk: int,
) -> Tensor:
    """(N,) fp32 divergence times weight. hidden (N, H), head_weight (V, H), teacher_hidden (N, Ht), teacher_head
    (V, Ht), weight (N,); the other arguments as in token_divergence."""
    tensors = _Tensors(hidden, head_weight, None, None, teacher_hidden.detach(), teacher_head.detach(), weight)
    return _losses(tensors, Divergence(kind, temperature, top_k), chunk)[1]


def chunked_both(
    hidden: Tensor,
    head_weight: Tensor,
    target: Tensor,
    weight: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Tensor,
    distance_weight: Tensor,
    *,
    kind: str = "jsd",
    temperature: float = 1.0,
    top_k: int = 0,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """chunked_cross_entropy and chunked_divergence of the same tokens, from one pass over the student's logits; each
    has weights of its own."""
    tensors = _Tensors(
        hidden, head_weight, target, weight, teacher_hidden.detach(), teacher_head.detach(), distance_weight
    )
    return _losses(tensors, Divergence(kind, temperature, top_k), chunk)


def select(weight: Tensor) -> Tensor:
    """(M,) indices into the flattened weight of the tokens with a loss, so that only they go through the head.

    Waits for the device, as M is known only there: not for a captured step.
    """
    return (weight.reshape(-1) > 0).nonzero()[:, 0]
