"""A plain Qwen3-VL folder becomes one of ours: it loads, drives, and can be trained on conversations."""

import json
import shutil

import numpy as np
import pytest
import torch
from micro import micro_recipe
from stream_files import as_kind, mixed_file

from training.adopt import adopt, main, used_ids
from wamdiff2_core import load_model
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.distill import checkpoint
from wamdiff2_core.distill.trainer import run_recipe
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import CheckpointError
from wamdiff2_core.model.tokenizer import TextTokenizer
from wamdiff2_core.scene import EgoState, Scene


def scene() -> Scene:
    image = np.random.default_rng(0).integers(0, 256, (112, 200, 3), dtype=np.uint8)
    return Scene({"cam_front": image}, ego=EgoState((5.0, 0.0)), instruction="go straight", question="is it day?")


@pytest.fixture(scope="module")
def plain(micro_folder, tmp_path_factory):
    """A Qwen3-VL whose tokenizer knows no mask token, like the real ones."""
    folder = as_kind(micro_folder, "qwen3_vl", tmp_path_factory.mktemp("plain") / "model")
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] != "<|mask|>"]
    definition["model"]["vocab"].pop("<|mask|>", None)
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    return folder


def test_plain_folder(plain, tmp_path):
    entry = adopt(plain, tmp_path / "ours")
    loaded = load_model(tmp_path / "ours")
    assert (loaded.kind, loaded.prediction, loaded.context) == ("wamdiff2", "next", "causal")
    assert loaded.mask_token_id == entry["mask_token_id"] == loaded.vocab_size - 1  # the last row is unused
    assert entry["answer_formats"] == {"plan": "upstream", "detect": "qwen3vl_json", "ask": "text"}
    before = dict(load_model(plain).model.named_parameters())
    assert all(weight.equal(before[name]) for name, weight in loaded.model.named_parameters())
    linked = (tmp_path / "ours" / "model.safetensors").stat().st_ino
    assert linked == (plain / "model.safetensors").stat().st_ino
    adopt(plain, tmp_path / "copied", copy=True)
    assert (tmp_path / "copied" / "model.safetensors").stat().st_ino != linked


def tokens(driver: Driver, task: str) -> tuple[list[int], list[int]]:
    """Prompt and first tokens of the answer, greedily one after the other."""
    pixels, grid = driver.pixels(scene())
    prompt = driver._prompt(scene(), task, driver._image_tokens(grid))
    ids, one = torch.tensor(prompt.ids), DecodingConfig(block_size=1)
    return list(prompt.ids), driver.decoder.generate(ids, pixels, grid, one, None, max_new_tokens=[12]).tokens


def test_it_sees_what_the_plain_model_sees(plain, tmp_path):
    adopt(plain, tmp_path / "ours")
    ours, theirs = Driver.from_checkpoint(tmp_path / "ours"), Driver.from_checkpoint(plain)
    assert ours.decoding.block_size == 32 and theirs.decoding.block_size == 1
    for task in ("plan", "ask"):
        (prompt, answer), other = tokens(ours, task), tokens(theirs, task)
        assert (prompt, answer) == other and len(answer) == 12


def test_shards_and_side_files_come_along(plain, tmp_path):
    sharded = tmp_path / "sharded"
    shutil.copytree(plain, sharded)
    (sharded / "model.safetensors").unlink()
    checkpoint.save_weights(load_model(plain).model, tmp_path / "sharded", limit_bytes=200_000)
    shutil.copy2(plain / "config.json", sharded / "config.json")
    (sharded / "video_preprocessor_config.json").write_text("{}")
    (sharded / "README.md").write_text("not ours to carry")
    adopt(sharded, tmp_path / "ours")
    names = {path.name for path in (tmp_path / "ours").iterdir()}
    assert names == {path.name for path in sharded.iterdir()} - {"README.md"} and len(names) > 5
    load_model(tmp_path / "ours")
    next(sharded.glob("model-00002*")).unlink()
    with pytest.raises(CheckpointError, match="model-00002"):
        adopt(sharded, tmp_path / "broken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "sharded"]


def test_mask_token(plain, tmp_path, capsys):
    used = used_ids(plain)
    word = next(index for index, text in used.items() if text == "a")
    free = max(used) + 2
    assert adopt(plain, tmp_path / "given", free)["mask_token_id"] == free
    for wrong, said in ((word, "is the token 'a'"), (5000, "expected 0 to 1151"), (-1, "expected 0 to 1151")):
        with pytest.raises(CheckpointError, match=said):
            adopt(plain, tmp_path / "wrong", wrong)
    assert main([str(plain), "--out", str(tmp_path / "given")]) == 1
    assert "does not exist yet" in capsys.readouterr().err and not (tmp_path / "wrong").exists()


def test_upstream_folder_and_ours(micro_folder, tmp_path):
    upstream = as_kind(micro_folder, "wam_diff2", tmp_path / "upstream")
    entry = adopt(upstream, tmp_path / "ours")
    mask = TextTokenizer.from_folder(micro_folder).control("<|mask|>")
    assert (entry["prediction"], entry["context"], entry["mask_token_id"]) == ("same", "block_causal", mask)
    assert load_model(tmp_path / "ours").kind == "wamdiff2"
    with pytest.raises(CheckpointError, match="can be trained as is"):
        adopt(micro_folder, tmp_path / "again")


def test_it_can_be_trained(plain, tmp_path):
    adopt(plain, tmp_path / "ours")
    recipe = micro_recipe(
        init=str(tmp_path / "ours"), out=str(tmp_path / "run"), source="stream", files=[str(mixed_file(tmp_path, 8))],
        max_tokens=512, max_steps=2, workers=0, phases=[{"until": 1.0, "blocks": {4: 1.0}}], tensorboard=False,
    )  # fmt: skip
    driver = Driver.from_checkpoint(run_recipe(recipe))
    assert driver.loaded.block_diffusion["prompt"] == "upstream" and not driver.ours
    assert driver.loaded.mask_token_id == load_model(tmp_path / "ours").mask_token_id
