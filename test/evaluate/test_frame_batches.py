"""Frames in large batches: the same rows as frame by frame, small files that survive a kill, grids of settings."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from wamdiff2_core import BlockDecoder, DecodingConfig, Driver, load_model
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate import frame_batches, frame_store
from wamdiff2_core.evaluate.decode_grid import Setting, parse_settings
from wamdiff2_core.evaluate.frame_batches import FrameBatches, camera_sizes
from wamdiff2_core.evaluate.frame_store import FrameStore
from wamdiff2_core.evaluate.frame_table import load_table
from wamdiff2_core.evaluate.frames import answer_frame, read_frames

TIMED = ("vision_ms", "prefill_ms", "decode_ms", "total_ms")
SETTINGS = parse_settings("B=8|32,steps=3,threshold=0.1;B=1")


@pytest.fixture(scope="module")
def driver(micro: Path) -> Driver:
    return Driver.from_checkpoint(micro)


@pytest.fixture(scope="module")
def blocked(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The same weights, read as a checkpoint with block-causal context that predicts in place."""
    folder = tmp_path_factory.mktemp("blocked") / "checkpoint"
    shutil.copytree(micro, folder)
    config = json.loads((folder / "config.json").read_text())
    config["block_diffusion"] |= {"context": "block_causal", "prediction": "same"}
    (folder / "config.json").write_text(json.dumps(config))
    return Driver.from_checkpoint(folder)


def alone(driver: Driver, frame, setting: Setting) -> dict:
    """The frame's row as the driver makes it; forwards of boxes and answers from calls of their own."""
    driver.decoding = setting.config()
    row = answer_frame(driver, frame)
    row["plan"] = {name: value for name, value in row["plan"].items() if name not in TIMED}
    scene = frame.scene(driver.cameras)
    row["detect"]["forwards"] = driver.detect(scene).cost.forwards
    for one in row["ask"]:
        one["forwards"] = driver.ask(replace(scene, question=one["question"])).cost.forwards
    return {"block_size": setting.block_size, **row}


@pytest.mark.parametrize("kind", ["driver", "blocked"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_rows_are_those_of_single_frames(kind: str, setting: Setting, shards: Path, request) -> None:
    driver = request.getfixturevalue(kind)
    frames = read_frames(shards, 0)
    table = load_table(shards, camera_sizes(driver))
    made = FrameBatches(driver, table, batch=2).measure(setting)  # 4 + 2 frames, batches of two
    assert made.rows == FrameBatches(driver, table, batch=64).measure(setting).rows  # one batch
    rounded = [json.loads(json.dumps(row), parse_float=lambda text: round(float(text), 3)) for row in made.rows]
    single = [json.loads(json.dumps(alone(driver, frame, setting)), parse_float=lambda text: round(float(text), 3))
              for frame in frames]  # fmt: skip
    assert rounded == single


def test_free_text_is_another_setting(driver: Driver, shards: Path) -> None:
    batches = FrameBatches(driver, load_table(shards, camera_sizes(driver)), batch=8)
    held, free = (batches.measure(Setting(8, 2, 0.5, scaffold=on)) for on in (True, False))
    assert all(row["plan"]["failure"] in (None, "range") for row in held.rows)
    assert any(row["plan"]["failure"] in ("parse", "truncated", "empty") for row in free.rows)
    assert free.figures()["scaffold"] is False and free.figures()["parse_failures_share"] is not None


def test_a_file_is_gone_on_with_after_a_kill(micro: Path, shards: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "deep" / "rows.jsonl.gz"
    first = list(frame_batches.evaluate(micro, shards, out, SETTINGS[:2]))
    whole = out.read_bytes()
    store = FrameStore.read(out)
    assert store.settings == SETTINGS[:2] and [one.rows for one in store.measured] == [one.rows for one in first]
    out.write_bytes(whole[:-20])  # as a kill leaves it
    assert FrameStore.read(out).settings == SETTINGS[:1]
    calls = []
    measure = FrameBatches.measure
    monkeypatch.setattr(FrameBatches, "measure", lambda self, one: calls.append(one) or measure(self, one))
    again = list(frame_batches.evaluate(micro, shards, out, SETTINGS))
    assert calls == SETTINGS[1:] and [one.rows for one in again[:2]] == [one.rows for one in first]
    assert FrameStore.read(out).settings == SETTINGS


def test_rows_of_another_checkpoint_are_refused(micro: Path, shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl.gz"
    list(frame_batches.evaluate(micro, shards, out, SETTINGS[:1]))
    with pytest.raises(DataError, match="other frames"):
        list(frame_batches.evaluate(micro, shards, out, SETTINGS[:1], frames=2))
    with pytest.raises(DataError, match="other dtype"):
        list(frame_batches.evaluate(micro, shards, out, SETTINGS[:1], dtype="bfloat16"))
    (tmp_path / "text").write_text("no rows")
    with pytest.raises(DataError, match="expected rows"):
        FrameStore.read(tmp_path / "text")


def test_commands_print_figures(micro: Path, shards: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "rows.jsonl.gz"
    words = [str(micro), str(shards), "--out", str(out), "--configs", "B=32,steps=1", "--frames", "3"]
    assert frame_batches.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["frames"], printed["block_size"], printed["steps"]) == (3, 32, 1)
    assert frame_store.main([str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {"checkpoint": str(micro), **printed}
    assert frame_store.main([str(tmp_path / "none")]) == 1
    assert frame_batches.main([*words[:-4], "--configs", "B=zero"]) == 1


def test_grids() -> None:
    assert [str(one) for one in parse_settings("B=1|2,steps=2|4,threshold=0.6")] == [
        "B=1,steps=2,threshold=0.6", "B=2,steps=2,threshold=0.6",
    ]  # more steps than tokens is the same way to decode  # fmt: skip
    grid = parse_settings("B=4|8,steps=1|2,scaffold=off; B=1;B=1")
    assert [(one.block_size, one.steps, one.scaffold) for one in grid] == [
        (4, 1, False), (4, 2, False), (8, 1, False), (8, 2, False), (1, 8, True)]  # fmt: skip
    assert [Setting.of(one.values()) for one in grid] == grid
    assert Setting(4, 8).config().steps == 4 and str(Setting(4, 2, 0.5)) == "B=4,steps=2,threshold=0.5"
    for text in ("", "B=x", "B=0", "steps", "colour=red", "scaffold=1", "B=4,B=8", "rule=best"):
        with pytest.raises(ConfigError):
            parse_settings(text)


def test_tables_fit_their_checkpoint(driver: Driver, shards: Path) -> None:
    table = load_table(shards, {"cam_front": (64, 64)})
    with pytest.raises(ConfigError, match="checkpoint sees"):
        FrameBatches(driver, table)
    assert [frame.name[:11] for frame in read_frames(shards, 0, holdout=2)] == ["shard_00000"] * 3
    with pytest.raises(DataError, match="images"):
        load_table(shards, {str(number): (32, 32) for number in range(4)})


def test_rows_of_a_prefix(micro: Path) -> None:
    """Prompts of equal length run as one prefix; each row answers as behind a prefix of its own."""
    decoder = BlockDecoder(load_model(micro))
    generator = torch.Generator().manual_seed(1)
    heads, tails = (torch.randint(0, 500, (3, n), generator=generator) for n in (6, 2))
    config = DecodingConfig(block_size=4, steps=2, max_new_tokens=8)
    want = [decoder.generate(tail, config=config, prefix=decoder.prefill(head)) for head, tail in zip(heads, tails)]
    prefix = decoder.prefill(heads)
    assert decoder.generate(tails, config=config, prefix=prefix).tokens == [one.tokens for one in want]
    picked = decoder.generate(tails[[2, 0]], config=config, prefix=prefix.rows([2, 0]))
    assert picked.tokens == [want[2].tokens, want[0].tokens]
    assert [one.alone for one in picked] == [want[2].forwards, want[0].forwards]
    with pytest.raises(ConfigError, match="one row or 2"):
        decoder.generate(tails[:2], config=config, prefix=prefix)
    with pytest.raises(ConfigError, match="one length"):
        decoder.prefill([heads[0], tails[0]])
