"""Losses from hidden states, a chunk of tokens at a time: logits of all tokens over a large vocabulary never exist.

At 151,936 classes the fp32 logits of 8,192 tokens are 5 GB, and a loss with its gradient holds several such tensors.
Here forward makes logits chunk by chunk and keeps none; backward makes each chunk's logits again, turns them into
their gradient and adds that to the gradients of hidden states and head. Products run in the model's dtype (autocast's
where it is on), everything behind them in fp32, and the head's gradient is summed over chunks in fp32.

Value and gradient are those of the full computation. Weights are constants: no gradient reaches them, nor the teacher.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from wamdiff2_core.distill.divergence import Divergence, wide
from wamdiff2_core.errors import ConfigError


@dataclass(frozen=True)
class _Frozen:
    """The frozen side: hidden (N, Ht), head (V, Ht), and how far from it is measured."""

    hidden: Tensor
    head: Tensor
    divergence: Divergence


@dataclass(frozen=True)
class _Inputs:
    """What forward and backward share; dead rows' hidden states are read as 0, so that NaN there goes nowhere."""

    hidden: Tensor
    head: Tensor
    weight: Tensor
    target: Tensor | None
    teacher_hidden: Tensor | None
    teacher_head: Tensor | None
    divergence: Divergence
    dtype: torch.dtype
    teacher_dtype: torch.dtype
    chunk: int

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor | None]]:
        """Of each chunk: which tokens, their hidden states (n, H), logits (n, V) and the teacher's logits (n, V)."""
        head = self.head.to(self.dtype)
        teacher_head = None if self.teacher_head is None else self.teacher_head.to(self.teacher_dtype)
        for start in range(0, self.hidden.shape[0], self.chunk):
            tokens = slice(start, start + self.chunk)
            hidden = self._rows(self.hidden, tokens, self.dtype)
            theirs = None
            if self.teacher_hidden is not None and teacher_head is not None:
                theirs = F.linear(self._rows(self.teacher_hidden, tokens, self.teacher_dtype), teacher_head)
            yield tokens, hidden, F.linear(hidden, head), theirs

    def _rows(self, hidden: Tensor, tokens: slice, dtype: torch.dtype) -> Tensor:
        return torch.where(self.weight[tokens, None] > 0, hidden[tokens], 0.0).to(dtype)

    def classes(self, tokens: slice) -> Tensor:
        """(n, 1) target class; an ignored label such as -100 stands in a dead row and may be any class."""
        assert self.target is not None  # only asked for where there is a cross-entropy
        return self.target[tokens].clamp(min=0)[:, None]


class _ChunkedLosses(torch.autograd.Function):
    """(cross-entropy (N,), divergence (N,)), each times weight; zeros for the one that is not asked for."""

    @staticmethod
    def forward(ctx, hidden, head, weight, target, teacher_hidden, teacher_head, settings):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, head, weight, target, teacher_hidden, teacher_head)
        ctx.settings = settings
        inputs = _Inputs(hidden, head, weight, target, teacher_hidden, teacher_head, *settings)
        dtype = torch.promote_types(inputs.dtype, torch.float32)
        entropy, distance = (torch.zeros(hidden.shape[0], dtype=dtype, device=hidden.device) for _ in range(2))
        with torch.autocast(hidden.device.type, enabled=False):
            for tokens, _, logits, theirs in inputs.chunks():
                scale = weight[tokens]
                if target is not None:
                    loss = F.cross_entropy(wide(logits), inputs.classes(tokens)[:, 0], reduction="none")
                    entropy[tokens] = loss * scale
                if theirs is not None:
                    value, _ = inputs.divergence.value_and_gradient(logits, theirs, gradient=False)
                    distance[tokens] = value * scale
        return entropy, distance

    @staticmethod
    @once_differentiable
    def backward(ctx, entropy_upstream: Tensor | None, distance_upstream: Tensor | None):
        inputs = _Inputs(*ctx.saved_tensors, *ctx.settings)
        need_hidden, need_head = ctx.needs_input_grad[:2]
        to_hidden = torch.zeros_like(inputs.hidden) if need_hidden else None
        total = torch.promote_types(inputs.dtype, torch.float32)
        to_head = torch.zeros_like(inputs.head, dtype=total) if need_head else None
        with torch.autocast(inputs.hidden.device.type, enabled=False):
            head = inputs.head.to(inputs.dtype)
            for tokens, hidden, logits, theirs in inputs.chunks():
                upstream = [
                    None if part is None else (part[tokens] * inputs.weight[tokens])[:, None]
                    for part in (entropy_upstream, distance_upstream)
                ]
                gradient = _logit_gradient(inputs, tokens, logits, theirs, upstream).to(inputs.dtype)
                if to_hidden is not None:
                    to_hidden[tokens] = (gradient @ head).to(to_hidden.dtype)
                if to_head is not None:
                    to_head += gradient.t() @ hidden
        return to_hidden, None if to_head is None else to_head.to(inputs.head.dtype), None, None, None, None, None


def _logit_gradient(
    inputs: _Inputs, tokens: slice, logits: Tensor, theirs: Tensor | None, upstream: list[Tensor | None]
) -> Tensor:
    """(n, V) gradient of a chunk's logits in fp32. upstream: (n, 1) of cross-entropy and of divergence, weighted."""
    for_entropy, for_distance = upstream
    gradient = None
    if for_entropy is not None and inputs.target is not None:
        gradient = wide(logits).softmax(-1)
        gradient.scatter_add_(-1, inputs.classes(tokens), -torch.ones_like(gradient[:, :1])).mul_(for_entropy)
    if for_distance is not None and theirs is not None:
        _, slope = inputs.divergence.value_and_gradient(logits, theirs, gradient=True)
        assert slope is not None  # asked for
        slope.mul_(for_distance)
        gradient = slope if gradient is None else gradient.add_(slope)
    return torch.zeros_like(wide(logits)) if gradient is None else gradient


def product_dtype(head: Tensor) -> torch.dtype:
    """The dtype in which logits are made: autocast's where it is on, else the head's."""
    device = head.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.dtype


def _losses(
    hidden: Tensor, head: Tensor, weight: Tensor, target: Tensor | None, teacher: _Frozen | None, chunk: int
) -> tuple[Tensor, Tensor]:
    if chunk < 1:
        raise ConfigError(f"chunk: expected 1 token or more; got {chunk!r}")
    expected = {"weight": weight, "target": target, "teacher_hidden": None if teacher is None else teacher.hidden}
    for name, value in expected.items():
        if value is not None and value.shape[0] != hidden.shape[0]:
            raise ConfigError(f"{name}: expected {hidden.shape[0]} tokens as in hidden; got {value.shape[0]}")
    if teacher is None:
        settings = (Divergence(), product_dtype(head), torch.float32, chunk)
        return _ChunkedLosses.apply(hidden, head, weight, target, None, None, settings)
    if teacher.head.shape[0] != head.shape[0]:
        raise ConfigError(f"teacher_head: expected {head.shape[0]} classes; got {teacher.head.shape[0]}")
    settings = (teacher.divergence, product_dtype(head), product_dtype(teacher.head), chunk)
    return _ChunkedLosses.apply(hidden, head, weight, target, teacher.hidden.detach(), teacher.head.detach(), settings)


def chunked_cross_entropy(hidden: Tensor, head_weight: Tensor, target: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """(N,) fp32 cross-entropy times weight. hidden (N, H), head_weight (V, H), target (N,), weight (N,)."""
    return _losses(hidden, head_weight, weight, target, None, chunk)[0]


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
    teacher = _Frozen(teacher_hidden, teacher_head, Divergence(kind, temperature, top_k))
    return _losses(hidden, head_weight, weight, None, teacher, chunk)[1]


def chunked_both(
    hidden: Tensor,
    head_weight: Tensor,
    target: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Tensor,
    weight: Tensor,
    *,
    kind: str = "jsd",
    temperature: float = 1.0,
    top_k: int = 0,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """chunked_cross_entropy and chunked_divergence of the same tokens, from one pass over the student's logits."""
    teacher = _Frozen(teacher_hidden, teacher_head, Divergence(kind, temperature, top_k))
    return _losses(hidden, head_weight, weight, target, teacher, chunk)


def select(weight: Tensor) -> Tensor:
    """(M,) indices into the flattened weight of the tokens with a loss, so that only they go through the head.

    Waits for the device, as M is known only there: not for a captured step.
    """
    return (weight.reshape(-1) > 0).nonzero()[:, 0]
