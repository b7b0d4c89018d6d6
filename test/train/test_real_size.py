"""The real-size trial with micro shapes: its data, its steps, its figures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.real_data import MOST_ANSWER, DataSize, batches, plan_text
from benchmarks.real_report import main as report
from benchmarks.real_report import medians, on_many, rest, scaling, schedule, stage_ms
from benchmarks.real_shapes import Ids, billions, random_model, shape_config, sharpen
from wamdiff2_core.distill.forward import Pass, hidden_states, taken
from wamdiff2_core.distill.layout import Layout
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.vision import encode_batch

CPU = torch.device("cpu")
SIZE = DataSize(image=(64, 64), prompt_tokens=20, max_tokens=512)
MICRO = Ids.of(256)
SMALL_RUN = [
    *("--device", "cpu", "--student", "micro", "--teacher", "small", "--fp32", "--attention", "dense"),
    *("--image", "64x64", "--prompt-tokens", "20", "--max-tokens", "512", "--samples", "4", "--lr", "4e-3"),
]


@pytest.mark.parametrize(("name", "expected"), [("2b", 2.1275), ("8b", 8.7671)])
def test_shapes_have_the_published_number_of_weights(name, expected):
    from transformers import Qwen3VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(shape_config(name))
    assert billions(model) == pytest.approx(expected, abs=1e-3)
    assert model.model.language_model.rotary_emb.mrope_section == [24, 20, 20]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_models_come_from_their_seed(dtype):
    first, again, other = (random_model("micro", CPU, dtype, seed) for seed in (3, 3, 4))
    assert torch.get_default_dtype() == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.model.language_model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_sharpened_teacher_has_an_opinion():
    model = random_model("small", CPU, torch.float32, 0)
    sharpen(model, 3.0)
    outputs = torch.nn.functional.rms_norm(torch.randn(64, 96), (96,))
    assert float((outputs @ model.lm_head.weight.detach().T).std()) == pytest.approx(3.0, rel=0.15)


def test_plans_are_written_as_upstream_writes_them():
    import numpy as np

    values = plan_text(np.random.default_rng(0)).split(",")
    assert len(values) == 16 and all(len(value.partition(".")[2]) == 2 for value in values)


@pytest.mark.parametrize("form", ["stream", "rows"])
def test_the_set_has_batches_of_one_shape(form):
    found = batches(form, SIZE, MICRO, samples=5, streams=1, attention="dense", device=CPU)
    assert len(found) == 3 and SIZE.samples_per_stream == 2
    for batch in found:
        part = batch.parts["answers"]
        assert part.answer.shape == (2, MOST_ANSWER)
        ends = part.answer[torch.arange(2), part.answer_length - 1]
        assert ends.tolist() == [MICRO.end] * 2 and not (part.answer[0, : part.answer_length[0] - 1] == MICRO.end).any()
    assert not torch.equal(found[0].parts["answers"].answer, found[1].parts["answers"].answer)


def test_streams_and_rows_give_the_same_outputs():
    """The same samples, packed or padded: equal hidden states wherever an answer token is predicted."""
    model = random_model("micro", CPU, torch.float32, 0)
    layout, outputs = Layout("next", "causal", MICRO.image, SIZE.image_tokens), []
    for form in ("stream", "rows"):
        batch = batches(form, SIZE, MICRO, samples=2, streams=1, attention="dense", device=CPU)[0]
        part, block = batch.parts["answers"], torch.tensor([8, 32])
        noisy = part.answer.masked_fill(torch.arange(MOST_ANSWER) % 3 == 0, MICRO.mask)
        packed = part.packed(part.live_length(block), block, noisy, layout)
        hidden = hidden_states(model, packed, batch.encoded(model.model.visual, encode_batch), Pass())
        outputs.append((taken(hidden, packed.clean_at), taken(hidden, packed.noisy_at), part.answer_length))
    for stream, row in zip(outputs[0][:2], outputs[1][:2], strict=True):
        for sample, length in enumerate(outputs[0][2].tolist()):
            torch.testing.assert_close(stream[sample, :length], row[sample, :length], rtol=1e-4, atol=1e-4)


def test_sizes_that_do_not_fit_are_errors():
    with pytest.raises(ConfigError, match="multiples of 32"):
        DataSize(image=(100, 64))
    with pytest.raises(ConfigError, match="not even one sample"):
        DataSize(max_tokens=512)
    with pytest.raises(ConfigError, match="dense masks only"):
        batches("rows", SIZE, MICRO, 2, 1, "flex", CPU)


@pytest.mark.parametrize("more", [["--data", "stream"], ["--data", "rows", "--no-checkpointing"]])
def test_the_trial_runs_and_the_losses_fall(more, tmp_path, capsys):
    script = importlib.import_module("benchmarks.distill_real")
    out = tmp_path / "one.json"
    assert script.main([*SMALL_RUN, *more, "--steps", "25", "--seconds", "100000", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["steps"] == 25 and len(figures["curve"]) == 25
    assert figures["end"]["autoregressive"] < 0.7 * figures["start"]["autoregressive"]
    assert figures["end"]["divergence"] < 0.8 * figures["start"]["divergence"]
    assert figures["tokens_per_step"] >= figures["answer_tokens_per_step"] > 130
    parts = figures["ms"]
    assert parts["forward"] + parts["backward"] + parts["optimiser"] <= 1.5 * parts["step"]
    assert set(parts) >= {"teacher vision", "teacher text", "student vision"}
    assert "divergence from the teacher" in capsys.readouterr().out


def test_steps_done_otherwise(tmp_path):
    script = importlib.import_module("benchmarks.distill_real")
    out = tmp_path / "one.json"
    more = ["--steps", "2", "--variants", "all_activations", "dense", "rows", "two_streams"]
    assert script.main([*SMALL_RUN, *more, "--out", str(out)]) == 0
    found = json.loads(out.read_text())["variants"]
    assert list(found) == more[3:]
    assert [one["samples_per_step"] for one in found.values()] == [2, 2, 2, 4]
    assert all(one["fits"] and one["ms"]["step"] > 0 for one in found.values())


def test_the_trial_stops_in_time(tmp_path):
    script = importlib.import_module("benchmarks.distill_real")
    out = tmp_path / "one.json"
    assert script.main([*SMALL_RUN, "--steps", "10000", "--seconds", "0.001", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["steps"] == 5


def test_hours_of_the_schedule():
    parts = {"teacher vision": 100.0, "teacher text": 300.0, "student vision": 50.0, "forward": 600.0}
    parts |= {"backward": 350.0, "optimiser": 50.0, "step": 1000.0}
    assert medians([{"step": 9e9}] * 3 + [parts, parts | {"step": 2000.0}, parts])["step"] == 1000.0
    assert rest(parts) == 150.0
    assert stage_ms(parts) == {"stage 1": 600.0, "stage 2": 800.0, "stage 3": 1000.0}
    hours = schedule(parts, samples_per_step=10, samples=72_000)
    assert hours == pytest.approx({"stage 1": 24.0, "stage 2": 8.0, "stage 3": 10.0, "all": 42.0})
    assert on_many(64.0, 0.5) == pytest.approx({"best": 2.0, "worst": 64.0})
    assert scaling({"tokens_per_s": 10.0}, {"tokens_per_s": 18.0, "gpus": 2}) == pytest.approx(0.9)


def test_attentions_are_measured_and_agree_and_all_of_it_becomes_a_section(tmp_path, capsys):
    trial, attention = (importlib.import_module(f"benchmarks.distill_{name}") for name in ("real", "attention"))
    one, two, third = (tmp_path / f"{name}.json" for name in ("one", "two", "attention"))
    assert trial.main([*SMALL_RUN, "--steps", "2", "--out", str(one)]) == 0
    assert trial.main([*SMALL_RUN, "--steps", "2", "--one", str(one), "--out", str(two)]) == 0
    given = ["--device", "cpu", "--shape", "micro", "--images", "64x64", "--max-tokens", "512", "--prompt-tokens", "20"]
    assert attention.main([*given, "--repeats", "1", "--out", str(third)]) == 0
    assert "outputs: 0.0000" in capsys.readouterr().out
    assert report([str(one), str(two), "--attention", str(third)]) == 0
    text = capsys.readouterr().out
    assert "| 2 | flex |" in text and "an extrapolation" in text and text.count("| step |") == 1
