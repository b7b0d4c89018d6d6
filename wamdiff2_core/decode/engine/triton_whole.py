"""Host side of the kernel that runs all layers of a step: its cuts, its scratch and its launch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from wamdiff2_core.decode.engine import triton_layers
from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.stacked import StackedLayers
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight
from wamdiff2_core.decode.engine.triton_layers import COUNTERS, FAILED, PHASES, WHOLE
from wamdiff2_core.decode.engine.triton_ops import Sizes
from wamdiff2_core.decode.engine.triton_table import bucket_of

MOST_TOKENS = 64
_LOG2_E = math.log2(math.e)
_POLLS = 1 << 22  # looks at a barrier, some tenths of a microsecond each: seconds
_LINE = 128  # bytes
_HOPPER_PROCESSORS = 132


@dataclass(frozen=True)
class Cut:
    """A phase's unit: block_n outputs (pairs in `gate_up`; `qkv` has half a head) of 1 / splits of the inputs,

    block_k inputs a turn, `stages` turns loaded ahead. warm: bytes that a program asks for of its first unit's weights
    before it waits for the phase; early: the same of `gate_up`, before the attention in front of it.
    """

    block_n: int
    block_k: int
    splits: int
    stages: int
    warm: int = 0
    early: int = 0


@dataclass(frozen=True)
class Cuts:
    """How one bucket of tokens is cut. attend: block_n queries, block_k places; its `warm` is a yes or no.

    soon: ask for the next phase's weights as soon as a program's own are there, not only behind its sums.
    """

    qkv: Cut
    attend: Cut
    out: Cut
    gate_up: Cut
    down: Cut
    warps: int = 8
    soon: bool = True


def cuts_of(bucket: int, weight_bytes: int, value_bytes: int = 2) -> Cuts:
    """The cuts for up to `bucket` tokens on Hopper at the sizes of Qwen3-VL-2B; others take them as well."""
    if value_bytes == 4:  # no tensor cores: small blocks, or the registers overflow
        one = Cut(32, 32, 2, 2)
        return Cuts(one, Cut(16, 32, 4, 1), one, replace(one, block_n=16, splits=1), one)
    kilo = 1024
    # In 8 bits more than this makes the registers overflow.
    deep, parts = (128, 256 // bucket) if weight_bytes == 2 else (64, min(8, 256 // bucket))
    return Cuts(
        qkv=Cut(64, 128, 2, 5, warm=64 * kilo),
        attend=Cut(32, 64, parts, 2, warm=1),
        out=Cut(64, deep, 4, 5, warm=64 * kilo),
        gate_up=Cut(64, 128, 1, 4, warm=64 * kilo, early=64 * kilo),
        down=Cut(64, deep, 4, 5, warm=64 * kilo),
        soon=weight_bytes == 2,
    )


class WholeLayers:
    """All layers of a step in one launch: up to 64 tokens, one program a processor.

    cuts: by bucket; what is not there is `cuts_of`. programs: None for one on every processor; a launch that they do
    not all fit into is refused by the driver. device "cpu" is Triton's interpreter, which runs programs one after
    another, so there `step_by_step` is the only way. One instance serves one stream at a time.
    """

    def __init__(
        self, page_size: int, sizes: Sizes, layers: int, *, dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda", fp8: bool = False, cuts: dict[int, Cuts] | None = None,
        programs: int | None = None, polls: int = _POLLS,
    ) -> None:  # fmt: skip
        if sizes.tokens > MOST_TOKENS:
            raise ValueError(f"all layers at once: expected up to {MOST_TOKENS} tokens a step, got {sizes.tokens}")
        if dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(f"triton kernels: expected bfloat16 or float32, got {dtype}")
        self.page_size, self.sizes, self.layers, self.fp8 = page_size, sizes, layers, fp8
        self.dtype, self.device, self.polls = dtype, torch.device(device), polls
        self.programs = _processors(self.device) if programs is None else programs
        self._widen = self.device.type == "cpu" or dtype == torch.float32
        weight_bytes = 1 if fp8 else dtype.itemsize
        buckets = [bucket for bucket in (16, 32, 64) if bucket <= bucket_of(sizes.tokens)]
        own = {bucket: cuts_of(bucket, weight_bytes, dtype.itemsize) for bucket in buckets}
        self.cuts = own | {bucket: cut for bucket, cut in (cuts or {}).items() if bucket in own}
        self._make_scratch()

    def _make_scratch(self) -> None:
        sizes, tokens = self.sizes, self.sizes.tokens
        inner, heads = sizes.heads * sizes.head_dim, sizes.heads + 2 * sizes.kv_heads
        kinds = (("out", sizes.hidden, 1), ("gate_up", sizes.ffn, 2), ("down", sizes.hidden, 1))
        floats = logs = counts = tiles = 1
        for bucket, cuts in self.cuts.items():
            for kind, outputs, pairs in kinds:
                cut: Cut = getattr(cuts, kind)
                units = triton.cdiv(outputs, cut.block_n)
                floats = max(floats, units * cut.splits * cut.block_n * bucket * pairs)
                counts = max(counts, units)
                tiles = max(tiles, units if kind != "gate_up" else 1)
            floats = max(floats, heads * sizes.head_dim * cuts.qkv.splits * bucket)
            parts = tokens * sizes.heads * cuts.attend.splits
            floats, logs = max(floats, parts * sizes.head_dim), max(logs, parts)
        # A tile of queries has at least one query of each head of a group: no more of them than tokens and heads.
        counts = max(counts, heads, tokens * sizes.heads)
        self._counts = counts

        def room(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self._hidden, self._queries = room(tokens, sizes.hidden), room(tokens, inner)
        self._attended, self._inner = room(tokens, inner), room(tokens, sizes.ffn)
        self._squares = room(tiles * tokens, dtype=torch.float32)
        self._partial, self._logs = room(floats, dtype=torch.float32), room(logs, dtype=torch.float32)
        self._state = room(COUNTERS.value + counts, dtype=torch.int32)

    @property
    def failed(self) -> Tensor:
        """(1,) int32: 1 as soon as programs of a launch gave up waiting for each other; what it left is worthless."""
        return self._state[FAILED.value : FAILED.value + 1]

    def __call__(
        self, weights: StackedLayers, keys: Tensor, values: Tensor, pages: Tensor, hidden: Tensor, cos: Tensor,
        sin: Tensor, slot: Tensor, limit: Tensor, shape: Shape,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """hidden (T, H) through all layers; T tokens of the rows of pages (R, P) int32, behind one another.

        keys, values (L, slots, Hkv, D): where each layer appends at slot (T,) int64. cos, sin (T, D), limit (T,) int32:
        see Ops. Returns the hidden state (T, H) and sums of its squares (tiles, T) fp32, which add up to those of the
        whole token; both are overwritten by the next call.
        """
        if self.device.type == "cpu":
            raise ValueError("all layers at once: the interpreter cannot wait at barriers, call step_by_step")
        return self._run(WHOLE, 0, self.layers, weights, keys, values, pages, hidden, cos, sin, slot, limit, shape)

    def step_by_step(
        self, weights: StackedLayers, keys: Tensor, values: Tensor, pages: Tensor, hidden: Tensor, cos: Tensor,
        sin: Tensor, slot: Tensor, limit: Tensor, shape: Shape,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The same with a launch for every phase of every layer, so without barriers: for tests and measurements."""
        held = (weights, keys, values, pages, hidden, cos, sin, slot, limit, shape)
        found = self._run(0, 0, 1, *held)
        for layer in range(self.layers):
            for phase in range(1, len(PHASES)):
                found = self._run(phase, layer, layer + 1, *held)
        return found

    def _run(
        self, phase: int, begin: int, end: int, weights: StackedLayers, keys: Tensor, values: Tensor, pages: Tensor,
        hidden: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, limit: Tensor, shape: Shape,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        self._check(weights, keys, values, pages, hidden, cos, sin, slot, limit, shape)
        tokens, sizes = len(hidden), self.sizes
        bucket = bucket_of(max(tokens, 1))
        cuts = self.cuts[bucket]
        kinds = [getattr(weights, kind) for kind in ("qkv", "out", "gate_up", "down")]
        data = [one.data if isinstance(one, Fp8Weight) else one for one in kinds]
        scales = [one.scale if isinstance(one, Fp8Weight) else one for one in kinds]
        launch: dict[str, Any] = {"launch_cooperative_grid": True} if phase == WHOLE else {}
        triton_layers.layers[(self.programs,)](
            hidden, *data, *scales, weights.head_norm, cos, sin, slot, limit, pages, keys, values, self._hidden,
            self._squares, self._queries, self._attended, self._inner, self._partial, self._logs, self._state,
            tokens, len(pages), keys.shape[1], pages.stride(0), begin, end, self.polls, shape.scale * _LOG2_E,
            shape.eps, H=sizes.hidden, HQ=sizes.heads, HKV=sizes.kv_heads, D=sizes.head_dim, FFN=sizes.ffn,
            PAGE=self.page_size, SCALED=self.fp8, WIDEN=self._widen, PHASE=phase, COUNTS=self._counts, BLOCK_M=bucket,
            num_warps=cuts.warps, **self._cut(cuts), **launch,
        )  # fmt: skip
        tiles = triton.cdiv(sizes.hidden, (cuts.out if phase == 3 else cuts.down).block_n)
        return self._hidden[:tokens], self._squares[: tiles * tokens].view(tiles, tokens)

    def _cut(self, cuts: Cuts) -> dict[str, Any]:
        """The kernel's names of a bucket's cuts."""
        names = {"qkv": "QKV", "attend": "ATTEND", "out": "OUT", "gate_up": "GATE", "down": "DOWN"}
        found: dict[str, Any] = {"SOON": cuts.soon}
        for kind, name in names.items():
            cut: Cut = getattr(cuts, kind)
            found |= {f"{name}_K": cut.block_k, f"{name}_SPLITS": cut.splits, f"{name}_STAGES": cut.stages}
            rows = self.sizes.head_dim // 2 if kind == "qkv" else cut.block_n << (kind == "gate_up")
            if kind == "attend":
                found |= {"ATTEND_M": cut.block_n, "ATTEND_WARM": bool(cut.warm)}
                continue
            found[f"{name}_WARM"] = _lines(cut.warm, rows)
            if kind != "qkv":
                found[f"{name}_N"] = cut.block_n
            if kind == "gate_up":
                found["GATE_EARLY"] = _lines(cut.early, rows)
        return found

    def _check(
        self, weights: StackedLayers, keys: Tensor, values: Tensor, pages: Tensor, hidden: Tensor, cos: Tensor,
        sin: Tensor, slot: Tensor, limit: Tensor, shape: Shape,
    ) -> None:  # fmt: skip
        """The kernel takes addresses on trust. Raises ValueError with expected and actual."""
        sizes, tokens = self.sizes, len(hidden)
        if not 1 <= tokens <= sizes.tokens or tokens % len(pages) or len(pages) > sizes.rows:
            raise ValueError(
                f"all layers at once: expected up to {sizes.tokens} tokens of up to {sizes.rows} rows, got {tokens} of "
                f"{len(pages)}"
            )
        if (shape.heads, shape.kv_heads, shape.head_dim) != (sizes.heads, sizes.kv_heads, sizes.head_dim):
            raise ValueError(f"all layers at once: made for {sizes}, got {shape}")
        inner, size, wide = sizes.heads * sizes.head_dim, sizes.head_dim, sizes.heads + 2 * sizes.kv_heads
        kind = DTYPE if self.fp8 else self.dtype
        cache, turn = (self.layers, keys.shape[1], sizes.kv_heads, size), (tokens, size)
        expected = {
            "hidden": (hidden, (tokens, sizes.hidden), self.dtype),
            "cos": (cos, turn, self.dtype),
            "sin": (sin, turn, self.dtype),
            "slot": (slot, (tokens,), torch.int64),
            "limit": (limit, (tokens,), torch.int32),
            "keys": (keys, cache, self.dtype),
            "values": (values, cache, self.dtype),
            "qkv": (weights.qkv, (self.layers, wide * size, sizes.hidden), kind),
            "out": (weights.out, (self.layers, sizes.hidden, inner), kind),
            "gate_up": (weights.gate_up, (self.layers, 2 * sizes.ffn, sizes.hidden), kind),
            "down": (weights.down, (self.layers, sizes.hidden, sizes.ffn), kind),
            "head_norm": (weights.head_norm, (self.layers, sizes.heads + sizes.kv_heads, size), self.dtype),
        }
        for name, (one, form, dtype) in expected.items():
            if isinstance(one, Fp8Weight) and (one.scale.shape != form[:2] or one.scale.dtype != torch.float32):
                raise ValueError(f"{name}: expected scales {form[:2]} in float32, got {tuple(one.scale.shape)}")
            data = one.data if isinstance(one, Fp8Weight) else one
            if data.shape != form or data.dtype != dtype or not data.is_contiguous():
                raise ValueError(
                    f"{name}: expected {dtype} {form}, contiguous, got {data.dtype} {tuple(data.shape)} with strides "
                    f"{data.stride()}"
                )
        if pages.dtype != torch.int32 or pages.stride(1) != 1:
            raise ValueError(f"pages: expected int32 rows, got {pages.dtype} with strides {pages.stride()}")


def _lines(warm: int, rows: int) -> int:
    """Lines of each of `rows` weight rows in `warm` bytes: a power of two, or none."""
    most = warm // (rows * _LINE)
    return 1 << most.bit_length() - 1 if most else 0


def _processors(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 4 if device.type == "cpu" else _HOPPER_PROCESSORS
