"""The engine's functions on FlashInfer's kernels. The only file that imports flashinfer.

Attention there is planned on the host. For the engine (see `ops.Planner`) `plan_passes` plans a call's forms of passes
by the pages of its rows, before the first launch and whenever they have others; `begin` writes what a pass's tokens see
on the device, once for all layers; `attend` only runs what was planned. `plan` does it for one pass whose limits the
host knows. A captured pass stays bound to its buffers, so a plan changes what a replay does, and to its kind of mask.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wamdiff2_core.decode.engine.flashinfer_checks import Finding, findings, first_obstacle
from wamdiff2_core.decode.engine.flashinfer_plan import (
    BYTE,
    Form,
    Layout,
    Mask,
    Mode,
    layout,
    padded,
    plan_bytes,
    whole_pages,
    workspace_bytes,
)
from wamdiff2_core.decode.engine.ops import Choice, Shape, TorchOps
from wamdiff2_core.decode.engine.staging import Staged
from wamdiff2_core.errors import ConfigError

HEAD_DIMS = (64, 128, 256)
GROUPS = (1, 2, 4, 8)
DTYPES = (torch.bfloat16, torch.float16)


def here() -> list[Finding]:
    """The checks of this machine."""
    return findings(torch.cuda.get_device_capability() if torch.cuda.is_available() else None)


def ready() -> bool:
    """Whether FlashInfer can be used here, its kernels compiled or not."""
    return first_obstacle(here()) is None


def obstacle() -> str | None:
    """What keeps FlashInfer from being used here, with the way out; None: nothing."""
    found = first_obstacle(here())
    return None if found is None else f"{found.name}: {found.found}; {found.do}"


def check_shape(shape: Shape) -> None:
    """ConfigError for heads that FlashInfer's kernels are not made for."""
    if shape.head_dim not in HEAD_DIMS:
        raise ConfigError(f"flashinfer: expected a head size of {HEAD_DIMS}, got {shape.head_dim}")
    group, rest = divmod(shape.heads, shape.kv_heads)
    if rest or group not in GROUPS:
        raise ConfigError(
            f"flashinfer: expected {GROUPS} query heads for each key head, got {shape.heads} for {shape.kv_heads}"
        )


def check_sizes(shape: Shape | None, page_size: int, dtype: torch.dtype) -> None:
    """ConfigError for what FlashInfer's kernels, or our masks for them, are not made for; the machine is not asked."""
    if dtype not in DTYPES:
        raise ConfigError(f"flashinfer: expected bfloat16 or float16, got {dtype}")
    if page_size % BYTE:
        raise ConfigError(f"flashinfer: expected a page size that is a multiple of {BYTE}, got {page_size}")
    if shape is not None:
        check_shape(shape)


class FlashInferOps:
    """See Ops and Planner. rows, tokens, places: the most of each that a pass has; buffers are made for them.

    workspace: bytes for the sums of attention's parts; a form of pass that needs more brings its own.
    Raises ConfigError, with the way out, where FlashInfer cannot be used.
    """

    name = "flashinfer"

    def __init__(
        self, page_size: int, shape: Shape, *, rows: int, tokens: int, places: int, workspace: int = 0,
        dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cuda",
    ) -> None:  # fmt: skip
        check_sizes(shape, page_size, dtype)
        problem = obstacle()
        if problem is not None:
            raise ConfigError(f"flashinfer: {problem}")
        import flashinfer

        self._api: Any = flashinfer
        self.page_size, self.shape, self.dtype, self.device = page_size, shape, dtype, torch.device(device)
        self._rows, self._tokens, self._pages = rows, tokens, -(-places // page_size)
        cuda = self.device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(self.device).multi_processor_count if cuda else 0
        self._workspace = torch.zeros(max(workspace, 1), dtype=torch.uint8, device=device)
        self._order = torch.arange(tokens, dtype=torch.int32, device=device)
        self._ones: dict[int, Tensor] = {}
        self._twin = TorchOps(page_size)
        self._forms: dict[tuple[int, int, Mode], Form] = {}
        self._current: dict[tuple[int, int], Form] = {}

    def plan(self, pages: Tensor, limit: Tensor, mode: Mode | None = None) -> Mode:
        """Set what `attend` does from now on for passes of as many rows and tokens. Returns the kind of mask.

        pages (R, P), limit (T,): int32 on the host. mode: the kind that a captured pass has; a replay must be planned
        with the kind it was captured with. Waits until the plan before has reached the device, for nothing else.
        """
        told = layout(pages, limit, self.page_size, mode)
        form = self._tell(told, len(limit) // len(pages))
        if form.mask is not None:
            form.mask.write(limit.to(self.device).view(len(pages), -1))
        return told.mode

    def plan_passes(self, rows: int, pages: Sequence[Sequence[int]], widths: Sequence[int]) -> None:
        owned = padded(pages, rows)
        for width in widths:
            form = self._forms.get((rows, width, "mask"))
            if form is None or form.told != owned:
                form = self._tell(whole_pages(owned, width, self.page_size), width)
                form.told = owned
            self._current[rows, width] = form

    def begin(self, limit: Tensor) -> None:
        form = self._planned(*limit.shape)
        if form.mask is None:
            raise ConfigError("flashinfer: planned for other limits than a pass of the engine has: call plan_passes()")
        form.mask.write(limit)

    def _tell(self, told: Layout, width: int) -> Form:
        """Plan passes of one form."""
        rows, shape = len(told.last), self.shape
        if rows > self._rows or rows * width > self._tokens:
            raise ConfigError(
                f"flashinfer: planned for {self._rows} rows and {self._tokens} tokens, got {rows} and {rows * width}"
            )
        if max(told.page_starts.diff()) > self._pages:
            raise ConfigError(
                f"flashinfer: planned for {self._pages} pages a row, got {int(max(told.page_starts.diff()))}"
            )
        key = (rows, width, told.mode)
        form = self._forms.get(key) or self._forms.setdefault(key, self._make(*key))
        form.told = None
        if form.copied is not None:
            form.copied.synchronize()  # the plan lies in pinned memory that the device may still be reading
        form.pages.host[: len(told.pages)] = told.pages
        form.pages.send()
        if form.mask is not None:
            form.mask.load(told, self.page_size)
        # Without a mask of its own the plan leaves the mask's buffers as they are, and a run reads them all the same.
        form.wrapper.plan(
            told.starts, told.page_starts, form.pages.device[: len(told.pages)], told.last, shape.heads, shape.kv_heads,
            shape.head_dim, self.page_size, causal=told.mode == "causal", sm_scale=shape.scale,
            q_data_type=self.dtype, kv_data_type=self.dtype,
        )  # fmt: skip
        if self.device.type == "cuda":
            form.copied = form.copied or torch.cuda.Event()
            form.copied.record(torch.cuda.current_stream(self.device))
        self._current[rows, width] = form
        return form

    def _make(self, rows: int, width: int, mode: Mode) -> Form:
        """A wrapper with buffers of its own for passes of one form."""
        device, shape = self.device, self.shape
        need = workspace_bytes(rows, width, shape, self._processors)
        if need > len(self._workspace):  # the one before stays with the forms that are bound to it
            self._workspace = torch.zeros(need, dtype=torch.uint8, device=device)
        starts = [torch.zeros(rows + 1, dtype=torch.int32, device=device) for _ in range(2)]
        mask = Mask(rows, width, self._pages * self.page_size, device) if mode == "mask" else None
        masks = {} if mask is None else {"custom_mask_buf": mask.bits, "mask_indptr_buf": mask.starts}
        wrapper = self._api.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_cuda_graph=True, qo_indptr_buf=starts[0], paged_kv_indptr_buf=starts[1],
            paged_kv_indices_buf=torch.zeros(rows * self._pages, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buf=torch.ones(rows, dtype=torch.int32, device=device), backend="fa2", **masks,
        )  # fmt: skip
        # The library takes 8 MiB for every plan, on the device and pinned on the host; there are dozens of forms.
        plan = torch.empty(plan_bytes(rows, width), dtype=torch.uint8, device=device)
        wrapper.reset_workspace_buffer(self._workspace, plan)
        # Without an output to write to, the library fills a new one with zeros first.
        out = torch.empty(rows * width, shape.heads, shape.head_dim, dtype=self.dtype, device=device)
        return Form(wrapper, Staged((rows * self._pages,), torch.int32, device), mask, out)

    def _planned(self, rows: int, width: int) -> Form:
        form = self._current.get((rows, width))
        if form is None:
            raise ConfigError(f"flashinfer: no plan for {rows} rows of {width} tokens: call plan() first")
        return form

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, limit: Tensor, shape: Shape) -> Tensor:
        form = self._planned(len(pages), len(q) // len(pages))
        caches = tuple(one.view(-1, self.page_size, shape.kv_heads, shape.head_dim) for one in (keys, values))
        out = form.wrapper.run(q, caches, out=form.out)
        if form.mask is not None:  # others hold no token that sees nothing
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
        ops = FlashInferOps(page_size, shape, rows=1, tokens=4, places=2 * page_size)
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
            mode = ops.plan(pages, limit)
            ops.attend(q, keys, values, pages.to(ops.device), limit.to(ops.device), shape)
            torch.cuda.synchronize()
            yield f"attention, {mode} (heads of {size})", time.perf_counter() - began
