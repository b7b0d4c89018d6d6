"""A driver node whose checkpoint runs on the captured engine: truly named, ready at start, fixed once configured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

import harness  # noqa: E402
from rclpy.lifecycle import TransitionCallbackReturn  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2_core.decode.pick import WORDS  # noqa: E402
from wamdiff2_core.errors import ConfigError  # noqa: E402
from wamdiff2_ros import parameters  # noqa: E402
from wamdiff2_ros.loading import get_ready, load_driver  # noqa: E402
from wamdiff2_ros.parameters import Settings  # noqa: E402

TINY = str(Path(__file__).parents[2] / "checkpoints" / "tiny")
DIALS = (1, 4, 8, 16, 32)
Make = Callable[..., Any]


@pytest.fixture
def make_node(make_harness: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A harness around a node that loads the shipped checkpoint by itself."""
    cameras = Settings().cameras
    monkeypatch.setattr(harness, "CAMERAS", cameras)

    def make(**values: Any) -> Any:
        h = make_harness(autostart=False, checkpoint=TINY, cameras=list(cameras), steps=2, rule="ordered", **values)
        h.node._make_driver = load_driver
        return h

    return make


def test_the_dial_turns_on_the_engine_and_captures_nothing(make_node: Make) -> None:
    h = make_node(kernels="torch", tasks=["plan", "detect"], batch_tasks=True, detect_rate_hz=0.0)
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    graphs = h.node._driver.decoder.engine.graphs
    ready = len(graphs)
    assert ready > 3 * len(DIALS)
    refused = h.node.set_parameters([Parameter("kernels", value="lean")])[0]
    assert not refused.successful and refused.reason == "kernels: fixed after configure; clean up the node first"
    assert h.node.trigger_activate() == TransitionCallbackReturn.SUCCESS
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(harness.CAMERAS)

    for size in DIALS:
        assert h.node.set_parameters([Parameter("block_size", value=size)])[0].successful
        h.spin_until(lambda size=size: any(m.block_size == size for m in h.outputs["stats"]), f"block {size}", send)
    assert len(graphs) == ready
    assert {m.kernels for m in h.outputs["stats"]} == {"engine torch"}
    assert h.valid_plans()


def test_a_block_size_that_the_engine_was_not_made_for_is_refused_and_plans_go_on(make_node: Make) -> None:
    h = make_node(kernels="engine", tasks=["plan"])
    assert h.node.set_parameters([Parameter("block_size", value=12)])[0].successful  # nothing is loaded yet
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert h.node.trigger_activate() == TransitionCallbackReturn.SUCCESS
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(harness.CAMERAS)

    h.spin_until(h.valid_plans, "a plan", send)
    for name, value in (("block_size", 24), ("deadline_dials", ["8x8", "24x4"])):
        refused = h.node.set_parameters([Parameter(name, value=value)])[0]
        assert not refused.successful
        assert refused.reason == (
            "block size 24: kernels engine torch were made for 1, 4, 8, 12, 16, 32; set it before configure"
        )
    before = len(h.valid_plans())
    assert h.node.set_parameters([Parameter("block_size", value=8)])[0].successful
    h.spin_until(lambda: len(h.valid_plans()) > before + 1, "plans go on", send)
    assert h.outputs["stats"][-1].failures_invalid == 0


def test_lean_kernels_take_any_block_size(make_node: Make) -> None:
    h = make_node(kernels="lean", tasks=["plan"])
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert h.node.set_parameters([Parameter("block_size", value=24)])[0].successful


@pytest.mark.parametrize("kernels", ["triton", "triton_fp8"])
def test_kernels_that_cannot_run_here_fail_configure(make_node: Make, kernels: str) -> None:
    h = make_node(kernels=kernels)
    assert h.node.trigger_configure() == TransitionCallbackReturn.FAILURE
    assert h.node.set_parameters([Parameter("kernels", value="auto")])[0].successful
    assert h.node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert h.node._driver.kernels == "lean"


def test_words_are_those_of_the_driver_and_others_are_refused() -> None:
    assert parameters.KERNELS == WORDS
    with pytest.raises(ConfigError, match="kernels: 'fast' is not one of auto, lean"):
        Settings(kernels="fast")


def test_dials_of_deadline_mode_are_known_to_the_engine_and_the_line_says_what_runs() -> None:
    settings = Settings(checkpoint=TINY, kernels="torch", block_size=12, deadline_dials=("24x8", "8x8"), candidates=3)
    driver = load_driver(settings)
    assert {12, 24, *DIALS} == set(driver.decoder.engine.config.block_sizes)
    assert get_ready(driver, settings).startswith("kernels engine torch (asked for), ready after ")
    lean = load_driver(Settings(checkpoint=TINY))
    why = "auto: no engine: expected a CUDA device, got cpu"
    assert get_ready(lean, Settings(checkpoint=TINY)).startswith(f"kernels lean ({why}), ready after ")


def test_getting_ready_that_fails_is_one_line_with_the_folder() -> None:
    class Full:
        def get_ready(self, expected: Any) -> float:
            raise RuntimeError("out of memory\nadvice")

    with pytest.raises(ConfigError, match="here on cpu: getting ready: RuntimeError: out of memory$"):
        get_ready(Full(), Settings(checkpoint="here"))
