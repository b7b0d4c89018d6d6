"""Cuts of the engine's kernels searched in a whole step, on a GPU of the Hopper kind; prints table entries.

python -m benchmarks.engine_step_tune [--shape 2b] [--bits 16,8] [--steps 1x32,1x64,3x32,1x1] [--seconds 480]
python -m benchmarks.engine_step_tune --compare [--shape 4b]      plain kernels against the tables and rules as they are

What is best alone need not be best between its neighbours: weights that come in ahead take memory from the kernel in
front. So a step of a few layers and the language head, random weights, is captured in a CUDA graph, and its replays are
measured with one kernel's cut changed, one kernel after the other, then once more with the best eight of each. A cut
stays where the step gets faster by 0.15 %, in two measurements, and no register spills. What comes out is compared with
the plain kernels. Candidates compile beforehand in processes of their own, for a device that they never touch. steps:
rows x tokens a row. Entries are for FLOW, TABLE and ATTEND in wamdiff2_core/decode/engine/triton_table.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.engine_step_cuts import (
    KINDS,
    SHAPES,
    Case,
    Config,
    Cut,
    Model,
    apply,
    candidates,
    current,
    entries,
    text_of,
    without_flow,
)
from benchmarks.engine_step_model import Built, Compilers, Step, begin, compile_case, compile_step, told
from wamdiff2_core.decode.engine.kernel_sets import triton_release
from wamdiff2_core.decode.engine.triton_table import why_no_flow

GAIN = 0.0015  # share of a step that a cut has to save to stay
KEPT = 8  # candidates of a kernel that get a second turn
LARGEST_ERROR = 0.06  # of hidden states after the layers, relative


@dataclass
class Bench:
    """Measures one case with the cuts that it is given."""

    case: Case
    step: Step
    built: Built = field(default_factory=dict)

    def captured(self, config: Config, inputs: dict[str, Any]) -> tuple[Any, Tensor, Any]:
        """(graph, hidden states that a replay writes, what must live as long)."""
        with apply(self.case, config):
            ops = self.step.kernels()
            self.step.forward(ops, inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                hidden = self.step.forward(ops, inputs)
        return graph, hidden, (ops, inputs)

    def ms(self, config: Config, replays: int = 15) -> float:
        """Median of a replay."""
        graph, _, alive = self.captured(config, self.step.inputs(self.case))
        graph.replay()
        times = []
        for _ in range(replays):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        del graph, alive
        return statistics.median(times)

    def next_of(self, kind: str, cuts: list[Cut], deadline: float) -> Cut | Literal["late"]:
        """Take the first of `cuts` that is compiled; "late" where none is before the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            for number, cut in enumerate(cuts):
                if self.built[kind, cut].done():
                    return cuts.pop(number)
            wait([self.built[kind, cut] for cut in cuts], left, FIRST_COMPLETED)
        return "late"

    def attempt(self, kind: str, cut: Cut, config: Config) -> float | None:
        """Milliseconds with this cut; None where it spills or fails, which is told."""
        try:
            spilled = self.built[kind, cut].result()
            if spilled > self.built[kind, current(self.case)[kind]].result():
                print(f"#   {kind} {text_of(cut)}: spills {spilled} bytes a thread", flush=True)
                return None
            return self.ms(config | {kind: cut})
        except Exception as error:  # noqa: BLE001 - told; a candidate that fails costs no other
            print(f"#   {kind} {text_of(cut)}: {told(error)}", flush=True)
            torch.cuda.synchronize()  # raises where the device no longer answers: then nothing can be measured
            return None

    def compared(self, config: Config) -> dict[str, Any]:
        """These cuts beside the plain kernels: errors of two inputs, whether replays repeat, whether all is well."""
        inputs, other = self.step.inputs(self.case), self.step.inputs(self.case, seed=1)
        with apply(self.case, without_flow(self.case)):
            plain = self.step.kernels()
            wanted = [self.step.forward(plain, one).float().clone() for one in (inputs, other)]
        own = inputs | {name: inputs[name].clone() for name in ("x", "turns")}
        graph, hidden, alive = self.captured(config, own)
        found = []
        for one in (inputs, other):
            for name in ("x", "turns"):
                own[name].copy_(one[name])
            graph.replay()
            first, equal = hidden.clone(), True
            for _ in range(30):
                graph.replay()
                equal = equal and torch.equal(first, hidden)
            found.append((first, equal))
        del graph, alive
        errors = [
            ((one.float() - want).norm() / want.norm()).item() for (one, _), want in zip(found, wanted, strict=True)
        ]
        repeats, differ = all(equal for _, equal in found), not torch.equal(found[0][0], found[1][0])
        good = all(error < LARGEST_ERROR for error in errors) and repeats and differ
        return {"good": good, "errors": [round(error, 5) for error in errors], "repeats": repeats, "differ": differ}


def search(bench: Bench, until: float) -> tuple[Config, dict[str, Any]]:
    """The best cut of each kernel, one kernel after the other; (cuts, what was measured)."""
    config, measured = current(bench.case), {}
    # Most candidates are tried in the first turn, so it gets most of the time.
    turns = [(kind, 3) for kind in KINDS] + [(kind, 1) for kind in KINDS]
    best = {kind: candidates(bench.case, kind) for kind in KINDS}
    for number, (kind, share) in enumerate(turns):
        start = time.monotonic()
        deadline = start + (until - start) * share / sum(one for _, one in turns[number:])
        now = bench.ms(config)
        found = [(now, config[kind])]
        others = [cut for cut in best[kind] if cut != config[kind]]
        count = len(others)
        while others and (cut := bench.next_of(kind, others, deadline)) != "late":
            ms = bench.attempt(kind, cut, config)
            if ms is not None:
                found.append((ms, cut))
        for cut in others:
            bench.built[kind, cut].cancel()  # the next kernel's candidates are waiting
        found.sort(key=lambda pair: pair[0])
        ms, cut = found[0]
        stays = False
        if ms < now * (1 - GAIN):  # the best of many is lucky, too: measured again
            stays = bench.ms(config | {kind: cut}, 40) < bench.ms(config, 40) * (1 - GAIN)
        print(
            f"#  {kind:<7}{now:.4f} ms, best of {count - len(others)} of {count}: {ms:.4f} {text_of(cut)}"
            + (", stays" if stays else ""),
            flush=True,
        )
        measured[f"{kind} {1 + (number >= len(KINDS))}"] = [(round(ms, 5), text_of(cut)) for ms, cut in found]
        best[kind] = [cut for _, cut in found[: KEPT + 1]]
        if stays:
            config = config | {kind: cut}
    return config, measured


def tune(bench: Bench, until: float) -> dict[str, Any]:
    """Search, compare, print the entries."""
    was = current(bench.case)
    bench.built["gated", was["gated"]].result()  # the step as it is has to compile
    print(f"# {bench.case}: {bench.ms(was, 60):.4f} ms as it is", flush=True)
    config, measured = search(bench, until)
    before, after, check = bench.ms(was, 60), bench.ms(config, 60), bench.compared(config)
    print(f"# {bench.case}: {before:.4f} ms before, {after:.4f} ms now; {check}", flush=True)
    lines = entries(bench.case, config, was)
    if check["good"]:
        for table, some in lines.items():
            print("\n".join([f"{table}:", *some]), flush=True)
    else:
        print("# no entries: what these cuts compute does not agree with the plain kernels", flush=True)
    cuts = {kind: text_of(cut) for kind, cut in config.items()}
    found = {"before_ms": before, "after_ms": after, "check": check, "cuts": cuts, "measured": measured}
    return found | {"entries": lines if check["good"] else {}}


def compare(bench: Bench) -> dict[str, Any]:
    """The plain kernels against the tables and rules as they are."""
    plain, now = (bench.ms(config, 60) for config in (without_flow(bench.case), current(bench.case)))
    print(
        f"{bench.case}: plain kernels {plain:.4f} ms, tables and rules as they are {now:.4f} ms "
        f"({100 * (now / plain - 1):+.1f} %)",
        flush=True,
    )
    return {"plain_ms": plain, "now_ms": now}


def run(options: argparse.Namespace, arch: int) -> dict[str, Any]:
    """Every case one after the other, each with its share of what time is left."""
    until, model = time.monotonic() + options.seconds, Model.of(options.shape)
    cases = [Case(model, bits, *one) for bits in options.bits for one in options.steps]
    compilers = Compilers(max(1, len(os.sched_getaffinity(0)) - 1), begin, arch)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "shape": options.shape, "layers": options.layers, "steps": {},
    }  # fmt: skip
    steps: dict[int, Step] = {}
    try:
        if options.compare:
            wait([compilers.submit(compile_step, case, how(case)) for case in cases for how in (current, without_flow)])
            built: list[Built] = [{} for _ in cases]
        else:
            built = [compile_case(compilers, case) for case in cases]
        for number, (case, known) in enumerate(zip(cases, built, strict=True)):
            if case.bits not in steps:
                most = max(rows for rows, _ in options.steps)
                steps = {case.bits: Step(model, case.bits, options.layers, most, "cuda")}
            now = time.monotonic()
            bench = Bench(case, steps[case.bits], known)
            try:
                share = now + (until - now) / (len(cases) - number)
                one = compare(bench) if options.compare else tune(bench, share)
            except Exception as error:  # noqa: BLE001 - told; the other steps may do
                print(f"# {case}: {told(error)}", flush=True)
                one = {"error": told(error)}
            for waits in known.values():
                waits.cancel()
            result["steps"][str(case)] = one
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        compilers.close()
    return result


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def steps_of(text: str) -> list[tuple[int, int]]:
    """1x32,3x32: (rows, tokens a row)."""
    found = []
    for part in text.split(","):
        rows, width = part.split("x")
        found.append((int(rows), int(width)))
    return found


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="2b", help="Qwen3-VL's size")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--bits", type=numbers, default=[16, 8], help="of weights")
    parser.add_argument("--steps", type=steps_of, default=steps_of("1x32,1x64,3x32,1x1"), help="rows x tokens a row")
    parser.add_argument("--seconds", type=float, default=480.0, help="that the search may take, shared by the steps")
    parser.add_argument("--out", type=Path, help="a JSON file for all that was measured")
    parser.add_argument("--compare", action="store_true", help="no search: plain kernels and the tables as they are")
    options = parser.parse_args(arguments)
    if options.layers < 1:
        parser.error(f"--layers: expected 1 or more, got {options.layers}")
    widths = Model(2048, 16, 8, 128, 6144, 151_936)
    for bits in options.bits:
        for one in options.steps:
            try:
                Case(widths, bits, *one)
            except ValueError as error:
                parser.error(f"--{error}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("engine_step_tune: no CUDA device here")
    major, minor = torch.cuda.get_device_capability()
    if importlib.util.find_spec("triton") is None:
        raise SystemExit("engine_step_tune: the package triton is not installed")
    problem = why_no_flow(10 * major + minor, triton_release())
    if problem:
        raise SystemExit(f"engine_step_tune: no products with weights ahead here: {problem}")
    began = time.monotonic()
    result = run(options, 10 * major + minor)
    print(f"# {time.monotonic() - began:.0f} s")
    return int(any("error" in one or not one.get("check", {"good": True})["good"] for one in result["steps"].values()))


if __name__ == "__main__":
    sys.exit(main())
