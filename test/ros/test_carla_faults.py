"""The CARLA bridge when things go wrong: no control, lost servers, actors left behind, settings that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")
pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")

from carla_harness import Bridge, drive  # noqa: E402
from carla_stand_in import StandInActor, StandInServer  # noqa: E402
from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402

from wamdiff2_ros.carla_client import Session  # noqa: E402

Make = Callable[..., Bridge]


def test_the_world_waits_for_the_control_of_every_tick(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge(control_wait_s=60.0)
    bridge.answer = drive()
    bridge.spin_until(lambda: bridge.node.loop.gate.counts["applied"] > 20)
    bridge.answer = lambda odometry: None
    bridge.executor.spin_once(timeout_sec=0.05)
    ticks = len(server.ticks_by)
    for _ in range(10):
        bridge.executor.spin_once(timeout_sec=0.02)
    assert len(server.ticks_by) - ticks <= 1


def test_without_controls_the_car_is_braked_and_held(make_bridge: Make) -> None:
    bridge = make_bridge(control_wait_s=0.02, max_control_age_s=0.3)
    bridge.answer = drive()
    bridge.spin_until(lambda: bridge.heard["odometry"] and bridge.ego.speed > 3.0)
    bridge.answer = lambda odometry: None
    bridge.spin_until(lambda: bridge.ego.control.brake == 1.0 and bridge.ego.control.hand_brake)
    assert bridge.ego.speed == pytest.approx(0.0, abs=0.3)
    bridge.spin_until(lambda: bridge.status("control").message == "braking: the newest control is older than 0.3 s")
    assert bridge.status("control").level == DiagnosticStatus.WARN
    assert bridge.node.loop.gate.counts["late"] > 0
    bridge.answer = drive()
    bridge.spin_until(lambda: bridge.ego.speed > 1.0)


def test_a_control_that_is_no_number_is_refused_and_counted(make_bridge: Make) -> None:
    bridge = make_bridge(control_wait_s=0.02)
    bridge.answer = drive(throttle=math.nan)
    bridge.spin_until(lambda: bridge.node.loop.gate.counts["refused: a number is not finite"] > 2)
    assert bridge.ego.control.brake == 1.0
    values = lambda: {pair.key: pair.value for pair in bridge.status("control").values}  # noqa: E731
    bridge.spin_until(lambda: int(values().get("refused: a number is not finite", "0")) > 2)


def test_a_server_that_goes_is_named_and_the_next_one_is_driven(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.answer = drive()
    bridge.spin_until(lambda: bridge.heard["odometry"] and bridge.ego.speed > 1.0)
    server.down = True
    bridge.spin_until(lambda: bridge.status("server").level == DiagnosticStatus.ERROR)
    assert "127.0.0.1:2000: time-out" in bridge.status("server").message
    server.restart()
    server.down = False
    bridge.spin_until(lambda: bridge.node.loop.connections == 2 and bridge.node.loop.connected)
    bridge.spin_until(lambda: server.named("hero") and bridge.ego.speed > 1.0)
    bridge.spin_until(lambda: bridge.status("server").level == DiagnosticStatus.OK)
    assert bridge.node.loop.lost == 1


def test_a_server_that_only_slept_has_no_second_car_afterwards(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.spin_until(lambda: bridge.heard["odometry"])
    server.down = True
    bridge.spin_until(lambda: not bridge.node.loop.connected)
    assert len(server.actors) == 5  # nobody could take them away
    server.down = False
    bridge.spin_until(lambda: bridge.node.loop.connections == 2 and bridge.node.loop.connected)
    assert len(server.actors) == 5 and bridge.node.loop.removed == 5
    assert len(server.named("hero")) == 1


def test_what_a_killed_bridge_left_behind_is_taken_away(
    server: StandInServer, make_bridge: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StandInActor(server, "vehicle.audi.tt", {"role_name": "traffic"}, server.map_edge(), None)
    first = make_bridge()
    first.spin_until(lambda: first.heard["odometry"])
    with monkeypatch.context() as killed:  # as after kill -9: nothing is closed
        killed.setattr(Session, "close", lambda session, gone=False: [])
        first.node.close()
    left = set(server.actors) - {other.id}
    assert len(left) == 5 and server.settings.synchronous_mode  # and nobody ticks
    second = make_bridge()
    second.spin_until(lambda: second.heard["odometry"])
    assert second.node.loop.removed == 5 and not left & set(server.actors)
    assert other.is_alive and len(server.named("hero")) == 1


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"town": "Town99"}, "has no 'Town99', expected one of Crossing, Town10HD"),
        ({"spawn": "7"}, "the map has 1 spawn points, got index 7"),
    ],
)
def test_settings_that_do_not_fit_the_server_end_the_node(make_bridge: Make, wrong: dict[str, str], said: str) -> None:
    bridge = make_bridge(**wrong)
    with pytest.raises(Exception, match=said):
        bridge.spin_until(lambda: False)
