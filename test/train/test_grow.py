"""A grown model computes what the small one does, has the size asked for, and can learn where it is new."""

from __future__ import annotations

import pytest
import torch

from training.grow import grow, main, sources
from wamdiff2_core import BlockDecoder, load_model
from wamdiff2_core.errors import ConfigError

IDS = torch.randint(20, 500, (1, 24), generator=torch.Generator().manual_seed(0))


def logits(model) -> torch.Tensor:
    return BlockDecoder(model, kernels="plain").prompt_logits(IDS)


def test_a_grown_model_says_the_same(micro_folder, tmp_path):
    count = grow(micro_folder, tmp_path / "large", layers=5, width=300)
    small, large = load_model(micro_folder), load_model(tmp_path / "large")
    text = large.config.text_config
    assert (text.num_hidden_layers, text.intermediate_size) == (5, 300)
    assert count == sum(w.numel() for w in large.model.parameters()) > sum(w.numel() for w in small.model.parameters())
    before = logits(small)
    assert before.std() > 0.01
    # the folder holds bf16, the small one fp32
    torch.testing.assert_close(logits(large), before, rtol=0.02, atol=0.02 * before.abs().max().item())
    assert (tmp_path / "large/tokenizer.json").read_bytes() == (micro_folder / "tokenizer.json").read_bytes()


def test_what_is_new_gets_a_gradient(micro_folder, tmp_path):
    grow(micro_folder, tmp_path / "large", layers=4, width=300)
    model = load_model(tmp_path / "large").model.requires_grad_(True)
    model(input_ids=IDS).logits.logsumexp(-1).sum().backward()
    layers = model.model.language_model.layers
    still = [n for n, layer in enumerate(layers) if not layer.self_attn.o_proj.weight.any()]
    assert len(still) == 2
    for number in still:
        assert layers[number].self_attn.o_proj.weight.grad.any() and layers[number].mlp.down_proj.weight.grad.any()
    assert layers[0].mlp.down_proj.weight.grad[:, 192:].any()  # the wider part of an old layer


def test_nothing_is_put_where_images_are_added():
    assert sources(4, 2, fixed=2) == [(0, False), (1, False), (1, True), (2, False), (2, True), (3, False)]
    assert sources(2, 0, fixed=1) == [(0, False), (1, False)]
    assert [further for _, further in sources(8, 8, fixed=2)].count(True) == 8


def test_smaller_is_refused(micro_folder, tmp_path):
    for layers, width in ((1, 300), (4, 100), (2, 192)):
        with pytest.raises(ConfigError):
            grow(micro_folder, tmp_path / "large", layers, width)


def test_command(micro_folder, tmp_path, capsys):
    assert main([str(micro_folder), "--out", str(tmp_path / "large"), "--layers", "3", "--width", "200"]) == 0
    assert "M weights" in capsys.readouterr().out
