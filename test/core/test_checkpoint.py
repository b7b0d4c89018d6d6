"""Checkpoint folders of three kinds, and every way in which one can be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import EOS, GOLDEN, IMAGE, MASK, VOCAB, block_diffusion, config_dict, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.errors import CheckpointError

NORM = "model.language_model.norm.weight"


def ours(**text):
    return {**config_dict(**text), "block_diffusion": block_diffusion()}


def logits(model) -> torch.Tensor:
    return BlockDecoder(model, "plain").prompt_logits([1, 2, 3, 4])


@pytest.fixture
def folder(tmp_path) -> Path:
    config = ours()
    return save(tmp_path / "ours", config, random_model(config))


def edit(folder: Path, **changes) -> None:
    raw = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        place, path = raw, key.split("__")
        for step in path[:-1]:
            place = place[step]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(raw))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_ours(folder) -> None:
    model = load_model(folder)
    assert (model.kind, model.prediction, model.context) == ("wamdiff2", "next", "causal")
    assert (model.mask_token_id, model.eos_token_id, model.vocab_size) == (MASK, EOS, VOCAB)
    assert model.block_diffusion["block_sizes"] == [1, 4, 8]
    assert not model.model.training and model.folder == folder


def test_plain_qwen3_vl(tmp_path) -> None:
    config = config_dict()
    model = load_model(save(tmp_path, config, random_model(config)))
    assert (model.kind, model.prediction, model.context, model.mask_token_id) == ("qwen3_vl", "next", "causal", None)
    assert load_model(tmp_path, mask_token_id=7).mask_token_id == 7


def test_upstream() -> None:
    model = load_model(GOLDEN)
    assert (model.kind, model.prediction, model.context) == ("wam_diff2", "same", "block_causal")
    assert (model.mask_token_id, model.eos_token_ids) == (599, (590,))


def test_weights_arrive_unchanged(tmp_path) -> None:
    """What transformers computes from the model we saved is what the loaded one computes, tied or not."""
    for number, tied in enumerate((True, False)):
        config = ours(tie_word_embeddings=tied)
        source = random_model(config, seed=number)
        model = load_model(save(tmp_path / str(number), config, source))
        want = source(input_ids=torch.tensor([[1, 2, 3, 4]])).logits[0]
        assert torch.allclose(logits(model), want, atol=1e-5)
        head, embedding = model.model.lm_head.weight, model.model.model.language_model.embed_tokens.weight
        assert (head is embedding) == tied
        for name, tensor in source.state_dict().items():
            assert torch.equal(tensor, model.model.state_dict()[name]), name


def test_tied_head_may_be_stored(tmp_path) -> None:
    config = ours()
    source = random_model(config)
    folder = save(tmp_path, config, source, head=True)
    assert torch.equal(logits(load_model(folder)), logits(load_model(save(tmp_path / "b", config, source))))
    edit_weights(folder, lambda weights: weights["lm_head.weight"].add_(1.0))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load_model(folder)


def test_tying_may_be_said_in_the_text_part_only(folder) -> None:
    edit(folder, tie_word_embeddings=None)
    model = load_model(folder).model
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight


def shard(folder: Path) -> tuple[dict, dict[str, str]]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(sorted(weights))}
    for file in sorted(set(where.values())):
        save_file({name: weights[name] for name in weights if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return weights, where


def test_sharded(folder) -> None:
    want = logits(load_model(folder))
    _, where = shard(folder)
    assert torch.equal(logits(load_model(folder)), want)
    (folder / where[NORM]).unlink()
    with pytest.raises(CheckpointError, match="safetensors file"):
        load_model(folder)


def test_shards_and_index_must_agree(folder) -> None:
    _, where = shard(folder)
    index = folder / "model.safetensors.index.json"
    for changed, message in (
        ({**where, "extra": where[NORM]}, "lack extra"),
        ({name: file for name, file in where.items() if name != NORM}, "not in the index"),
        ({**where, NORM: "../elsewhere.safetensors"}, "inside the folder"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(CheckpointError, match=message):
            load_model(folder)
    for broken in ("[]", '{"weight_map": null}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'):
        index.write_text(broken)
        with pytest.raises(CheckpointError, match="weight_map"):
            load_model(folder)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_dtypes(folder, stored, wanted: str) -> None:
    def cast(weights) -> None:
        for name in weights:
            weights[name] = weights[name].to(stored)

    edit_weights(folder, cast)
    model = load_model(folder, dtype=wanted)
    assert {p.dtype for p in model.model.parameters()} == {getattr(torch, wanted)}
    out = BlockDecoder(model).generate([1, 2, 3], config=DecodingConfig(block_size=4, max_new_tokens=8))
    assert out.status in ("complete", "truncated", "empty")
    assert next(load_model(folder, dtype="auto").model.parameters()).dtype in (torch.float32, torch.bfloat16)
    with pytest.raises(CheckpointError, match="int8"):
        load_model(folder, dtype="int8")


def test_missing_surplus_and_misshapen_tensors(folder) -> None:
    weights = load_file(folder / "model.safetensors")
    for change, message in (
        (lambda w: w.pop(NORM), rf"expected {len(weights) + 1} tensors, got {len(weights) - 1}; missing: .*norm"),
        (lambda w: w.update(extra=torch.zeros(2)), "surplus: extra"),
        (lambda w: w.update({NORM: torch.zeros(31)}), r"norm\.weight: expected shape \(32,\), got \(31,\)"),
        (lambda w: w.update({NORM: torch.zeros(32, dtype=torch.int32)}), "floating point"),
    ):
        changed = dict(weights)
        change(changed)
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load_model(folder)


def test_untied_head_must_be_there(tmp_path) -> None:
    config = ours(tie_word_embeddings=False)
    folder = save(tmp_path, config, random_model(config))
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        load_model(folder)


def test_wrong_files(tmp_path, folder) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(tmp_path / "nowhere")
    (folder / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(CheckpointError, match="safetensors file"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="found neither"):
        load_model(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle files \['pytorch_model\.bin'\]"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="expected JSON"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "got 'llama'"),
        ({"model_type": None}, "got None"),
        ({"text_config": None}, "text_config"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": VOCAB}, f"expected 0 to {VOCAB - 1}, got {VOCAB}"),
        ({"image_token_id": VOCAB + 5}, "image_token_id"),
        ({"block_diffusion": "yes"}, "object"),
        ({"block_diffusion__prediction": "last"}, "'last'"),
        ({"block_diffusion__context": None}, "context"),
        ({"block_diffusion__mask_token_id": None}, "mask_token_id"),
        ({"block_diffusion__mask_token_id": VOCAB}, f"got {VOCAB}"),
        ({"block_diffusion__mask_token_id": EOS}, "end token"),
        ({"block_diffusion__mask_token_id": True}, "got True"),
        ({"model_type": "wam_diff2", "block_diffusion": "yes"}, "object"),
        ({"model_type": "wam_diff2", "block_diffusion__prediction": "last"}, "'last'"),
        ({"text_config__hidden_size": 64}, "expected shape"),
        ({"text_config__hidden_size": "wide"}, "hidden_size"),
        ({"text_config__hidden_act": "nonsense"}, "nonsense"),
    ],
)
def test_wrong_config(folder, change, message: str) -> None:
    edit(folder, **change)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_unknown_device_and_number_format(folder) -> None:
    with pytest.raises(CheckpointError, match="device: expected .* got 'gpu'"):
        load_model(folder, device="gpu")
    with pytest.raises(CheckpointError, match="dtype"):
        load_model(folder, dtype="float7")


def test_generation_config_names_the_end_tokens(folder) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, 3]}))
    assert load_model(folder).eos_token_ids == (EOS, 3)


def test_ids_come_from_the_files(tmp_path) -> None:
    """Another vocabulary with other ids works the same."""
    config = {**ours(vocab_size=200), "image_token_id": 150, "eos_token_id": 151}
    config["block_diffusion"] = block_diffusion(mask=199)
    model = load_model(save(tmp_path, config, random_model(config)))
    assert (model.mask_token_id, model.eos_token_id, model.config.image_token_id) == (199, 151, 150)
    ids = [1, *[150] * 6, 2]
    out = BlockDecoder(model).generate(
        ids, torch.randn(24, 96), torch.tensor([[1, 4, 6]]), config=DecodingConfig(block_size=4, max_new_tokens=8)
    )
    assert 199 not in out.tokens and IMAGE != 150


def test_import_is_cheap() -> None:
    code = "import sys, wamdiff2_core; assert not {'torch', 'transformers'} & set(sys.modules); wamdiff2_core.Scene"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
