"""The scorer and the number of candidates turned while a node drives with the checkpoint that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

import harness  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from wamdiff2.msg import Candidates  # noqa: E402
from wamdiff2_core import DecodingConfig, Driver  # noqa: E402
from wamdiff2_ros.conversions import stamp_seconds  # noqa: E402

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"


@pytest.mark.slow
def test_scorer_and_candidates_are_turned_at_run_time(make_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver.from_checkpoint(TINY, decoding=DecodingConfig(block_size=32, steps=2, threshold=0.6))
    cameras = tuple(driver.cameras)
    monkeypatch.setattr(harness, "CAMERAS", cameras)
    h = make_harness(tasks=["plan"], block_size=32, steps=2, threshold=0.6)
    h.driver = driver
    h._listen("/wamdiff2/output/candidates", "candidates", Candidates)
    h.wait_connected()

    def send() -> None:
        h.send_odometry()
        h.send_frames(cameras)

    def turned(**values: Any) -> bool:
        parameters = [Parameter(name, value=value) for name, value in values.items()]
        return h.node.set_parameters_atomically(parameters).successful

    def more(what: str, size: int) -> None:
        """Until a candidates message with this many plans, valid or withheld, and a plan after it."""
        seen = len(h.outputs["candidates"])

        def there() -> bool:
            return any(len(m.candidates) + m.withheld == size for m in h.outputs["candidates"][seen:])

        h.spin_until(there, what, send)
        plans = len(h.valid_plans())
        h.spin_until(lambda: len(h.valid_plans()) > plans, "a plan", send)

    h.spin_until(lambda: len(h.valid_plans()) > 1, "plans", send)
    assert not h.outputs["candidates"]
    assert turned(scorer="learned", candidates=2, candidate_temperature=0.5)
    more("plan, 2 drawn and 3 paces, without the one that is driven", 5)
    assert turned(scorer="likelihood", candidates=1, candidate_paces=False)
    more("plan and 1 drawn, without the one that is driven", 1)
    for wrong in (
        {"scorer": "best"}, {"scorer": "rules"}, {"scorer": 3}, {"candidates": -1}, {"candidates": 40},
        {"candidates": 1.5}, {"scorer": "none", "candidates": 65}, {"candidate_temperature": 0.0},
        {"candidate_temperature": float("nan")},
    ):  # fmt: skip
        assert not turned(**wrong), wrong
    told = [h.node.get_parameter(name).value for name in ("scorer", "candidates", "candidate_temperature")]
    assert told == ["likelihood", 1, 0.5]  # a refused set changes nothing
    more("the same as before", 1)
    assert turned(scorer="remasked", candidates=2)
    more("plan and 2 drawn, without the one that is driven", 2)
    assert turned(scorer="none", candidates=0)
    off_s = h.now_s()  # scenes of later pictures are begun without
    later = lambda name: [m for m in h.outputs[name] if stamp_seconds(m.header.stamp) > off_s]  # noqa: E731
    h.spin_until(lambda: len(later("trajectory")) > 3, "plans alone", send)
    assert not later("candidates")
