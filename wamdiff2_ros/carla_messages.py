"""ROS messages of what CARLA says: pure functions, every conversion through wamdiff2_core.carla_frames."""

from __future__ import annotations

import importlib
import math
from typing import Any

import cv2
import numpy as np
from geometry_msgs.msg import PoseStamped, Quaternion
from nav_msgs.msg import Odometry, Path
from sensor_msgs.msg import CompressedImage, Image, Imu, NavSatFix, NavSatStatus
from std_msgs.msg import Header

from wamdiff2_core import carla_frames as cf
from wamdiff2_core.carla_gnss import GeoReference, Projection, carla_to_ros_gnss, ros_to_carla_gnss
from wamdiff2_core.control import VehicleControl
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.scene import Command
from wamdiff2_ros import conversions as cv
from wamdiff2_ros.carla_client import EgoNow
from wamdiff2_ros.images import fill_compressed, fill_raw

ROAD_OPTIONS = {Command.LEFT: 1, Command.RIGHT: 2, Command.STRAIGHT: 3, Command.FOLLOW: 4}  # the leaderboard's numbers


def rgb_of(image: Any) -> np.ndarray:
    """(H, W, 3) uint8 RGB of a carla.Image (BGRA). DataError if the bytes are not as many as its size says."""
    data = np.frombuffer(image.raw_data, np.uint8)
    if data.size != image.height * image.width * 4:
        raise DataError(f"image: expected {image.width} x {image.height} BGRA pixels, got {data.size} bytes")
    return cv2.cvtColor(data.reshape(image.height, image.width, 4), cv2.COLOR_BGRA2RGB)


def image_message(image: Any, header: Header, compressed: bool, quality: int) -> Image | CompressedImage:
    """A camera's picture, rgb8 or JPEG."""
    picture = rgb_of(image)
    return (
        fill_compressed(CompressedImage(), header, picture, quality)
        if compressed
        else fill_raw(Image(), header, picture)
    )


def base_pose(ego: EgoNow, base_link_x_m: float) -> cf.RosPose:
    """base_link in the map frame, of the actor's pose in CARLA."""
    pose = cf.carla_to_ros_pose(ego.position, ego.rotation)
    x, y, z = np.array(pose.position) + cf.ros_rotation_matrix(pose.rotation)[:, 0] * base_link_x_m
    return cf.RosPose((float(x), float(y), float(z)), pose.rotation)


def base_velocity(ego: EgoNow, base_link_x_m: float) -> tuple[cf.Vector, cf.Vector]:
    """(m/s, rad/s) of base_link in its own frame: x forward, negative while reversing; y and z rate left positive."""
    forward, left, up = cf.carla_to_ros_body_vector(ego.velocity, ego.rotation)
    rates = cf.carla_to_ros_angular_velocity(*ego.angular_velocity_deg)
    turned = cf.ros_rotation_matrix(cf.carla_to_ros_rotation(*ego.rotation)).T @ np.array(rates)
    x_rate, y_rate, z_rate = (float(rate) for rate in turned)
    return (forward, left + z_rate * base_link_x_m, up - y_rate * base_link_x_m), (x_rate, y_rate, z_rate)


def odometry_message(ego: EgoNow, base_link_x_m: float) -> Odometry:
    """Pose of base_link in the map frame, twist in base_link."""
    pose, (velocity, rates) = base_pose(ego, base_link_x_m), base_velocity(ego, base_link_x_m)
    message = Odometry(header=cv.header(ego.stamp_s, cv.MAP_FRAME), child_frame_id=cv.BASE_FRAME)
    place, twist = message.pose.pose, message.twist.twist
    place.position.x, place.position.y, place.position.z = pose.position
    place.orientation = _quaternion(pose.rotation)
    twist.linear.x, twist.linear.y, twist.linear.z = velocity
    twist.angular.x, twist.angular.y, twist.angular.z = rates
    return message


def imu_message(measurement: Any, stamp_s: float) -> Imu:
    """Acceleration (m/s^2, with gravity), rotation rates (rad/s) and the heading of the compass, x forward, y left.

    A compass that says NaN makes an orientation that is marked as unknown (covariance -1), as the message defines it.
    """
    acceleration, gyro = measurement.accelerometer, measurement.gyroscope
    message = Imu(header=cv.header(stamp_s, cv.BASE_FRAME))
    a, w = message.linear_acceleration, message.angular_velocity
    a.x, a.y, a.z = cf.carla_to_ros_vector(acceleration.x, acceleration.y, acceleration.z)
    w.x, w.y, w.z = cf.carla_to_ros_angular_velocity(gyro.x, gyro.y, gyro.z, degrees=False)
    yaw = cf.carla_to_ros_compass(float(measurement.compass))
    if yaw is None:
        message.orientation_covariance[0] = -1.0
    else:
        message.orientation = cv.quaternion(yaw)
    return message


def gnss_message(measurement: Any, stamp_s: float, reference: GeoReference | None) -> NavSatFix:
    """A fix. reference: the map's; a latitude that its projection counts the wrong way is put right then."""
    fix = (float(measurement.latitude), float(measurement.longitude), float(measurement.altitude))
    if reference is not None and reference.projection is Projection.TRANSVERSE_FLIPPED:
        right = reference._replace(projection=Projection.MERCATOR)
        fix = ros_to_carla_gnss(carla_to_ros_gnss(*fix, reference), right)
    message = NavSatFix(header=cv.header(stamp_s, cv.BASE_FRAME))
    message.latitude, message.longitude, message.altitude = fix
    message.status.status, message.status.service = NavSatStatus.STATUS_FIX, NavSatStatus.SERVICE_GPS
    message.position_covariance_type = NavSatFix.COVARIANCE_TYPE_UNKNOWN
    return message


def path_message(points: np.ndarray, stamp_s: float) -> Path:
    """Points (N, 2 or more) m of the map frame, each with its heading along the path."""
    path = Path(header=cv.header(stamp_s, cv.MAP_FRAME))
    headings = np.arctan2(np.diff(points[:, 1]), np.diff(points[:, 0]))
    for k, point in enumerate(points):
        pose = PoseStamped(header=path.header)
        pose.pose.position.x, pose.pose.position.y = float(point[0]), float(point[1])
        pose.pose.position.z = float(point[2]) if len(point) > 2 else 0.0
        pose.pose.orientation = cv.quaternion(float(headings[min(k, len(headings) - 1)]))
        path.poses.append(pose)
    return path


def carla_control_of(message: Any) -> VehicleControl:
    """Our control of a carla_msgs/CarlaEgoVehicleControl, whose steering is CARLA's own. Gears are not looked at.

    DataError if a number of it is not finite.
    """
    made = control_of(message)
    return cf.carla_to_ros_control(
        cf.CarlaControl(made.throttle, made.steer, made.brake, made.hand_brake, made.reverse)
    )


def carla_messages() -> Any:
    """The message module carla_msgs.msg. ConfigError where the package is not installed."""
    try:
        return importlib.import_module("carla_msgs.msg")
    except ImportError as error:
        raise ConfigError(f"control_messages: the ROS package carla_msgs is not installed ({error})") from error


def control_of(message: Any) -> VehicleControl:
    """The numbers of a message as a control, signs as they are. DataError if a number of it is not finite."""
    numbers = (message.steer, message.throttle, message.brake)
    if not all(math.isfinite(number) for number in numbers):
        raise DataError("a number is not finite")
    return VehicleControl(*numbers, reverse=message.reverse, hand_brake=message.hand_brake)


def _quaternion(rotation: cf.RosRotation) -> Quaternion:
    x, y, z, w = cf.ros_quaternion(rotation)
    return Quaternion(x=x, y=y, z=z, w=w)
