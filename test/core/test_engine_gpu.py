"""The engine's graphs on a GPU: a replay is what the pass is when it runs as it is; nothing waits, grows or leaks."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest
import torch
from test_decoder_golden import CASES, arguments, config_of
from test_engine_parity import KINDS, SCAFFOLDS, alike
from tiny_models import GOLDEN, block_diffusion, config_dict, prompt, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.config import RULES
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.graphs import CaptureError, GraphSet
from wamdiff2_core.decode.engine.ops import TorchOps
from wamdiff2_core.decode.segment import encode, prompt_segment
from wamdiff2_core.model.checkpoint import LoadedModel

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
SETS = ("torch", "triton")
SMALL = {"max_length": 448, "max_answer": 64, "rows": (1, 4)}
CALLS = [(4, 3, "dynamic"), (8, 3, "static"), (1, 1, "dynamic"), (32, 4, "ordered"), (16, 2, "sequential")]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Products of fp32 in fp32, so that two ways to compute them differ by rounding alone."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@lru_cache(maxsize=8)
def model(prediction: str = "next", context: str = "causal", dtype: str = "float32") -> LoadedModel:
    import tempfile
    from pathlib import Path

    config = {**config_dict(), "block_diffusion": block_diffusion(prediction, context)}
    with tempfile.TemporaryDirectory() as folder:
        return load_model(save(Path(folder), config, random_model(config, 0)), device=DEVICE, dtype=dtype)


@lru_cache(maxsize=8)
def engine(prediction: str = "next", context: str = "causal", kernels: str = "torch") -> EngineDecoder:
    return EngineDecoder(model(prediction, context), EngineConfig(**SMALL), kernels)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_answers_are_those_of_the_plain_decoder(prediction: str, context: str, kernels: str) -> None:
    """Captured at the first length, replayed at all others: pages, buckets, what a long prompt leaves behind."""
    mine, theirs = engine(prediction, context, kernels), BlockDecoder(model(prediction, context), "plain")
    for length, (size, steps, rule) in product((300, 1, 15, 16, 17, 63, 64, 65), CALLS):
        config = DecodingConfig(size, steps, rule, 0.3, max_new_tokens=size + 5)
        ids, pixels, grids = prompt(length, images=length % 3)
        alike(*(one.generate(ids, pixels, grids, config=config) for one in (mine, theirs)))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize(("prediction", "context"), KINDS)
def test_batches_behind_a_prefix(prediction: str, context: str, kernels: str) -> None:
    mine, theirs = engine(prediction, context, kernels), BlockDecoder(model(prediction, context), "plain")
    front = prompt(37, images=2)
    for size, rule in product((4, 32), RULES):
        config = DecodingConfig(size, 3, rule, 0.3, max_new_tokens=40)
        rests = [prompt(n, seed=n)[0] for n in (3, 18, 1)]
        got, want = (
            one.generate(rests, config=config, scaffold=list(SCAFFOLDS[:3]), prefix=one.prefill(*front, size))
            for one in (mine, theirs)
        )
        for a, b in zip(got, want, strict=True):
            alike(a, b, batch=True)


@pytest.mark.parametrize("kernels", SETS)
def test_drawn_tokens(kernels: str) -> None:
    rows, config = [prompt(7)[0], prompt(12)[0]], DecodingConfig(8, 4, threshold=0.3, temperature=0.8, seed=7)
    got, want = (
        one.generate(rows, config=config, temperatures=[0.8, 0.0])
        for one in (engine(kernels=kernels), BlockDecoder(model(), "plain"))
    )
    assert got.tokens == want.tokens


@pytest.mark.parametrize("kernels", SETS)
def test_the_golden_cases(kernels: str) -> None:
    sizes = tuple(sorted({case["block_size"] for case in CASES["cases"]}))
    config = EngineConfig(block_sizes=sizes, max_length=768, max_answer=64, rows=(1,))
    decoder = EngineDecoder(load_model(GOLDEN, device=DEVICE), config, kernels)
    for case in CASES["cases"]:
        out = decoder.generate(*arguments(case["prompt"]), config=config_of(case))
        assert out.tokens == case["tokens"], case
        assert out.steps_per_block == case["steps_per_block"], case


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize(("prediction", "context"), KINDS)
@torch.inference_mode()
def test_a_replay_is_the_pass_itself(prediction: str, context: str, kernels: str) -> None:
    """From the same beginnings, at lengths other than those at capture: same bits out, and other inputs, other bits."""
    decoder = engine(prediction, context, kernels)
    outcomes = []
    for length, size in product((5, 40, 200), (1, 8)):
        config = DecodingConfig(size, 3, threshold=0.3, max_new_tokens=40)
        decoder.generate(prompt(length)[0], config=config)
        one = decoder.engine
        lane, buffers = one.lane(1, size), one.prompt(1, length, False)
        keys = one.call_passes(lane, buffers, False)
        lane.answers.code.zero_()
        lane.answers.start.zero_()
        lane.table.load([list(range(1, one.row_pages + 1))])
        for name in ("first", "narrow", "wide", "wide"):
            held = snapshot(one, lane)
            one.graphs.eager(keys[name])
            eager = [tensor.clone() for tensor in held]
            restore(held)
            one.graphs.run(keys[name])
            for a, b in zip(eager, held, strict=True):
                assert torch.equal(a.nan_to_num(), b.nan_to_num()) or torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        outcomes.append(tuple(lane.answers.confidence[0, : 2 * size].tolist()))
    assert len(set(outcomes)) == len(outcomes)


class Held(dict):
    """Tensors, each with a copy of what it held."""


def snapshot(one, lane) -> Held:
    """What a pass may change, as it is now."""
    a = lane.answers
    tensors = [a.tokens, a.decided, a.confidence, a.log, a.start, a.steps, a.share, a.passes, a.moves, a.code, a.ahead]
    trash = one.pool.page_size
    tensors += [lane.carry, lane.flags.device, one.pool.keys[:, trash:], one.pool.values[:, trash:]]
    return Held({tensor: tensor.clone() for tensor in tensors})


def restore(held: Held) -> None:
    for tensor, copy in held.items():
        tensor.copy_(copy)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("drawn", [False, True])
@torch.inference_mode()
def test_no_pass_waits(kernels: str, drawn: bool) -> None:
    decoder = engine(kernels=kernels)
    for size in (1, 8):
        config = DecodingConfig(size, 3, max_new_tokens=20, temperature=float(drawn), seed=1)
        decoder.generate(prompt(5)[0], config=config)
        one = decoder.engine
        keys = one.call_passes(one.lane(1, size), one.prompt(1, 5, False), drawn)
        torch.cuda.synchronize()
        with no_waiting():
            for name in ("first", "narrow", "wide"):
                one.graphs.eager(keys[name])
                one.graphs.run(keys[name])
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device=DEVICE).nonzero()


@torch.inference_mode()
def test_prompts_are_made_while_images_are_still_encoded() -> None:
    """Nothing of it waits for the device."""
    loaded = model()
    ids, pixels, grids = prompt(9, images=3)
    features = encode(loaded, pixels.to(DEVICE), grids)
    prompt_segment(loaded, [ids], features, grids, 1)
    torch.cuda.synchronize()
    with no_waiting():
        prompt_segment(loaded, [ids, ids[:4]], features, grids, 1)


@pytest.mark.parametrize("kernels", SETS)
def test_ten_thousand_replays_keep_memory_flat(kernels: str) -> None:
    decoder = engine(kernels=kernels)
    config = DecodingConfig(8, 8, "static", max_new_tokens=64)
    want = decoder.generate(prompt(9)[0], config=config)
    passes = sum(want.steps_per_block)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    graphs = len(decoder.engine.graphs)
    for _ in range(-(-10_000 // passes)):
        assert decoder.generate(prompt(9)[0], config=config).tokens == want.tokens
    gc.collect()
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before[:2]
    if "PYTEST_XDIST_WORKER" not in os.environ:  # beside it others take memory, too
        assert torch.cuda.mem_get_info()[0] >= before[2] - (16 << 20)
    assert len(decoder.engine.graphs) == graphs


def test_another_block_size_captures_nothing_after_warming_up() -> None:
    decoder = EngineDecoder(model(), EngineConfig(**SMALL))
    sizes = decoder.engine.config.block_sizes
    decoder.engine.warm_up([CallShape(rows, size, 64) for rows, size in product((1, 4), sizes)])
    for rows in (1, 3):  # what embeds prompts takes its memory once, too
        decoder.generate([prompt(20)[0]] * rows, config=DecodingConfig(8, 4, max_new_tokens=40))
    torch.cuda.synchronize()
    graphs, reserved = len(decoder.engine.graphs), torch.cuda.memory_reserved()
    for size in (*sizes, *reversed(sizes)):
        for rows in (1, 3):
            decoder.generate([prompt(20)[0]] * rows, config=DecodingConfig(size, 4, max_new_tokens=40))
    assert len(decoder.engine.graphs) == graphs and torch.cuda.memory_reserved() == reserved


def test_other_threads_use_cuda_while_we_capture_and_replay() -> None:
    """Allocations, copies that wait, products, on the default stream and on another.

    Only a wait for the whole device is nobody's to ask for while a stream captures: CUDA refuses it.
    """
    stop, faults, rounds = threading.Event(), [], [0, 0]
    loaded = model()  # before the threads begin: its weights are drawn from numbers that they would draw from, too

    def busy(number: int) -> None:
        try:
            stream = torch.cuda.Stream() if number else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    size = 64 + rounds[number] % 7
                    a = torch.randn(size, size).to(DEVICE)
                    (a @ a).sum().item()
                    stream.synchronize()
                    torch.empty(1 << 20, device=DEVICE)
                    rounds[number] += 1
        except Exception as error:  # noqa: BLE001  whatever it is, the test names it
            faults.append(error)

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        decoder = EngineDecoder(loaded, EngineConfig(**SMALL))
        got = [decoder.generate(prompt(n)[0], config=DecodingConfig(8, 3, max_new_tokens=40)) for n in (5, 60)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not faults and min(rounds) > 0
    plain = EngineDecoder(loaded, EngineConfig(**SMALL), "torch")
    for n, out in zip((5, 60), got, strict=True):
        alike(out, plain.generate(prompt(n)[0], config=DecodingConfig(8, 3, max_new_tokens=40)))


def test_callers_on_several_streams_take_turns() -> None:
    """They share pages and buffers, so each must wait for what the one before it has launched."""
    decoder = engine(kernels="triton")
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=40)
    want = {n: decoder.generate(prompt(n)[0], config=config).tokens for n in (5, 60, 200)}
    wrong: list[int] = []

    def ask(n: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                if decoder.generate(prompt(n)[0], config=config).tokens != want[n]:
                    wrong.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


class Waits(TorchOps):
    """Asks the host in the middle of a pass, which no capture allows."""

    def attend(self, q, *arguments):
        out = super().attend(q, *arguments)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 22, device=q.device)
            out.sum().item()
        return out


def test_a_failed_capture_leaks_nothing() -> None:
    decoder = EngineDecoder(model(), EngineConfig(**SMALL))
    config = DecodingConfig(8, 3, max_new_tokens=24)
    good = decoder.engine.passes
    decoder.engine.passes = replace(good, ops=Waits(16))

    def attempt() -> None:
        with pytest.raises(CaptureError, match="first"):
            decoder.generate(prompt(9)[0], config=config)

    attempt()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(5):
        attempt()
    gc.collect()
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert len(decoder.engine.graphs) == 0
    assert len(decoder.engine.pool.free) == decoder.engine.pool.total
    decoder.engine.passes = good
    alike(decoder.generate(prompt(9)[0], config=config), engine().generate(prompt(9)[0], config=config))


def test_a_failed_capture_leaves_the_graphs_before_it_alone() -> None:
    graphs = GraphSet(torch.device(DEVICE))
    x, y = torch.zeros(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    graphs.prepare("double", lambda: y.copy_(x * 2))
    with pytest.raises(CaptureError, match="expected to be captured"):
        graphs.prepare("waits", lambda: y.copy_(x) if x.sum().item() >= 0 else None)
    assert len(graphs) == 1 and "waits" not in graphs
    for value in (3.0, 5.0):
        x.fill_(value)
        graphs.run("double")
        assert y.tolist() == [2 * value] * 8


def test_bfloat16_agrees_where_it_is_sure(record_property) -> None:
    """Rounding decides ties and no more: where answers part, both tokens were about as probable.

    On a processor, plain operations of the engine part from the plain decoder in 11 of these 40 answers, at gaps of up
    to 0.013: a random model is seldom sure.
    """
    loaded = model(dtype="bfloat16")
    mine, theirs = EngineDecoder(loaded, EngineConfig(**SMALL), "triton"), BlockDecoder(loaded, "plain")
    pairs = []
    for seed, size in product(range(20), (1, 8)):
        config = DecodingConfig(size, size, "sequential", max_new_tokens=8)
        ids, _, _ = prompt(9 + seed, seed)
        pairs.append(tuple(one.generate(ids, config=config) for one in (mine, theirs)))
    part_at_ties_only(pairs, record_property)


def part_at_ties_only(pairs, record_property) -> None:
    """Answers (got, want) part in half of all cases at most, and then where both tokens were about as probable."""
    assert "invalid" not in {one.status for pair in pairs for one in pair}  # it has no tokens that could part
    gaps = []
    for got, want in pairs:
        at = next((i for i, (a, b) in enumerate(zip(got.tokens, want.tokens, strict=False)) if a != b), None)
        if at is not None:
            gaps.append(abs(got.confidences[at] - want.confidences[at]))
    record_property("answers that part", f"{len(gaps)} of {len(pairs)}, gaps up to {max(gaps, default=0.0):.3f}")
    assert len(gaps) <= len(pairs) / 2 and max(gaps, default=0.0) < 0.05


def test_weights_in_8_bits_are_those_of_the_plain_twin() -> None:
    loaded = model()
    pair = [EngineDecoder(loaded, EngineConfig(**SMALL), name) for name in ("triton_fp8", "torch_fp8")]
    for n, size in product((5, 40), (1, 8)):
        config = DecodingConfig(size, 3, threshold=0.3, max_new_tokens=40)
        alike(*(one.generate(prompt(n)[0], config=config) for one in pair))
