"""CARLA's handedness, angles and units against ROS's: by hand, round trips, and the real client's matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core import carla_frames as cf
from wamdiff2_core.control import VehicleControl
from wamdiff2_core.errors import DataError

NUMBERS = st.floats(-1e6, 1e6)
DEGREES = st.integers(-360, 360).map(float)
MIRROR = np.diag([1.0, -1.0, 1.0])


def test_a_place_and_a_heading_by_hand() -> None:
    pose = cf.carla_to_ros_pose((10.0, 5.0, 0.0), (0.0, 90.0, 0.0))
    assert pose == cf.RosPose((10.0, -5.0, 0.0), cf.RosRotation(0.0, 0.0, math.radians(-90.0)))
    assert (pose.x, pose.y, pose.yaw) == (10.0, -5.0, -math.pi / 2.0)
    assert cf.ros_to_carla_pose(*pose) == cf.CarlaPose((10.0, 5.0, 0.0), cf.CarlaRotation(0.0, 90.0, 0.0))


@given(NUMBERS, NUMBERS, NUMBERS)
def test_places_come_back_as_they_were(x: float, y: float, z: float) -> None:
    there = cf.carla_to_ros_vector(x, y, z)
    assert there == (x, -y, z)
    assert cf.ros_to_carla_vector(*there) == (x, y, z)
    assert math.copysign(1.0, cf.carla_to_ros_vector(0.0, 0.0, 0.0)[1]) == 1.0  # no minus zero


@given(DEGREES, DEGREES, DEGREES)
def test_whole_degrees_come_back_exactly(pitch: float, yaw: float, roll: float) -> None:
    assert cf.ros_to_carla_rotation(*cf.carla_to_ros_rotation(pitch, yaw, roll)) == (pitch, yaw, roll)


@given(st.floats(-360.0, 360.0))
def test_any_angle_comes_back_within_a_trillionth(yaw: float) -> None:
    assert cf.ros_to_carla_rotation(*cf.carla_to_ros_rotation(0.0, yaw, 0.0)).yaw == pytest.approx(yaw, abs=1e-12)


def test_points_are_copied_and_checked() -> None:
    points = np.array([[1.0, 2.0], [3.0, -4.0]])
    assert cf.carla_to_ros_points(points).tolist() == [[1.0, -2.0], [3.0, 4.0]]
    assert points[0, 1] == 2.0
    assert np.array_equal(cf.ros_to_carla_points(cf.carla_to_ros_points(points)), points)
    with pytest.raises(DataError, match="expected shape"):
        cf.carla_to_ros_points(np.zeros(3))


def test_rotation_rates() -> None:
    assert cf.carla_to_ros_angular_velocity(0.0, 0.0, 90.0) == pytest.approx((0.0, 0.0, -math.pi / 2.0))
    assert cf.carla_to_ros_angular_velocity(1.0, 2.0, 3.0, degrees=False) == (-1.0, 2.0, -3.0)


def test_a_rotation_rate_turns_what_it_turned_before_the_mirror() -> None:
    rate, place = (0.3, -0.2, 0.5), (1.0, 2.0, 3.0)
    in_carla = np.cross(rate, place)
    in_ros = np.cross(cf.carla_to_ros_angular_velocity(*rate, degrees=False), cf.carla_to_ros_vector(*place))
    assert in_ros == pytest.approx(MIRROR @ in_carla)


@pytest.mark.parametrize("compass, yaw", [(0.0, 90.0), (math.pi / 2.0, 0.0), (math.pi, -90.0)])  # north, east, south
def test_the_compass(compass: float, yaw: float) -> None:
    assert cf.carla_to_ros_compass(compass) == pytest.approx(math.radians(yaw))
    assert cf.ros_to_carla_compass(math.radians(yaw)) == pytest.approx(compass)


def test_a_compass_without_a_number_is_none() -> None:
    assert cf.carla_to_ros_compass(math.nan) is None


def test_the_compass_agrees_with_the_rotation() -> None:
    for yaw_deg in range(-180, 180, 15):  # CARLA: yaw 0 is east, and clockwise like the compass
        compass = math.radians(yaw_deg + 90.0)
        turned = cf.carla_to_ros_compass(compass)
        assert turned is not None
        assert math.remainder(turned - cf.carla_to_ros_rotation(0.0, yaw_deg, 0.0).yaw, math.tau) == pytest.approx(0.0)


def test_driving_forward_is_a_positive_speed_and_reversing_a_negative_one() -> None:
    east_south = (3.0, 4.0, 0.0)  # m/s in CARLA's map
    heading = math.degrees(math.atan2(4.0, 3.0))
    assert cf.carla_to_ros_body_vector(east_south, (0.0, heading, 0.0)) == pytest.approx((5.0, 0.0, 0.0))
    assert cf.carla_to_ros_body_vector(east_south, (0.0, heading + 180.0, 0.0)) == pytest.approx((-5.0, 0.0, 0.0))
    drift = cf.carla_to_ros_body_vector((0.0, 1.0, 0.0), (0.0, 0.0, 0.0))  # CARLA's right
    assert drift == pytest.approx((0.0, -1.0, 0.0))


def test_a_path_to_the_left_is_a_negative_steer_in_carla() -> None:
    made = cf.ros_to_carla_control(VehicleControl(steer=0.5, throttle=0.3))
    assert made == cf.CarlaControl(throttle=0.3, steer=-0.5, brake=0.0, hand_brake=False, reverse=False)
    assert cf.carla_to_ros_control(made) == VehicleControl(steer=0.5, throttle=0.3)


def test_steering_is_scaled_to_the_wheels_and_all_is_limited() -> None:
    ratio = 0.6 / math.radians(cf.CARLA_WHEEL_DEG)
    assert cf.ros_to_carla_control(VehicleControl(steer=1.0), ratio).steer == pytest.approx(-ratio)
    assert cf.carla_to_ros_control(cf.ros_to_carla_control(VehicleControl(steer=0.4), ratio), ratio).steer == (
        pytest.approx(0.4)
    )
    wild = cf.ros_to_carla_control(VehicleControl(steer=-3.0, throttle=2.0, brake=-1.0))
    assert (wild.steer, wild.throttle, wild.brake) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("field", ["steer", "throttle", "brake"])
def test_a_control_that_is_no_number_is_refused(field: str) -> None:
    with pytest.raises(DataError, match="finite"):
        cf.ros_to_carla_control(VehicleControl(**{field: math.nan}))
    with pytest.raises(DataError, match="wheel_ratio"):
        cf.ros_to_carla_control(VehicleControl(), 0.0)


def test_quaternion_and_matrix_agree() -> None:
    from scipy.spatial.transform import Rotation

    for angles in ((0.1, -0.2, 0.3), (1.0, 0.5, -2.0), (0.0, 0.0, math.pi)):
        rotation = cf.RosRotation(*angles)
        known = Rotation.from_euler("xyz", angles)
        assert cf.ros_rotation_matrix(rotation) == pytest.approx(known.as_matrix())
        made = np.array(cf.ros_quaternion(rotation))
        assert abs(made @ known.as_quat()) == pytest.approx(1.0)


def test_against_the_clients_own_transforms() -> None:
    carla = pytest.importorskip("carla", reason="the carla wheel is an extra (Python 3.12 and older)")
    rng = np.random.default_rng(4)
    for _ in range(100):
        pitch, yaw, roll = (float(v) for v in rng.uniform((-89.0, -180.0, -180.0), (89.0, 180.0, 180.0)))
        place, seen = rng.uniform(-50.0, 50.0, (2, 3)).tolist()
        transform = carla.Transform(carla.Location(*place), carla.Rotation(pitch=pitch, yaw=yaw, roll=roll))
        turned = cf.ros_rotation_matrix(cf.carla_to_ros_rotation(pitch, yaw, roll))
        assert MIRROR @ np.array(transform.get_matrix())[:3, :3] @ MIRROR == pytest.approx(turned, abs=1e-5)
        there = transform.transform(carla.Location(*seen))
        mine = np.array(cf.carla_to_ros_vector(*place)) + turned @ cf.carla_to_ros_vector(*seen)
        assert cf.carla_to_ros_vector(there.x, there.y, there.z) == pytest.approx(mine, abs=1e-3)
        forward = transform.get_forward_vector()
        seen_forward = cf.carla_to_ros_body_vector((forward.x, forward.y, forward.z), (pitch, yaw, roll))
        assert seen_forward == pytest.approx((1.0, 0.0, 0.0), abs=1e-5)
