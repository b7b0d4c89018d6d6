"""Every Triton kernel compiles for an H200 on a machine without one: fits its shared memory, spills no register.

Runs in a process of its own, since Triton decides when it is imported whether kernels are interpreted or compiled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

SCRIPT = """
import json, sys
import torch
from wamdiff2_core.decode.engine.ops import LayerWeights, Shape
from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps

known, counts, fp8, pdl, rows = json.loads(sys.argv[1])
device = AbsentDevice().install()
sizes = Sizes(tokens=128, rows=rows, places=2560, **known)
ops = TritonOps(16, sizes, device="meta", fp8=fp8, pdl=pdl)
shape = Shape(sizes.heads, sizes.kv_heads, sizes.head_dim, 0.1, 1e-6)

def empty(*size, dtype=torch.bfloat16):
    return torch.empty(*size, dtype=dtype, device="meta")

def weight(*size):
    if not fp8:
        return empty(*size)
    return Fp8Weight(empty(*size, dtype=torch.float8_e4m3fn), empty(size[0], dtype=torch.float32))

hidden, size, inner = sizes.hidden, sizes.head_dim, sizes.heads * sizes.head_dim
layer = LayerWeights(
    weight(inner + 2 * sizes.kv_heads * size, hidden), weight(hidden, inner), weight(2 * sizes.ffn, hidden),
    weight(hidden, sizes.ffn), empty(sizes.heads + sizes.kv_heads, size),
)
cache = [empty(1600, sizes.kv_heads, size) for _ in range(2)]
for tokens in counts:
    x = empty(tokens, hidden)
    qkv = ops.norm_linear(x, layer.qkv, 1e-6)
    turns, slot = empty(tokens, size), empty(tokens, dtype=torch.int64)
    q = ops.rotate_append(qkv, layer.head_norm, turns, turns, slot, *cache, shape)
    pages, limit = empty(rows, 160, dtype=torch.int32), empty(tokens, dtype=torch.int32)
    seen = ops.attend(q, *cache, pages, limit, shape)
    x = ops.linear_add(seen, layer.out, x)
    x = ops.linear_add(ops.gated(x, layer.gate_up, 1e-6), layer.down, x)
    if tokens <= sizes.tokens:
        ops.choose(x, weight(sizes.vocab, hidden), None, 3, 1e-6)
print(json.dumps([[one.name, one.shared, one.registers, one.spilled] for one in device.built]))
"""
QWEN = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "vocab": 151_936}
TINY = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 1024, "vocab": 1152}
CASES = {
    "2b": [QWEN, [32], False, False, 1],
    "2b all": [QWEN, [1, 16, 64, 128, 2048], False, True, 1],
    "2b rows": [QWEN, [4, 128], False, False, 4],
    "2b 8-bit": [QWEN, [1, 32, 64, 128, 2048], True, True, 1],
    "tiny": [TINY, [1, 32, 128, 512], False, False, 1],
}


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_compile_for_hopper(case, tmp_path) -> None:
    root = Path(__file__).resolve().parents[2]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(case)], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built = json.loads(done.stdout)
    names = {one[0] for one in built}
    assert names >= {"product", "best_of_tile", "best_of_all", "rotate_append", "attend"}
    assert all(shared <= 227 * 1024 for _, shared, _, _ in built)
    assert not [one for one in built if one[3] > 0]
