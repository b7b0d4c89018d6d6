"""Says what to do when ROS 2 is not there."""

from __future__ import annotations

import importlib.util

from wamdiff2_core.errors import ConfigError


def check_ros() -> None:
    """ConfigError if rclpy or our messages cannot be imported, with what to do about it."""
    if importlib.util.find_spec("rclpy") is None:
        raise ConfigError("ROS 2 is not here. Run `make setup`, or source /opt/ros/<distribution>/setup.bash")
    if importlib.util.find_spec("wamdiff2") is None or importlib.util.find_spec("wamdiff2.msg") is None:
        raise ConfigError("our ROS messages are not built. Run `make setup`, or build this folder with colcon")
