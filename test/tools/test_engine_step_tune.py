"""The search of the engine's cuts in a whole step: its candidates, tables and entries, and how it decides."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import engine_step_tune  # noqa: E402
from benchmarks.engine_step_cuts import (  # noqa: E402
    KINDS,
    PRODUCTS,
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
from benchmarks.engine_step_model import Compilers, Step  # noqa: E402
from wamdiff2_core.decode.engine import triton_table  # noqa: E402
from wamdiff2_core.decode.engine.ops import TorchOps  # noqa: E402
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps  # noqa: E402
from wamdiff2_core.decode.engine.triton_table import (  # noqa: E402
    ATTEND,
    FLOW,
    TABLE,
    Chunks,
    Flow,
    Tiles,
    why_no_flow,
)

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
STEPS = [(1, 32), (1, 64), (3, 32), (1, 1), (4, 1)]
SHARED = 227 * 1024
MODEL = Model.of("2b")
CASE = Case(MODEL, 16, 1, 32)


@pytest.fixture(scope="module", params=SHAPES)
def cases(request: pytest.FixtureRequest) -> list[Case]:
    return [Case(Model.of(request.param), bits, *step) for bits in (16, 8) for step in STEPS]


def test_the_sizes_are_those_of_the_models() -> None:
    assert MODEL == Model(2048, 16, 8, 128, 6144, 151_936)
    assert Model.of("4b") == Model(2560, 32, 8, 128, 9728, 151_936)
    assert Case(Model.of("8b"), 8, 3, 32).product("heads") == ("heads", 6144, 4096, 128, 1)


@pytest.mark.parametrize("case", [(12, 1, 32), (16, 0, 32), (16, 3, 64)])
def test_steps_that_no_kernel_is_for_are_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Case(MODEL, *case)


def test_candidates_are_unique_and_there_are_some(cases: list[Case]) -> None:
    for case in cases:
        for kind in KINDS:
            found = candidates(case, kind)
            assert len(set(found)) == len(found) >= 3, (case, kind)


def test_products_divide_their_sizes_and_fit(cases: list[Case]) -> None:
    for case in cases:
        for kind in PRODUCTS:
            _, outputs, inputs, bucket, weight_bytes = case.product(kind)
            plain, *flows = candidates(case, kind)
            assert plain is None
            for cut in flows:
                assert isinstance(cut, Flow) and cut.rows <= 64 and outputs % cut.rows == 0
                assert inputs % (cut.splits * cut.block_k) == 0
                assert cut.block_k % (128 if case.bits == 8 else 64) == 0
                # Stages that are loaded ahead are turns, too.
                assert 3 <= cut.stages <= inputs // (cut.splits * cut.block_k) + 1
                weights = 64 * cut.block_k * weight_bytes * (2 if kind == "gated" else 1)
                assert cut.stages * (weights + bucket * cut.block_k * 2) <= SHARED
        for cut in candidates(case, "choose"):
            assert isinstance(cut, Tiles)
            assert case.model.vocab % cut.block_n == 0 and case.model.hidden % cut.block_k == 0
            tokens = 2 * case.product("choose")[3]
            assert cut.stages * cut.block_k * (cut.block_n * case.weight_bytes + tokens) <= SHARED


def test_attention_fits_and_has_scratch_for_its_splits(cases: list[Case]) -> None:
    for case in cases:
        group = case.model.heads // case.model.kv_heads
        for cut in candidates(case, "attend"):
            assert isinstance(cut, Chunks) and cut.block_m % group == 0
            assert cut.splits in (2, 4, 8, 16) and cut.splits <= triton_table.MOST_SPLITS
            assert (cut.block_m + cut.stages * 2 * cut.block_k) * 128 * 2 <= SHARED


def test_apply_changes_the_tables_and_puts_them_back() -> None:
    before = [dict(table) for table in (TABLE, ATTEND, FLOW)]
    was = current(CASE)
    config: Config = {
        "gated": Flow(64, 1, 3, rows=48), "heads": None, "out": None, "down": Flow(128, 3, 3),
        "attend": Chunks(32, 16, 4, 2, 2, True), "choose": Tiles(64, 256, 1, 4, 4, True),
    }  # fmt: skip
    assert all(config[kind] != was[kind] for kind in KINDS)
    with pytest.raises(KeyError, match="inside"), apply(CASE, config):
        assert current(CASE) == config
        assert current(Case(MODEL, 8, 1, 64)) != config
        raise KeyError("inside")
    assert current(CASE) == was and [TABLE, ATTEND, FLOW] == before
    # A shape that no table has, by the rules.
    other = Case(Model.of("4b"), 8, 1, 64)
    with apply(other, without_flow(other)):
        assert [current(other)[kind] for kind in PRODUCTS] == [None] * 4
    assert any(current(other)[kind] is not None for kind in PRODUCTS) and FLOW == before[2]


def cut_of(node: ast.expr) -> Cut:
    """The cut that a table's value writes."""
    if not isinstance(node, ast.Call):
        assert ast.literal_eval(node) is None
        return None
    assert isinstance(node.func, ast.Name)
    values = [ast.literal_eval(one) for one in node.args]
    named: dict[str, Any] = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    return {"Flow": Flow, "Chunks": Chunks, "Tiles": Tiles}[node.func.id](*values, **named)


def test_entries_can_be_pasted(cases: list[Case]) -> None:
    for case in cases:
        for config in (
            current(case),
            without_flow(case),
            {kind: candidates(case, kind)[-1] for kind in KINDS},
        ):
            told = entries(case, config, current(case))
            tables: dict[str, dict] = {"FLOW": {}, "TABLE": {}, "ATTEND": {}}
            for name, lines in told.items():
                body = ast.parse("{\n" + "\n".join(lines) + "\n}", mode="eval").body
                assert isinstance(body, ast.Dict)
                for key, value in zip(body.keys, body.values, strict=True):
                    assert key is not None
                    tables[name][ast.literal_eval(key)] = cut_of(value)
            assert tables == {
                "FLOW": {case.product(kind): config[kind] for kind in PRODUCTS},
                "TABLE": {case.product("choose"): config["choose"]},
                "ATTEND": {
                    (case.rows, case.width * case.model.heads // 8, 8, 128): config["attend"],
                },
            }


def test_entries_are_written_as_the_tables_are() -> None:
    assert text_of(Flow(128, 2, 8)) == "Flow(128, 2, 8)"
    assert text_of(Flow(64, 2, 4, True, 8)) == "Flow(64, 2, 4, True, 8)"
    assert text_of(Flow(128, 1, 5, rows=48)) == "Flow(128, 1, 5, rows=48)"
    assert text_of(Chunks(64, 64, 8, 8, 2, False, True)) == "Chunks(64, 64, 8, 8, 2, False, True)"
    was = current(CASE)
    lines = entries(CASE, was | {"out": None}, was | {"out": Flow(128, 4, 4, True)})
    assert '    ("add", 2048, 2048, 32, 2): None,  # was Flow(128, 4, 4, True)' in lines["FLOW"]
    assert len(lines["FLOW"]) == 4 and lines["TABLE"][0].startswith('    ("choose", 151936, 2048, 32, 2): Tiles(')


class Fake(engine_step_tune.Bench):
    """A step whose time follows from its cuts; every call is counted."""

    def __init__(self, case: Case, costs: dict[tuple[str, Cut], float], spills: dict[tuple[str, Cut], int]) -> None:
        super().__init__(case, None)  # type: ignore[arg-type]
        self.costs, self.calls = costs, 0
        now = current(case)
        for kind in KINDS:
            for cut in [now[kind], *candidates(case, kind)]:
                self.built[kind, cut] = done(spills.get((kind, cut), 0))

    def ms(self, config: Config, replays: int = 15) -> float:
        self.calls += 1
        found = 1.0
        for pair in config.items():
            cost = self.costs.get(pair, 0.0)
            if cost == float("inf"):
                raise RuntimeError("out of resource\nand more")
            found += cost
        return found


def done(value: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(value)
    return future


def test_the_search_keeps_what_is_faster_and_tells_what_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_step_tune.torch.cuda, "synchronize", lambda: None)
    some = {kind: [cut for cut in candidates(CASE, kind) if cut != current(CASE)[kind]] for kind in KINDS}
    costs: dict[tuple[str, Cut], float] = {
        ("gated", some["gated"][3]): -0.05, ("gated", some["gated"][4]): -0.02, ("gated", some["gated"][5]): -0.09,
        ("heads", some["heads"][1]): float("inf"), ("heads", some["heads"][2]): -0.01,
        ("out", some["out"][0]): -0.001, ("down", None): -0.03,
    }  # fmt: skip
    bench = Fake(CASE, costs, {("gated", some["gated"][5]): 8})
    broken: Future[int] = Future()
    broken.set_exception(RuntimeError("CompilationError: at 3:7"))
    bench.built["attend", some["attend"][0]] = broken
    config, measured = engine_step_tune.search(bench, time.monotonic() + 60)
    wanted: Config = {"gated": some["gated"][3], "heads": some["heads"][2], "down": None}
    assert config == current(CASE) | wanted  # a thousandth is too little for `out`
    lines = capsys.readouterr().out.splitlines()
    assert sum("out of resource" in line for line in lines) == 1 and not any("and more" in line for line in lines)
    assert sum("spills 8 bytes" in line for line in lines) == 1 and sum("at 3:7" in line for line in lines) == 1
    assert [len(measured[f"{kind} 2"]) for kind in ("gated", "attend")] == [9, 9]
    assert measured["heads 1"][0] == (0.94, text_of(some["heads"][2]))


def test_what_is_compiled_is_tried_and_what_is_late_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    some = [cut for cut in candidates(CASE, "gated") if cut != current(CASE)["gated"]]
    bench = Fake(CASE, {("gated", some[0]): -0.5, ("gated", some[2]): -0.25}, {})
    late = bench.built["gated", some[0]] = Future()
    config, measured = engine_step_tune.search(bench, time.monotonic() + 4)
    assert config["gated"] == some[2] and late.cancelled()
    assert len(measured["gated 1"]) == len(some) and measured["attend 2"]
    assert f"best of {len(some) - 1} of {len(some)}" in capsys.readouterr().out


def test_a_search_without_time_changes_nothing() -> None:
    bench = Fake(CASE, {("down", None): -0.5}, {})
    config, _ = engine_step_tune.search(bench, time.monotonic() - 1)
    assert config == current(CASE) and bench.calls == 2 * len(KINDS)


class Replay:
    """Stands for a captured step: computes it anew, with `error` times what is there added."""

    def __init__(self, step: Step, inputs: dict[str, Any], error: float, drift: float) -> None:
        self.step, self.inputs, self.error, self.drift, self.runs = step, inputs, error, drift, 0
        self.hidden = step.forward(step.kernels(), inputs).clone()

    def replay(self) -> None:
        self.runs += 1
        self.hidden.copy_(self.step.forward(self.step.kernels(), self.inputs))
        self.hidden *= 1 + self.error + self.drift * (self.runs % 2)


@pytest.mark.parametrize("bits", [16, 8])
def test_results_are_compared_with_the_plain_kernels(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    case = Case(Model(128, 4, 2, 32, 128, 320), bits, 2, 3)
    step = Step(case.model, bits, 2, 2, "cpu")
    ops = (Fp8TorchOps if bits == 8 else TorchOps)(16)
    monkeypatch.setattr(step, "kernels", lambda: ops)
    bench = engine_step_tune.Bench(case, step)

    def told(error: float = 0.0, drift: float = 0.0, frozen: bool = False) -> dict[str, Any]:
        def captured(config: Config, inputs: dict[str, Any]) -> tuple[Any, torch.Tensor, Any]:
            graph = Replay(step, dict(step.inputs(case)) if frozen else inputs, error, drift)
            return graph, graph.hidden, None

        monkeypatch.setattr(bench, "captured", captured)
        return bench.compared(current(case))

    assert told() == {"good": True, "errors": [0.0, 0.0], "repeats": True, "differ": True}
    near, far, moving, frozen = told(0.03), told(0.125), told(0.0, 0.01), told(frozen=True)
    assert near["good"] and near["errors"] == pytest.approx([0.03, 0.03], abs=0.005)
    assert not far["good"] and far["errors"] == pytest.approx([0.125, 0.125], abs=0.005)
    assert not moving["good"] and not moving["repeats"] and max(moving["errors"]) < 0.06
    # A step that does not read its input: the other one's result is the first one's.
    assert not frozen["good"] and not frozen["differ"] and frozen["errors"][0] == 0 and frozen["errors"][1] > 0.06


def test_a_compiler_that_dies_costs_its_candidate_only() -> None:
    compilers = Compilers(1, abs, 90)  # type: ignore[arg-type]
    try:
        jobs = [compilers.submit(*job) for job in ((abs, -2), (os._exit, 3), (int, "x"), (abs, -4))]
        assert jobs[0].result(60) == 2
        with pytest.raises(BrokenProcessPool):
            jobs[1].result(60)
        with pytest.raises(ValueError, match="invalid literal"):
            jobs[2].result(60)
        assert jobs[3].result(60) == 4
    finally:
        compilers.close()


def test_help_and_one_line_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(engine_step_tune.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        engine_step_tune.main(["--help"])
    assert ended.value.code == 0 and "--compare" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="^engine_step_tune: no CUDA device here$"):
        engine_step_tune.main([])
    for wrong in (["--steps", "3x64"], ["--bits", "4"], ["--steps", "32"], ["--layers", "0"]):
        with pytest.raises(SystemExit) as ended:
            engine_step_tune.main(wrong)
        assert ended.value.code == 2


SCRIPT = """
import json
from dataclasses import replace
from benchmarks.engine_step_cuts import Case, Model, candidates, current, without_flow
from benchmarks.engine_step_model import begin, compile_step
from wamdiff2_core.decode.engine.triton_table import Chunks

model = Model(512, 4, 2, 128, 1024, 1152)
begin(90)
found = {}
for bits in (16, 8):
    case = Case(model, bits, 3, 32) if bits == 8 else Case(model, bits, 1, 32)
    now = current(case)
    found[bits] = [compile_step(case, now), compile_step(case, without_flow(case)), now["heads"] is not None]
    try:
        compile_step(case, now | {"heads": replace(now["heads"], stages=40)})
    except RuntimeError as error:
        found[bits].append(str(error))
# Spills are told again of a kernel that is in the cache, and only of those that the step calls.
wide = now | {"attend": Chunks(64, 128, 8, 4, 2, False, True)}
found["spills"] = [compile_step(case, one) for one in (wide, now, wide)]
print(json.dumps(found))
"""


@needs_triton
@pytest.mark.slow
def test_steps_compile_without_a_device_and_tell_their_spills(tmp_path: Path) -> None:
    why = why_no_flow(90, importlib.metadata.version("triton"))
    if why:
        pytest.skip(why)
    # Other tests of this process may have asked for Triton's interpreter.
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]), "TRITON_CACHE_DIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, check=False, env=environ
    )
    assert told.returncode == 0, told.stderr[-2000:]
    found = json.loads(told.stdout.splitlines()[-1])
    for bits in ("16", "8"):
        spilled, plain, flows, failed = found[bits]
        assert (spilled, plain, flows) == (0, 0, True)
        assert failed.startswith("OutOfResources: ") and "\n" not in failed
    first, none, again = found["spills"]
    assert first == again > 0 == none
