"""What each kernel of the engine takes on this GPU, at the sizes of Qwen3-VL-2B: own kernels, cuBLAS, SDPA, FlashInfer.

python benchmarks/engine_kernels.py [--tokens 1,32,64] [--prefix 1024,2112] [--json FILE]     under two minutes
python benchmarks/engine_kernels.py --tune [--buckets 32] [--bits 16] [--seconds 110]         prints table entries

Medians of microseconds a call inside a CUDA graph. A graph holds many calls in a row, each on other weights, so that
the L2 cache holds none of them. share: of the copy bandwidth measured in the same run, by the bytes that a call must
read. step: 28 layers with their own weights, choice included, without embedding and accept rule.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

try:
    from engine_tune import tune
except ModuleNotFoundError as error:
    raise SystemExit(f"engine_kernels: expected the package {error.name}, which is not installed") from None

from wamdiff2_core.decode.engine.ops import LayerWeights, Shape
from wamdiff2_core.decode.engine.triton_ahead import compile_all
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight, quantise, quantise_layer
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps

MODEL = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "vocab": 151_936}
LAYERS, PAGE, EPS = 28, 16, 1e-6
L2_BYTES = 200 * 2**20  # several times the cache
SHAPE = Shape(16, 8, 128, 128**-0.5, EPS)
BF16, DEVICE = torch.bfloat16, "cuda"


def graph_us(calls: list[Callable[[], object]], replays: int = 15) -> float:
    """Median microseconds of one of `calls`, all captured in a row."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return statistics.median(times)


def copy_tb_s() -> float:
    """Bandwidth of a copy of 2 GiB, read and written bytes, TB/s."""
    source = torch.empty(2**31, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() / graph_us([lambda: target.copy_(source)] * 3) / 1e6


def sets_of(nbytes: int) -> int:
    """How many copies of an input of so many bytes the cache cannot hold."""
    return max(2, min(64, -(-L2_BYTES // nbytes)))


@dataclass
class Row:
    """One measured kernel. bytes: that a call must read or write; half of it with 8-bit weights."""

    kernel: str
    tokens: int
    us: dict[str, float]
    bytes: int

    def plain(self, copy: float) -> dict:
        read = {name: self.bytes // 2 if name.startswith("fp8") else self.bytes for name in self.us}
        share = {name: round(read[name] / us / 1e6 / copy, 3) for name, us in self.us.items()}
        us = {name: round(one, 2) for name, one in self.us.items()}
        return {"kernel": self.kernel, "tokens": self.tokens, "bytes": self.bytes, "us": us, "share": share}


def weight(outputs: int, inputs: int) -> torch.Tensor:
    return (torch.randn(outputs, inputs, device=DEVICE, dtype=BF16)) * inputs**-0.5


def make_ops(places: int, **options: Any) -> TritonOps:
    return TritonOps(PAGE, Sizes(tokens=128, rows=4, places=places, **MODEL), **options)


def all_allowed(tokens: int) -> torch.Tensor:
    """Bits that allow every id, as the engine always gives some."""
    return torch.full((tokens, MODEL["vocab"] // 32), -1, device=DEVICE, dtype=torch.int32)


def rotate(sets: list, call: Callable[[Any], object]) -> list[Callable[[], object]]:
    """At least 20 calls, going round the sets of inputs."""
    count = len(sets)
    return [partial(call, sets[number % count]) for number in range(max(20, count))]


def one_product(ops: TritonOps, kind: str, x: torch.Tensor, residual: torch.Tensor, one: Any) -> torch.Tensor:
    """The product of a kind, with weight `one`."""
    if kind == "add":
        return ops.linear_add(x, one, residual)
    return ops.gated(x, one, EPS) if kind == "gated" else ops.norm_linear(x, one, EPS)


def products(tokens: int, variants: dict[str, TritonOps]) -> list[Row]:
    """The four products of a layer, beside cuBLAS without norm, gate or residual."""
    rows = []
    for name, (kind, outputs, inputs) in variants["triton"].sizes.products.items():
        if kind == "choose":
            continue
        stored = outputs * (2 if kind == "gated" else 1)
        x = torch.randn(tokens, inputs, device=DEVICE, dtype=BF16)
        residual = torch.randn(tokens, outputs, device=DEVICE, dtype=BF16)
        nbytes = stored * inputs * 2
        plain = [weight(stored, inputs) for _ in range(sets_of(nbytes))]
        small = [quantise(one) for one in plain]
        us = {"cublas": graph_us(rotate(plain, partial(F.linear, x)))}
        for label, ops in variants.items():
            weights = small if ops.name == "triton_fp8" else plain
            us[label] = graph_us(rotate(weights, partial(one_product, ops, kind, x, residual)))
        rows.append(Row(f"{name} {stored}x{inputs}", tokens, us, nbytes))
    return rows


def head(tokens: int, variants: dict[str, TritonOps], plain: torch.Tensor, small: Fp8Weight) -> Row:
    x = torch.randn(tokens, MODEL["hidden"], device=DEVICE, dtype=BF16)
    allowed = all_allowed(tokens)
    us = {"cublas": graph_us([partial(F.linear, x, plain)] * 4)}
    for label, ops in variants.items():
        chosen = small if ops.name == "triton_fp8" else plain
        us[label] = graph_us([partial(ops.choose, x, chosen, allowed, 3, EPS)] * 4)
    return Row(f"head {MODEL['vocab']}x{MODEL['hidden']}", tokens, us, plain.numel() * 2)


class Cache:
    """One layer's pages for one row, in random order."""

    def __init__(self, places: int) -> None:
        pages = places // PAGE
        self.keys, self.values = (torch.randn((pages + 1) * PAGE, 8, 128, device=DEVICE, dtype=BF16) for _ in range(2))
        self.pages = (torch.randperm(pages, device=DEVICE) + 1).int()[None]


def attention(tokens: int, prefix: int, places: int, variants: dict[str, TritonOps]) -> list[Row]:
    """One row whose tokens see `prefix` places and the block; beside SDPA and FlashInfer on the same lengths."""
    seen = prefix + tokens
    nbytes = 2 * seen * 8 * 128 * 2
    caches = [Cache(places) for _ in range(sets_of(nbytes))]
    q = torch.randn(tokens, 16, 128, device=DEVICE, dtype=BF16)
    limit = torch.full((tokens,), seen, device=DEVICE, dtype=torch.int32)
    own = {label: ops for label, ops in variants.items() if ops.name == "triton"}
    us = {}
    for label, ops in own.items():
        us[label] = graph_us([partial(ops.attend, q, c.keys, c.values, c.pages, limit, SHAPE) for c in caches])
    wide = [[torch.randn(1, 8, seen, 128, device=DEVICE, dtype=BF16) for _ in range(2)] for _ in caches]
    query = q.transpose(0, 1)[None]
    plain = F.scaled_dot_product_attention
    us["sdpa"] = graph_us([partial(plain, query, key, value, enable_gqa=True) for key, value in wide])
    us |= flashinfer_us(q, limit, caches)
    rows = [Row(f"attend {prefix}", tokens, us, nbytes)]
    qkv, turns = (torch.randn(tokens, width, device=DEVICE, dtype=BF16) for width in (4096, 128))
    norm, slot = torch.ones(24, 128, device=DEVICE, dtype=BF16), torch.arange(tokens, device=DEVICE) + PAGE
    us = {
        label: graph_us(
            [partial(ops.rotate_append, qkv, norm, turns, turns, slot, c.keys, c.values, SHAPE) for c in caches]
        )
        for label, ops in own.items()
    }
    return [*rows, Row("rotate_append", tokens, us, 2 * qkv.numel() * 2)]


def flashinfer_us(q: torch.Tensor, limit: torch.Tensor, caches: list[Cache]) -> dict[str, float]:
    """FlashInfer's paged prefill, planned once, as it likes it and with the mask that the engine's passes have.

    Empty where it is not installed or cannot build.
    """
    from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps, ready

    if not ready():
        return {}
    pages = caches[0].pages  # the plan holds one table, so all caches go by it
    ops = FlashInferOps(PAGE, SHAPE, rows=1, tokens=len(q), places=pages.shape[1] * PAGE, device=q.device)
    found = {}
    for label, mode in (("flashinfer", None), ("flashinfer, masked", "mask")):
        ops.plan(pages.cpu(), limit.cpu(), mode)
        found[label] = graph_us([partial(ops.attend, q, c.keys, c.values, pages, limit, SHAPE) for c in caches])
    return found


class Step:
    """28 layers of random weights and a cache for each."""

    def __init__(self, places: int) -> None:
        self.layers = [
            LayerWeights(
                weight(4096, 2048), weight(2048, 2048), weight(12288, 2048), weight(2048, 6144),
                torch.ones(24, 128, device=DEVICE, dtype=BF16),
            )
            for _ in range(LAYERS)
        ]  # fmt: skip
        self.head: Any = weight(MODEL["vocab"], MODEL["hidden"])
        self.caches = [Cache(places) for _ in range(LAYERS)]

    def quantised(self) -> Step:
        """The same in 8 bits."""
        small: Step = object.__new__(Step)
        small.layers, small.caches = [quantise_layer(layer) for layer in self.layers], self.caches
        small.head = quantise(self.head)
        return small

    def ms(self, ops: TritonOps, tokens: int, prefix: int) -> float:
        x = torch.randn(tokens, MODEL["hidden"], device=DEVICE, dtype=BF16)
        turns = torch.randn(tokens, 128, device=DEVICE, dtype=BF16)
        limit = torch.full((tokens,), prefix + tokens, device=DEVICE, dtype=torch.int32)
        place, allowed = torch.arange(prefix, prefix + tokens, device=DEVICE), all_allowed(tokens)
        slots = [c.pages[0].long()[place // PAGE] * PAGE + place % PAGE for c in self.caches]

        def run() -> object:
            hidden = x
            for layer, cache, slot in zip(self.layers, self.caches, slots):
                q = ops.project(
                    hidden, layer.qkv, layer.head_norm, turns, turns, slot, cache.keys, cache.values, SHAPE
                )  # fmt: skip
                seen = ops.attend(q, cache.keys, cache.values, cache.pages, limit, SHAPE)
                hidden = ops.linear_add(seen, layer.out, hidden)
                hidden = ops.linear_add(ops.gated(hidden, layer.gate_up, EPS), layer.down, hidden)
            return ops.choose(hidden, self.head, allowed, 3, EPS)

        return graph_us([run]) / 1e3


def table(rows: list[dict], copy: float) -> str:
    """One line a kernel: microseconds and, behind a colon, the share of the copy bandwidth in percent."""
    lines = [f"{'kernel':<22}{'T':>4} {'MB':>7} {'floor':>6}  us:percent of {copy:.2f} TB/s"]
    for row in rows:
        cells = "  ".join(f"{name} {us:.1f}:{row['share'][name] * 100:.0f}" for name, us in row["us"].items())
        floor = row["bytes"] / copy / 1e6
        lines.append(f"{row['kernel']:<22}{row['tokens']:>4} {row['bytes'] / 1e6:>7.1f} {floor:>6.1f}  {cells}")
    return "\n".join(lines)


def places_of(prefixes: list[int]) -> int:
    """Room for the longest prefix and a few blocks, whole pages."""
    return -(-max(prefixes) // PAGE) * PAGE + 256


def compile_variants(token_counts: list[int], places: int) -> None:
    """Compile on all processors what `measure` will call, so that it finds it in Triton's cache."""
    sizes = Sizes(tokens=128, rows=4, places=places, **MODEL)
    context = multiprocessing.get_context("spawn")
    workers = min(4 * len(token_counts), max(1, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [
            pool.submit(compile_all, PAGE, sizes, [(1, tokens)], fp8=fp8, pdl=pdl)
            for tokens in token_counts
            for fp8 in (False, True)
            for pdl in (False, True)
        ]
        for one in waiting:
            one.result()


def measure(token_counts: list[int], prefixes: list[int]) -> dict:
    places = places_of(prefixes)
    copy = copy_tb_s()
    variants = {
        "triton": make_ops(places), "pdl": make_ops(places, pdl=True),
        "fp8": make_ops(places, fp8=True), "fp8 pdl": make_ops(places, fp8=True, pdl=True),
    }  # fmt: skip
    found: list[Row] = []
    step = Step(places)
    small = step.quantised()
    steps = []
    for tokens in token_counts:
        found += products(tokens, variants)
        found.append(head(tokens, variants, step.head, small.head))
        for prefix in prefixes:
            found += attention(tokens, prefix, places, variants)
            ms = {
                label: round((small if ops.name == "triton_fp8" else step).ms(ops, tokens, prefix), 4)
                for label, ops in variants.items()
            }
            steps.append({"tokens": tokens, "prefix": prefix, "ms": ms})
    return {
        "device": torch.cuda.get_device_name(), "copy_tb_s": round(copy, 3),
        "kernels": [row.plain(copy) for row in found], "steps": steps,
    }  # fmt: skip


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=numbers, default=[1, 32, 64])
    parser.add_argument("--prefix", type=numbers, default=[1024, 2112])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tune", action="store_true", help="search the kernels' cuts instead, print the table")
    parser.add_argument("--buckets", type=numbers, default=[16, 32, 64])
    parser.add_argument("--bits", type=numbers, default=[16])
    parser.add_argument("--kinds", default="heads,add,gated,choose,attend")
    parser.add_argument("--seconds", type=float, default=110.0, help="time that the search may take")
    parser.add_argument("--pdl", action="store_true", help="search with dependent launches, as the engine has them")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("engine_kernels: no CUDA device here")
    began = time.perf_counter()
    if options.tune:
        tune(options)
    else:
        compile_variants(options.tokens, places_of(options.prefix))
        result = measure(options.tokens, options.prefix)
        print(table(result["kernels"], result["copy_tb_s"]))
        for one in result["steps"]:
            cells = "  ".join(f"{name} {ms:.3f}" for name, ms in one["ms"].items())
            print(f"step T={one['tokens']} prefix={one['prefix']}: ms {cells}")
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"# {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
