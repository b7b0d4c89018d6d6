"""What kernels a checkpoint gets, told from its files alone, is what its driver gets: one function, made-up configs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wamdiff2_cli import engine_checks
from wamdiff2_core import DecodingConfig, Driver
from wamdiff2_core.decode import pick
from wamdiff2_core.decode.engine import kernel_sets
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.pick import Choice
from wamdiff2_core.errors import CheckpointError, ConfigError
from wamdiff2_core.kernel_choice import Foreseen, foresee, text_model
from wamdiff2_core.model.checkpoint import read_facts

# What is changed in text_config, and what the refusal names. None: an engine can run it.
MADE_UP = {
    "as it is": ({}, None),
    "biases": ({"attention_bias": True}, "biases"),
    "activation": ({"hidden_act": "gelu"}, "silu"),
    "head size": (
        {"head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 4]}},
        "head size",
    ),
    "query heads": ({"num_attention_heads": 34, "num_key_value_heads": 2}, "query heads"),
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that Triton's kernels run on, as far as questions go."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(pick, "why_not_triton", lambda device, dtype: None if device.type == "cuda" else "no GPU")
    monkeypatch.setattr(pick, "triton_sizes", lambda config, sizes: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(kernel_sets, "triton_release", lambda: "3.6.0")


@pytest.mark.parametrize("word", ["auto", "engine", "triton", "triton_fp8"])
def test_another_release_of_triton_is_said_with_what_it_costs(gpu, ours: Path, monkeypatch, word: str) -> None:
    assert "without" not in foresee(ours, "cuda", "bfloat16", word).choice.reason
    monkeypatch.setattr(kernel_sets, "triton_release", lambda: "3.7.1")
    choice = foresee(ours, "cuda", "bfloat16", word).choice
    assert choice.word.startswith("triton") and "without weights ahead of their products" in choice.reason
    assert "triton 3.6" in choice.reason and choice.reason.endswith("found 3.7.1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    assert "without" not in foresee(ours, "cuda", "bfloat16", word).choice.reason  # such a GPU has them with no release


def without_weights(ours: Path, folder: Path, **changes: Any) -> Path:
    """The checkpoint's files without its weights, `changes` in its text_config."""
    shutil.copytree(ours, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def on_cuda(folder: Path) -> Any:
    """A model of the folder's config with weights, which says that it lives on a GPU."""
    from transformers import Qwen3VLForConditionalGeneration

    config = read_facts(folder).config
    model = Qwen3VLForConditionalGeneration(config)
    return SimpleNamespace(device=torch.device("cuda"), model=model, config=config)


@pytest.mark.parametrize(("changes", "told"), MADE_UP.values(), ids=MADE_UP)
def test_doctor_and_driver_never_disagree(gpu, ours: Path, tmp_path: Path, changes: dict, told: str | None) -> None:
    folder = without_weights(ours, tmp_path / "made_up", **changes)
    said = engine_checks.choice(folder)
    assert said == pick.choose("auto", on_cuda(folder), text_model(folder).sizes)
    if told is None:
        assert said.kernels == "engine triton"
        return
    assert said.kernels == "lean" and told in said.reason and told in engine_checks._engine(said).found
    for word in ("engine", "torch", "triton"):
        with pytest.raises(ConfigError, match=f"kernels {word}: .*{told}.*; kernels auto takes what can run"):
            foresee(folder, "cuda", "bfloat16", word)


def test_sizes_that_triton_refuses_are_told_by_both(gpu, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(config: Any, sizes: Any) -> None:
        asked.append(sizes)
        raise ConfigError("expected widths in multiples of 8, got 20")

    monkeypatch.setattr(pick, "triton_sizes", refuse)
    assert engine_checks.choice(ours) == pick.choose("auto", on_cuda(ours), text_model(ours).sizes)
    assert "multiples of 8" in engine_checks.choice(ours).reason and asked[0] == asked[1]
    assert foresee(ours, "cpu", kernels="engine").choice.word == "torch"
    with pytest.raises(ConfigError, match="kernels engine: .*multiples of 8"):
        foresee(ours, "cuda", kernels="engine")


def test_sizes_are_those_that_the_driver_makes(ours: Path, upstream: Path, plain: Path) -> None:
    for folder, sizes in ((ours, (3, 64)), (upstream, ()), (plain, ())):
        driver = Driver.from_checkpoint(folder, kernels="torch", block_sizes=sizes)
        assert isinstance(driver.decoder, EngineDecoder)
        assert text_model(folder, sizes).sizes == driver.decoder.engine.config


@pytest.mark.parametrize("word", ["auto", "lean", "plain", "engine", "torch", "torch_fp8"])
def test_names_are_those_of_the_decoders(ours: Path, word: str) -> None:
    foreseen, driver = foresee(ours, kernels=word), Driver.from_checkpoint(ours, kernels=word)
    assert foreseen.choice == driver.choice and foreseen.choice.kernels == driver.kernels
    assert driver.kernels_reason == foreseen.choice.reason != ""


def test_a_refusal_comes_before_the_weights_are_read(ours: Path, tmp_path: Path) -> None:
    folder = without_weights(ours, tmp_path / "made_up")
    with pytest.raises(ConfigError, match="kernels triton: expected a CUDA device, got cpu; .*kernels auto"):
        Driver.from_checkpoint(folder, kernels="triton")
    with pytest.raises(CheckpointError, match="safetensors"):
        Driver.from_checkpoint(folder, kernels="torch")
    with pytest.raises(CheckpointError, match="cuda"):
        foresee(folder, "cuda:7", kernels="triton")


def test_more_candidates_than_an_engine_is_made_for_are_refused_before_anything_is_computed(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = foresee(ours, kernels="torch")
    engine.check_candidates(64)
    with pytest.raises(ConfigError, match="candidates: kernels engine torch decode at most 64 at once, got 65"):
        engine.check_candidates(65)
    Foreseen(Choice("lean", ""), engine.sizes).check_candidates(1000)
    driver = Driver.from_checkpoint(ours, decoding=DecodingConfig(32, 2), kernels="torch")
    monkeypatch.setattr(driver, "pixels", lambda scene: pytest.fail("looked at pictures"))
    with pytest.raises(ConfigError, match="at most 64 at once, got 65"):
        driver.plan_candidates(None, 65)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="requests: .* at most 64 at once, got 65"):
        driver.answer_each([("plan", None)] * 65)  # type: ignore[list-item]


def test_a_skeleton_holds_no_weights(ours: Path) -> None:
    assert all(one.is_meta for one in text_model(ours).text.parameters())
