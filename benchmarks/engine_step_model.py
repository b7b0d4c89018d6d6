"""What engine_step_tune.py measures: a step of a few layers; and its kernels compiled by processes without a device."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_step_cuts import (
    KINDS,
    PAGE,
    PLACES,
    PREFIX,
    Case,
    Config,
    Cut,
    Model,
    apply,
    candidates,
    current,
    without_flow,
)
from wamdiff2_core.decode.engine.ops import LayerWeights, Shape
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight, quantise
from wamdiff2_core.decode.engine.triton_table import BUCKETS

EPS, BF16 = 1e-6, torch.bfloat16
COMPILED = 2  # layers that compile every kernel: the first one's norm is another than the next ones'


class Step:
    """Layers of random weights, a language head, and a cache for each layer. device "meta": nothing is in them."""

    def __init__(self, model: Model, bits: int, layers: int, rows: int, device: str) -> None:
        self.model, self.bits, self.device = model, bits, device
        self.shape = Shape(model.heads, model.kv_heads, model.head_dim, model.head_dim**-0.5, EPS)
        inner, turned = model.heads * model.head_dim, model.heads + model.kv_heads
        torch.manual_seed(0)
        self.layers = [
            LayerWeights(
                self._weight(inner + 2 * model.kv_heads * model.head_dim, model.hidden),
                self._weight(model.hidden, inner), self._weight(2 * model.ffn, model.hidden),
                self._weight(model.hidden, model.ffn), torch.ones(turned, model.head_dim, device=device, dtype=BF16),
            )
            for _ in range(layers)
        ]  # fmt: skip
        self.head = self._weight(model.vocab, model.hidden)
        self.rows, pages = rows, rows * PLACES // PAGE
        slots = (pages + 1) * PAGE, model.kv_heads, model.head_dim
        self.caches = [(self._random(*slots), self._random(*slots)) for _ in range(layers)]
        self.pages = [(torch.randperm(pages, device=device) + 1).int().view(rows, -1) for _ in range(layers)]

    def _random(self, *lengths: int) -> Tensor:
        return torch.randn(*lengths, device=self.device, dtype=BF16)

    def _weight(self, outputs: int, inputs: int) -> Any:
        if self.bits == 8 and self.device == "meta":  # which has no numbers to scale by
            data = torch.empty(outputs, inputs, device="meta", dtype=DTYPE)
            return Fp8Weight(data, torch.empty(outputs, device="meta"))
        wide = self._random(outputs, inputs) * inputs**-0.5
        return quantise(wide) if self.bits == 8 else wide

    def inputs(self, case: Case, seed: int = 0) -> dict[str, Any]:
        """What changes from step to step, for rows with PREFIX places behind them."""
        torch.manual_seed(seed + 1)
        place = torch.arange(PREFIX, PREFIX + case.width, device=self.device)
        pages = [one[: case.rows] for one in self.pages]
        words = -(-self.model.vocab // 32)
        return {
            "x": self._random(case.tokens, self.model.hidden),
            "turns": self._random(case.tokens, self.model.head_dim),
            "limit": torch.full((case.tokens,), PREFIX + case.width, device=self.device, dtype=torch.int32),
            "allowed": torch.full((case.tokens, words), -1, device=self.device, dtype=torch.int32),
            "pages": pages,
            "slots": [(one.long()[:, place // PAGE] * PAGE + place % PAGE).reshape(-1) for one in pages],
        }

    def kernels(self) -> Any:
        """Kernels with scratch for the cuts that the tables have now."""
        from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps

        sizes = Sizes(tokens=BUCKETS[-1], rows=self.rows, places=PLACES, **asdict(self.model))
        return TritonOps(PAGE, sizes, device=self.device, fp8=self.bits == 8, pdl=True, flow=True)

    def forward(self, ops: Any, inputs: dict[str, Any]) -> Tensor:
        """Hidden states behind the layers; the choice is made and dropped."""
        x, turns = inputs["x"], inputs["turns"]
        for layer, (keys, values), slot, pages in zip(self.layers, self.caches, inputs["slots"], inputs["pages"]):
            q = ops.project(x, layer.qkv, layer.head_norm, turns, turns, slot, keys, values, self.shape)
            seen = ops.attend(q, keys, values, pages, inputs["limit"], self.shape)
            x = ops.linear_add(seen, layer.out, x)
            x = ops.linear_add(ops.gated(x, layer.gate_up, EPS), layer.down, x)
        ops.choose(x, self.head, inputs["allowed"], 3, EPS)
        return x


_worker: dict[str, Any] = {}


def begin(arch: int) -> None:
    """A process that compiles for a device of architecture `arch`."""
    from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice

    class Watched(AbsentDevice):
        """Knows which of the kernels that were ever loaded have been called."""

        called: set[int] = set()

        def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
            module, _, *rest = super().load_binary(name, kernel, shared, device)
            return (module, len(self.built) - 1, *rest)  # type: ignore[return-value]

        def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
            # The fifth argument of a launch is what load_binary gave for a function.
            return lambda *launch: self.called.add(launch[4])

    torch.set_num_threads(1)
    _worker["device"] = Watched(arch).install()


def told(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:140]}" if lines else type(error).__name__


def compile_step(case: Case, config: Config) -> int:
    """Compile what a step with these cuts runs; bytes of spill a thread, of all its kernels together."""
    device = _worker["device"]
    device.called.clear()
    try:
        with apply(case, config):
            step = Step(case.model, case.bits, COMPILED, case.rows, "meta")
            step.forward(step.kernels(), step.inputs(case))
    except Exception as error:  # noqa: BLE001 - not every exception of the compiler's can go to another process
        raise RuntimeError(told(error)) from None
    return sum(device.built[number].spilled for number in device.called)


class Compilers:
    """Processes that compile side by side. Where one dies, its candidate fails and another one takes its place."""

    def __init__(self, count: int, start: Callable[[int], None], arch: int) -> None:
        self._start = start, (arch,)
        self._threads, self._own = ThreadPoolExecutor(count), threading.local()
        self._started: list[ProcessPoolExecutor] = []

    def submit(self, job: Callable[..., int], *arguments: Any) -> Future[int]:
        return self._threads.submit(self._run, job, *arguments)

    def _run(self, job: Callable[..., int], *arguments: Any) -> int:
        pool = getattr(self._own, "pool", None)
        if pool is None:
            pool = self._own.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), *self._start)
            self._started.append(pool)
        try:
            return pool.submit(job, *arguments).result()
        except BrokenProcessPool:
            self._own.pool = None
            raise

    def close(self) -> None:
        """Drop what is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in self._started:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


Built = dict[tuple[str, Cut], "Future[int]"]
"""Spills of the step in which one kernel has a certain cut."""


def compile_case(compilers: Compilers, case: Case) -> Built:
    """Have every candidate compiled, with the step's other cuts as they are now."""
    now = current(case)
    first = compilers.submit(compile_step, case, now)
    compilers.submit(compile_step, case, without_flow(case))  # for the comparison at the end
    built: Built = {}
    for kind in KINDS:  # in the order of the search, which cancels what it has no time for
        built[kind, now[kind]] = first
        for cut in candidates(case, kind):
            if (kind, cut) not in built:
                built[kind, cut] = compilers.submit(compile_step, case, now | {kind: cut})
    return built
