"""FlashInfer: the checks of a machine against made-up ones, the plan of a pass against the plain twin.

Without FlashInfer a stand-in takes its place that reads the buffers of a plan as the library's kernels do. With a GPU
and the library the same runs for real.
"""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from flashinfer_stand_in import StandIn, install

from wamdiff2_core.decode.engine import flashinfer_checks, flashinfer_ops
from wamdiff2_core.decode.engine.flashinfer_checks import (
    Finding,
    architectures_of,
    cache_folder,
    cuda_home,
    findings,
    first_obstacle,
)
from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps, build, check_shape, here, ready
from wamdiff2_core.decode.engine.flashinfer_plan import Mask, layout, padded, whole_pages
from wamdiff2_core.decode.engine.kernel_sets import why_not_flashinfer
from wamdiff2_core.decode.engine.ops import Shape, TorchOps
from wamdiff2_core.errors import ConfigError

HOPPER = (9, 0)
VERSION = "0.6.8.post1"
PAGE = 8


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
        told = layout(pages, torch.tensor(limits, dtype=torch.int32).view(-1), 4)
        assert told.mode == mode
        assert told.starts.tolist() == [0, len(limits[0]), 2 * len(limits[0])]
    full = torch.tensor([7, 7, 3, 3], dtype=torch.int32)
    assert layout(pages, full, 4, "mask").mode == "mask"
    with pytest.raises(ConfigError, match="planned as causal"):
        layout(pages, full, 4, "causal")
    assert layout(pages, torch.tensor([7, 3], dtype=torch.int32), 4, "causal").mode == "causal"  # one token: both
    with pytest.raises(ConfigError, match="21"):
        layout(pages, torch.tensor([21, 3], dtype=torch.int32), 4)


def test_pages_on_and_off_the_edge() -> None:
    """A mask is over whole pages, the other kinds end with the last place; a row that sees nothing has one page."""
    pages = pages_of(3, 5)
    for limits, mode, last in (([8, 9, 1], "full", [4, 1, 1]), ([8, 9, 0], "mask", [4, 4, 4])):
        told = layout(pages, torch.tensor(limits, dtype=torch.int32), 4)
        assert told.mode == mode and told.page_starts.tolist() == [0, 2, 5, 6] and told.last.tolist() == last
        assert told.pages.tolist() == [*pages[0, :2].tolist(), *pages[1, :3].tolist(), int(pages[2, 0])]
    told = whole_pages(padded([[5, 3], [7]], 4), 2, 16)
    assert told.pages.tolist() == [5, 3, 7, 0, 0] and told.page_starts.tolist() == [0, 2, 3, 4, 5]
    assert told.starts.tolist() == [0, 2, 4, 6, 8] and told.last.tolist() == [16] * 4


def bits_of(limits: list[list[int]], places: list[int]) -> torch.Tensor:
    """The mask as the library's kernels read it, packed the slow way: every row's from a byte on."""
    rows = [torch.arange(n) < torch.tensor(row)[:, None] for row, n in zip(limits, places, strict=True)]
    return torch.cat([torch.from_numpy(np.packbits(row.flatten().numpy(), bitorder="little")) for row in rows])


def test_the_device_writes_the_bits_that_the_kernels_read() -> None:
    """Rows with different numbers of pages, limits on and off bytes and pages, none and all; and again over that."""
    pages, mask = [[1, 2, 3], [4], [5, 6]], Mask(3, 2, 5 * 16, torch.device("cpu"))
    for part in (pages, pages[::-1], pages[:1]):
        told = whole_pages(padded(part, 3), 2, 16)
        mask.load(told, 16)
        places = [16 * int(count) for count in told.page_starts.diff()]
        for limits in ([[48, 0], [15, 16], [17, 8]], [[1, 7], [8, 9], [0, 0]], [[33, 40], [16, 1], [31, 32]]):
            capped = [[min(one, n) for one in row] for row, n in zip(limits, places, strict=True)]
            mask.bits.fill_(0xAA)
            mask.write(torch.tensor(capped, dtype=torch.int32))
            want = bits_of(capped, places)
            assert (mask.bits[len(want) : -1] == 0xAA).all()  # no token writes behind its own bytes
            assert torch.equal(mask.bits[: len(want)], want), (part, limits)
            assert mask.starts.tolist() == [0, *torch.tensor([2 * n // 8 for n in places]).cumsum(0).tolist()]
    full = whole_pages([[*range(5)]] * 3, 2, 16)
    mask.load(full, 16)
    mask.write(torch.full((3, 2), 80, dtype=torch.int32))
    assert (mask.bits[:-1] == 255).all() and len(mask.bits) == 61


@pytest.fixture
def ops(monkeypatch) -> FlashInferOps:
    """Our file over the stand-in, on the processor."""
    install(monkeypatch)
    return made("cpu")


SHAPE = Shape(4, 2, 64, 0.125, 1e-6)


def made(device: str) -> FlashInferOps:
    return FlashInferOps(PAGE, SHAPE, rows=3, tokens=24, places=10 * PAGE, device=device)


LIMITS = [
    [[30, 33, 64], [79, 78, 1]],
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
    ops.plan(pages, limit, mode)
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
    ops.plan(pages, torch.tensor([5, 5], dtype=torch.int32))
    planned = ops._forms[1, 2, "full"]
    captured = planned.wrapper
    first = captured.run(q, tuple(one.view(-1, PAGE, 2, 64) for one in (keys, values))).clone()
    ops.plan(pages, torch.tensor([9, 9], dtype=torch.int32))
    assert ops._forms[1, 2, "full"] is planned and planned.wrapper is captured
    assert not torch.equal(first, captured.run(q, tuple(one.view(-1, PAGE, 2, 64) for one in (keys, values))))


def test_without_a_plan_nothing_runs(ops) -> None:
    q, keys, values, pages = pass_of(1, 2)
    limit = torch.tensor([5, 5], dtype=torch.int32)
    with pytest.raises(ConfigError, match="plan"):
        ops.attend(q, keys, values, pages, limit, SHAPE)
    with pytest.raises(ConfigError, match="4 and 4"):
        ops.plan(pages_of(4, 2), torch.ones(4, dtype=torch.int32), SHAPE)
    with pytest.raises(ConfigError, match="no plan for 2 rows of 3 tokens"):
        ops.begin(torch.ones(2, 3, dtype=torch.int32))
    with pytest.raises(ConfigError, match="11"):
        ops.plan_passes(1, [[*range(1, 12)]], (2,))
    ops.plan(pages, limit)
    with pytest.raises(ConfigError, match="plan_passes"):
        ops.begin(torch.ones(1, 2, dtype=torch.int32))


def test_a_plan_is_made_where_pages_changed_and_nowhere_else(ops, monkeypatch) -> None:
    said: list[list[int]] = []
    plan = StandIn.plan
    monkeypatch.setattr(StandIn, "plan", lambda self, *a, **k: (said.append(a[2].tolist()), plan(self, *a, **k)))
    ops.plan_passes(2, [[1, 2], [3]], (4, 2))
    ops.plan_passes(2, [[1, 2], [3]], (2, 4))
    assert said == [[1, 2, 3]] * 2
    ops.plan_passes(2, [[1, 2]], (2,))
    ops.plan_passes(2, [[1, 2], [3]], (4,))  # the other form keeps its own
    assert said == [[1, 2, 3]] * 2 + [[1, 2, 0]]
    ops.plan(pages_of(2, 10), torch.tensor([3, 4, 5, 5], dtype=torch.int32), "mask")
    ops.plan_passes(2, [[1, 2]], (2,))  # somebody else has planned this form meanwhile
    assert said[-1] == [1, 2, 0] and len(said) == 5
    ops.plan(pages_of(2, 10), torch.tensor([3, 3, 5, 5], dtype=torch.int32), "full")
    ops.plan_passes(2, [[1, 2]], (2,))
    ops.begin(torch.ones(2, 2, dtype=torch.int32))


def test_a_form_that_needs_more_brings_its_own_workspace_and_the_others_keep_theirs(ops) -> None:
    ops.plan_passes(1, [[1]], (2,))
    small = ops._forms[1, 2, "mask"].wrapper.workspace
    ops.plan_passes(3, [[1]], (8,))
    large = ops._forms[3, 8, "mask"].wrapper.workspace
    ops.plan_passes(2, [[1]], (2,))
    assert len(large) > len(small) and ops._forms[1, 2, "mask"].wrapper.workspace is small
    assert ops._forms[2, 2, "mask"].wrapper.workspace is large


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
        made("cpu")
    with pytest.raises(ConfigError, match="nvcc"):
        next(build())


@pytest.mark.parametrize(
    ("page_size", "shape", "dtype", "told"),
    [
        (PAGE, SHAPE, torch.float32, "bfloat16 or float16, got torch.float32"),
        (12, SHAPE, torch.bfloat16, "multiple of 8, got 12"),
        (PAGE, Shape(4, 2, 48, 1.0, 1e-6), torch.bfloat16, "head size"),
        (PAGE, Shape(6, 2, 64, 1.0, 1e-6), torch.bfloat16, "6 for 2"),
    ],
)
def test_what_the_kernels_are_not_made_for_is_refused_at_the_start(monkeypatch, page_size, shape, dtype, told) -> None:
    install(monkeypatch)
    with pytest.raises(ConfigError, match=told):
        FlashInferOps(page_size, shape, rows=1, tokens=1, places=16, dtype=dtype, device="cpu")


def test_the_set_says_why_it_cannot_run(monkeypatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(flashinfer_ops, "here", list)
    assert why_not_flashinfer(cuda, torch.bfloat16, SHAPE, 16) is None
    assert why_not_flashinfer(cuda, torch.float16, None, 16) is None
    for arguments, told in (
        ((torch.device("cpu"), torch.bfloat16, SHAPE, 16), "expected a CUDA device, got cpu"),
        ((cuda, torch.float32, None, 16), "expected bfloat16 or float16, got torch.float32"),
        ((cuda, torch.bfloat16, SHAPE, 20), "expected a page size that is a multiple of 8, got 20"),
        ((cuda, torch.bfloat16, Shape(4, 2, 48, 1.0, 1e-6), 16), "expected a head size of (64, 128, 256), got 48"),
    ):
        assert why_not_flashinfer(*arguments) == told
    monkeypatch.setattr(flashinfer_ops, "here", lambda: [Finding("nvcc", False, "no CUDA toolkit", "install it")])
    assert why_not_flashinfer(cuda, torch.bfloat16, SHAPE, 16) == "nvcc: no CUDA toolkit; install it"


needs_flashinfer = pytest.mark.skipif(not ready(), reason="FlashInfer cannot be used here, see its checks")


@pytest.fixture
def real() -> FlashInferOps:
    return made("cuda")


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
        real.plan(pages, told, mode)

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
