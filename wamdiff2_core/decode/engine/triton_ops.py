"""The engine's functions as Triton kernels: few tokens, weights read once, all scratch made beforehand.

One set serves one stream at a time: its scratch and its outputs are reused. An output stays valid until the second next
call of the same function with the same width, a Choice until the next one. Up to `Sizes.tokens` tokens nothing is
allocated, so every call can be captured; more tokens (a prompt) allocate their outputs and take PyTorch's products,
which are the fastest there. Products that are none of the model's (all logits, say) allocate their outputs too.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from wamdiff2_core.decode.engine import triton_attend, triton_choose, triton_heads, triton_product, triton_rotate
from wamdiff2_core.decode.engine.ops import Choice, Shape
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight, half_of
from wamdiff2_core.decode.engine.triton_prompt import silu_gate, widened
from wamdiff2_core.decode.engine.triton_table import (
    BUCKETS,
    HOPPER_SHARED,
    MOST_SPLITS,
    Chunks,
    Flow,
    Tiles,
    bucket_of,
    chunks_of,
    flow_of,
    tiles_of,
)

Weight: TypeAlias = Tensor | Fp8Weight
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Sizes:
    """What scratch is made for. tokens: most tokens of a step, rows: most answers at once, places: most places a row.

    hidden, heads, kv_heads, head_dim, ffn, vocab: of the text model. Raises ValueError for what the kernels cannot do.
    """

    tokens: int
    rows: int
    places: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= BUCKETS[-1]:
            raise ValueError(f"triton kernels: expected 1 to {BUCKETS[-1]} tokens a step, got {self.tokens}")
        if self.head_dim < 16 or self.head_dim & (self.head_dim - 1):
            raise ValueError(f"triton kernels: expected a head size of 16, 32, 64, 128, ..., got {self.head_dim}")
        if self.heads % self.kv_heads:
            raise ValueError(f"triton kernels: {self.heads} query heads do not divide among {self.kv_heads} key heads")
        if self.hidden % 8 or self.ffn % 8:
            raise ValueError(f"triton kernels: expected widths in multiples of 8, got {self.hidden} and {self.ffn}")

    @property
    def products(self) -> dict[str, tuple[str, int, int]]:
        """(kind, outputs, inputs) of each product of the model."""
        inner = self.heads * self.head_dim
        return {
            "qkv": ("norm", inner + 2 * self.kv_heads * self.head_dim, self.hidden),
            "out": ("add", self.hidden, inner),
            "gate_up": ("gated", self.ffn, self.hidden),
            "down": ("add", self.hidden, self.ffn),
            "head": ("choose", self.vocab, self.hidden),
        }


class TritonOps:
    """See Ops. page_size: places a page. dtype: of activations and cache; fp8: weights are Fp8Weight.

    pdl: let a kernel be loaded while the one before it ends (programmatic dependent launch, CUDA 9.0 devices and
    later); flow: with it, products whose weights come in ahead (gluon_product: Hopper, bfloat16) where that pays.
    """

    name = "triton"

    def __init__(
        self, page_size: int, sizes: Sizes, *, dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda", act: str = "silu", fp8: bool = False, pdl: bool = False,
        flow: bool = False,
    ) -> None:  # fmt: skip
        if act != "silu":
            raise ValueError(f"activation: expected silu, got {act}")
        if dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(f"triton kernels: expected bfloat16 or float32, got {dtype}")
        if pdl and torch.device(device).type == "cpu":
            raise ValueError("triton kernels: dependent launches need a CUDA device")
        self.page_size, self.sizes, self.dtype, self.device = page_size, sizes, dtype, torch.device(device)
        self.name = "triton_fp8" if fp8 else "triton"
        self._pdl = pdl
        # Weights that come in before the kernel in front ends: Hopper's tensor cores, bfloat16, dependent launches.
        self._flow = flow and pdl and dtype == torch.bfloat16
        self._launch: dict[str, Any] = {"launch_pdl": True} if pdl else {}
        # The interpreter has no bfloat16 product; fp32 is computed in full.
        self._widen = self.device.type == "cpu" or dtype == torch.float32
        self._weight_bytes = 1 if fp8 else dtype.itemsize
        self._shared = _shared_bytes(self.device)
        self._turn: dict[tuple[str, int], int] = {}
        # What linear_add returned last, and the number of parts that its squares lie in.
        self._summed: tuple[Tensor, int] | None = None
        # What it returned last for a prompt. Weak: memory of a captured pass serves the next one, too.
        self._prompt_sum: Callable[[], Tensor | None] = lambda: None
        self._make_scratch()

    def _make_scratch(self) -> None:
        """Everything a step writes, for the largest step."""
        sizes, device = self.sizes, self.device
        self._known = set(sizes.products.values())
        floats = counters = parts = 1
        buckets = [bucket for bucket in BUCKETS if bucket <= bucket_of(sizes.tokens)]
        for kind, outputs, inputs in sizes.products.values():
            for bucket in buckets:
                cut = self._tiles(kind, outputs, inputs, bucket)
                tiles = triton.cdiv(outputs, cut.block_n)
                parts = max(parts, tiles if kind == "add" else 1)
                pairs = 2 if kind == "gated" else 1
                if cut.splits > 1:
                    floats = max(floats, tiles * cut.splits * bucket * cut.block_n * pairs)
                    counters = max(counters, tiles)
                flow = flow_of(kind, outputs, inputs, bucket, self._weight_bytes) if self._flow else None
                if flow is not None:
                    tiles = outputs // flow.rows
                    parts = max(parts, tiles)
                    floats = max(floats, tiles * 64 * flow.splits * bucket * pairs)
                    counters = max(counters, tiles)
        # The tensor cores take no fewer than 16 outputs, so a half head no smaller than that.
        self._turned = sizes.head_dim >= 32
        if self._turned:
            heads = sizes.heads + 2 * sizes.kv_heads
            for bucket in buckets:
                cut = self._tiles("heads", heads * sizes.head_dim, sizes.hidden, bucket)
                floats = max(floats, heads * sizes.head_dim * max(cut.splits, MOST_SPLITS) * bucket)
            counters = max(counters, heads)
        head = min(self._tiles(*sizes.products["head"], bucket).block_n for bucket in buckets)
        pieces = sizes.tokens * triton.cdiv(sizes.vocab, head)
        # Attention shares its places out among programs for twice as many tokens: batches that commit.
        self._split_tokens = sizes.tokens * (2 if sizes.tokens == BUCKETS[-1] else 1)
        splits = self._split_tokens * sizes.heads * MOST_SPLITS
        counters = max(counters, self._split_tokens * sizes.heads)
        self._partial = torch.empty(max(floats, splits * sizes.head_dim), dtype=torch.float32, device=device)
        self._logs = torch.empty(splits, dtype=torch.float32, device=device)
        self._squares = torch.empty(parts * sizes.tokens, dtype=torch.float32, device=device)
        self._own_squares = torch.empty(sizes.tokens, dtype=torch.float32, device=device)
        self._counter = torch.zeros(counters, dtype=torch.int32, device=device)
        self._best = torch.empty(pieces, dtype=torch.float32, device=device)
        self._sums = torch.empty(pieces, dtype=torch.float32, device=device)
        self._index = torch.empty(pieces, dtype=torch.int32, device=device)
        self._broken = torch.empty(pieces, dtype=torch.int32, device=device)
        widths = {outputs for kind, outputs, _ in sizes.products.values() if kind != "choose"}
        self._outputs = {
            (kind, width): tuple(torch.empty(sizes.tokens, width, dtype=self.dtype, device=device) for _ in range(2))
            for kind in ("product", "queries", "attended")
            for width in (widths if kind == "product" else {sizes.heads * sizes.head_dim})
        }
        self._tokens = torch.empty(sizes.tokens, dtype=torch.int64, device=device)
        self._certainty = torch.empty(sizes.tokens, dtype=torch.float32, device=device)
        self._usable = torch.empty(sizes.tokens, dtype=torch.bool, device=device)

    def _tiles(self, kind: str, outputs: int, inputs: int, bucket: int) -> Tiles:
        cut = tiles_of(
            kind, outputs, inputs, bucket, self._weight_bytes, self.dtype.itemsize, self._shared,
            self.sizes.head_dim // 2 if kind == "heads" else 0,
        )  # fmt: skip
        if self._weight_bytes > 1:
            return cut
        # A turn takes whole runs of pairs, and the tensor cores no fewer than 16 inputs of each half.
        return replace(cut, block_k=max(cut.block_k, 2 * half_of(inputs), 32))

    def _output(self, kind: str, tokens: int, width: int) -> Tensor:
        """A buffer (tokens, width). Two take turns, so that what one call returned can go into the next."""
        if tokens > self.sizes.tokens or (kind, width) not in self._outputs:
            return torch.empty(tokens, width, dtype=self.dtype, device=self.device)
        turn = self._turn[kind, width] = 1 - self._turn.get((kind, width), 1)
        return self._outputs[kind, width][turn][:tokens]

    def norm_linear(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        if len(x) > self.sizes.tokens:
            return _torch_linear(F.rms_norm(x, (x.shape[-1],), eps=eps), weight)
        return self._product("norm", x, weight, weight.shape[0], eps=eps)

    def gated(self, x: Tensor, gate_up: Weight, eps: float) -> Tensor:
        if len(x) > self.sizes.tokens:
            return silu_gate(_torch_linear(F.rms_norm(x, (x.shape[-1],), eps=eps), gate_up))
        return self._product("gated", x, gate_up, gate_up.shape[0] // 2, eps=eps)

    def linear_add(self, x: Tensor, weight: Weight, residual: Tensor) -> Tensor:
        if len(x) > self.sizes.tokens:
            return self._prompt_add(x, weight, residual)
        return self._product("add", x, weight, weight.shape[0], residual=residual)

    def _prompt_add(self, x: Tensor, weight: Weight, residual: Tensor) -> Tensor:
        """On top of the residual where that is a sum of ours, which nobody needs any more: the product adds it up."""
        if self._prompt_sum() is not residual:
            residual = residual.clone()
        total = residual.addmm_(x, _plain(weight, x.dtype).T)
        self._prompt_sum = weakref.ref(total)
        return total

    def _check(self, x: Tensor, weight: Weight) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """(weight's values or 16-bit words, its scales or a stand-in, how the kernels are to read it).

        The kernels take addresses on trust.
        """
        scaled = isinstance(weight, Fp8Weight)
        data, scale = (weight.data, weight.scale) if isinstance(weight, Fp8Weight) else (weight, weight)
        if x.dtype != self.dtype or data.dtype != (DTYPE if scaled else self.dtype):
            raise TypeError(f"triton kernels: expected {self.dtype}, got x {x.dtype} and weight {data.dtype}")
        if not x.is_contiguous() or not data.is_contiguous() or x.shape[1] != data.shape[1]:
            raise ValueError(
                f"triton kernels: x {tuple(x.shape)} and weight {tuple(data.shape)} do not fit, or are strided"
            )
        read = {"SCALED": scaled, "HALF": weight.half if isinstance(weight, Fp8Weight) else 0}
        return data.view(torch.int16) if scaled else data, scale, read

    def _product(
        self, kind: str, x: Tensor, weight: Weight, outputs: int, *, eps: float = 0.0, residual: Tensor | None = None
    ) -> Tensor:
        data, scale, read = self._check(x, weight)
        tokens, inputs = x.shape
        if residual is not None and (residual.shape != (tokens, outputs) or not residual.is_contiguous()):
            raise ValueError(f"triton kernels: expected a residual {(tokens, outputs)}, got {tuple(residual.shape)}")
        flow = self._flowing(kind, tokens, outputs, inputs)
        if flow is not None:
            return self._flow_product(kind, x, (data, scale, read["HALF"]), residual, outputs, eps, flow)
        block_m, cut = self._cut(kind, tokens, outputs, inputs)
        out = self._output("product", tokens, outputs)
        tiles = triton.cdiv(outputs, cut.block_n)
        if residual is None:
            residual, (squares, parts) = x, self._squares_of(x)
        else:
            small = tiles * tokens <= len(self._squares)
            squares, parts = self._squares if small else torch.empty(tiles * tokens, device=self.device), 1
            self._summed = (out, tiles) if small else None
        triton_product.product[(tiles * cut.splits, triton.cdiv(tokens, block_m))](
            x, data, scale, squares, residual, out, self._partial, self._counter, tokens, outputs, inputs, eps,
            NORM=kind != "add", GATED=kind == "gated", ADD=kind == "add", PARTS=parts, **read,
            BLOCK_M=block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, SPLITS=cut.splits,
            FLIP=cut.flip, WIDEN=self._widen, PDL=self._pdl,
            num_warps=cut.warps, num_stages=cut.stages, **self._launch,
        )  # fmt: skip
        return out

    def _flowing(self, kind: str, tokens: int, outputs: int, inputs: int) -> Flow | None:
        """The cut for a product of the model's whose weights come in ahead; None: another kernel runs it."""
        if not self._flow or ("norm" if kind == "heads" else kind, outputs, inputs) not in self._known:
            return None
        return flow_of(kind, outputs, inputs, bucket_of(tokens), self._weight_bytes)

    def _flow_product(
        self, kind: str, x: Tensor, weight: tuple[Tensor, Tensor, int], residual: Tensor | None, outputs: int,
        eps: float, flow: Flow,
    ) -> Tensor:  # fmt: skip
        """weight: its values or words, scales, and how far the numbers of a word lie apart."""
        from wamdiff2_core.decode.engine import gluon_product

        (data, scale, half), (tokens, inputs) = weight, x.shape
        out = self._output("product", tokens, outputs)
        if residual is None:
            residual, (squares, parts) = x, self._squares_of(x)
        else:
            squares, parts = self._squares, 1
            self._summed = (out, outputs // flow.rows)
        gluon_product.product[(outputs // flow.rows * flow.splits,)](
            x, data, scale, squares, residual, out, self._partial, self._counter, tokens, eps, N=outputs, K=inputs,
            NORM=kind != "add", GATED=kind == "gated", ADD=kind == "add", HALF=half, PARTS=parts,
            SIZE=triton.next_power_of_2(parts), USED=flow.rows, BLOCK_M=bucket_of(tokens), BLOCK_K=flow.block_k,
            SPLITS=flow.splits, STAGES=flow.stages, EARLY=flow.early, WARPS=flow.warps, PDL=self._pdl,
            num_warps=flow.warps, **self._launch,
        )  # fmt: skip
        return out

    def _squares_of(self, x: Tensor) -> tuple[Tensor, int]:
        """Sums of squares of each token, (parts, T): those that linear_add left for the very tensor it returned."""
        if self._summed is not None and self._summed[0] is x:
            return self._squares, self._summed[1]
        tokens, inputs = x.shape
        block = min(1024, triton.next_power_of_2(inputs))
        triton_product.square_sums[(tokens,)](
            x, self._own_squares, tokens, inputs, BLOCK=block, PDL=self._pdl, num_warps=4, **self._launch
        )
        return self._own_squares, 1

    def _cut(self, kind: str, tokens: int, outputs: int, inputs: int) -> tuple[int, Tiles]:
        bucket = bucket_of(tokens)
        cut = self._tiles(kind, outputs, inputs, bucket)
        known = (kind, outputs, inputs) in self._known
        return bucket, cut if known else replace(cut, splits=1)

    def rotate_append(
        self, qkv: Tensor, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor, values: Tensor,
        shape: Shape,
    ) -> Tensor:  # fmt: skip
        tokens, size = len(qkv), shape.head_dim
        heads = shape.heads + 2 * shape.kv_heads
        if qkv.shape[1] != heads * size or not (qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()):
            raise ValueError(f"triton kernels: expected contiguous qkv (T, {heads * size}), got {tuple(qkv.shape)}")
        self._check_cache(keys, values, shape)
        out = self._output("queries", tokens, shape.heads * size).view(tokens, shape.heads, size)
        block = min(8, triton.next_power_of_2(heads))
        triton_rotate.rotate_append[(tokens, triton.cdiv(heads, block))](
            qkv, head_norm, cos, sin, slot, out, keys, values, shape.eps,
            HQ=shape.heads, HKV=shape.kv_heads, D=size, BLOCK_H=block, PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
        return out

    def project(
        self, x: Tensor, qkv: Weight, head_norm: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, keys: Tensor,
        values: Tensor, shape: Shape,
    ) -> Tensor:  # fmt: skip
        size, inputs = shape.head_dim, self.sizes.hidden
        if len(x) > self.sizes.tokens or not self._turned:
            heads = self.norm_linear(x, qkv, shape.eps)
            return self.rotate_append(heads, head_norm, cos, sin, slot, keys, values, shape)
        data, scale, read = self._check(x, qkv)
        tokens, heads = len(x), shape.heads + 2 * shape.kv_heads
        if qkv.shape != (heads * size, inputs):
            raise ValueError(f"triton kernels: expected qkv {(heads * size, inputs)}, got {tuple(qkv.shape)}")
        if not all(one.is_contiguous() for one in (head_norm, cos, sin, slot)):
            raise ValueError("triton kernels: expected contiguous head_norm, cos, sin and slot")
        self._check_cache(keys, values, shape)
        out = self._output("queries", tokens, shape.heads * size).view(tokens, shape.heads, size)
        bucket = bucket_of(tokens)
        flow = self._flowing("heads", tokens, heads * size, inputs) if size == 128 else None
        if flow is not None:
            from wamdiff2_core.decode.engine import gluon_product

            squares, parts = self._squares_of(x)
            gluon_product.project[(heads * 2 * flow.splits,)](
                x, data, scale, squares, head_norm, cos, sin, slot, out, keys, values, self._partial, self._counter,
                tokens, shape.eps, HQ=shape.heads, HKV=shape.kv_heads, K=inputs, HALF=read["HALF"], PARTS=parts,
                SIZE=triton.next_power_of_2(parts), BLOCK_M=bucket, BLOCK_K=flow.block_k, SPLITS=flow.splits,
                STAGES=flow.stages, EARLY=flow.early, WARPS=flow.warps, PDL=self._pdl, num_warps=flow.warps,
                **self._launch,
            )  # fmt: skip
            return out
        cut, (squares, parts) = self._tiles("heads", heads * size, inputs, bucket), self._squares_of(x)
        triton_heads.project[(heads * 2 * cut.splits,)](
            x, data, scale, squares, head_norm, cos, sin, slot, out, keys, values, self._partial, self._counter,
            tokens, shape.eps, HQ=shape.heads, HKV=shape.kv_heads, D=size, K=inputs, PARTS=parts, **read,
            BLOCK_M=bucket, BLOCK_K=cut.block_k, SPLITS=cut.splits, WIDEN=self._widen, PDL=self._pdl,
            num_warps=cut.warps, num_stages=cut.stages, **self._launch,
        )  # fmt: skip
        return out

    def _check_cache(self, keys: Tensor, values: Tensor, shape: Shape) -> None:
        for one in (keys, values):
            if one.shape[1:] != (shape.kv_heads, shape.head_dim) or not one.is_contiguous():
                raise ValueError(
                    f"triton kernels: expected a contiguous cache (slots, {shape.kv_heads}, {shape.head_dim}), "
                    f"got {tuple(one.shape)}"
                )

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, limit: Tensor, shape: Shape) -> Tensor:
        self._check_cache(keys, values, shape)
        if not (q.is_contiguous() and pages.stride(1) == 1 and limit.is_contiguous()):
            raise ValueError("triton kernels: expected contiguous queries, limits and rows of pages")
        tokens, rows = len(q), len(pages)
        width, group = tokens // rows, shape.heads // shape.kv_heads
        out = self._output("attended", tokens, shape.heads * shape.head_dim)
        cut = self._chunks(rows, width, group, pages.shape[1], shape)
        tiles = triton.cdiv(width * group, cut.block_m)
        fixed = {"D": shape.head_dim, "GROUP": group, "BLOCK_M": cut.block_m, "BLOCK_K": cut.block_k}
        fixed |= {"SPLITS": cut.splits, "PDL": self._pdl, **self._launch}
        triton_attend.attend[(cut.splits, shape.kv_heads, rows * tiles)](
            q, keys, values, pages, limit, out, self._partial, self._logs, self._counter, width, pages.stride(0),
            shape.scale * _LOG2_E, HKV=shape.kv_heads, PAGE=self.page_size, FUSED=cut.fused,
            ROW=triton.next_power_of_2(width) if cut.ahead else 0, WIDEN=self._widen,
            num_warps=cut.warps, num_stages=cut.stages, **fixed,
        )  # fmt: skip
        if cut.splits > 1 and not cut.fused:
            triton_attend.combine[(tokens, shape.heads)](
                limit, out, self._partial, self._logs, width, HQ=shape.heads, num_warps=2, **fixed
            )
        return out

    def _chunks(self, rows: int, width: int, group: int, pages: int, shape: Shape) -> Chunks:
        return chunks_of(
            rows, width, group, shape.kv_heads, pages * self.page_size, shape.head_dim,
            rows * width <= self._split_tokens, self.dtype.itemsize, self._shared,
        )  # fmt: skip

    def choose(self, x: Tensor, head: Weight, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        data, scale, read = self._check(x, head)
        tokens, (vocab, inputs) = len(x), head.shape
        if tokens > self.sizes.tokens:
            raise ValueError(f"triton kernels: choosing for {tokens} tokens, scratch is for {self.sizes.tokens}")
        block_m, cut = self._cut("choose", tokens, vocab, inputs)
        tiles = triton.cdiv(vocab, cut.block_n)
        pieces = (self._best, self._index, self._sums, self._broken)
        squares, parts = self._squares_of(x)
        triton_choose.best_of_tile[(tiles, triton.cdiv(tokens, block_m))](
            x, data, scale, squares, x if allowed is None else allowed, *pieces, tokens, forbidden,
            triton.cdiv(vocab, 32), vocab, inputs, eps, LIMITED=allowed is not None, PARTS=parts, **read,
            BLOCK_M=block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, FLIP=cut.flip, WIDEN=self._widen,
            PDL=self._pdl,
            num_warps=cut.warps, num_stages=cut.stages, **self._launch,
        )  # fmt: skip
        triton_choose.best_of_all[(tokens,)](
            *pieces, self._tokens, self._certainty, self._usable, tiles, vocab,
            BLOCK=triton.next_power_of_2(tiles), PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
        return Choice(self._tokens[:tokens], self._certainty[:tokens], self._usable[:tokens])


def _torch_linear(x: Tensor, weight: Weight) -> Tensor:
    """PyTorch's product, for many tokens."""
    return F.linear(x, _plain(weight, x.dtype))


def _plain(weight: Weight, dtype: torch.dtype) -> Tensor:
    """As PyTorch's products take it. An 8-bit weight is widened for it: bfloat16 holds every e4m3 number."""
    return widened(weight, dtype) if isinstance(weight, Fp8Weight) else weight


def _shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may have there."""
    if device.type == "cpu":
        return HOPPER_SHARED  # the interpreter has no such thing
    active = triton.runtime.driver.active
    index = active.get_current_device() if device.index is None else device.index
    return active.utils.get_device_properties(index)["max_shared_mem"]
