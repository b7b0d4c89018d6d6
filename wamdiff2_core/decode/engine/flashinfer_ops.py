"""The engine's functions on FlashInfer's kernels. The only file that imports flashinfer.

Attention there is planned on the host: `plan` takes the page table and limits of a pass as host tensors and must be
called before every pass whose lengths or pages differ from the last plan's; `attend` only runs what was planned. A
captured pass stays bound to its buffers, so the plan changes what a replay does, and to its kind of mask.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.decode.engine.flashinfer_checks import Finding, findings, first_obstacle
from wamdiff2_core.decode.engine.ops import Choice, Shape, TorchOps
from wamdiff2_core.errors import ConfigError

HEAD_DIMS = (64, 128, 256)
GROUPS = (1, 2, 4, 8)
WORKSPACE_BYTES = 128 * 2**20
Mode = Literal["full", "causal", "mask"]
"""What the tokens of a row see: all places; one place more each, the last all; any limits, as a mask of bits."""


def here() -> list[Finding]:
    """The checks of this machine."""
    return findings(torch.cuda.get_device_capability() if torch.cuda.is_available() else None)


def ready() -> bool:
    """Whether FlashInfer can be used here, its kernels compiled or not."""
    return first_obstacle(here()) is None


def check_shape(shape: Shape) -> None:
    """ConfigError for heads that FlashInfer's kernels are not made for."""
    if shape.head_dim not in HEAD_DIMS:
        raise ConfigError(f"flashinfer: expected a head size of {HEAD_DIMS}, got {shape.head_dim}")
    group, rest = divmod(shape.heads, shape.kv_heads)
    if rest or group not in GROUPS:
        raise ConfigError(
            f"flashinfer: expected {GROUPS} query heads for each key head, got {shape.heads} for {shape.kv_heads}"
        )


@dataclass(frozen=True)
class Layout:
    """A pass as FlashInfer is told of it, all on the host: R rows of equal width.

    starts, page_starts (R + 1,), pages, last (R,) int32; mode; for "mask": bits (bytes,) uint8, every row's from a byte
    on, and bit_starts (R + 1,) int32, where each row's bytes begin.
    """

    starts: Tensor
    page_starts: Tensor
    pages: Tensor
    last: Tensor
    mode: Mode
    bits: Tensor
    bit_starts: Tensor


def layout(pages: Tensor, limit: Tensor, page_size: int, mode: Mode | None = None) -> Layout:
    """Lay out a pass. pages (R, P) int32 and limit (T,) int32 on the host, as in Ops.attend.

    mode: the kind of mask, None: the simplest that fits. ConfigError for limits that the asked kind cannot express or
    the table has no pages for.
    """
    rows = len(pages)
    limits = limit.view(rows, -1).numpy()
    longest = limits.max(1)
    if longest.max() > pages.shape[1] * page_size:
        raise ConfigError(f"flashinfer: a limit of {longest.max()} for {pages.shape[1]} pages of {page_size}")
    fitting = mode_of(limits)
    if mode is not None and mode != "mask" and mode != fitting and not (limits.shape[1] == 1 and limits.min() > 0):
        raise ConfigError(f"flashinfer: planned as {mode}, but these limits are {fitting}")
    seen = np.maximum(longest, 1)  # a row that sees nothing reads one place and is blanked afterwards
    counts = -(-seen // page_size)
    chosen = mode or fitting
    packed = [
        np.packbits(np.arange(places) < row[:, None], axis=None, bitorder="little")
        for row, places in zip(limits, seen)
        if chosen == "mask"
    ]
    return Layout(
        starts=_steps([limits.shape[1]] * rows),
        page_starts=_steps(counts),
        pages=torch.cat([pages[row, :count] for row, count in enumerate(counts)]).to(torch.int32),
        last=torch.tensor(seen - (counts - 1) * page_size, dtype=torch.int32),
        mode=chosen,
        bits=torch.from_numpy(np.concatenate(packed)) if packed else torch.empty(0, dtype=torch.uint8),
        bit_starts=_steps([len(one) for one in packed] or [0] * rows),
    )


def mode_of(limits: np.ndarray) -> Mode:
    """The simplest kind of mask for limits (R, W)."""
    if limits.min() > 0 and (limits == limits[:, :1]).all():
        return "full"
    if limits.min() > 0 and (np.diff(limits, axis=1) == 1).all():
        return "causal"
    return "mask"


def _steps(counts: Any) -> Tensor:
    return torch.tensor(np.concatenate(([0], np.cumsum(counts))), dtype=torch.int32)


@dataclass
class _Planned:
    """One wrapper with its buffers, and when the host may write into its plan again."""

    wrapper: Any
    bits: Tensor
    bit_starts: Tensor
    out: Tensor
    copied: torch.cuda.Event | None = None


class FlashInferOps:
    """See Ops. rows, tokens, places: the most of each that a pass has; buffers are made for them.

    Raises ConfigError, with the way out, where FlashInfer cannot be used.
    """

    name = "flashinfer"

    def __init__(
        self, page_size: int, *, rows: int, tokens: int, places: int, dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda", act: str = "silu",
    ) -> None:  # fmt: skip
        if act != "silu":
            raise ValueError(f"activation: expected silu, got {act}")
        if dtype not in (torch.bfloat16, torch.float16):
            raise ConfigError(f"flashinfer: expected bfloat16 or float16, got {dtype}")
        obstacle = first_obstacle(here())
        if obstacle is not None:
            raise ConfigError(f"flashinfer: {obstacle.name}: {obstacle.found}; {obstacle.do}")
        import flashinfer

        self._api: Any = flashinfer
        self.page_size, self.dtype, self.device = page_size, dtype, torch.device(device)
        self._rows, self._tokens, self._places = rows, tokens, places
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._order = torch.arange(max(tokens, places), dtype=torch.int32, device=device)
        self._ones: dict[int, Tensor] = {}
        self._twin = TorchOps(page_size)
        self._plans: dict[tuple[int, int, Mode], _Planned] = {}
        self._current: dict[tuple[int, int], Mode] = {}

    def plan(self, pages: Tensor, limit: Tensor, shape: Shape, mode: Mode | None = None) -> Mode:
        """Set what `attend` does from now on for passes of as many rows and tokens. Returns the kind of mask.

        pages (R, P), limit (T,): int32 on the host. mode: the kind that a captured pass has; a replay must be planned
        with the kind it was captured with. Waits until the plan before has reached the device, for nothing else.
        """
        check_shape(shape)
        rows, tokens = len(pages), len(limit)
        if rows > self._rows or tokens > self._tokens:
            raise ConfigError(
                f"flashinfer: planned for {self._rows} rows and {self._tokens} tokens, got {rows} and {tokens}"
            )
        told = layout(pages, limit, self.page_size, mode)
        key = (rows, tokens // rows, told.mode)
        planned = self._plans.get(key) or self._plans.setdefault(key, self._make(*key, shape))
        if planned.copied is not None:
            planned.copied.synchronize()  # the plan lies in pinned memory that the device may still be reading
        masked = told.mode == "mask"
        planned.wrapper.plan(
            told.starts, told.page_starts, told.pages.to(self.device), told.last, shape.heads, shape.kv_heads,
            shape.head_dim, self.page_size, causal=told.mode == "causal", sm_scale=shape.scale,
            q_data_type=self.dtype, kv_data_type=self.dtype,
            packed_custom_mask=told.bits.to(self.device) if masked else None,
        )  # fmt: skip
        if masked:
            # Given packed bits, FlashInfer counts where rows begin in bits; its kernels count bytes.
            planned.bit_starts.copy_(told.bit_starts)
        if self.device.type == "cuda":
            planned.copied = torch.cuda.Event()
            planned.copied.record()
        self._current[key[:2]] = told.mode
        return told.mode

    def _make(self, rows: int, width: int, mode: Mode, shape: Shape) -> _Planned:
        """A wrapper with buffers of its own for passes of one form."""
        device, most = self.device, -(-self._places // self.page_size)
        bits = torch.zeros(rows * (width * most * self.page_size // 8 + 1), dtype=torch.uint8, device=device)
        starts = [torch.zeros(rows + 1, dtype=torch.int32, device=device) for _ in range(3)]
        masks = {"custom_mask_buf": bits, "mask_indptr_buf": starts[2]} if mode == "mask" else {}
        wrapper = self._api.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_cuda_graph=True, qo_indptr_buf=starts[0], paged_kv_indptr_buf=starts[1],
            paged_kv_indices_buf=torch.zeros(rows * most, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buf=torch.ones(rows, dtype=torch.int32, device=device), backend="fa2", **masks,
        )  # fmt: skip
        # Without an output to write to, the library fills a new one with zeros first.
        out = torch.empty(rows * width, shape.heads, shape.head_dim, dtype=self.dtype, device=device)
        return _Planned(wrapper, bits, starts[2], out)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, limit: Tensor, shape: Shape) -> Tensor:
        form = (len(pages), len(q) // len(pages))
        mode = self._current.get(form)
        if mode is None:
            raise ConfigError(f"flashinfer: no plan for {form[0]} rows of {form[1]} tokens: call plan() first")
        caches = tuple(one.view(-1, self.page_size, shape.kv_heads, shape.head_dim) for one in (keys, values))
        planned = self._plans[*form, mode]
        out = planned.wrapper.run(q, caches, out=planned.out)
        if mode == "mask":  # others hold no token that sees nothing
            out = out.masked_fill((limit == 0)[:, None, None], 0.0)
        return out.view(len(q), -1)

    def rotate_append(
        self, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor, values: Tensor,
        shape: Shape,
    ) -> Tensor:  # fmt: skip
        size, tokens = shape.head_dim, len(qkv)
        heads = qkv.view(tokens, -1, size)
        turning = heads[:, : shape.heads + shape.kv_heads]
        # One weight a call is what the norm kernel takes; heads have one each here.
        qk = self._api.rmsnorm(turning.reshape(-1, size), self._unweighted(size), shape.eps).view_as(turning)
        qk = qk * head_norm
        query, key = qk[:, : shape.heads].reshape(tokens, -1), qk[:, shape.heads :].reshape(tokens, -1)
        turns = torch.cat((cos[:, : size // 2], sin[:, : size // 2]), -1).float()
        self._api.apply_rope_with_cos_sin_cache_inplace(self._order[:tokens], query, key, size, turns)
        keys.index_copy_(0, slot, key.view(tokens, -1, size))
        values.index_copy_(0, slot, heads[:, shape.heads + shape.kv_heads :])
        return query.view(tokens, -1, size)

    def _unweighted(self, width: int) -> Tensor:
        """Ones (width,): the weights of norms are folded into what follows them."""
        if width not in self._ones:
            self._ones[width] = torch.ones(width, dtype=self.dtype, device=self.device)
        return self._ones[width]

    def norm_linear(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.linear(self._api.rmsnorm(x, self._unweighted(x.shape[1]), eps), weight)

    def project(
        self, x: Tensor, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor,
        values: Tensor, shape: Shape,
    ) -> Tensor:  # fmt: skip
        return self.rotate_append(self.norm_linear(x, qkv, shape.eps), head_norm, cos, sin, slot, keys, values, shape)

    def linear_add(self, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return torch.addmm(residual, x, weight.T)

    def gated(self, x: Tensor, gate_up: Tensor, eps: float) -> Tensor:
        return self._api.silu_and_mul(self.norm_linear(x, gate_up, eps))

    def choose(self, x: Tensor, head: Tensor, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        return self._twin.choose(x, head, allowed, forbidden, eps)


def build(head_dims: tuple[int, ...] = (128,), page_size: int = 16) -> Iterator[tuple[str, float]]:
    """Compile every kernel now by using each once on a small input: (what, seconds) as they get done.

    Raises ConfigError where something stands in the way.
    """
    for size in head_dims:
        shape = Shape(2, 1, size, size**-0.5, 1e-6)
        ops = FlashInferOps(page_size, rows=1, tokens=4, places=2 * page_size)
        x = torch.ones(4, 4 * size, dtype=ops.dtype, device=ops.device)
        keys, values = (torch.zeros(3 * page_size, 1, size, dtype=ops.dtype, device=ops.device) for _ in range(2))
        pages, turns = torch.tensor([[1, 2]], dtype=torch.int32), x[:, :size]
        slot = torch.arange(4, device=ops.device) + page_size
        began = time.perf_counter()
        q = ops.rotate_append(x, x[:3, :size].contiguous(), turns, turns, slot, keys, values, shape)
        ops.gated(x, torch.ones(16, 4 * size, dtype=ops.dtype, device=ops.device), 1e-6)
        torch.cuda.synchronize()
        yield f"norm, rotation, activation (heads of {size})", time.perf_counter() - began
        for limits in ([4, 4, 4, 4], [1, 2, 3, 4], [1, 1, 4, 0]):
            began = time.perf_counter()
            limit = torch.tensor(limits, dtype=torch.int32)
            mode = ops.plan(pages, limit, shape)
            ops.attend(q, keys, values, pages.to(ops.device), limit.to(ops.device), shape)
            torch.cuda.synchronize()
            yield f"attention, {mode} (heads of {size})", time.perf_counter() - began
