"""All layers in one launch at the sizes of Qwen3-VL-2B, with its barriers, alone and inside graphs. Needs a GPU."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
from torch import Tensor
from triton_cases import BF16, DEVICE

from wamdiff2_core.decode.engine.ops import LayerWeights, Shape, TorchOps
from wamdiff2_core.decode.engine.stacked import stack
from wamdiff2_core.decode.engine.triton_fp8 import Fp8TorchOps, quantise_layer
from wamdiff2_core.decode.engine.triton_ops import Sizes
from wamdiff2_core.decode.engine.triton_whole import WholeLayers

pytestmark = pytest.mark.gpu

EPS, PAGE, LAYERS, PLACES = 1e-6, 16, 4, 2304
MODELS = {
    "2b": {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144},
    "tiny": {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 1024},
}


Held = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Model:
    """Four layers, a cache of four rows and the kernel over them."""

    def __init__(self, name: str, fp8: bool) -> None:
        torch.manual_seed(0)
        self.sizes = s = Sizes(tokens=64, rows=4, places=PLACES, vocab=8, **MODELS[name])
        size, inner, turning = s.head_dim, s.heads * s.head_dim, s.heads + s.kv_heads
        self.shape = Shape(s.heads, s.kv_heads, size, size**-0.5, EPS)
        layers = [
            LayerWeights(
                qkv=_weight((turning + s.kv_heads) * size, s.hidden),
                out=_weight(s.hidden, inner),
                gate_up=_weight(2 * s.ffn, s.hidden),
                down=_weight(s.hidden, s.ffn),
                head_norm=1 + 0.1 * torch.randn(turning, size, device=DEVICE, dtype=BF16),
            )
            for _ in range(LAYERS)
        ]
        self.weights = stack((quantise_layer(one) if fp8 else one for one in layers), LAYERS)
        self.twin = Fp8TorchOps(PAGE) if fp8 else TorchOps(PAGE)
        self.whole = WholeLayers(PAGE, s, LAYERS, device=DEVICE, fp8=fp8)
        per_row = PLACES // PAGE
        self.pages = (torch.randperm(4 * per_row, device=DEVICE) + 1).int().view(4, per_row)
        form = (LAYERS, (1 + 4 * per_row) * PAGE, s.kv_heads, size)
        self.keys, self.values = (torch.randn(form, device=DEVICE, dtype=BF16) for _ in range(2))

    def inputs(self, rows: int, width: int, length: int, seed: int = 0) -> Held:
        """hidden, cos, sin, slot, limit of `width` tokens behind `length` places of each row, fewer in the last."""
        draw = torch.Generator(DEVICE).manual_seed(seed)
        tokens = rows * width
        before = torch.full((rows, 1), length, device=DEVICE)
        before[-1] = length if rows == 1 else length // 3
        place = before + torch.arange(width, device=DEVICE)
        limit = (before + width).expand(rows, width).int().reshape(-1)
        page = self.pages[:rows].long().gather(1, place // PAGE)
        slot = (page * PAGE + place % PAGE).view(-1)
        angle = torch.randn(tokens, self.sizes.head_dim // 2, device=DEVICE, generator=draw).repeat(1, 2)
        hidden = torch.randn(tokens, self.sizes.hidden, device=DEVICE, generator=draw).to(BF16)
        return hidden, angle.cos().to(BF16), angle.sin().to(BF16), slot, limit

    def run(self, rows: int, held: Held, apart: bool = False) -> tuple[Tensor, Tensor]:
        call = self.whole.step_by_step if apart else self.whole
        return call(self.weights, self.keys, self.values, self.pages[:rows], *held, self.shape)

    def plain(self, rows: int, held: Held) -> Tensor:
        x, cos, sin, slot, limit = held
        for number in range(LAYERS):
            layer, keys, values = self.weights.layer(number), self.keys[number], self.values[number]
            qkv = self.twin.norm_linear(x, layer.qkv, EPS)
            q = self.twin.rotate_append(qkv, layer.head_norm, cos, sin, slot, keys, values, self.shape)
            seen = self.twin.attend(q, keys, values, self.pages[:rows], limit, self.shape)
            x = self.twin.linear_add(seen, layer.out, x)
            x = self.twin.linear_add(self.twin.gated(x, layer.gate_up, EPS), layer.down, x)
        return x


def _weight(outputs: int, inputs: int) -> Tensor:
    return (torch.randn(outputs, inputs, device=DEVICE) * inputs**-0.5).to(BF16)


def close(got: Tensor, plain: Tensor) -> None:
    """Four layers of bfloat16 roundings lie between the two."""
    assert got.isfinite().all()
    assert (got.float() - plain.float()).abs().max() <= 4e-2 * plain.float().abs().max()


@pytest.fixture(scope="module", params=[(name, fp8) for name in MODELS for fp8 in (False, True)], ids=str)
def model(request):
    made = Model(*request.param)
    yield made
    assert not made.whole._state.any()  # no counter left, and no launch gave up
    del made
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("rows, width", [(1, 1), (1, 2), (1, 16), (1, 17), (1, 32), (1, 33), (1, 64), (2, 32), (4, 9)])
@pytest.mark.parametrize("length", [0, 37, 2200])
def test_layers(model: Model, rows: int, width: int, length: int) -> None:
    held = model.inputs(rows, width, length)
    plain = model.plain(rows, held)
    hidden, squares = model.run(rows, held)
    close(hidden, plain)
    assert torch.allclose(squares.sum(0), hidden.float().square().sum(1), rtol=1e-4)
    whole = hidden.clone()
    apart, _ = model.run(rows, held, apart=True)
    assert torch.equal(whole, apart)  # the same code with launches in place of barriers
    assert not model.whole.failed.any()


def captured(model: Model, rows: int, held: Held) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    model.run(rows, held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden, _ = model.run(rows, held)
    return graph, hidden


def test_replays_repeat_to_the_bit(model: Model) -> None:
    held = model.inputs(1, 32, 2000)
    graph, hidden = captured(model, 1, held)
    graph.replay()
    first = hidden.clone()
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(200):
        hidden.fill_(torch.nan)
        graph.replay()
        wrong += (hidden != first).any()
    assert int(wrong) == 0
    close(first, model.plain(1, held))
    assert not model.whole.failed.any()


def test_a_graph_serves_other_lengths(model: Model) -> None:
    held = model.inputs(1, 32, 100)
    graph, hidden = captured(model, 1, held)
    found = []
    for seed, length in enumerate((100, 0, 2100, 1111)):
        other = model.inputs(1, 32, length, seed)
        for one, new in zip(held, other, strict=True):
            one.copy_(new)
        graph.replay()
        found.append(hidden.clone())
        close(hidden, model.plain(1, other))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_beside_other_streams(model: Model) -> None:
    """Others hold processors while the programs wait for each other: all of them start together or later."""
    held = model.inputs(1, 32, 2000)
    graph, hidden = captured(model, 1, held)
    graph.replay()
    first = hidden.clone()
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    big = torch.randn(4096, 4096, device=DEVICE, dtype=BF16)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                big @ big
        graph.replay()
        wrong += (hidden != first).any()
    torch.cuda.synchronize()
    assert int(wrong) == 0 and not model.whole.failed.any()


def test_unseen_places_may_hold_anything(model: Model) -> None:
    held = model.inputs(1, 32, 500)
    first = model.run(1, held)[0].clone()
    places = torch.arange(532, PLACES, device=DEVICE)
    slots = model.pages[0].long()[places // PAGE] * PAGE + places % PAGE
    kept = model.keys[:, slots].clone(), model.values[:, slots].clone()
    model.keys[:, slots], model.values[:, slots] = torch.nan, torch.nan
    assert torch.equal(model.run(1, held)[0], first)
    model.keys[:, slots], model.values[:, slots] = kept


def test_programs_that_never_meet_give_up() -> None:
    """A barrier that cannot open (one look, and the others are not there yet) says so and does not hang."""
    model = Model("tiny", False)
    hasty = WholeLayers(PAGE, model.sizes, LAYERS, device=DEVICE, polls=1)
    held = model.inputs(1, 32, 100)
    hasty(model.weights, model.keys, model.values, model.pages[:1], *held, model.shape)
    torch.cuda.synchronize()
    assert hasty.failed.all()
    hasty.failed.zero_()
    assert not hasty._state.any()  # ready for the next launch
