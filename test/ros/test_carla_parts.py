"""Parts of the CARLA bridge that need neither rclpy nor carla: rig file, settings, controls, sensors by frame."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from wamdiff2_core.control import VehicleControl
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.rig import load_rig
from wamdiff2_ros.carla_control import ControlGate
from wamdiff2_ros.carla_rig import load_ego
from wamdiff2_ros.carla_sensors import KEPT_FRAMES, SensorInbox
from wamdiff2_ros.carla_settings import BridgeSettings

CONFIG = Path(__file__).resolve().parents[2] / "config"
SIX = {  # Bench2Drive's usual cameras: CARLA's x forward, y right, z up (m), yaw right positive (degrees), fov
    "cam_front": (0.80, 0.0, 1.60, 0.0, 70.0),
    "cam_front_left": (0.27, -0.55, 1.60, -55.0, 70.0),
    "cam_front_right": (0.27, 0.55, 1.60, 55.0, 70.0),
    "cam_back": (-2.0, 0.0, 1.60, 180.0, 110.0),
    "cam_back_left": (-0.32, -0.55, 1.60, -110.0, 70.0),
    "cam_back_right": (-0.32, 0.55, 1.60, 110.0, 70.0),
}
GAS = VehicleControl(steer=0.2, throttle=0.5)


def test_the_six_cameras_hang_where_bench2drive_has_them() -> None:
    ego = load_ego(CONFIG / "carla_six.yaml")
    assert {camera.name for camera in ego.cameras} == SIX.keys()
    for camera in ego.cameras:
        x, y, z, yaw, fov = SIX[camera.name]
        mount = ego.mount(camera)
        assert mount.position == pytest.approx((x, y, z))
        assert math.remainder(mount.rotation.yaw - yaw, 360.0) == pytest.approx(0.0)
        assert (camera.width, camera.height, camera.fov_deg) == (1600, 900, fov)
    assert ego.mount_base().position == (-1.4, 0.0, 0.0)  # where Bench2Drive has IMU and GPS


def test_the_demos_three_cameras_are_the_same_in_carla() -> None:
    world, carla = load_rig(CONFIG / "rig_three.yaml"), load_rig(CONFIG / "carla_three.yaml")
    assert [(c.name, c.fov_deg, c.position, c.yaw) for c in world] == [
        (c.name, c.fov_deg, c.position, c.yaw) for c in carla
    ]


@pytest.mark.parametrize(
    "ego, said",
    [
        ("{blueprint: 3}", "ego: blueprint: expected a name"),
        ("{base_link_x_m: .nan}", "ego: base_link_x_m: expected metres"),
        ("{imu: 1}", "ego: imu: expected true or false"),
        ("{attributes: [1]}", "ego: attributes: expected names and values"),
        ("{wheels: 4}", "ego: expected entries among"),
    ],
)
def test_a_wrong_entry_of_the_rig_file_is_named(tmp_path: Path, ego: str, said: str) -> None:
    camera = "{name: a, width: 8, height: 8, fov_deg: 70.0, position: [0.0, 0.0, 1.0]}"
    file = tmp_path / "rig.yaml"
    file.write_text(f"ego: {ego}\ncameras:\n  - {camera}\n")
    with pytest.raises(ConfigError, match=said):
        load_ego(file)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_s": 0.2}, {"timeout_s": 0.0}, {"image_rate_hz": -1.0}, {"max_control_age_s": math.nan}, {"port": 0},
        {"tick_owner": "me"}, {"role_name": ""}, {"role_name": "a/b"}, {"rig": ""}, {"spawn": "somewhere"},
        {"spawn": "1,2,3"}, {"goal": "1,2,3"}, {"goal": "1,inf"}, {"full_steer_rad": -0.1}, {"jpeg_quality": 0},
        {"seed": -1}, {"control_messages": "twist"}, {"route_m": 0.0},
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BridgeSettings(**{"rig": "rig.yaml", **wrong})  # type: ignore[arg-type]


def test_places_in_settings() -> None:
    made = BridgeSettings(rig="rig.yaml", spawn="1.5,-2,0.5,90", goal="3,-4", step_s=0.05, image_rate_hz=10.0)
    assert made.spawn_place() == (1.5, -2.0, 0.5, 90.0) and made.goal_place() == (3.0, -4.0)
    assert BridgeSettings(rig="r", spawn="12").spawn_place() == 12
    assert made.image_period_s == pytest.approx(0.1)
    assert BridgeSettings(rig="r", image_rate_hz=100.0).image_period_s == pytest.approx(0.05)  # every tick


def test_a_control_is_applied_until_it_is_too_old_in_simulated_time() -> None:
    gate = ControlGate(0.5, real_seconds_count=False)
    gate.advance(10.0)
    assert gate.decide(5.0).why_braked == "no control yet"
    gate.put(GAS, 10.0)
    gate.advance(10.5)
    assert gate.decide(5.0).control == GAS and not gate.decide(5.0).why_braked
    gate.advance(10.6)
    old = gate.decide(5.0)
    assert old.control == VehicleControl(steer=0.2, brake=1.0) and "older than 0.5 s" in old.why_braked
    assert gate.decide(0.1).control.hand_brake  # standing: held


def test_a_control_of_another_clock_is_refused_and_counted() -> None:
    gate = ControlGate(0.5, real_seconds_count=False)
    gate.advance(10.0)
    gate.put(GAS, 1.7e9)
    assert gate.decide(0.0).control.brake == 1.0
    assert gate.counts["refused: stamp ahead of the simulation"] == 1
    gate.put(GAS, 0.0)  # no stamp: of now
    assert gate.decide(0.0).control == GAS


def test_another_simulation_forgets_the_control() -> None:
    gate = ControlGate(0.5, real_seconds_count=False)
    gate.advance(10.0)
    gate.put(GAS, 10.0)
    gate.restart()
    gate.advance(0.1)
    assert gate.decide(0.0).why_braked == "no control yet"


def test_waiting_ends_with_the_control_of_the_tick_not_with_an_older_one() -> None:
    gate = ControlGate(0.5, real_seconds_count=False)
    gate.advance(10.0)
    gate.put(GAS, 10.0)
    gate.advance(10.05)
    assert not gate.wait(0.01, 0.01) and gate.counts["late"] == 1
    answers = threading.Timer(0.02, lambda: gate.put(GAS, 10.05))
    answers.start()
    assert gate.wait(30.0, 0.01)
    answers.join()


def test_with_another_owner_of_the_tick_real_seconds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    import wamdiff2_ros.carla_control as module

    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    gate = ControlGate(0.5, real_seconds_count=True)
    gate.advance(10.0)
    gate.put(GAS, 10.0)
    assert gate.decide(5.0).control == GAS
    now[0] += 0.6  # the simulation stands still
    assert gate.decide(5.0).control.brake == 1.0


def shot(frame: int) -> SimpleNamespace:
    return SimpleNamespace(frame=frame)


def test_the_pictures_of_a_frame_are_waited_for_once_their_rhythm_is_known() -> None:
    inbox = SensorInbox({"front": 0.1, "imu": 0.0}, 0.05)
    assert inbox.collect(1, 0.0) == {}  # nothing is known to be due
    inbox.put("front", shot(2))
    inbox.put("imu", shot(2))
    assert inbox.collect(2, 0.0).keys() == {"front", "imu"}
    inbox.put("imu", shot(3))
    assert inbox.collect(3, 0.0).keys() == {"imu"}  # the camera is not due
    arrives = threading.Timer(0.02, lambda: (inbox.put("imu", shot(4)), inbox.put("front", shot(4))))
    arrives.start()
    assert inbox.collect(4, 30.0).keys() == {"front", "imu"}
    arrives.join()
    assert not inbox.missed and not inbox.late


def test_a_picture_that_does_not_come_is_counted_and_a_late_one_is_not_used() -> None:
    inbox = SensorInbox({"front": 0.05}, 0.05)
    inbox.put("front", shot(1))
    inbox.collect(1, 0.0)
    assert inbox.collect(2, 0.01) == {} and inbox.missed["front"] == 1
    inbox.put("front", shot(2))
    inbox.put("front", shot(3))
    assert inbox.collect(3, 0.01)["front"].frame == 3
    assert inbox.late["front"] == 1


def test_what_nobody_collects_does_not_grow_for_ever() -> None:
    inbox = SensorInbox({"front": 0.0}, 0.05)
    for frame in range(KEPT_FRAMES + 5):
        inbox.put("front", shot(frame))
    assert inbox.late["front"] == 5
    assert inbox.newest()["front"].frame == KEPT_FRAMES + 4 and inbox.newest() == {}
