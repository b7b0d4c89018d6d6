"""All layers as one Triton kernel, phase by phase in the interpreter, against the plain twin's layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton.language as tl
from tiny_models import loaded
from torch import Tensor
from triton_cases import BF16, DEVICE, FP32, near, random

from wamdiff2_core.decode.engine import triton_layers
from wamdiff2_core.decode.engine.ops import LayerWeights, Shape, TorchOps
from wamdiff2_core.decode.engine.stacked import StackedLayers, stack
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, quantise_layer
from wamdiff2_core.decode.engine.triton_ops import Sizes
from wamdiff2_core.decode.engine.triton_whole import Cut, Cuts, WholeLayers, cuts_of
from wamdiff2_core.decode.engine.weights import pack

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, at infinities

EPS, PAGE, LAYERS = 1e-6, 4, 2
SMALL = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96}
ODD = {"hidden": 72, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 88}
WIDE = {"hidden": 128, "heads": 2, "kv_heads": 2, "head_dim": 64, "ffn": 160}
CUTS = {
    "plain": Cuts(Cut(8, 16, 1, 2), Cut(16, 16, 1, 1), Cut(16, 16, 1, 2), Cut(16, 16, 1, 2), Cut(32, 16, 1, 2)),
    "split": Cuts(Cut(8, 16, 2, 2), Cut(16, 16, 4, 1), Cut(32, 16, 3, 2), Cut(32, 16, 2, 2), Cut(16, 32, 4, 2)),
    "idle": Cuts(Cut(8, 64, 4, 2), Cut(64, 16, 8, 1), Cut(64, 64, 4, 2), Cut(16, 64, 3, 2), Cut(64, 64, 4, 2)),
}
"""idle: more splits than there are inputs for, so some programs add nothing."""


class Case:
    """Random layers and a paged cache whose unseen slots hold NaN; limits: of each row's tokens.

    A token sits at the last place that it sees, or in front of the later ones that see as far.
    """

    def __init__(
        self, limits: list[list[int]], sizes: dict[str, int], dtype: torch.dtype = FP32, fp8: bool = False
    ) -> None:
        self.dtype, self.fp8, rows, width = dtype, fp8, len(limits), len(limits[0])
        self.sizes = Sizes(tokens=64, rows=max(rows, 4), places=128, vocab=8, **sizes)
        s, size = self.sizes, self.sizes.head_dim
        self.shape = Shape(s.heads, s.kv_heads, size, size**-0.5, EPS)
        layers = [self._layer(number) for number in range(LAYERS)]
        self.weights = stack(layers, LAYERS)
        self.twin = (Fp8TorchOps if fp8 else TorchOps)(PAGE)
        per_row = 33
        order = torch.randperm(rows * per_row, generator=torch.Generator().manual_seed(1)) + 1
        self.pages = order.view(rows, per_row).to(DEVICE, torch.int32)
        slots = (rows * per_row + 1) * PAGE
        cache = [random(LAYERS, slots, s.kv_heads, size, dtype=dtype, seed=seed) for seed in (11, 12)]
        self.limit = torch.tensor(limits, dtype=torch.int32, device=DEVICE).view(-1)
        places = torch.arange(per_row * PAGE, device=DEVICE)
        where = self.pages.long()[:, places // PAGE] * PAGE + places % PAGE
        seen = torch.zeros(slots, dtype=torch.bool, device=DEVICE)
        for row in range(rows):
            seen[where[row, : int(self.limit.view(rows, width)[row].max())]] = True
        self.keys, self.values = (one.masked_fill(~seen[None, :, None, None], torch.nan) for one in cache)
        slot = []
        for row, limit in enumerate(limits):
            place = [one - 1 - limit[at + 1 :].count(one) for at, one in enumerate(limit)]
            slot += [int(where[row, place[at]]) if limit[at] else at % PAGE for at in range(width)]
        self.slot = torch.tensor(slot, device=DEVICE)
        tokens = rows * width
        self.hidden = random(tokens, s.hidden, dtype=dtype, seed=7)
        angle = random(tokens, size // 2, seed=8)
        self.cos, self.sin = (one.repeat(1, 2).to(dtype) for one in (angle.cos(), angle.sin()))

    def _layer(self, number: int) -> LayerWeights:
        s, seed = self.sizes, 100 * number
        inner = s.heads * s.head_dim

        def weight(outputs: int, inputs: int, at: int) -> Tensor:
            return random(outputs, inputs, dtype=self.dtype, seed=seed + at, scale=inputs**-0.5)

        layer = LayerWeights(
            qkv=weight(inner + 2 * s.kv_heads * s.head_dim, s.hidden, 1),
            out=weight(s.hidden, inner, 2),
            gate_up=weight(2 * s.ffn, s.hidden, 3),
            down=weight(s.hidden, s.ffn, 4),
            head_norm=1 + random(s.heads + s.kv_heads, s.head_dim, seed=seed + 5, scale=0.1, dtype=self.dtype),
        )
        return quantise_layer(layer) if self.fp8 else layer

    def make(self, cuts: Cuts | None = None, programs: int = 3) -> WholeLayers:
        known = None if cuts is None else dict.fromkeys((16, 32, 64), cuts)
        return WholeLayers(
            PAGE, self.sizes, LAYERS, dtype=self.dtype, device=DEVICE, fp8=self.fp8, cuts=known, programs=programs
        )

    def run(self, whole: WholeLayers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(hidden, squares of each token, keys, values); the case keeps its cache."""
        keys, values = self.keys.clone(), self.values.clone()
        held = (self.weights, keys, values, self.pages, self.hidden, self.cos, self.sin, self.slot, self.limit)
        hidden, squares = whole.step_by_step(*held, self.shape)
        return hidden.clone(), squares.sum(0), keys, values

    def plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """(hidden, keys, values) by the twin."""
        keys, values, x, ops = self.keys.clone(), self.values.clone(), self.hidden, self.twin
        for number in range(LAYERS):
            layer = self.weights.layer(number)
            qkv = ops.norm_linear(x, layer.qkv, EPS)
            q = ops.rotate_append(
                qkv, layer.head_norm, self.cos, self.sin, self.slot, keys[number], values[number], self.shape
            )
            seen = ops.attend(q, keys[number], values[number], self.pages, self.limit, self.shape)
            x = ops.linear_add(seen, layer.out, x)
            x = ops.linear_add(ops.gated(x, layer.gate_up, EPS), layer.down, x)
        return x, keys, values

    def check(self, whole: WholeLayers) -> None:
        hidden, squares, keys, values = self.run(whole)
        plain, plain_keys, plain_values = self.plain()
        close(hidden, plain, self.dtype)
        assert torch.allclose(squares, hidden.float().square().sum(1), rtol=1e-5)
        mine = self.slot >= PAGE  # several tokens share the trash page's slots
        for got, twin, before in ((keys, plain_keys, self.keys), (values, plain_values, self.values)):
            if mine.any():
                close(got[:, self.slot[mine]], twin[:, self.slot[mine]], self.dtype)
            others = torch.ones(got.shape[1], dtype=torch.bool, device=DEVICE)
            others[self.slot] = False
            assert torch.equal(got[:, others].nan_to_num(7.0), before[:, others].nan_to_num(7.0))


def close(got: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    """As `near`; in bfloat16 two layers of roundings lie between the two."""
    if dtype == FP32:
        near(got, plain, dtype)
    else:
        assert got.isfinite().all() and got.dtype == dtype
        assert float((got.float() - plain.float()).abs().max()) <= 4e-2 * float(plain.float().abs().max())


def block(tokens: int, first: int = 30) -> list[int]:
    """Limits of a block whose tokens all see its end."""
    return [first + tokens - 1] * tokens


def causal(tokens: int, first: int = 9) -> list[int]:
    return list(range(first, first + tokens))


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 32, 33, 64])
def test_tokens(tokens: int, cuts: Cuts) -> None:
    case = Case([causal(tokens)], SMALL)
    case.check(case.make(cuts))


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    "limits",
    [[[1]], [[0]], [[4]], [[5, 0, 9], [0, 0, 0], [17, 40, 1]], [block(8), block(8, 60), causal(8), [0] * 8]],
    ids=["one", "none", "page", "rows", "blocks"],
)
def test_limits(limits: list[list[int]], cuts: Cuts) -> None:
    case = Case(limits, SMALL)
    case.check(case.make(cuts))


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("sizes", [ODD, WIDE], ids=["odd", "wide"])
def test_sizes(sizes: dict[str, int], cuts: Cuts) -> None:
    case = Case([causal(5), causal(5, 20)], sizes)
    case.check(case.make(cuts))


@pytest.mark.parametrize("programs", [1, 40])
def test_any_number_of_programs_gives_the_same_bits(programs: int) -> None:
    case = Case([causal(6), block(6)], SMALL)
    one, other = case.run(case.make(CUTS["split"])), case.run(case.make(CUTS["split"], programs))
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_types(dtype: torch.dtype, fp8: bool, cuts: Cuts) -> None:
    case = Case([causal(5), block(5)], WIDE, dtype, fp8)
    case.check(case.make(cuts))


@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_the_cuts_of_the_table(dtype: torch.dtype, fp8: bool) -> None:
    case = Case([block(20)], WIDE, dtype, fp8)
    case.check(case.make())


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_counters_are_left_at_zero_and_results_repeat(cuts: Cuts) -> None:
    case = Case([causal(7), block(7)], SMALL)
    whole = case.make(cuts)
    first = case.run(whole)
    assert not whole._state.any()
    Case([causal(40)], SMALL).check(whole)  # another bucket, rows and length through the same scratch
    assert not whole._state.any()
    again = case.run(whole)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(first, again, strict=True))


def test_not_a_number_stays_in_its_row() -> None:
    case = Case([causal(3), causal(3, 20)], SMALL)
    clean = case.run(case.make(CUTS["split"]))[0]
    case.hidden[4, 7] = torch.nan
    got = case.run(case.make(CUTS["split"]))[0]
    assert torch.equal(got[:3], clean[:3])
    assert got[4].isnan().all()


@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down", "head_norm"])
def test_each_layers_own_weights_count(name: str) -> None:
    case = Case([causal(2)], SMALL)
    found = [case.run(case.make())[0]]
    kept = case.weights
    for number in range(LAYERS):
        changed = getattr(kept, name).clone()
        changed[number] *= 1.5
        case.weights = replace(kept, **{name: changed})
        found.append(case.run(case.make())[0])
    case.check(case.make())
    assert not any(torch.equal(found[a], found[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_what_does_not_fit_is_refused() -> None:
    case = Case([causal(3)], SMALL)
    whole = case.make()
    for name, wrong, match in (
        ("hidden", case.hidden[:, :32], "hidden"),
        ("hidden", random(65, 64), "tokens"),
        ("cos", case.cos.double(), "cos"),
        ("keys", case.keys.transpose(2, 3), "keys"),
        ("slot", case.slot.int(), "slot"),
        ("pages", case.pages.long(), "pages"),
        ("weights", replace(case.weights, down=case.weights.out), "down"),
    ):
        other = Case([causal(3)], SMALL)
        setattr(other, name, wrong)
        with pytest.raises(ValueError, match=match):
            other.run(whole)
    with pytest.raises(ValueError, match="64"):
        WholeLayers(PAGE, replace(case.sizes, tokens=65), LAYERS, device=DEVICE)


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter only")
def test_the_interpreter_refuses_barriers() -> None:
    case = Case([causal(3)], SMALL)
    held = (case.weights, case.keys, case.values, case.pages, case.hidden, case.cos, case.sin, case.slot, case.limit)
    with pytest.raises(ValueError, match="step_by_step"):
        case.make()(*held, case.shape)


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter only")
@pytest.mark.parametrize("soon", [True, False], ids=["soon", "late"])
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
def test_one_program_passes_every_barrier(soon: bool, fp8: bool, monkeypatch) -> None:
    """The launch with barriers, whose single program waits for nobody: right counts, and only real memory asked for."""
    case = Case([causal(5), causal(5, 20)], WIDE, fp8=fp8)
    warm = {"warm": 64 * 1024, "early": 8 * 1024}
    cuts = {name: replace(getattr(CUTS["split"], name), **warm) for name in ("qkv", "attend", "out", "gate_up", "down")}
    whole = case.make(replace(CUTS["split"], soon=soon, **cuts), programs=1)
    counts, asked = [], []

    def wait(state, target, polls):
        counts.append((tl.load(state).handle.data.item(), int(target.handle.data.item())))
        return tl.zeros((), tl.int32)

    monkeypatch.setattr(triton_layers, "wait", wait)
    monkeypatch.setattr(triton_layers, "ask", lambda at: asked.append(at.handle.data.ravel().astype("int64")))
    keys, values = case.keys.clone(), case.values.clone()
    held = (case.weights, keys, values, case.pages, case.hidden, case.cos, case.sin, case.slot, case.limit, case.shape)
    hidden, squares = (one.clone() for one in whole._run(triton_layers.WHOLE, 0, LAYERS, *held))
    assert counts == [(number, number) for number in range(1, 5 * LAYERS + 1)]
    apart, _, other_keys, _ = case.run(whole)
    assert torch.equal(hidden, apart) and torch.equal(keys.nan_to_num(7.0), other_keys.nan_to_num(7.0))
    assert torch.allclose(squares.sum(0), hidden.square().sum(1), rtol=1e-5) and not whole._state.any()
    places = torch.cat([torch.from_numpy(one) for one in asked])
    kinds = [getattr(case.weights, name) for name in ("qkv", "out", "gate_up", "down")]
    inside = torch.zeros_like(places, dtype=torch.bool)
    for one in (*((one.data for one in kinds) if fp8 else kinds), keys, values):
        mine = (places >= one.data_ptr()) & (places < one.data_ptr() + one.nbytes)
        inside |= mine
        layer = (places[mine] - one.data_ptr()) // (one.nbytes // LAYERS)
        assert set(layer.tolist()) == set(range(LAYERS))
    assert inside.all()


def test_stacked_layers_are_views() -> None:
    case = Case([causal(1)], SMALL, fp8=True)
    layer = case.weights.layer(1)
    assert layer.qkv.data.data_ptr() == case.weights.qkv.data[1].data_ptr()
    assert layer.head_norm.data_ptr() == case.weights.head_norm[1].data_ptr()
    assert case.weights.count == LAYERS
    plain = [Case([causal(1)], SMALL)._layer(number) for number in range(3)]
    assert torch.equal(stack(plain, 3).layer(2).down, plain[2].down)
    for layers, count in ((plain, 2), (plain, 4), ([], 1)):
        with pytest.raises(ValueError, match=f"expected {count}, got {len(layers)}"):
            stack(layers, count)
    with pytest.raises(ValueError, match="8 bits"):
        stack([plain[0], quantise_layer(plain[1])], 2)
    assert isinstance(case.weights, StackedLayers) and cuts_of(32, 2).gate_up.splits == 1


@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
def test_a_models_layers_are_views_of_the_stack(fp8: bool) -> None:
    """One copy of the weights, which both the kernel of all layers and those of a layer read."""
    weights = pack(loaded(), 64, fp8)
    assert len(weights.layers) == weights.stacked.count > 1
    for number, layer in enumerate(weights.layers):
        for name in ("qkv", "out", "gate_up", "down"):
            one, all_of_them = getattr(layer, name), getattr(weights.stacked, name)
            if fp8:
                assert one.scale.data_ptr() == all_of_them.scale[number].data_ptr()
                one, all_of_them = one.data, all_of_them.data
            assert one.is_contiguous() and one.data_ptr() == all_of_them[number].data_ptr()


SCRIPT = """
import dataclasses, json, sys
import torch
from wamdiff2_core.decode.engine.ops import Shape
from wamdiff2_core.decode.engine.stacked import StackedLayers
from wamdiff2_core.decode.engine.triton_ahead import AbsentDevice
from wamdiff2_core.decode.engine.triton_fp8 import DTYPE, Fp8Weight
from wamdiff2_core.decode.engine.triton_ops import Sizes
from wamdiff2_core.decode.engine.triton_whole import WholeLayers

known, tokens, fp8 = json.loads(sys.argv[1])
device = AbsentDevice().install()
s = Sizes(tokens=64, rows=4, places=2560, **known)
shape = Shape(s.heads, s.kv_heads, s.head_dim, s.head_dim**-0.5, 1e-6)

def empty(*size, dtype=torch.bfloat16):
    return torch.empty(*size, dtype=dtype, device="meta")

def weight(*size):
    return Fp8Weight(empty(*size, dtype=DTYPE), empty(*size[:2], dtype=torch.float32)) if fp8 else empty(*size)

inner, wide = s.heads * s.head_dim, (s.heads + 2 * s.kv_heads) * s.head_dim
weights = StackedLayers(
    qkv=weight(28, wide, s.hidden), out=weight(28, s.hidden, inner), gate_up=weight(28, 2 * s.ffn, s.hidden),
    down=weight(28, s.hidden, s.ffn), head_norm=empty(28, s.heads + s.kv_heads, s.head_dim),
)
cache, turn = empty(28, 4096, s.kv_heads, s.head_dim), empty(tokens, s.head_dim)
whole = WholeLayers(16, s, 28, device="meta", fp8=fp8)
whole(weights, cache, cache, empty(1, 160, dtype=torch.int32), empty(tokens, s.hidden), turn, turn,
      empty(tokens, dtype=torch.int64), empty(tokens, dtype=torch.int32), shape)
print(json.dumps([dataclasses.astuple(one) for one in device.built]))
"""
QWEN = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144, "vocab": 151_936}
TINY = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 1024, "vocab": 1152}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tokens", [16, 32, 64])
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8-bit"])
@pytest.mark.parametrize("known", [QWEN, TINY], ids=["2b", "tiny"])
def test_the_kernel_compiles_for_hopper(known: dict[str, int], fp8: bool, tokens: int, tmp_path: Path) -> None:
    """With its barriers, in a process of its own (see test_engine_triton_ahead): fits, spills nothing."""
    root = Path(__file__).resolve().parents[2]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    case = json.dumps([known, tokens, fp8])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, case], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ((name, shared, registers, spilled),) = json.loads(done.stdout)
    assert name == "layers" and shared <= 227 * 1024 and registers <= 255
    assert spilled == 0
