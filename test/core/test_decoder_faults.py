"""What goes wrong in public decoders must not go wrong here. The model's logits are scripted."""

from __future__ import annotations

import time

import pytest
import torch
from tiny_models import EOS, MASK, config_dict, loaded, prompt, random_model, save
from torch import Tensor

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError, DataError


class Script(torch.nn.Module):
    """Stands in for lm_head: logits (R, W, V) of each call from a function (call number, R, W, V) -> logits."""

    def __init__(self, write) -> None:
        super().__init__()
        self.write, self.calls = write, 0

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.write(self.calls, *hidden.shape[:2])
        self.calls += 1
        return logits.clone()


def flat(rows: int, width: int) -> Tensor:
    return torch.zeros(rows, width, 96)


def peaks(tokens: list[int], sure: list[float]) -> Tensor:
    """One row of logits that put probability `sure` on each of `tokens`."""
    logits = flat(1, len(tokens))
    for position, (token, probability) in enumerate(zip(tokens, sure, strict=True)):
        logits[0, position, token] = torch.log(torch.tensor(probability * 94 / (1 - probability)))
    return logits


@pytest.fixture
def scripted(monkeypatch):
    def make(write, prediction: str = "same"):
        model = loaded(prediction, "causal")
        script = Script(write)
        monkeypatch.setattr(model.model, "lm_head", script)
        return BlockDecoder(model), script

    return make


def test_uniform_logits_finish_in_block_size_steps(scripted) -> None:
    decoder, _ = scripted(lambda call, rows, width: flat(rows, width))
    config = DecodingConfig(block_size=8, steps=100, rule="dynamic", threshold=0.9, max_new_tokens=24)
    out = decoder.generate(prompt(5)[0], config=config)
    assert out.steps_per_block == [8, 8, 8]
    assert out.status == "truncated" and len(out.tokens) == 24


def test_all_end_tokens_is_empty(scripted) -> None:
    decoder, script = scripted(lambda call, rows, width: peaks([EOS] * width, [0.99] * width))
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(block_size=8, max_new_tokens=32))
    assert (out.status, out.tokens, out.confidences) == ("empty", [], [])
    assert out.forwards == script.calls == 1


def test_nothing_is_decoded_after_the_end_token(scripted) -> None:
    """[12, EOS, 7, MASK] is the answer [12]: no further forward for the mask behind the end."""
    decoder, script = scripted(lambda call, rows, width: peaks([12, EOS, 7, 5], [0.99, 0.99, 0.99, 0.1]))
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(block_size=4, steps=4, max_new_tokens=16))
    assert (out.status, out.tokens) == ("complete", [12])
    assert out.forwards == script.calls == 1
    assert out.steps_per_block == [1]
    assert out.confidences == pytest.approx([0.99], abs=1e-3)


def test_what_stands_before_the_end_token_is_still_decoded(scripted) -> None:
    decoder, script = scripted(lambda call, rows, width: peaks([12, 13, EOS, 7], [0.99, 0.2, 0.99, 0.1]))
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(block_size=4, steps=4, max_new_tokens=16))
    assert (out.status, out.tokens, script.calls) == ("complete", [12, 13], 2)


@pytest.mark.parametrize("prediction", ["same", "next"])
def test_limit_is_exact(prediction: str) -> None:
    model = loaded(prediction)
    for limit in (1, 7, 8, 10):
        ban = Scaffold(tuple(tuple(range(EOS)) for _ in range(limit)))
        out = BlockDecoder(model).generate(
            prompt(5)[0], config=DecodingConfig(block_size=8, max_new_tokens=limit), scaffold=ban
        )
        assert len(out.tokens) == limit == len(out.confidences) and out.status == "truncated"


@pytest.mark.parametrize("position", [0, 3, 7])
@pytest.mark.parametrize("call", [0, 1])
def test_nan_is_invalid(scripted, position: int, call: int) -> None:
    def write(now: int, rows: int, width: int) -> Tensor:
        logits = flat(rows, width)
        if now == call:
            logits[:, position, 50] = torch.nan
        return logits

    decoder, script = scripted(write)
    out = decoder.generate(prompt(5)[0], config=DecodingConfig(block_size=8, max_new_tokens=32))
    assert out.status == "invalid"
    assert script.calls == call + 1  # no work for an answer that nobody may use


def test_nan_weights_are_invalid() -> None:
    model = loaded("next", "causal", 5)
    layer = model.model.model.language_model.layers[1].mlp.down_proj.weight
    keep = layer.detach().clone()
    with torch.no_grad():
        layer[3, 3] = torch.nan
    try:
        for kernels in ("lean", "plain"):
            for block_size in (1, 8):
                config = DecodingConfig(block_size=block_size)
                assert BlockDecoder(model, kernels).generate(prompt(5)[0], config=config).status == "invalid"
    finally:
        with torch.no_grad():
            layer.copy_(keep)


def test_nan_in_one_row_leaves_the_others_alone(scripted) -> None:
    def write(now: int, rows: int, width: int) -> Tensor:
        logits = peaks([3, 4, EOS, 5], [0.99] * 4).expand(rows, -1, -1).clone()
        if rows == 3:
            logits[1, 0, 0] = torch.nan
        return logits

    decoder, _ = scripted(write)
    out = decoder.generate([prompt(n)[0] for n in (3, 4, 5)], config=DecodingConfig(block_size=4))
    assert out.status == ["complete", "invalid", "complete"]
    assert out.tokens == [[3, 4], [], [3, 4]]


def test_mask_as_argmax_is_never_an_answer(scripted) -> None:
    decoder, _ = scripted(lambda call, rows, width: peaks([MASK] * width, [0.99] * width))
    for rule in ("dynamic", "static", "sequential"):
        config = DecodingConfig(block_size=8, steps=4, rule=rule, max_new_tokens=24)
        out = decoder.generate(prompt(5)[0], config=config)
        assert MASK not in out.tokens and len(out.tokens) == 24


def test_upstream_answer_with_a_mask_token_is_invalid(tmp_path) -> None:
    """Upstream may write its mask token; whoever sees that answer must not use it."""
    config = {**config_dict(), "model_type": "wam_diff2"}
    model = load_model(save(tmp_path / "m", config, random_model(config)))
    assert (model.kind, model.mask_token_id, model.prediction, model.context) == (
        "wam_diff2",
        95,
        "same",
        "block_causal",
    )
    model.model.lm_head = Script(lambda call, rows, width: peaks([MASK] * width, [0.99] * width))
    out = BlockDecoder(model).generate(prompt(5)[0], config=DecodingConfig(block_size=4, max_new_tokens=8))
    assert out.status == "invalid"


def test_steps_are_limited_and_the_rest_takes_the_last_prediction(scripted) -> None:
    decoder, script = scripted(lambda call, rows, width: peaks([10 + call] * width, [0.5] * width))
    config = DecodingConfig(block_size=8, steps=3, rule="dynamic", max_new_tokens=8)
    out = decoder.generate(prompt(5)[0], config=config)
    assert out.tokens == [10, 11] + [12] * 6
    assert (out.steps_per_block, script.calls) == ([3], 3)


def test_static_and_sequential_shares_are_rounded_up(scripted) -> None:
    for rule, want in (("static", [1, 1, 1, 2, 0, 0, 0]), ("sequential", [0, 0, 0, 1, 1, 1, 2])):
        decoder, _ = scripted(lambda call, rows, width: peaks([call] * 7, [0.3, 0.2, 0.4, 0.1, 0.5, 0.6, 0.7]))
        config = DecodingConfig(block_size=7, steps=3, rule=rule, max_new_tokens=7)
        assert decoder.generate(prompt(5)[0], config=config).tokens == want


def test_wall_clock_is_limited(scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def slow(call: int, rows: int, width: int) -> Tensor:
        now_s[0] += 0.05
        return peaks([3] + [4] * (width - 1), [0.99] + [0.1] * (width - 1))

    decoder, script = scripted(slow)
    config = DecodingConfig(block_size=8, steps=8, max_new_tokens=64, time_limit_s=0.12)
    out = decoder.generate(prompt(5)[0], config=config)
    assert out.status == "truncated"
    assert script.calls == 3 and 1 <= len(out.tokens) <= 3
    assert MASK not in out.tokens


def test_scaffold_limits_and_gives_tokens() -> None:
    for prediction in ("same", "next"):
        model = loaded(prediction)
        digits = tuple(range(10))
        scaffold = Scaffold((digits, digits, (10,), digits, digits, (EOS,)))
        for block_size in (1, 2, 4, 6, 32):
            config = DecodingConfig(block_size=block_size, steps=4, max_new_tokens=12)
            out = BlockDecoder(model).generate(prompt(5)[0], config=config, scaffold=scaffold)
            assert out.status == "complete" and len(out.tokens) == 5
            assert out.tokens[2] == 10 and out.confidences[2] == 1.0
            assert all(token in digits for i, token in enumerate(out.tokens) if i != 2)
            assert min(out.confidences) >= 0.1 - 1e-6  # the softmax runs over the allowed tokens


def test_settings_are_checked() -> None:
    for wrong in (
        {"block_size": 0},
        {"block_size": True},
        {"steps": 0},
        {"rule": "greedy"},
        {"threshold": 1.5},
        {"threshold": float("nan")},
        {"threshold": "0.9"},
        {"max_new_tokens": 0},
        {"time_limit_s": 0.0},
        {"time_limit_s": "soon"},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": True},
        {"temperature": None},
        {"seed": -1},
        {"seed": 2**32},
        {"seed": 1.0},
        {"seed": True},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            DecodingConfig(**wrong)
    with pytest.raises(ConfigError, match="position 1"):
        Scaffold(((1,), ()))
    with pytest.raises(ConfigError, match="kernels"):
        BlockDecoder(loaded(), "fast")


def test_inputs_are_checked() -> None:
    decoder = BlockDecoder(loaded())
    ids, pixels, grids = prompt(5, images=1)
    for arguments in (
        (ids,),
        (ids, pixels, None),
        (prompt(5)[0], pixels, grids),
        (ids, pixels[:-1], grids),
        (ids, pixels[:, :-1], grids),
        (ids, pixels, grids * 0),
        (torch.cat((ids[:5], ids[-1:], ids[5:-1])), pixels, grids),  # a word inside the image
        (torch.empty(0, dtype=torch.int64),),
        ([[3, 4, 200]],),
        ([[3, -1]],),
    ):
        with pytest.raises(DataError, match="expected|match|image"):
            decoder.generate(*arguments)
    with pytest.raises(ConfigError, match="scaffold"):
        decoder.generate([[1], [2]], scaffold=[None])
    with pytest.raises(ConfigError, match="max_new_tokens"):
        decoder.generate([[1], [2]], max_new_tokens=[4])


def test_block_causal_prefix_knows_its_block_size() -> None:
    decoder = BlockDecoder(loaded("same", "block_causal"))
    with pytest.raises(ConfigError, match="block_size"):
        decoder.prefill([1, 2, 3])
    prefix = decoder.prefill([1, 2, 3], block_size=4)
    with pytest.raises(ConfigError, match="block size 4"):
        decoder.generate([1], config=DecodingConfig(block_size=8), prefix=prefix)


def test_a_model_without_mask_token_needs_block_size_one(tmp_path) -> None:
    config = config_dict()
    folder = save(tmp_path / "m", config, random_model(config))
    with pytest.raises(ConfigError, match="mask_token_id"):
        BlockDecoder(load_model(folder)).generate([1, 2], config=DecodingConfig(block_size=4))
    out = BlockDecoder(load_model(folder, mask_token_id=MASK)).generate([1, 2], config=DecodingConfig(block_size=4))
    assert MASK not in out.tokens
