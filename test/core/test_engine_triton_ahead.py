"""Every Triton kernel compiles for GPUs that are not here, an H200 first: fits its shared memory, spills no register.

Runs in a process of its own, since Triton decides when it is imported whether kernels are interpreted or compiled.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wamdiff2_core.decode.engine.triton_table import why_no_flow

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

SCRIPT = """
import dataclasses, json, re, sys
import triton
from wamdiff2_core.decode.engine.triton_ahead import compile_all
from wamdiff2_core.decode.engine.triton_ops import Sizes

known, passes, fp8, pdl, arch = json.loads(sys.argv[1])
sizes = Sizes(tokens=128, rows=4, places=2560, **known)
early, shared, ahead, start = [], [], [], triton.compiler.CompiledKernel._init_handles

def look(kernel):
    # Is a tile read by the threads as well as by tensor cores that work on while the loop goes on?
    code = kernel.asm["ttgir"]
    turned = dict(re.findall(r"(%[\\w#]+) = ttg.memdesc_trans (%[\\w#]+)", code))
    fed = {turned.get(one, one) for pair in re.findall(r"warp_group_dot (%[\\w#]+), (%[\\w#]+)", code) for one in pair}
    if fed:
        shared.append(bool(fed & set(re.findall(r"local_load (%[\\w#]+)", code))))
    if pdl is False:
        return start(kernel)
    # What does the kernel do to memory, other than asking the cache for it, before it waits for those in front of it?
    code = kernel.asm["ptx"][kernel.asm["ptx"].index(".entry"):]
    if "griddepcontrol.wait" not in code:
        return start(kernel)  # launched plainly
    code = code[:code.index("griddepcontrol.wait")]
    source = kernel.src
    known = {source.fn.arg_names[place[0]]: value for place, value in source.constants.items()}
    if "STAGES" in known:
        # Weights that come in ahead: of all stages but one, 16 bytes a thread and copy, and nothing of the tokens.
        tile = 64 * known["BLOCK_K"] * (1 if known["HALF"] else 2) * (2 if known.get("GATED") else 1)
        copies = (known["STAGES"] - 1) * tile // (16 * 32 * known["WARPS"])
        ahead.append((kernel.metadata.name, len(re.findall("cp[.]async[.]c[ag]", code)), copies))
        code = re.sub("cp[.]async", "", code)
    reads = bool(re.search(r"ld[.]global|cp[.]async", code))
    writes = bool(re.search(r"st[.]global|[^a-z]atom[.]|[^a-z]red[.]", code))
    early.append((kernel.metadata.name, reads, writes))
    start(kernel)

triton.compiler.CompiledKernel._init_handles = look
built = compile_all(16, sizes, passes, fp8=fp8, pdl=pdl, arch=arch)
print(json.dumps([[*dataclasses.astuple(one)] for one in built] + [early, shared, ahead]))
"""
QWEN = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "vocab": 151_936}
TINY = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 1024, "vocab": 1152}
CASES = {
    "2b": [QWEN, [(1, 32)], False, False, 90],
    "2b small": [QWEN, [(1, 32), (4, 32)], False, False, 89],
    "2b all": [QWEN, [(1, 1), (1, 16), (1, 64), (1, 128), (1, 2048)], False, True, 90],
    "2b rows": [QWEN, [(4, 1), (4, 32)], False, False, 90],
    "2b 8-bit": [QWEN, [(1, 1), (1, 32), (1, 64), (1, 128), (1, 2048)], True, True, 90],
    "2b flow": [QWEN, [(1, 1), (1, 32), (1, 64), (3, 32)], False, None, 90],
    "2b flow 8-bit": [QWEN, [(1, 1), (1, 32), (1, 64), (3, 32)], True, None, 90],
    "tiny": [TINY, [(1, 1), (1, 32), (1, 128), (1, 512)], False, False, 90],
}


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_compile(case, tmp_path) -> None:
    root = Path(__file__).resolve().parents[2]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(case)], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *built, early, shared_tiles, ahead = json.loads(done.stdout)
    names = {one[0] for one in built}
    assert names >= {"product", "project", "square_sums", "best_of_tile", "best_of_all", "attend"}
    most, spill = {90: (227 * 1024, 0), 89: (99 * 1024, 16)}[case[4]]
    assert all(shared <= most for _, shared, _, _ in built)
    assert not [one for one in built if one[3] > spill]
    # Triton 3.6 gives such a tile one buffer too few: it is overwritten while the tensor cores still read it.
    assert not any(shared_tiles) and bool(shared_tiles) == (case[4] == 90)
    # A dependent launch begins before the kernel in front of it has ended: only attention looks at anything by then, at
    # what is older than the pass (limits, pages, keys and values), and products whose weights come in ahead, at these.
    assert bool(early) == (case[3] is not False)
    assert {name for name, reads, _ in early if reads} <= {"attend", "combine"}
    assert not any(writes for *_, writes in early)
    # Another release of Triton runs the plain kernels, which have compiled here, too.
    flow = case[3] is None and why_no_flow(case[4], importlib.metadata.version("triton")) is None
    assert {name for name, *_ in ahead} == ({"product", "project"} if flow else set())
    assert all(copies == weights > 0 for _, copies, weights in ahead)
