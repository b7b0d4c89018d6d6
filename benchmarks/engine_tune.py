"""Search of the Triton kernels' cuts for engine_kernels.py: compile candidates on all processors, measure, print.

Candidates compile in processes that never touch the GPU; the measuring process then finds them in Triton's cache. When
the time is up, what was measured so far is printed: the order of shapes is the order of what they cost a step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

import torch

from wamdiff2_core.decode.engine import triton_table
from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps
from wamdiff2_core.decode.engine.triton_table import MOST_SPLITS, Chunks, Key, Tiles

SIZES = Sizes(tokens=128, rows=4, places=2560, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=6144, vocab=151_936)
PAGE, SHAPE = 16, Shape(16, 8, 128, 128**-0.5, 1e-6)
_SHARED = 227 * 1024
_PROCESSORS = 132


def candidates(key: Key) -> Iterator[Tiles]:
    """Cuts worth a try: enough programs, fitting shared memory, a few turns each, full waves first."""
    kind, outputs, inputs, bucket, weight_bytes = key
    rows = 2 if kind == "gated" else 1
    widths = {"choose": (128, 64, 32, 256), "heads": (SIZES.head_dim // 2,)}
    for block_n in widths.get(kind, (64, 32, 128)):
        for block_k in (64, 128, 256) if weight_bytes > 1 else (128, 256):
            for splits in (1,) if kind == "choose" else (1, 2, 3, 4, 6, 8):
                programs = -(-outputs // block_n) * splits
                turns = inputs / (block_k * splits)
                if (
                    programs < 0.7 * _PROCESSORS
                    or turns < 2
                    or turns % 1
                    or (programs > 4 * _PROCESSORS and splits > 1)
                ):
                    continue
                if bucket * block_n * rows > 128 * 256:
                    continue
                for flip in (False, True):
                    # The tensor cores' tall side takes 64: of outputs, or of tokens where there are as many.
                    if block_n < 64 if flip else block_n >= 64 and bucket < 128:
                        continue
                    for warps in (4, 8):
                        if warps == 8 and bucket * block_n * rows < 64 * 64 and not (flip and block_n == 128):
                            continue
                        turn = block_k * (rows * block_n * weight_bytes + bucket * 2)
                        for in_flight in (56 * 1024, 96 * 1024, 160 * 1024):
                            stages = min(int(turns) + 1, 8, round(in_flight / turn) + 1)
                            if stages >= 2 and turn * stages <= _SHARED - 16 * 1024:
                                yield Tiles(block_n, block_k, splits, warps, stages, flip)


def ranked(key: Key) -> list[Tiles]:
    """Candidates without repeats, those whose programs fill whole waves of processors first."""
    _, outputs, _, bucket, weight_bytes = key
    rows = 2 if key[0] == "gated" else 1

    def idle(cut: Tiles) -> float:
        programs = -(-outputs // cut.block_n) * cut.splits
        turn = cut.block_k * (rows * cut.block_n * weight_bytes + bucket * 2)
        together = max(1, min(_SHARED // max(1, turn * cut.stages), 2048 // (32 * cut.warps), 4))
        waves = programs / (_PROCESSORS * together)
        return round(-(-waves // 1) / waves, 1)

    unique = dict.fromkeys(candidates(key))
    return sorted(unique, key=lambda cut: (idle(cut), cut.splits))


def keys_of(buckets: list[int], bits: list[int], kinds: list[str]) -> list[Key]:
    """Shapes to search, those that cost most first."""
    shapes = [SIZES.products[name] for name in ("gate_up", "head", "down", "qkv", "out")]
    shapes.append(("heads", *SIZES.products["qkv"][1:]))
    return [
        (kind, outputs, inputs, bucket, bit // 8)
        for bucket in sorted(buckets, key=lambda bucket: (bucket != 32, bucket))
        for bit in bits
        for kind, outputs, inputs in shapes
        if kind in kinds
    ]


def call(ops: TritonOps, key: Key, x: torch.Tensor, weight: Any, residual: torch.Tensor) -> object:
    """The product that `key` names."""
    if key[0] == "choose":
        return ops.choose(x, weight, None, 3, 1e-6)
    if key[0] == "gated":
        return ops.gated(x, weight, 1e-6)
    if key[0] == "heads":
        return ops.project(x, weight, *held(("turns", key[3], str(x.device)), lambda: _turns(key[3], x.device)), SHAPE)
    return ops.linear_add(x, weight, residual) if key[0] == "add" else ops.norm_linear(x, weight, 1e-6)


def tensors(key: Key, device: str, copies: int = 1) -> tuple[torch.Tensor, list[Any], torch.Tensor]:
    """(x, weights, residual) of a shape, with `copies` weights."""
    kind, outputs, inputs, bucket, weight_bytes = key
    stored = outputs * (2 if kind == "gated" else 1)
    weights: list[Any] = []
    for _ in range(copies):
        wide = torch.empty(stored, inputs, device=device, dtype=torch.bfloat16)
        if device != "meta":
            wide.normal_(std=inputs**-0.5)
        if weight_bytes == 1:
            weights.append(Fp8Weight(wide.to(DTYPE), torch.ones(stored, device=device)))
        else:
            weights.append(wide)
    x = torch.ones(bucket, inputs, device=device, dtype=torch.bfloat16)
    return x, weights, torch.ones(bucket, outputs, device=device, dtype=torch.bfloat16)


def _turns(tokens: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """head_norm, cos, sin, slot, keys, values of `Ops.project`."""
    norm, cos, sin = (torch.ones(rows, 128, device=device, dtype=torch.bfloat16) for rows in (24, tokens, tokens))
    keys, values = (torch.ones(256, 8, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
    return norm, cos, sin, torch.arange(tokens, device=device), keys, values


def attend_candidates(rows: int, width: int) -> list[Chunks]:
    """Cuts of attention for Qwen3-VL-2B's heads."""
    queries = 2 * width
    found = []
    for block_m, warps in ((16, 1), (16, 4), (32, 2), (32, 4), (64, 4), (128, 8)):
        tiles = -(-queries // block_m)
        if block_m >= 2 * max(queries, 9) or tiles > 8:
            continue
        for block_k in (32, 64, 128):
            for splits in (1, 2, 4, 8, MOST_SPLITS):
                if not 32 <= rows * 8 * splits * tiles <= 4 * _PROCESSORS:
                    continue
                for stages in (2, 3):
                    shared = 2 * 128 * (block_m + stages * 2 * block_k)
                    for fused in (False, True) if splits * block_m <= 512 and splits > 1 else (False,):
                        if shared <= _SHARED:
                            found.append(Chunks(block_m, block_k, splits, warps, stages, fused))
                            if stages == 2 and block_k < 128 and splits > 4:
                                found.append(Chunks(block_m, block_k, splits, warps, stages, fused, True))
    return found


Job = tuple[str, tuple, Any, bool]
"""("product", key, cut, pdl) or ("attend", (rows, width), cut, pdl)."""


def _begin(arch: int) -> None:
    torch.set_num_threads(1)
    _begin.device = AbsentDevice(arch).install()  # type: ignore[attr-defined]


def _compile(job: Job) -> int:
    """Compile one candidate into the cache; bytes of spill a thread."""
    built = _begin.device.built  # type: ignore[attr-defined]
    built.clear()
    prepare(job, "meta")[0]()
    return max((one.spilled for one in built), default=0)


def prepare(job: Job, device: str) -> list[Callable[[], object]]:
    """Calls of one candidate, over several sets of inputs unless on "meta"."""
    what, key, cut, pdl = job
    return prepare_attend(key, cut, pdl, device) if what == "attend" else prepare_product(key, cut, pdl, device)


def prepare_attend(shape: tuple[int, int], cut: Chunks, pdl: bool, device: str) -> list[Callable[[], object]]:
    rows, width = shape
    triton_table.ATTEND[rows, 2 * width, 8, 128] = cut
    ops = TritonOps(PAGE, SIZES, device=device, pdl=pdl)
    q = torch.ones(rows * width, 16, 128, device=device, dtype=torch.bfloat16)
    pages = torch.arange(rows * 160, device=device, dtype=torch.int32).view(rows, 160)
    limits = [torch.full((rows * width,), seen + width, device=device, dtype=torch.int32) for seen in (1024, 2112)]
    copies = 1 if device == "meta" else 24
    caches = held(("cache", rows, device), lambda: [_cache(rows, device) for _ in range(copies)])
    return [partial(ops.attend, q, k, v, pages, limit, SHAPE) for k, v in caches for limit in limits]


def prepare_product(key: Key, cut: Tiles, pdl: bool, device: str) -> list[Callable[[], object]]:
    triton_table.TABLE[key] = cut
    ops = TritonOps(PAGE, SIZES, device=device, fp8=key[4] == 1, pdl=pdl)
    nbytes = key[1] * key[2] * key[4] * (2 if key[0] == "gated" else 1)
    copies = 1 if device == "meta" else min(12, max(2, -(-(200 << 20) // nbytes)))
    x, weights, residual = held((*key, device), lambda: tensors(key, device, copies))
    calls: list[Callable[[], object]] = [partial(call, ops, key, x, one, residual) for one in weights]
    return calls * (1 if key[0] == "choose" else max(1, 24 // copies))


_held: dict[object, object] = {}


def held(key: object, make: Callable[[], Any]) -> Any:
    """Inputs of few shapes at a time; candidates of a shape come mostly together."""
    if key not in _held:
        while len(_held) > 1:
            del _held[next(iter(_held))]
        _held[key] = make()
    return _held[key]


def _cache(rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ones(2, rows * 160 * PAGE, 8, 128, device=device, dtype=torch.bfloat16)
    return made[0], made[1]


def jobs_of(options: argparse.Namespace) -> dict[tuple[str, tuple], list[Job]]:
    """Candidates of every shape that is to be searched."""
    kinds = options.kinds.split(",")
    found: dict[tuple[str, tuple], list[Job]] = {}
    for key in keys_of(options.buckets, options.bits, kinds):
        found["product", key] = [("product", key, cut, options.pdl) for cut in ranked(key)]
    if "attend" in kinds:
        for shape in ((1, 32), (1, 1), (1, 64), (3, 32)):
            cuts = attend_candidates(*shape)
            found["attend", shape] = [("attend", shape, cut, options.pdl) for cut in cuts]
    return found


Rows = dict[tuple[str, tuple], list[tuple[float, Any]]]
"""(microseconds, cut) of each shape, best first."""


def tune(options: argparse.Namespace) -> None:
    """Search and print; options of engine_kernels.py."""
    began = time.perf_counter()
    lists = jobs_of(options)
    # A share of each shape's candidates at a time, so that every shape has some when the time is up.
    order = [job for turn in range(0, 600, 24) for jobs in lists.values() for job in jobs[turn : turn + 24]]
    major, minor = torch.cuda.get_device_capability()
    pool = ProcessPoolExecutor(
        max(1, (os.cpu_count() or 2) - 2), multiprocessing.get_context("spawn"), _begin, (10 * major + minor,)
    )
    try:
        ready = _compiled(pool, order, 0.6 * options.seconds)
        rows = _measured(ready, began + options.seconds)
        for shape, found in rows.items():
            us, cut = found[0]
            print(f"    {entry(shape)!r}: {cut!r},  # {us:.2f} us, best of {len(found)} of {len(lists[shape])}")
    finally:
        for process in list(pool._processes.values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def entry(shape: tuple[str, tuple]) -> tuple:
    """The key of a shape in TABLE or ATTEND."""
    what, key = shape
    return key if what == "product" else (key[0], 2 * key[1], 8, 128)


def _compiled(pool: ProcessPoolExecutor, order: list[Job], seconds: float) -> dict[tuple[str, tuple], list[Job]]:
    """Jobs that compile, fit and spill nothing, by shape, so that the inputs of a shape are made once."""
    waiting = {pool.submit(_compile, job): job for job in order}
    ready: dict[tuple[str, tuple], list[Job]] = {}
    try:
        for done in as_completed(waiting, timeout=seconds):
            if done.exception() is None and done.result() == 0:
                ready.setdefault(waiting[done][:2], []).append(waiting[done])
    except TimeoutError:
        print(f"# {len(order)} candidates do not compile in {seconds:.0f} s: {sum(map(len, ready.values()))} are ready")
    for one in waiting:
        one.cancel()
    return ready


def _measured(ready: dict[tuple[str, tuple], list[Job]], until: float) -> Rows:
    from engine_kernels import graph_us

    rows: Rows = {}
    for shape, jobs in ready.items():
        for job in jobs:
            rows.setdefault(shape, []).append((graph_us(prepare(job, "cuda"), 5), job[2]))
            if time.perf_counter() > until:
                break
        rows[shape].sort(key=lambda pair: pair[0])
    return rows
