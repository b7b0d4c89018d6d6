"""What the fault test does to the driver: what it relies on is checked at once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from wamdiff2_core.errors import Wamdiff2Error
from wamdiff2_ros.faults import bench as module
from wamdiff2_ros.faults.bench import Bench
from wamdiff2_ros.faults.disk import Disk
from wamdiff2_ros.faults.events import read_events


@pytest.mark.parametrize("reply", ["accepted", "no answer within 30.0 s", "refused: max_plan_age_s"])
def test_a_limit_that_the_driver_does_not_take_ends_the_run(
    reply: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.ParameterClient, "__enter__", lambda client: client)
    monkeypatch.setattr(module.ParameterClient, "__exit__", lambda client, *error: None)
    monkeypatch.setattr(module.ParameterClient, "set", lambda client, values: reply)
    driver = {"cameras": ["cam_front"], "block_size": 32, "max_plan_age_s": 10.0}
    bench = Bench(tmp_path, tmp_path, driver, Disk(tmp_path / "disk"), 0, tmp_path / "base.yaml")
    if reply == "accepted":
        bench.adapt({"max_plan_age_s": 2.5})
        assert bench.driver["max_plan_age_s"] == 2.5
    else:
        with pytest.raises(Wamdiff2Error, match=f"'max_plan_age_s': 2.5}}: {reply}"):
            bench.adapt({"max_plan_age_s": 2.5})
    assert [event["text"] for event in read_events(bench.log_path)] == [reply]
