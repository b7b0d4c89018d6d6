"""FlashInfer without a GPU: what the engine asks of the library, bound to the buffers that the library is bound to.

The kernels here read pages, lengths and mask from the buffers of a wrapper when they run, and the cut of the work from
its last plan, as a captured kernel does. What is asked of them is checked against what the library itself would refuse.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wamdiff2_core.decode.engine import flashinfer_ops
from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps

HIDDEN = -5e4  # the score of a place that a mask hides: a number, so what lies there is multiplied by zero


class StandIn:
    """BatchPrefillWithPagedKVCacheWrapper: `run` does what the buffers say at that moment."""

    def __init__(self, workspace, layout_name, use_cuda_graph, backend, **buffers) -> None:
        assert use_cuda_graph and layout_name == "NHD" and backend == "fa2"
        self.buffers: dict[str, Any] = buffers
        self.bits: Any = buffers.get("custom_mask_buf")
        self.bit_starts: Any = buffers.get("mask_indptr_buf")
        self.most: int | None = None
        self.cut: list[int] | None = None
        self.reset_workspace_buffer(workspace, torch.empty(8 << 20, dtype=torch.uint8))

    def reset_workspace_buffer(self, workspace: Tensor, plan: Tensor) -> None:
        assert workspace.dtype == plan.dtype == torch.uint8
        self.workspace, self.plan_room = workspace, len(plan)

    def plan(
        self, starts, page_starts, pages, last, heads, kv_heads, size, page_size, causal, sm_scale, q_data_type,
        kv_data_type,
    ) -> None:  # fmt: skip
        """The library's checks; then its buffers are written, and nobody else's."""
        assert all(one.dtype == torch.int32 for one in (starts, page_starts, pages, last))
        assert q_data_type == kv_data_type and heads % kv_heads == 0
        assert not (causal and self.bits is not None)
        rows, tokens = len(starts) - 1, int(starts[-1])
        self.most = self.most or tokens
        assert tokens <= self.most and len(pages) <= len(self.buffers["paged_kv_indices_buf"])
        assert rows == len(self.buffers["qo_indptr_buf"]) - 1 == len(page_starts) - 1 == len(last)
        tile = 128  # what the library would take at most for one program
        tiles = -(-self.most * (heads // kv_heads) // tile) + rows - 1
        assert heads * tiles * tile * (size + 1) * 4 <= len(self.workspace), "the workspace is too small"
        assert 13 * tiles + 4 * (rows + tokens + 2) + 256 <= self.plan_room, "the plan's own room is too small"
        self.buffers["qo_indptr_buf"].copy_(starts)
        self.buffers["paged_kv_indptr_buf"].copy_(page_starts)
        self.buffers["paged_kv_last_page_len_buf"].copy_(last)
        self.buffers["paged_kv_indices_buf"][: len(pages)].copy_(pages)
        self.cut = ((page_starts.diff() - 1) * page_size + last).tolist()
        self.causal, self.scale, self.page_size = causal, sm_scale, page_size
        self.dtype, self.shape, self.tokens = q_data_type, (heads, size), tokens

    def run(self, q, caches, out=None):
        keys, values = caches
        assert self.cut is not None, "never planned"
        assert q.shape == (self.tokens, *self.shape) and {one.dtype for one in (q, keys, values)} == {self.dtype}
        starts, page_starts = self.buffers["qo_indptr_buf"], self.buffers["paged_kv_indptr_buf"]
        out = torch.empty_like(q) if out is None else out
        assert out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous()
        for row in range(len(starts) - 1):
            table = self.buffers["paged_kv_indices_buf"][page_starts[row] : page_starts[row + 1]].long()
            places = (len(table) - 1) * self.page_size + int(self.buffers["paged_kv_last_page_len_buf"][row])
            assert places == self.cut[row], "the plan cut other lengths than the buffers hold"
            query = q[starts[row] : starts[row + 1]].float()
            key, value = (one[table].flatten(0, 1)[:places].float() for one in (keys, values))
            group = query.shape[1] // key.shape[1]
            scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, 1)) * self.scale
            width = len(query)
            if self.bits is not None:
                raw = self.bits[self.bit_starts[row] :].cpu().numpy()
                seen = torch.from_numpy(np.unpackbits(raw, bitorder="little")[: width * places].copy())
                scores = scores.masked_fill(seen.view(width, places).to(scores.device) == 0, HIDDEN * self.scale)
            elif self.causal:
                seen = torch.ones(width, places, dtype=torch.bool).tril(places - width)
                scores = scores.masked_fill(~seen.to(scores.device), HIDDEN * self.scale)
            out[starts[row] : starts[row + 1]] = torch.einsum(
                "hqk,khd->qhd", scores.softmax(-1), value.repeat_interleave(group, 1)
            ).to(q.dtype)
        return out


def _rmsnorm(x, weight, eps):
    return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)


def _rope(positions, query, key, head_size, table):
    assert table.dtype == torch.float32 and table.shape[1] == head_size
    cos, sin = table[positions.long()][:, None].chunk(2, -1)
    for one in (query, key):
        left, right = one.view(len(one), -1, head_size).float().chunk(2, -1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
        one.copy_(turned.to(one.dtype).view_as(one))


def stand_in() -> Any:
    """Enough of the library for our file."""
    module: Any = types.ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = StandIn
    module.rmsnorm, module.apply_rope_with_cos_sin_cache_inplace = _rmsnorm, _rope
    module.silu_and_mul = lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
    return module


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in takes the library's place, on a machine where nothing stands in its way."""
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in())
    monkeypatch.setattr(flashinfer_ops, "here", list)


def install_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that is asked for pages which were not planned, or without its pass's mask, raises."""
    plain, began = FlashInferOps.attend, FlashInferOps.begin
    masks: dict[tuple[int, int], Tensor] = {}

    def begin(self: FlashInferOps, limit: Tensor) -> None:
        masks[tuple(limit.shape)] = limit.flatten().clone()
        began(self, limit)

    def attend(self: FlashInferOps, q, keys, values, pages, limit, shape):
        form = (len(pages), len(q) // len(pages))
        buffers = self._planned(*form).wrapper.buffers
        starts = buffers["paged_kv_indptr_buf"].tolist()
        for row, table in enumerate(pages.tolist()):
            planned = buffers["paged_kv_indices_buf"][starts[row] : starts[row + 1]].tolist()
            used = sum(page > 0 for page in table)
            assert planned == table[: max(used, 1)], f"row {row} of {form}: planned {planned}, has {table[:used]}"
        assert torch.equal(masks[form], limit), f"{form}: the pass began with other limits"
        return plain(self, q, keys, values, pages, limit, shape)

    monkeypatch.setattr(FlashInferOps, "begin", begin)
    monkeypatch.setattr(FlashInferOps, "attend", attend)


class Tape(TorchDispatchMode):
    """What a pass did, to be done again at the same addresses: a CUDA graph as far as the processor has one.

    Every operation is noted with the tensors it took and gave; numbers that the host had a say in stay as they were.
    The stand-in's kernels are noted as they are called and read their buffers anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Callable[..., Any], tuple, dict, Any]] = []
        self._quiet = False

    @classmethod
    def of(cls, run: Callable[[], None]) -> Tape:
        """Run a pass, and keep what it did."""
        tape = cls()
        kernel = StandIn.run

        def noted(wrapper: StandIn, q: Tensor, caches: tuple, out: Tensor) -> Tensor:
            tape._quiet = True
            try:
                given = kernel(wrapper, q, caches, out)
            finally:
                tape._quiet = False
            tape.notes.append((partial(kernel, wrapper), (q, caches, out), {}, given))
            return given

        with pytest.MonkeyPatch.context() as patch, tape:
            patch.setattr(StandIn, "run", noted)
            run()
        return tape

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        if not self._quiet:
            self.notes.append((func, args, kwargs or {}, given))
        return given

    def replay(self) -> None:
        """Do it again; what an operation made lies where it lay."""
        for func, args, kwargs, given in self.notes:
            again = func(*args, **kwargs)
            for old, new in zip(
                *(one if isinstance(one, (tuple, list)) else (one,) for one in (given, again)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
