"""The engine when things end early, go wrong or do not fit. What the model predicts is scripted."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_decoder_parity import same
from tiny_models import EOS, MASK, block_diffusion, config_dict, loaded, prompt, random_model, save
from torch import Tensor

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import plain_set
from wamdiff2_core.decode.engine.ops import Choice, TorchOps
from wamdiff2_core.decode.engine.triton_fp8 import Fp8Weight
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError, DataError

SMALL = {"max_length": 128, "max_answer": 64, "page_size": 16}
ROWS = (1, 3)


class Scripted(TorchOps):
    """Predictions (R, B) of each call from a function (call number) -> tokens, certainties; NaN: not usable."""

    def __init__(self, rows: int, width: int, write: Callable[[int], tuple[list, list]]) -> None:
        super().__init__(SMALL["page_size"])
        self.rows, self.width, self.write, self.calls = rows, width, write, 0

    def choose(self, x: Tensor, head: Tensor, allowed: Tensor | None, forbidden: int, eps: float) -> Choice:
        assert len(x) == self.rows * self.width
        tokens, certainty = (torch.tensor(one).expand(self.rows, -1).flatten() for one in self.write(self.calls))
        self.calls += 1
        return Choice(tokens, certainty.nan_to_num(0.0), ~certainty.isnan())


def scripted(write, width: int, rows: int = 1, lookahead: int = 0, prediction: str = "same"):
    ops = Scripted(rows, width, write)
    config = EngineConfig(**SMALL, rows=(rows,), block_sizes=(width,), lookahead=lookahead)
    model = loaded(prediction, "causal")
    decoder = EngineDecoder(model, config, plain_set(model, config, ops))
    decoder.engine.call_passes(decoder.engine.lane(1, width), decoder.engine.prompt(1, 5, False), False)
    ops.calls = 0  # getting ready runs passes on a GPU
    return decoder, ops


@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_answer_that_ends_at_once_is_empty(lookahead: int) -> None:
    decoder, ops = scripted(lambda call: ([[EOS] * 8], [[0.99] * 8]), 8, lookahead=lookahead)
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(8, max_new_tokens=32))
    assert (out.status, out.tokens, out.confidences, out.forwards) == ("empty", [], [], 1)
    assert ops.calls == 1 + lookahead  # one needless pass


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_end_token_inside_a_block(lookahead: int) -> None:
    """What stands before it is still decided, what stands behind it is not."""
    sure = [[0.99, 0.2, 0.99, 0.1]]
    decoder, ops = scripted(lambda call: ([[12, 13 + call, EOS, 7]], sure), 4, lookahead=lookahead)
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(4, 4, max_new_tokens=16))
    assert (out.status, out.tokens, out.steps_per_block, out.forwards) == ("complete", [12, 14], [2], 2)
    assert out.confidences == pytest.approx([0.99, 0.2])
    assert ops.calls == 2 + lookahead


@pytest.mark.parametrize(
    ("rule", "guess", "calls"), [("dynamic", 128, 5), ("dynamic", 7, 4), ("static", 128, 4), ("sequential", 7, 4)]
)
def test_a_pass_is_needless_only_where_it_was_a_guess(rule: str, guess: int, calls: int) -> None:
    """Two blocks of two steps; seven tokens are fewer than a wide pass of four-token blocks has."""
    ops = Scripted(1, 4, lambda call: ([[20, 21, 22, 23]], [[0.9, 0.9, 0.3, 0.3]]))
    model = loaded("same", "causal")
    config = EngineConfig(**SMALL, rows=(1,), block_sizes=(4,), lookahead=1, guess=guess)
    decoder = EngineDecoder(model, config, plain_set(model, config, ops))
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(4, 2, rule, 0.5, max_new_tokens=8))
    assert (out.steps_per_block, ops.calls) == ([2, 2], calls)


def test_needless_passes_change_nothing() -> None:
    """Ten more of each kind behind the end of an answer."""
    decoder, _ = scripted(lambda call: ([[20 + call] * 4], [[0.9, 0.3, 0.6, 0.1]]), 4)
    config = DecodingConfig(4, 3, "dynamic", 0.5, max_new_tokens=11)
    want = decoder.generate(prompt(5)[0], config=config)
    engine, lane = decoder.engine, decoder.engine.lane(1, 4)
    keys = engine.call_passes(lane, engine.prompt(1, 5, False), False)
    lane.answers.code.fill_(2)
    with torch.inference_mode():
        engine.graphs.run(keys["report"])
        before = lane.read()
        held = engine.pool.keys[:, engine.pool.page_size :].clone()
        for name in ("wide", "narrow") * 10:
            engine.graphs.run(keys[name])
        engine.graphs.run(keys["report"])
        assert lane.read() == before
        assert torch.equal(engine.pool.keys[:, engine.pool.page_size :], held)  # all that is written is trash
    assert len(want.tokens) == 11 and want.status == "truncated"


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("position", [0, 3, 7])
@pytest.mark.parametrize("call", [0, 1])
def test_nan_is_invalid(position: int, call: int, lookahead: int) -> None:
    def write(now: int):
        sure = [0.5] * 8
        sure[position] = float("nan") if now == call else 0.5
        return [[5] * 8], [sure]

    decoder, ops = scripted(write, 8, lookahead=lookahead)
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(8, max_new_tokens=32))
    assert (out.status, out.tokens, out.steps_per_block) == ("invalid", [], [call + 1])
    assert ops.calls == call + 1 + lookahead


def test_nan_in_one_row_leaves_the_others_alone() -> None:
    def write(now: int):
        sure = torch.full((3, 4), 0.99)
        sure[1, 2] = float("nan") if now == 1 else 0.99
        return [[3, 4, 5, 6], [7, 8, 9, 10], [3, EOS, 5, 6]], sure.tolist()

    decoder, _ = scripted(write, 4, rows=3)
    out = decoder.generate([prompt(n)[0] for n in (3, 4, 5)], config=DecodingConfig(4, max_new_tokens=8))
    assert out.status == ["truncated", "invalid", "complete"]
    assert out.tokens == [[3, 4, 5, 6] * 2, [7, 8, 9, 10], [3]]
    assert out.steps_per_block == [[1, 1], [1, 1], [1]]


@pytest.mark.parametrize(("prediction", "context"), [("next", "causal"), ("same", "block_causal")])
def test_what_a_broken_row_leaves_in_the_pages_does_not_show(prediction: str, context: str) -> None:
    """All pages full of NaN, and then the same answers as before."""
    decoder = EngineDecoder(loaded(prediction, context), EngineConfig(**SMALL, rows=ROWS))
    plain = BlockDecoder(decoder.loaded, "plain")
    decoder.engine.pool.keys.fill_(torch.nan)
    decoder.engine.pool.values.fill_(torch.inf)
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=20)
    for rows in ([prompt(17)[0]], [prompt(3)[0], prompt(40)[0]]):
        got, want = decoder.generate(rows, config=config), plain.generate(rows, config=config)
        for a, b in zip(got, want, strict=True) if len(rows) > 1 else [(got, want)]:
            same(a, b)
    same(
        decoder.generate(prompt(3)[0], config=config, prefix=decoder.prefill(prompt(21)[0], block_size=8)),
        plain.generate(prompt(3)[0], config=config, prefix=plain.prefill(prompt(21)[0], block_size=8)),
    )


def test_broken_weights_are_invalid_and_the_next_call_is_not() -> None:
    model = loaded("next", "causal", 5)
    decoder = EngineDecoder(model, EngineConfig(**SMALL))
    config = DecodingConfig(8, 3, max_new_tokens=24)
    want = decoder.generate(prompt(5)[0], config=config)
    layer = decoder.engine.passes.weights.layers[1].down
    keep = layer.detach().clone()
    with torch.no_grad():
        layer[3, 3] = torch.nan
    try:
        for block_size in (1, 8):
            assert decoder.generate(prompt(5)[0], config=DecodingConfig(block_size)).status == "invalid"
    finally:
        with torch.no_grad():
            layer.copy_(keep)
    same(decoder.generate(prompt(5)[0], config=config), want)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_wall_clock_is_limited(lookahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def slow(call: int):
        now_s[0] += 0.05
        return [[3] + [4] * 7], [[0.99] + [0.1] * 7]

    decoder, ops = scripted(slow, 8, lookahead=lookahead)
    config = DecodingConfig(8, 8, max_new_tokens=64, time_limit_s=0.12)
    out = decoder.generate(prompt(5)[0], config=config)
    assert out.status == "truncated" and ops.calls == 3
    assert 1 <= len(out.tokens) <= 3 and MASK not in out.tokens and out.steps_per_block == [ops.calls]


def test_time_that_is_up_before_anything_ran() -> None:
    """As the plain decoder has it: what the scaffold gives, and no pass."""
    scaffold = Scaffold(((7,), (8,), (1, 2), (9,)))
    config = DecodingConfig(4, 2, max_new_tokens=8, time_limit_s=1e-9)
    outs = [
        one.generate(prompt(5)[0], config=config, scaffold=scaffold)
        for one in (EngineDecoder(loaded(), EngineConfig(**SMALL)), BlockDecoder(loaded(), "plain"))
    ]
    same(*outs)
    assert outs[0].tokens == [7, 8] and outs[0].forwards == outs[1].forwards == 0


def test_upstream_answer_with_a_mask_token(tmp_path) -> None:
    """A predicted mask token is predicted again, and what is left in the last step makes the answer invalid."""
    config = {**config_dict(), "model_type": "wam_diff2"}
    model = load_model(save(tmp_path / "m", config, random_model(config)))

    def write(call: int):
        return [[MASK if call < 1 else 5, 6, 7, MASK if call < 3 else 8]], [[0.99] * 4]

    for steps, status, count in ((4, "truncated", 4), (2, "invalid", 4)):
        config = EngineConfig(**SMALL, rows=(1,), block_sizes=(4,), lookahead=0)
        decoder = EngineDecoder(model, config, plain_set(model, config, Scripted(1, 4, write)))
        out = decoder.generate(prompt(5)[0], config=DecodingConfig(4, steps, max_new_tokens=4))
        assert (out.status, len(out.tokens), out.steps_per_block) == (status, count, [steps])


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"head_dim": 24, "rope_scaling": {"rope_type": "default", "mrope_section": [4, 4, 4]}}, "head size"),
        ({"num_attention_heads": 34, "num_key_value_heads": 2}, "query heads"),
    ],
)
def test_models_that_do_not_fit_are_refused_when_loaded(tmp_path, shape, says: str) -> None:
    config = {**config_dict(**shape), "block_diffusion": block_diffusion()}
    model = load_model(save(tmp_path / "m", config, random_model(config)))
    with pytest.raises(ConfigError, match=says):
        EngineDecoder(model)


def test_kernel_sets_are_named_and_refused_where_they_cannot_run() -> None:
    """Here is no GPU: "auto" is torch, and what was asked for by name is not replaced in silence."""
    if torch.cuda.is_available():
        pytest.skip("made for machines without a GPU")
    assert EngineDecoder(loaded(), EngineConfig(**SMALL)).kernels == "engine torch"
    with pytest.raises(ConfigError, match="triton: expected a CUDA device, got cpu"):
        EngineDecoder(loaded(), EngineConfig(**SMALL), "triton")
    with pytest.raises(ConfigError, match="flashinfer: expected a CUDA device, got cpu"):
        EngineDecoder(loaded(), EngineConfig(**SMALL), "flashinfer")
    with pytest.raises(ConfigError, match="expected 'auto' or one of"):
        EngineDecoder(loaded(), EngineConfig(**SMALL), "fast")


def test_weights_in_8_bits() -> None:
    model = loaded()
    small, full = (EngineDecoder(model, EngineConfig(**SMALL), name) for name in ("torch_fp8", "torch"))
    weights = small.engine.passes.weights
    assert small.kernels == "engine torch_fp8" and isinstance(weights.head, Fp8Weight)
    assert all(isinstance(layer.qkv, Fp8Weight) for layer in weights.layers)
    config = DecodingConfig(8, 8, "sequential", max_new_tokens=24)
    outs = [one.generate(prompt(9)[0], config=config) for one in (small, full)]
    assert {out.status for out in outs} <= {"complete", "truncated"}
    assert outs[0].confidences[0] != outs[1].confidences[0]
    assert outs[0].confidences[0] == pytest.approx(outs[1].confidences[0], abs=0.2)


def test_calls_that_do_not_fit_are_refused() -> None:
    decoder = EngineDecoder(loaded(), EngineConfig(**SMALL, rows=ROWS, block_sizes=(4, 8), prefixes=0))
    ids = prompt(5)[0]
    for message, call in {
        "at most 3 in one call": lambda: decoder.generate([ids] * 4, config=DecodingConfig(4)),
        r"made for \(4, 8\), got 16": lambda: decoder.generate(ids, config=DecodingConfig(16)),
        "at most 64, got 65": lambda: decoder.generate(ids, config=DecodingConfig(4, max_new_tokens=65)),
        "128 tokens a row": lambda: decoder.generate(prompt(100)[0], config=DecodingConfig(4)),
        "expected one that this decoder": lambda: decoder.generate(
            ids, prefix=BlockDecoder(loaded()).prefill(ids), config=DecodingConfig(4)
        ),
    }.items():
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(DataError, match="expected 0 to"):
        decoder.generate([200])
    free = len(decoder.engine.pool.free)
    assert free == decoder.engine.pool.total  # refused calls keep nothing
    kept = [decoder.prefill(prompt(128)[0]) for _ in range(3)]
    with pytest.raises(ConfigError, match="0 more of 24 pages"):
        decoder.generate(ids, config=DecodingConfig(4))
    del kept
    gc.collect()
    assert decoder.generate(ids, config=DecodingConfig(4)).tokens
    assert len(decoder.engine.pool.free) == free


def test_a_call_that_needs_more_numbers_than_there_is_room_for_is_refused(tmp_path) -> None:
    """Only upstream's blocks may take more steps than they have places."""
    config = {**config_dict(), "model_type": "wam_diff2"}
    decoder = EngineDecoder(load_model(save(tmp_path / "m", config, random_model(config))), EngineConfig(**SMALL))
    drawn = DecodingConfig(4, 4, max_new_tokens=64, temperature=1.0, seed=1)
    decoder.generate([1, 2], config=drawn)
    with pytest.raises(ConfigError, match="at most 256 numbers a row, got a call that may need 320"):
        decoder.generate([1, 2], config=replace(drawn, steps=5))
    decoder.generate([1, 2], config=replace(drawn, steps=5, max_new_tokens=48))


def test_settings_are_checked() -> None:
    for wrong in (
        {"rows": ()},
        {"rows": (4, 1)},
        {"block_sizes": (0,)},
        {"buckets": (16, 16)},
        {"max_length": 0},
        {"max_answer": 0},
        {"page_size": 0},
        {"prefixes": -1},
        {"guess": -1},
        {"lookahead": 2},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            EngineConfig(**wrong)


def test_pages_come_back_however_a_call_ends() -> None:
    decoder = EngineDecoder(loaded(), EngineConfig(**SMALL, rows=ROWS))
    pool = decoder.engine.pool
    free = sorted(pool.free)
    prefix = decoder.prefill(prompt(37)[0])
    assert len(pool.free) == len(free) - 3
    copies = prefix.rows([0, 0])
    decoder.generate([prompt(4)[0]] * 2, config=DecodingConfig(8), prefix=copies)
    del prefix
    gc.collect()
    assert len(pool.free) == len(free) - 3  # the copies hold them
    del copies
    gc.collect()

    class Broken(TorchOps):
        def attend(self, *arguments):
            raise RuntimeError("no")

    object.__setattr__(decoder.engine.passes, "ops", Broken(16))
    for call in (lambda: decoder.generate(prompt(4)[0], config=DecodingConfig(8)), lambda: decoder.prefill([1, 2])):
        with pytest.raises(RuntimeError, match="no"):
            call()
    gc.collect()
    assert sorted(pool.free) == free


def test_threads_take_turns() -> None:
    """Calls of several threads on one decoder give what they give one after the other."""
    decoder = EngineDecoder(loaded(), EngineConfig(**SMALL, rows=ROWS))
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=32)
    want = [decoder.generate(prompt(n)[0], config=config).tokens for n in range(2, 8)]
    got: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        got[n] = decoder.generate(prompt(n)[0], config=config).tokens

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [got[n] for n in range(2, 8)] == want
