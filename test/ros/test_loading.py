"""Loading in a thread, what goes wrong with it, and memory given back."""

from __future__ import annotations

import json
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_ros.loading import Interrupted, first_line, free_memory, in_background, load_driver, warm_up
from wamdiff2_ros.parameters import Settings

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"


def test_the_result_or_the_error_comes_from_the_thread() -> None:
    assert in_background(threading.get_ident, lambda: False) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 / 0, lambda: False)


def test_told_to_stop_it_leaves_the_thread_behind() -> None:
    release = threading.Event()
    with pytest.raises(Interrupted) as caught:
        in_background(release.wait, lambda: True)
    assert caught.value.thread.is_alive()
    release.set()
    caught.value.thread.join(120.0)
    assert not caught.value.thread.is_alive()


def without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def with_entry(**entry: Any) -> Any:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["block_diffusion"].update(entry)
        (folder / "config.json").write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without("config.json"), "config.json"),
        (without("tokenizer.json"), "tokenizer.json"),
        (without("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors"),
        (lambda folder: (folder / "model-00001-of-00002.safetensors").write_bytes(b"x" * 999), "model-00001"),
        (with_entry(image_sizes={"cam_front": "wide"}), "ValueError"),
        (with_entry(mask_token_id="many"), "mask_token_id"),
    ],
)
def test_a_spoilt_folder_is_one_line_that_names_it(spoil: Any, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "spoilt"
    shutil.copytree(TINY, folder)
    spoil(folder)
    with pytest.raises(Wamdiff2Error) as caught:
        load_driver(Settings(checkpoint=str(folder)))
    assert says in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_no_folder_and_a_warm_up_that_fails_are_said() -> None:
    with pytest.raises(ConfigError, match="checkpoint: no folder is named"):
        load_driver(Settings())

    class Full:
        decoding = DecodingConfig()

        def answer(self, scene: Any, tasks: Any) -> Any:
            raise RuntimeError("out of memory\nadvice")

    with pytest.raises(ConfigError, match="here on cpu: warm-up: RuntimeError: out of memory$"):
        warm_up(Full(), Settings(checkpoint="here"))
    assert first_line(ValueError()) == "ValueError: "


def test_what_nobody_holds_is_freed_even_in_a_circle() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = np.ones(1000)
            self.myself = self

    model = Model()
    seen = weakref.ref(model)
    del model
    free_memory()
    assert seen() is None


def test_a_checkpoint_that_needs_another_camera_is_refused_at_once() -> None:
    """Else the node would be active and answer nothing, ever."""
    from wamdiff2_core.driver import Driver

    driver = Driver.from_checkpoint("checkpoints/tiny")
    with pytest.raises(ConfigError, match="cam_front_left"):
        warm_up(driver, Settings(checkpoint="checkpoints/tiny", cameras=("cam_front",)))
    warm_up(driver, Settings(checkpoint="checkpoints/tiny", steps=1))
