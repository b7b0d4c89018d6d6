"""What a driver node would refuse is said before a run of nodes begins: by commands and launch files alike."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wamdiff2_core import kernel_choice
from wamdiff2_core.decode.pick import WORDS, needs_an_engine
from wamdiff2_core.errors import CheckpointError, ConfigError
from wamdiff2_ros import beforehand, graph
from wamdiff2_ros.parameters import MOST_CANDIDATES, MOST_SCORED, Settings

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
LAUNCH = {
    "launch": ["LaunchContext"],
    "launch.actions": [
        "DeclareLaunchArgument", "EmitEvent", "LogInfo", "RegisterEventHandler", "SetEnvironmentVariable",
    ],
    "launch.event_handlers": ["OnProcessExit"],
    "launch.events": ["Shutdown"],
    "launch.substitutions": ["LaunchConfiguration"],
    "launch_ros": [],
    "launch_ros.actions": ["Node"],
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    file = folder / "params.yaml"
    file.write_text(text)
    return file


def driver(**parameters: Any) -> graph.NodeSpec:
    return graph.driver("/x", ("cam_front",), {"checkpoint": TINY, **parameters})


def test_settings_are_the_files_and_the_runs_own_which_win(tmp_path: Path) -> None:
    file = written(tmp_path, "/**: {ros__parameters: {kernels: engine, candidates: 3, threshold: 1, no_such: 1}}\n")
    settings = beforehand.settings_of(driver(kernels="lean"), file)
    assert (settings.kernels, settings.candidates, settings.threshold) == ("lean", 3, 1.0)
    assert settings.checkpoint == str(TINY) and beforehand.settings_of(driver(), None).kernels == "auto"


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"kernels": "triton"}, "kernels triton: expected a CUDA device, got cpu; .*kernels auto"),
        ({"kernels": "fast"}, "kernels: 'fast' is not one of auto"),
        ({"candidates": MOST_CANDIDATES + 1}, "candidates: 65 is not within 0..64"),
        ({"block_size": 0, "steps": 0}, "block_size: 0 .*; steps: 0"),
    ],
)
def test_what_a_node_would_refuse_is_one_line(parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        beforehand.check([graph.follower("/x"), driver(**parameters)], None)
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_named_and_what_can_run_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cuda:93"):
        beforehand.check([driver(device="cuda:93")], None)
    beforehand.check([driver(kernels="torch", block_size=12)], None)
    monkeypatch.setattr(kernel_choice, "foresee", lambda *a: pytest.fail("asked"))
    for kernels in beforehand.ALWAYS_RUN:
        beforehand.check([driver(kernels=kernels)], None)
    assert {word for word in WORDS if not needs_an_engine(word)} == set(beforehand.ALWAYS_RUN)


def test_cameras_and_checkpoint_of_a_file_are_read_or_named(tmp_path: Path) -> None:
    file = written(tmp_path, "/**: {ros__parameters: {cameras: [a, b], checkpoint: /x, kernels: triton}}\n")
    assert beforehand.set_in(file) == Settings(cameras=("a", "b"), checkpoint="/x")
    assert beforehand.set_in(written(tmp_path, "")) == Settings()
    for wrong in ("cameras: a", "cameras: null", "cameras: 3", "cameras: []", "checkpoint: 4", "checkpoint: null"):
        file = written(tmp_path, f"/wamdiff2: {{ros__parameters: {{{wrong}}}}}\n")
        with pytest.raises(ConfigError, match=wrong.split(":")[0]):
            beforehand.set_in(file)


def test_parameters_allow_no_more_candidates_than_an_engine_draws() -> None:
    most = kernel_choice.text_model(TINY).sizes.rows[-1]
    assert MOST_CANDIDATES == most and MOST_SCORED + 1 <= most
    assert Settings(candidates=most).candidates == most


def test_launch_files_end_before_they_start_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the launch packages: their names only, so that the functions that launch files call can run."""
    for name, members in LAUNCH.items():
        stand_in = ModuleType(name)
        for member in members:
            setattr(stand_in, member, lambda *a, **k: pytest.fail("made an action"))
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delitem(sys.modules, "wamdiff2_ros.launching", raising=False)
    launching = importlib.import_module("wamdiff2_ros.launching")
    monkeypatch.delitem(sys.modules, "wamdiff2_ros.launching")
    file = written(tmp_path, "/wamdiff2: {ros__parameters: {kernels: triton}}\n")
    with pytest.raises(ConfigError, match="kernels triton: expected a CUDA device"):
        launching.actions([driver()], file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
