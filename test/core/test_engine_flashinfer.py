"""FlashInfer: the checks of a machine against made-up ones, the plan of a pass against the plain twin.

Without FlashInfer a stand-in takes its place that reads the buffers of a plan as the library's kernels do. With a GPU
and the library the same runs for real.
"""

from __future__ import annotations

import math
import stat
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wamdiff2_core.decode.engine import flashinfer_checks, flashinfer_ops
from wamdiff2_core.decode.engine.flashinfer_checks import (
    Finding,
    architectures_of,
    cache_folder,
    cuda_home,
    findings,
    first_obstacle,
)
from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps, build, check_shape, here, layout, ready
from wamdiff2_core.decode.engine.ops import Shape, TorchOps
from wamdiff2_core.errors import ConfigError

HOPPER = (9, 0)
VERSION = "0.6.8.post1"
PAGE = 4


class Machine:
    """A folder that looks like a machine with a toolkit, and the environment that leads there."""

    def __init__(self, root: Path) -> None:
        self.cuda, self.tools = root / "cuda", root / "tools"
        self.home = root / "home"
        self.home.mkdir()
        self.program(self.cuda / "bin" / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.48'")
        self.program(self.tools / "ninja")
        self.program(self.tools / "c++")
        self.environ = {"CUDA_HOME": str(self.cuda), "PATH": str(self.tools), "HOME": str(self.home)}

    @staticmethod
    def program(path: Path, line: str = "true") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def kernels(self, *names: str) -> Path:
        folder = cache_folder(self.environ, VERSION, ["90a"])
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / f"{name}.so").touch()
        return folder

    def found(self, name: str, capability=HOPPER, version: str | None = VERSION) -> Finding:
        return next(one for one in findings(capability, self.environ, version) if one.name == name)

    def obstacle(self, capability=HOPPER) -> str | None:
        one = first_obstacle(findings(capability, self.environ, VERSION))
        return one.name if one is not None else None


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_a_good_machine_with_compiled_kernels(machine) -> None:
    machine.kernels("batch_prefill_with_kv_cache_dtype_q_bf16_x", "norm", "rope", "silu_and_mul")
    found = findings(HOPPER, machine.environ, VERSION)
    assert all(one.ok for one in found), found
    assert first_obstacle(found) is None
    assert "release 13.0" in machine.found("nvcc").found


def test_an_empty_cache_is_named_with_its_cure_and_is_no_obstacle(machine) -> None:
    one = machine.found("kernels")
    assert not one.ok and "doctor --build" in one.do
    assert all(kernel in one.found for kernel in ("attention", "norm", "rotation", "activation"))
    assert machine.obstacle() is None
    folder = machine.kernels("norm", "rope")
    (folder / "silu_and_mul").mkdir()  # a build that was cut off leaves no library
    assert "not compiled" in machine.found("kernels").found
    assert machine.found("kernels").found.endswith("attention, activation")


def test_kernels_that_came_ready_made_and_norms_without_a_library(machine, tmp_path, monkeypatch) -> None:
    for name in ("flashinfer_jit_cache", "cutlass"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    machine.kernels("rope", "silu_and_mul")
    assert machine.found("kernels").found.endswith("attention, norm")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert machine.found("kernels").found.endswith("attention")
    machine.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    assert machine.found("kernels").found.endswith("attention, norm")
    for name in ("batch_prefill_with_kv_cache_x", "norm"):
        folder = tmp_path / "site" / "flashinfer_jit_cache" / "jit_cache" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.so").touch()
    assert machine.found("kernels").ok


@pytest.mark.parametrize("before, after", [("", ":"), (":", ""), ("", ":/usr/lib"), ("/opt/nothing:", "")])
def test_a_stray_colon(machine, before: str, after: str) -> None:
    machine.environ["CUDA_HOME"] = f"{before}{machine.cuda}{after}"
    one = machine.found("cuda toolkit")
    assert not one.ok and "colon" in one.found
    assert one.do == f"export CUDA_HOME={machine.cuda}"
    assert machine.obstacle() == "cuda toolkit"
    machine.environ["CUDA_HOME"] = ":"
    assert "one folder" in machine.found("cuda toolkit").do


def test_cuda_path_stands_in_for_cuda_home(machine) -> None:
    machine.environ["CUDA_PATH"] = machine.environ.pop("CUDA_HOME")
    assert machine.found("cuda toolkit").found == f"{machine.cuda} (CUDA_PATH)"
    machine.environ["CUDA_PATH"] += ":"
    assert machine.found("cuda toolkit").do == f"export CUDA_PATH={machine.cuda}"


def test_a_folder_that_is_not_there(machine) -> None:
    for wrong in (str(machine.cuda) + "x", f"{machine.cuda} "):
        machine.environ["CUDA_HOME"] = wrong
        assert "no folder" in machine.found("cuda toolkit").found and machine.obstacle() == "cuda toolkit"


def test_no_nvcc(machine) -> None:
    nvcc = machine.cuda / "bin" / "nvcc"
    nvcc.chmod(0o644)
    assert "cannot be executed" in machine.found("nvcc").found
    nvcc.unlink()
    assert not machine.found("nvcc").ok and machine.obstacle() == "nvcc"
    assert "apt install" in machine.found("nvcc").do
    machine.environ["FLASHINFER_NVCC"] = str(Machine.program(machine.tools / "other", "echo release 12.9, V12.9.1"))
    assert machine.found("nvcc").ok and "12.9" in machine.found("nvcc").found


@pytest.mark.parametrize(
    "line, message", [("exit 3", "fails"), ("echo hello", "no release"), ("echo 'release 11.8, V'", "expected 12")]
)
def test_an_nvcc_that_does_not_work(machine, line: str, message: str) -> None:
    Machine.program(machine.cuda / "bin" / "nvcc", line)
    assert message in machine.found("nvcc").found and machine.obstacle() == "nvcc"


def test_nvcc_on_the_path_leads_to_the_toolkit(machine) -> None:
    del machine.environ["CUDA_HOME"]
    machine.environ["PATH"] = f"{machine.tools}:{machine.cuda / 'bin'}"
    assert cuda_home(machine.environ) == str(machine.cuda)
    assert machine.found("cuda toolkit").ok and machine.found("nvcc").ok


def test_nothing_of_cuda_at_all(machine) -> None:
    del machine.environ["CUDA_HOME"]
    if Path("/usr/local/cuda").is_dir():
        assert cuda_home(machine.environ) == "/usr/local/cuda"
        return
    assert "no CUDA_HOME" in machine.found("cuda toolkit").found and not machine.found("nvcc").ok


@pytest.mark.parametrize("tool, name", [("ninja", "ninja"), ("c++", "c++ compiler")])
def test_a_missing_tool(machine, tool: str, name: str) -> None:
    (machine.tools / tool).unlink()
    assert machine.obstacle() == name and "install" in machine.found(name).do


def test_the_compiler_that_is_named_is_the_one_looked_for(machine) -> None:
    machine.environ["CXX"] = "clang++"
    assert "clang++" in machine.found("c++ compiler").found and machine.obstacle() == "c++ compiler"


@pytest.mark.parametrize("listed", ["9.0", "9.0a", "8.0 9.0", "9.0a 10.0a"])
def test_architecture_lists(machine, listed: str) -> None:
    machine.environ["FLASHINFER_CUDA_ARCH_LIST"] = listed
    assert machine.found("architectures").ok


@pytest.mark.parametrize("listed", ["9.0;10.0", "9.0,10.0", "sm_90", "", "9.0  10.0", "90"])
def test_architecture_lists_that_flashinfer_cannot_read(machine, listed: str) -> None:
    machine.environ["FLASHINFER_CUDA_ARCH_LIST"] = listed
    one = machine.found("architectures")
    assert not one.ok and "no architecture" in one.found and machine.obstacle() == "architectures"
    assert not machine.found("kernels").ok


def test_an_architecture_list_without_this_gpu(machine) -> None:
    machine.environ["FLASHINFER_CUDA_ARCH_LIST"] = "8.0 10.0"
    one = machine.found("architectures")
    assert not one.ok and "lacks this GPU's 9.0" in one.found


def test_folders_are_named_as_flashinfer_names_them() -> None:
    environ = {"FLASHINFER_WORKSPACE_BASE": "/base", "FLASHINFER_CUDA_ARCH_LIST": "10.0 9.0"}
    assert architectures_of(environ, None) == ["90a", "100a"]
    assert str(cache_folder(environ, VERSION, ["90a"])) == f"/base/.cache/flashinfer/{VERSION}/90a/cached_ops"
    assert architectures_of({}, (8, 6)) == ["86"] and architectures_of({}, (12, 0)) == ["120f"]


def test_a_cache_that_cannot_be_written(machine) -> None:
    (machine.home / ".cache").write_text("a file where the folder should be")
    one = machine.found("cache folder")
    assert not one.ok and "FLASHINFER_WORKSPACE_BASE" in one.do and machine.obstacle() == "cache folder"


def test_gpu_and_package(machine, monkeypatch) -> None:
    assert machine.obstacle(None) == "gpu" and machine.obstacle((7, 5)) == "gpu"
    monkeypatch.setattr(flashinfer_checks, "PACKAGE", "no-such-package")
    one = findings(HOPPER, machine.environ)[0]
    assert not one.ok and one.found == "not installed" and VERSION in one.do
    assert first_obstacle(findings(HOPPER, machine.environ)) == one
    assert not machine.found("package", version="0.7.0").ok
    assert machine.found("package").ok


def test_refused_heads() -> None:
    check_shape(Shape(16, 8, 128, 1.0, 1e-6))
    for heads, kv_heads, size, told in ((16, 8, 80, "80"), (6, 2, 128, "6 for 2"), (5, 2, 128, "5 for 2")):
        with pytest.raises(ConfigError, match=told):
            check_shape(Shape(heads, kv_heads, size, 1.0, 1e-6))


def pages_of(rows: int, count: int) -> torch.Tensor:
    order = torch.randperm(rows * count, generator=torch.Generator().manual_seed(0)) + 1
    return order.view(rows, count).to(torch.int32)


def test_kinds_of_masks() -> None:
    pages = pages_of(2, 5)
    for limits, mode in (
        ([[7, 7], [3, 3]], "full"), ([[7], [3]], "full"), ([[6, 7], [1, 2]], "causal"), ([[7, 7], [1, 2]], "mask"),
        ([[0, 1], [1, 2]], "mask"), ([[3, 3, 7, 7], [1, 1, 5, 5]], "mask"),
    ):  # fmt: skip
        told = layout(pages, torch.tensor(limits, dtype=torch.int32).view(-1), PAGE)
        assert told.mode == mode
        assert told.starts.tolist() == [0, len(limits[0]), 2 * len(limits[0])]
    full = torch.tensor([7, 7, 3, 3], dtype=torch.int32)
    assert layout(pages, full, PAGE, "mask").mode == "mask"
    with pytest.raises(ConfigError, match="planned as causal"):
        layout(pages, full, PAGE, "causal")
    assert layout(pages, torch.tensor([7, 3], dtype=torch.int32), PAGE, "causal").mode == "causal"  # one token: both
    with pytest.raises(ConfigError, match="21"):
        layout(pages, torch.tensor([21, 3], dtype=torch.int32), PAGE)


def test_pages_on_and_off_the_edge() -> None:
    pages = pages_of(3, 5)
    told = layout(pages, torch.tensor([8, 9, 0], dtype=torch.int32), PAGE)
    assert told.page_starts.tolist() == [0, 2, 5, 6] and told.last.tolist() == [4, 1, 1]
    assert told.pages.tolist() == [*pages[0, :2].tolist(), *pages[1, :3].tolist(), int(pages[2, 0])]


class StandIn:
    """FlashInfer's wrapper: `run` does what the buffers say at that moment, as a captured kernel would."""

    def __init__(self, workspace, layout_name, use_cuda_graph, backend, **buffers) -> None:
        assert use_cuda_graph and layout_name == "NHD" and backend == "fa2"
        self.buffers: dict[str, Any] = buffers
        self.bits: Any = buffers.get("custom_mask_buf")
        self.bit_starts: Any = buffers.get("mask_indptr_buf")
        self.most: int | None = None

    def plan(
        self, starts, page_starts, pages, last, heads, kv_heads, size, page_size, causal, sm_scale, q_data_type,
        kv_data_type, packed_custom_mask,
    ) -> None:  # fmt: skip
        assert (packed_custom_mask is None) == (self.bits is None)
        self.most = self.most or int(starts[-1])
        assert int(starts[-1]) <= self.most and len(pages) <= len(self.buffers["paged_kv_indices_buf"])
        self.buffers["qo_indptr_buf"].copy_(starts)
        self.buffers["paged_kv_indptr_buf"].copy_(page_starts)
        self.buffers["paged_kv_last_page_len_buf"].copy_(last)
        self.buffers["paged_kv_indices_buf"][: len(pages)].copy_(pages)
        if packed_custom_mask is not None:
            self.bits[: len(packed_custom_mask)].copy_(packed_custom_mask)
            self.bit_starts.fill_(2**30)  # what the library leaves here for packed bits is of no use
        self.causal, self.scale, self.page_size = causal, sm_scale, page_size

    def run(self, q, caches, out=None):
        keys, values = caches
        starts, page_starts = self.buffers["qo_indptr_buf"], self.buffers["paged_kv_indptr_buf"]
        out = torch.empty_like(q) if out is None else out
        for row in range(len(starts) - 1):
            table = self.buffers["paged_kv_indices_buf"][page_starts[row] : page_starts[row + 1]].long()
            places = (len(table) - 1) * self.page_size + int(self.buffers["paged_kv_last_page_len_buf"][row])
            query = q[starts[row] : starts[row + 1]].float()
            key, value = (one[table].flatten(0, 1)[:places].float() for one in (keys, values))
            group = query.shape[1] // key.shape[1]
            scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, 1)) * self.scale
            width = len(query)
            if self.bits is not None:
                raw = self.bits[self.bit_starts[row] :].cpu().numpy()
                seen = torch.from_numpy(np.unpackbits(raw, bitorder="little")[: width * places].copy())
                scores = scores.masked_fill(seen.view(width, places).to(scores.device) == 0, -math.inf)
            elif self.causal:
                seen = torch.ones(width, places, dtype=torch.bool).tril(places - width)
                scores = scores.masked_fill(~seen.to(scores.device), -math.inf)
            weights = scores.softmax(-1)
            out[starts[row] : starts[row + 1]] = torch.einsum(
                "hqk,khd->qhd", weights, value.repeat_interleave(group, 1)
            ).to(q.dtype)
        return out


def stand_in() -> Any:
    """Enough of the library for our file."""
    module: Any = types.ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = StandIn

    def rmsnorm(x, weight, eps):
        return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)

    def rope(positions, query, key, head_size, table):
        assert table.dtype == torch.float32 and table.shape[1] == head_size
        cos, sin = table[positions.long()][:, None].chunk(2, -1)
        for one in (query, key):
            left, right = one.view(len(one), -1, head_size).float().chunk(2, -1)
            turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
            one.copy_(turned.to(one.dtype).view_as(one))

    module.rmsnorm, module.apply_rope_with_cos_sin_cache_inplace = rmsnorm, rope
    module.silu_and_mul = lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
    return module


@pytest.fixture
def ops(monkeypatch) -> FlashInferOps:
    """Our file over the stand-in, on the processor."""
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in())
    monkeypatch.setattr(flashinfer_ops, "here", list)
    monkeypatch.setattr(flashinfer_ops, "WORKSPACE_BYTES", 16)
    return FlashInferOps(PAGE, rows=3, tokens=24, places=40, device="cpu")


SHAPE = Shape(4, 2, 64, 0.125, 1e-6)
LIMITS = [
    [[7, 7], [3, 3]],
    [[4], [8], [9]],
    [[6, 7, 8], [1, 2, 3]],
    [[7, 7, 11, 11], [1, 2, 13, 13], [0, 0, 5, 5]],
    [[0, 0], [5, 5]],
    [[16, 17]],
]


def pass_of(
    rows: int, width: int, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(q, keys, values, pages) of a pass."""
    draw = torch.Generator().manual_seed(1)
    q = torch.randn(rows * width, SHAPE.heads, SHAPE.head_dim, generator=draw).to(device, torch.bfloat16)
    caches = [
        torch.randn(31 * PAGE, SHAPE.kv_heads, SHAPE.head_dim, generator=draw).to(device, torch.bfloat16)
        for _ in range(2)
    ]
    return q, *caches, pages_of(rows, 10)


def close_to_twin(ops: FlashInferOps, limits: list[list[int]], device: str, mode=None) -> None:
    limit = torch.tensor(limits, dtype=torch.int32).view(-1)
    q, keys, values, pages = pass_of(len(limits), len(limits[0]), device)
    ops.plan(pages, limit, SHAPE, mode)
    got = ops.attend(q, keys, values, pages.to(device), limit.to(device), SHAPE)
    exact = TorchOps(PAGE).attend(q.float(), keys.float(), values.float(), pages.to(device), limit.to(device), SHAPE)
    assert (got.float() - exact).abs().max() < 0.02
    assert not got[(limit == 0).to(device)].any()


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("mode", [None, "mask"])
def test_planned_attention_equals_the_twin(ops, limits, mode) -> None:
    close_to_twin(ops, limits, "cpu", mode)
    close_to_twin(ops, [[max(1, one) + 1 for one in row] for row in limits], "cpu", "mask")  # a plan after a plan


def test_a_new_plan_changes_what_a_captured_call_reads(ops) -> None:
    """The wrapper and its buffers stay the same objects from plan to plan."""
    q, keys, values, pages = pass_of(1, 2)
    ops.plan(pages, torch.tensor([5, 5], dtype=torch.int32), SHAPE)
    planned = ops._plans[1, 2, "full"]
    captured = planned.wrapper
    first = captured.run(q, tuple(one.view(-1, PAGE, 2, 64) for one in (keys, values))).clone()
    ops.plan(pages, torch.tensor([9, 9], dtype=torch.int32), SHAPE)
    assert ops._plans[1, 2, "full"] is planned and planned.wrapper is captured
    assert not torch.equal(first, captured.run(q, tuple(one.view(-1, PAGE, 2, 64) for one in (keys, values))))


def test_without_a_plan_nothing_runs(ops) -> None:
    q, keys, values, pages = pass_of(1, 2)
    limit = torch.tensor([5, 5], dtype=torch.int32)
    with pytest.raises(ConfigError, match="plan"):
        ops.attend(q, keys, values, pages, limit, SHAPE)
    with pytest.raises(ConfigError, match="4 and 4"):
        ops.plan(pages_of(4, 2), torch.ones(4, dtype=torch.int32), SHAPE)
    with pytest.raises(ConfigError, match="head size"):
        ops.plan(pages, limit, Shape(4, 2, 48, 1.0, 1e-6))


def test_the_other_functions_equal_the_twin(ops) -> None:
    functions_close(ops, "cpu")


def functions_close(ops: FlashInferOps, device: str) -> None:
    draw = torch.Generator().manual_seed(2)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) * 0.5).to(device, torch.bfloat16)

    twin, tokens, heads = TorchOps(PAGE), 5, SHAPE.heads + 2 * SHAPE.kv_heads
    x, weight, gate_up = random(tokens, 64), random(96, 64), random(256, 64)
    down, inner = random(64, 128), random(tokens, 128)
    for got, plain in (
        (ops.norm_linear(x, weight, 1e-6), twin.norm_linear(x, weight, 1e-6)),
        (ops.gated(x, gate_up, 1e-6), twin.gated(x, gate_up, 1e-6)),
        (ops.linear_add(inner, down, x), twin.linear_add(inner, down, x)),
    ):
        assert (got - plain).abs().max() <= 0.02 * plain.abs().max()
    qkv, norm = random(tokens, heads * 64), 1 + random(6, 64)
    angle = random(tokens, 32).float()
    cos, sin = (one.repeat(1, 2).bfloat16() for one in (angle.cos(), angle.sin()))
    slot = torch.tensor([9, 4, 30, 11, 17], device=device)
    caches = [[torch.zeros(40, 2, 64, device=device, dtype=torch.bfloat16) for _ in range(2)] for _ in range(2)]
    got = ops.rotate_append(qkv, norm, cos, sin, slot, caches[0][0], caches[0][1], SHAPE)
    plain = twin.rotate_append(qkv, norm, cos, sin, slot, caches[1][0], caches[1][1], SHAPE)
    assert (got - plain).abs().max() <= 0.02 * plain.abs().max()
    assert (caches[0][0] - caches[1][0]).abs().max() <= 0.02 * plain.abs().max()
    assert torch.equal(caches[0][1], caches[1][1])


def test_an_obstacle_is_told_when_the_kernels_are_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(flashinfer_ops, "here", lambda: [Finding("nvcc", False, "no CUDA toolkit", "install it")])
    assert not ready()
    with pytest.raises(ConfigError, match="nvcc: no CUDA toolkit; install it"):
        FlashInferOps(PAGE, rows=1, tokens=1, places=8, device="cpu")
    with pytest.raises(ConfigError, match="nvcc"):
        next(build())
    with pytest.raises(ConfigError, match="float32"):
        FlashInferOps(PAGE, rows=1, tokens=1, places=8, device="cpu", dtype=torch.float32)


needs_flashinfer = pytest.mark.skipif(not ready(), reason="FlashInfer cannot be used here, see its checks")


@pytest.fixture
def real() -> FlashInferOps:
    return FlashInferOps(PAGE, rows=3, tokens=24, places=40)


@pytest.mark.gpu
@needs_flashinfer
@pytest.mark.timeout(900)
def test_every_kernel_builds() -> None:
    assert all(seconds >= 0 for _, seconds in build((64,), PAGE))
    assert all(one.ok for one in here()), here()


@pytest.mark.gpu
@needs_flashinfer
@pytest.mark.timeout(900)
def test_the_real_functions(real) -> None:
    functions_close(real, "cuda")


@pytest.mark.gpu
@needs_flashinfer
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("mode", [None, "mask"])
def test_the_real_attention(real, limits, mode) -> None:
    close_to_twin(real, limits, "cuda", mode)


@pytest.mark.gpu
@needs_flashinfer
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["full", "mask"])
def test_a_captured_pass_follows_its_plans(real, mode) -> None:
    """Captured at one length, planned and replayed at others: equals the twin each time, the captured one too."""
    q, keys, values, pages = pass_of(1, 4, "cuda")
    table, limit = pages.cuda(), torch.zeros(4, dtype=torch.int32, device="cuda")

    def plan(length: int) -> None:
        told = torch.full((4,), length, dtype=torch.int32)
        if mode == "mask":
            told[:2] -= 1
        limit.copy_(told)
        real.plan(pages, told, SHAPE, mode)

    plan(17)
    real.attend(q, keys, values, table, limit, SHAPE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = real.attend(q, keys, values, table, limit, SHAPE)
    for length in (17, 3, 40, 8, 17):
        plan(length)
        graph.replay()
        exact = TorchOps(PAGE).attend(q.float(), keys.float(), values.float(), table, limit, SHAPE)
        assert (out.float() - exact).abs().max() < 0.02
