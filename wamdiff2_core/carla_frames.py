"""Between CARLA's numbers and ROS's: the one place where handedness, angles and units are converted. Pure, no carla.

CARLA (Unreal): left-handed, x forward, y RIGHT, z up; degrees; yaw positive to the RIGHT (clockwise from above), pitch
positive nose up, roll positive right side down; steering positive to the RIGHT.
ROS (REP-103): right-handed, x forward, y LEFT, z up; radians; yaw positive to the left, pitch positive nose DOWN, roll
positive right side down; our steering positive to the LEFT (wamdiff2_core.control.VehicleControl).

The mirror changes signs only, so that a round trip gives the very same numbers. Degrees and radians are converted by
math.radians and math.degrees, whose round trip may differ in the last bit: angles of whole degrees come back exactly
(`ros_to_carla_degrees` rounds away what lies below 1e-12 degrees). Zero never becomes minus zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wamdiff2_core.control import VehicleControl
from wamdiff2_core.errors import DataError

Vector = tuple[float, float, float]
CARLA_WHEEL_DEG = 70.0  # a CARLA car's front wheels at steer 1 and at a standstill
ROUND_DEG = 12  # decimals of a degree that ros_to_carla_degrees keeps


class CarlaRotation(NamedTuple):
    """Degrees in the order of carla.Rotation."""

    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0


class RosRotation(NamedTuple):
    """Radians, fixed-axis roll, pitch, yaw (R = Rz(yaw) Ry(pitch) Rx(roll))."""

    roll: float = 0.0
    pitch: float = 0.0
    yaw: float = 0.0


class CarlaPose(NamedTuple):
    """Position (m) and rotation (degrees) in CARLA's map."""

    position: Vector
    rotation: CarlaRotation


class RosPose(NamedTuple):
    """Position (m) and rotation (rad) in the ROS map frame."""

    position: Vector
    rotation: RosRotation

    @property
    def x(self) -> float:
        return self.position[0]

    @property
    def y(self) -> float:
        return self.position[1]

    @property
    def yaw(self) -> float:
        return self.rotation.yaw


class CarlaControl(NamedTuple):
    """The fields of carla.VehicleControl that we set: throttle, steer (RIGHT positive), brake, ..."""

    throttle: float
    steer: float
    brake: float
    hand_brake: bool
    reverse: bool


def carla_to_ros_vector(x: float, y: float, z: float) -> Vector:
    """A place, velocity, acceleration or force: y changes its sign. Units stay."""
    return float(x) + 0.0, 0.0 - float(y), float(z) + 0.0


def ros_to_carla_vector(x: float, y: float, z: float) -> Vector:
    """The way back of carla_to_ros_vector: the same mirror."""
    return carla_to_ros_vector(x, y, z)


def carla_to_ros_points(points: np.ndarray) -> np.ndarray:
    """Places (N, 2 or 3) m; y changes its sign. A copy in float64. DataError for another shape."""
    made = np.array(points, dtype=np.float64)
    if made.ndim != 2 or made.shape[1] not in (2, 3):
        raise DataError(f"points: expected shape (N, 2) or (N, 3), got {made.shape}")
    made[:, 1] = 0.0 - made[:, 1]
    return made


def ros_to_carla_points(points: np.ndarray) -> np.ndarray:
    """The way back of carla_to_ros_points: the same mirror."""
    return carla_to_ros_points(points)


def carla_to_ros_rotation(pitch: float, yaw: float, roll: float) -> RosRotation:
    """Degrees in CARLA's order (pitch, yaw, roll) to radians; pitch and yaw change their signs, roll does not."""
    return RosRotation(roll=math.radians(roll), pitch=0.0 - math.radians(pitch), yaw=0.0 - math.radians(yaw))


def ros_to_carla_rotation(roll: float, pitch: float, yaw: float) -> CarlaRotation:
    """Radians in ROS's order (roll, pitch, yaw) to degrees."""
    return CarlaRotation(
        pitch=0.0 - ros_to_carla_degrees(pitch), yaw=0.0 - ros_to_carla_degrees(yaw), roll=ros_to_carla_degrees(roll)
    )


def ros_to_carla_degrees(angle_rad: float) -> float:
    """Degrees of an angle; only the unit changes. Rounded to 1e-12 degrees, so that whole degrees come back as such."""
    return round(math.degrees(angle_rad), ROUND_DEG)


def carla_to_ros_pose(position: Sequence[float], rotation: Sequence[float]) -> RosPose:
    """Of a carla.Transform's (x, y, z) m and (pitch, yaw, roll) degrees: (10, 5) yaw 90 is ROS (10, -5) yaw -pi/2."""
    return RosPose(carla_to_ros_vector(*position), carla_to_ros_rotation(*rotation))


def ros_to_carla_pose(position: Sequence[float], rotation: Sequence[float]) -> CarlaPose:
    """Position (x, y, z) m and (roll, pitch, yaw) rad as a carla.Transform takes them."""
    return CarlaPose(ros_to_carla_vector(*position), ros_to_carla_rotation(*rotation))


def carla_to_ros_angular_velocity(x: float, y: float, z: float, degrees: bool = True) -> Vector:
    """Rotation rates to rad/s. A rate is a pseudo-vector: the mirror of y changes the signs of x and z, not of y.

    degrees: an actor's get_angular_velocity() is in deg/s; the IMU's gyroscope is in rad/s (degrees=False).
    """
    unit = math.radians(1.0) if degrees else 1.0
    return 0.0 - unit * float(x), unit * float(y) + 0.0, 0.0 - unit * float(z)


def carla_to_ros_compass(compass_rad: float) -> float | None:
    """Yaw in the ROS map frame (x east, y north) of the IMU's compass (rad, 0 north, clockwise), within -pi..pi.

    None where it is not finite: the IMU says NaN in some ticks.
    """
    if not math.isfinite(compass_rad):
        return None
    return math.remainder(math.pi / 2.0 - compass_rad, math.tau)


def ros_to_carla_compass(yaw_rad: float) -> float:
    """Compass (rad, 0 north, clockwise, within 0..2 pi) of a yaw in the ROS map frame."""
    return math.fmod(math.fmod(math.pi / 2.0 - yaw_rad, math.tau) + math.tau, math.tau)


def ros_quaternion(rotation: RosRotation) -> tuple[float, float, float, float]:
    """(x, y, z, w) of a rotation."""
    cr, sr = math.cos(rotation.roll / 2.0), math.sin(rotation.roll / 2.0)
    cp, sp = math.cos(rotation.pitch / 2.0), math.sin(rotation.pitch / 2.0)
    cy, sy = math.cos(rotation.yaw / 2.0), math.sin(rotation.yaw / 2.0)
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )


def ros_rotation_matrix(rotation: RosRotation) -> np.ndarray:
    """(3, 3) of a rotation: its columns are the turned frame's x, y and z axes."""
    cr, sr = math.cos(rotation.roll), math.sin(rotation.roll)
    cp, sp = math.cos(rotation.pitch), math.sin(rotation.pitch)
    cy, sy = math.cos(rotation.yaw), math.sin(rotation.yaw)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def carla_to_ros_body_vector(vector: Sequence[float], rotation: Sequence[float]) -> Vector:
    """A velocity or acceleration of CARLA's map (m/s, m/s^2) in the ROS frame of a body turned by `rotation` (degrees).

    Its first component is the speed forward: negative while reversing.
    """
    turned = ros_rotation_matrix(carla_to_ros_rotation(*rotation))
    x, y, z = turned.T @ np.array(carla_to_ros_vector(*vector))
    return float(x), float(y), float(z)


def carla_to_ros_control(control: CarlaControl, wheel_ratio: float = 1.0) -> VehicleControl:
    """Controls as ours: steering LEFT positive. `wheel_ratio`: as in ros_to_carla_control."""
    return VehicleControl(
        steer=0.0 - control.steer / _ratio(wheel_ratio),
        throttle=control.throttle,
        brake=control.brake,
        reverse=control.reverse,
        hand_brake=control.hand_brake,
    )


def ros_to_carla_control(control: VehicleControl, wheel_ratio: float = 1.0) -> CarlaControl:
    """Our controls as CARLA takes them: steering RIGHT positive, pedals within 0..1.

    wheel_ratio: the wheel angle of our steer 1 divided by that of CARLA's steer 1 (say 0.6 rad / 70 degrees); the
    result is limited to -1..1. DataError for a number that is not finite: nothing that could be driven.
    """
    numbers = (control.steer, control.throttle, control.brake)
    if not all(math.isfinite(number) for number in numbers):
        raise DataError(f"control: expected finite steer, throttle and brake, got {numbers}")
    return CarlaControl(
        throttle=min(1.0, max(0.0, float(control.throttle))),
        steer=min(1.0, max(-1.0, 0.0 - float(control.steer) * _ratio(wheel_ratio))),
        brake=min(1.0, max(0.0, float(control.brake))),
        hand_brake=bool(control.hand_brake),
        reverse=bool(control.reverse),
    )


def _ratio(value: float) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise DataError(f"wheel_ratio: expected a number > 0, got {value}")
    return value
