"""The CARLA bridge on a stand-in server: handedness, topics, the tick, towns, somebody else's car."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")
pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")

from carla_harness import Bridge, drive  # noqa: E402
from carla_stand_in import StandInActor, StandInServer  # noqa: E402
from nav_msgs.msg import Path as PathMsg  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, Imu, NavSatFix  # noqa: E402
from std_msgs.msg import Float32, Int32, String  # noqa: E402

from wamdiff2.msg import VehicleControl  # noqa: E402
from wamdiff2_core.errors import ConfigError  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.images import message_to_rgb  # noqa: E402
from wamdiff2_ros.qos import CONTROL, LATCHED, OUTPUT  # noqa: E402

Make = Callable[..., Bridge]


def test_a_car_is_spawned_in_a_synchronous_world_and_everything_is_taken_away_at_the_end(
    server: StandInServer, make_bridge: Make
) -> None:
    bridge = make_bridge(step_s=0.025)
    bridge.spin_until(lambda: bridge.heard["odometry"])
    assert server.settings.synchronous_mode and server.settings.fixed_delta_seconds == 0.025
    kinds = sorted(actor.type_id for actor in server.actors.values())
    assert kinds == [
        "sensor.camera.rgb", "sensor.camera.rgb", "sensor.other.gnss", "sensor.other.imu", "vehicle.lincoln.mkz_2020",
    ]  # fmt: skip
    bridge.node.close()
    assert not server.actors
    assert not server.settings.synchronous_mode and server.settings.fixed_delta_seconds is None


def test_odometry_is_base_link_in_a_right_handed_map(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.spin_until(lambda: bridge.heard["odometry"])
    pose = bridge.heard["odometry"][0].pose.pose
    # CARLA: the actor at (1.75, 80) looks along -y; its rear axle is 1.4 m behind, at y = 81.4.
    assert (pose.position.x, pose.position.y) == pytest.approx((1.75, -81.4), abs=1e-4)
    assert cv.yaw_of(pose.orientation) == pytest.approx(math.pi / 2.0)
    assert bridge.heard["odometry"][0].header.frame_id == "map"


def test_a_control_to_the_left_turns_the_car_to_the_left(make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.answer = drive(steer=0.5)
    bridge.spin_until(lambda: len(bridge.heard["odometry"]) > 60)
    first, last = (cv.odometry_sample(bridge.heard["odometry"][k]) for k in (0, -1))
    assert bridge.ego.control.steer < 0.0  # CARLA's left
    assert math.remainder(last.yaw - first.yaw, math.tau) > 0.3 and last.yaw_rate > 0.0
    assert last.x < first.x  # it drove north, and left of that is west
    assert last.velocity[0] > 0.0 and last.velocity[1] == pytest.approx(0.0, abs=1e-3)  # the rear axle does not slide


def test_the_wheels_take_the_angle_that_was_meant(make_bridge: Make) -> None:
    bridge = make_bridge(full_steer_rad=0.6)
    bridge.answer = drive(throttle=0.0, steer=0.5)
    bridge.spin_until(lambda: bridge.ego.controls and bridge.ego.control.steer != 0.0)
    assert bridge.ego.control.steer == pytest.approx(-0.3 / math.radians(70.0), abs=1e-6)


def test_at_speed_more_steering_is_asked_for_since_carla_gives_less(make_bridge: Make) -> None:
    bridge = make_bridge(full_steer_rad=0.6)
    bridge.answer = drive(throttle=0.3, steer=0.0)
    bridge.spin_until(lambda: bridge.heard["odometry"] and bridge.ego.speed > 10.0)
    bridge.answer = drive(throttle=0.0, steer=0.1)
    bridge.spin_until(lambda: bridge.ego.control.steer != 0.0)
    share = np.interp(bridge.ego.speed * 3.6, (0.0, 120.0), (1.0, 0.5))
    assert bridge.ego.control.steer == pytest.approx(-0.06 / (math.radians(70.0) * share), rel=1e-3)


def test_reversing_has_a_negative_speed(make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.listen("speedometer", Float32)
    bridge.answer = drive(reverse=True)
    bridge.spin_until(lambda: bridge.heard["speedometer"] and bridge.heard["speedometer"][-1].data < -1.0)
    assert bridge.heard["odometry"][-1].twist.twist.linear.x < 0.0


@pytest.mark.parametrize("compressed", [True, False])
def test_pictures_of_one_tick_have_one_stamp_and_camera_info(make_bridge: Make, compressed: bool) -> None:
    bridge = make_bridge(compressed=compressed)
    kind, topic = (CompressedImage, "image/compressed") if compressed else (Image, "image")
    for name in ("cam_front", "cam_left"):
        bridge.listen(f"{name}/{topic}", kind)
        bridge.listen(f"{name}/camera_info", CameraInfo)
    bridge.answer = drive(throttle=0.0)
    front, left = bridge.heard[f"cam_front/{topic}"], bridge.heard[f"cam_left/{topic}"]
    bridge.spin_until(lambda: len(front) > 3 and len(left) > 3)
    picture = message_to_rgb(front[0])
    assert picture.shape == (32, 64, 3)
    assert np.abs(picture.reshape(-1, 3).mean(axis=0) - (10, 20, 30)).max() < 3.0  # RGB of CARLA's BGRA
    stamps = {cv.stamp_seconds(message.header.stamp) for message in front}
    assert stamps & {cv.stamp_seconds(message.header.stamp) for message in left}
    assert min(np.diff(sorted(stamps))) == pytest.approx(0.1, abs=1e-6)  # 10 Hz of a world with 20 ticks
    info = bridge.heard["cam_front/camera_info"][0]
    assert info.k[0] == pytest.approx(32.0 / math.tan(math.radians(35.0))) and info.k[2] == 32.0
    assert info.header.frame_id == "cam_front_optical_frame"


def test_cameras_hang_where_the_rig_says(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.spin_until(lambda: bridge.heard["odometry"])
    (left,) = server.named("hero/cam_left")
    assert (left.x, left.y, left.z) == pytest.approx((0.27, -0.55, 1.6))
    assert (left.rotation.pitch, left.rotation.yaw) == pytest.approx((-10.0, -55.0))  # down and to the left
    assert left.attributes["image_size_x"] == "64" and float(left.attributes["sensor_tick"]) == pytest.approx(0.1)


def test_clock_imu_and_gnss(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge()
    bridge.listen("/clock", Clock)
    bridge.listen("imu", Imu)
    bridge.listen("gnss", NavSatFix)
    bridge.answer = drive(steer=0.5)
    bridge.spin_until(lambda: all(bridge.heard[name] for name in ("/clock", "imu", "gnss")))
    bridge.spin_until(lambda: bridge.heard["imu"][-1].angular_velocity.z > 0.1)
    assert cv.stamp_seconds(bridge.heard["/clock"][-1].clock) == pytest.approx(server.elapsed, abs=0.2)
    imu = bridge.heard["imu"][-1]
    assert imu.linear_acceleration.y > 0.0 and imu.linear_acceleration.z == pytest.approx(9.81, abs=1e-5)
    assert cv.yaw_of(imu.orientation) > math.pi / 2.0  # north, and turning to the left
    fix = bridge.heard["gnss"][0]
    assert fix.latitude == pytest.approx(-80.0 / 6_378_137.0 * 180.0 / math.pi, abs=1e-7)  # 80 m south of the equator
    server.compass = math.nan
    bridge.spin_until(lambda: bridge.heard["imu"][-1].orientation_covariance[0] == -1.0)


def test_the_route_is_announced_and_its_commands_come_in_time(make_bridge: Make) -> None:
    bridge = make_bridge(goal="-80,-1.75")
    bridge.listen("waypoints", PathMsg, LATCHED)
    bridge.listen("navigation_command", Int32, OUTPUT)
    bridge.listen("instruction", String, OUTPUT)
    bridge.answer = drive(throttle=0.3)
    told = [bridge.heard[name] for name in ("waypoints", "instruction", "navigation_command")]
    bridge.spin_until(lambda: all(told))
    end = bridge.heard["waypoints"][0].poses[-1].pose.position
    assert (end.x, end.y) == pytest.approx((-80.0, 1.75), abs=6.5)
    assert bridge.heard["instruction"][0].data == "follow the road"
    assert bridge.heard["navigation_command"][0].data == 4
    bridge.spin_until(lambda: bridge.heard["instruction"][-1].data.startswith("turn left in"))
    bridge.spin_until(lambda: bridge.heard["navigation_command"][-1].data == 1)


def test_with_another_owner_of_the_tick_the_bridge_never_ticks(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge(tick_owner="other")
    bridge.listen("cam_front/image/compressed", CompressedImage)
    bridge.answer = drive()

    def moves() -> bool:
        server.step()
        return bool(bridge.heard["odometry"]) and bridge.ego.speed > 2.0

    bridge.spin_until(moves)
    bridge.spin_until(lambda: server.step() and bridge.heard["cam_front/image/compressed"])
    assert not server.ticks_by and not server.settings.synchronous_mode


def test_attached_to_somebody_elses_car_only_our_sensors_go(server: StandInServer, make_bridge: Make) -> None:
    car = StandInActor(server, "vehicle.audi.tt", {"role_name": "hero"}, server.spawn_points[0], None)
    bridge = make_bridge(spawn="attach")
    bridge.spin_until(lambda: bridge.heard["odometry"])
    assert {actor.parent.id for actor in server.actors.values() if actor.parent} == {car.id}
    bridge.node.close()
    assert list(server.actors.values()) == [car]


def test_the_natives_pictures_are_left_to_the_server(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge(native=True)
    bridge.listen("cam_front/image/compressed", CompressedImage)
    bridge.answer = drive()
    bridge.spin_until(lambda: len(bridge.heard["odometry"]) > 10 and bridge.ego.speed > 1.0)
    sensors = [actor for actor in server.actors.values() if actor.parent]
    assert all(sensor.for_ros and not sensor.is_listening for sensor in sensors)
    assert {sensor.attributes["ros_name"] for sensor in sensors} == {"cam_front", "cam_left", "imu", "gnss"}
    assert bridge.probe.count_publishers("/carla/hero/cam_front/image/compressed") == 0


def test_a_town_is_loaded_only_where_another_one_is_there(server: StandInServer, make_bridge: Make) -> None:
    bridge = make_bridge(town="Crossing")
    bridge.spin_until(lambda: bridge.heard["odometry"])
    assert server.loaded == []
    other = make_bridge(town="Town10HD", role_name="hero2")
    other.spin_until(lambda: other.node.loop.connected)
    assert server.loaded == ["Town10HD"]


def test_controls_of_the_ros_bridge_are_taken_as_they_are(
    server: StandInServer, make_bridge: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours has the same fields, so it stands in for carla_msgs/CarlaEgoVehicleControl, which no wheel brings."""
    messages = ModuleType("carla_msgs.msg")
    messages.CarlaEgoVehicleControl = VehicleControl  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "carla_msgs", ModuleType("carla_msgs"))
    monkeypatch.setitem(sys.modules, "carla_msgs.msg", messages)
    bridge = make_bridge(control_messages="carla_msgs")
    sender = bridge.probe.create_publisher(VehicleControl, "/carla/hero/vehicle_control_cmd", CONTROL)
    bridge.spin_until(lambda: sender.get_subscription_count() and server.named("hero"))
    sender.publish(VehicleControl(throttle=0.25, steer=0.5))  # without a stamp: of now
    bridge.spin_until(lambda: any(c.throttle == 0.25 and c.steer == 0.5 for c in list(bridge.ego.controls)))


def test_the_ros_bridges_messages_are_named_where_they_are_missing(server: StandInServer, make_bridge: Make) -> None:
    with pytest.raises(ConfigError, match="carla_msgs is not installed"):
        make_bridge(control_messages="carla_msgs")
