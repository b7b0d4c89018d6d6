"""Compile the Triton kernels for a device that is not here: on any machine, by many processes, into Triton's cache.

With the stand-in for a driver, kernel calls compile and then do nothing; tensors may live on torch's "meta" device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps
from wamdiff2_core.decode.engine.triton_table import dependent, why_no_flow

_SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Largest shared memory of a program, by architecture."""


@dataclass(frozen=True)
class Built:
    """What one compiled kernel takes: bytes of shared memory a program, registers and bytes of spill a thread."""

    name: str
    shared: int
    registers: int
    spilled: int


class AbsentDevice(DriverBase):
    """Stands for the driver of a CUDA device of architecture `arch` (90: Hopper). built: every kernel loaded so far."""

    def __init__(self, arch: int = 90) -> None:
        if arch not in _SHARED_BYTES:
            raise ValueError(f"architecture: expected one of {sorted(_SHARED_BYTES)}, got {arch}")
        super().__init__()
        self.arch, self.built = arch, []  # type: int, list[Built]
        self.utils = self

    def install(self) -> AbsentDevice:
        """Make Triton compile for this device in this process from now on."""
        triton.runtime.driver.set_active(self)
        return self

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched on a device that is not here")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is measured on a device that is not here")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": _SHARED_BYTES[self.arch]}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *_: None

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        registers, spilled = _resources(kernel)
        self.built.append(Built(name, shared, registers, spilled))
        return 1, 1, registers, spilled, 1024


def compile_all(
    page_size: int, sizes: Sizes, passes: list[tuple[int, int]], *, fp8: bool = False, pdl: bool | None = None,
    arch: int = 90,
) -> list[Built]:  # fmt: skip
    """Compile what passes of (rows, tokens a row) run, for a device that need not be here; in a process of its own.

    pdl: see TritonOps; None: as the engine launches there. Triton keeps the results in its cache folder
    (TRITON_CACHE_DIR), where the process with the device finds them.
    """
    device = AbsentDevice(arch).install()
    own = dependent(arch) if pdl is None else pdl
    flow = pdl is None and why_no_flow(arch, triton.__version__) is None
    ops = TritonOps(page_size, sizes, device="meta", fp8=fp8, pdl=own, flow=flow)
    for rows, width in passes:
        _call_all(ops, rows, width)
    return device.built


def _call_all(ops: TritonOps, rows: int, width: int) -> None:
    """Every function of a pass once, on tensors without contents."""
    sizes, tokens = ops.sizes, rows * width
    hidden, size, inner = sizes.hidden, sizes.head_dim, sizes.heads * sizes.head_dim
    shape = Shape(sizes.heads, sizes.kv_heads, size, size**-0.5, 1e-6)

    def empty(*lengths: int, dtype: torch.dtype = ops.dtype) -> torch.Tensor:
        return torch.empty(*lengths, dtype=dtype, device=ops.device)

    def weight(*lengths: int) -> Any:
        if ops.name != "triton_fp8":
            return empty(*lengths)
        return Fp8Weight(empty(*lengths, dtype=DTYPE), empty(lengths[0], dtype=torch.float32))

    x, turns = empty(tokens, hidden), empty(tokens, size)
    keys, values = (empty(64 * ops.page_size, sizes.kv_heads, size) for _ in range(2))
    norm, slot = empty(sizes.heads + sizes.kv_heads, size), empty(tokens, dtype=torch.int64)
    heads = (weight(inner + 2 * sizes.kv_heads * size, hidden), norm, turns, turns, slot, keys, values, shape)
    q = ops.project(x, *heads)
    pages = empty(rows, -(-sizes.places // ops.page_size), dtype=torch.int32)
    seen = ops.attend(q, keys, values, pages, empty(tokens, dtype=torch.int32), shape)
    x = ops.linear_add(seen, weight(hidden, inner), x)
    x = ops.linear_add(ops.gated(x, weight(2 * sizes.ffn, hidden), shape.eps), weight(hidden, sizes.ffn), x)
    ops.project(x, *heads)  # the next layer's: its norm comes with x
    if tokens <= sizes.tokens:
        x = empty(tokens, hidden)  # what is chosen from was put together anew
        head = weight(sizes.vocab, hidden)
        ops.choose(x, head, None, 0, shape.eps)
        ops.choose(x, head, empty(tokens, -(-sizes.vocab // 32), dtype=torch.int32), 0, shape.eps)
        ops.norm_linear(x, head, shape.eps)  # all logits: where tokens are drawn


def _resources(kernel: bytes) -> tuple[int, int]:
    """(registers, stack bytes) of a thread, as the tool that comes with Triton reads them from the binary."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    if found is None:
        raise RuntimeError(f"cuobjdump: expected REG and STACK, got {told!r}")
    return int(found[1]), int(found[2])
