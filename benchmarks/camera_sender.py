"""Cameras and odometry as a process of their own, for benchmarks of the node: python benchmarks/camera_sender.py ...

Pictures of a camera are noise on a smooth background, encoded once; a message a camera and period, stamped when sent.
"""

from __future__ import annotations

import argparse
import sys
import time

import cv2
import numpy as np
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage

from wamdiff2_ros import conversions as cv
from wamdiff2_ros.images import fill_compressed
from wamdiff2_ros.odometry import OdometrySample
from wamdiff2_ros.process import run_node
from wamdiff2_ros.qos import ODOMETRY_IN, SENSOR_OUT

SPEED_MPS = 8.0
QUALITY = 85


def picture(width: int, height: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (12, 20, 3), dtype=np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth.astype(np.int16) + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)


class Sender(Node):
    """`cameras`: name=WIDTHxHEIGHT. Sends until its process is ended."""

    def __init__(self, cameras: list[str], rate_hz: float) -> None:
        super().__init__("camera_sender")
        self._messages = {}
        for seed, entry in enumerate(cameras):
            name, _, size = entry.partition("=")
            width, height = (int(side) for side in size.split("x"))
            message = fill_compressed(CompressedImage(), cv.header(0.0, name), picture(width, height, seed), QUALITY)
            publisher = self.create_publisher(CompressedImage, f"/wamdiff2/input/{name}/image/compressed", SENSOR_OUT)
            self._messages[name] = (publisher, message)
        self._odometry = self.create_publisher(Odometry, "/wamdiff2/input/odometry", ODOMETRY_IN)
        self._start_s = time.monotonic()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / rate_hz, self._send, clock=steady)
        self.create_timer(0.02, self._send_odometry, clock=steady)

    def _send(self) -> None:
        stamp = self.get_clock().now().to_msg()
        for publisher, message in self._messages.values():
            message.header.stamp = stamp
            publisher.publish(message)

    def _send_odometry(self) -> None:
        now_s = self.get_clock().now().nanoseconds * 1e-9
        along = SPEED_MPS * (time.monotonic() - self._start_s)
        sample = OdometrySample(now_s, along, 0.0, 0.0, (SPEED_MPS, 0.0), 0.0)
        self._odometry.publish(cv.odometry_message(sample))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cameras", nargs="+", help="name=WIDTHxHEIGHT")
    parser.add_argument("--rate-hz", type=float, default=10.0)
    options = parser.parse_args()
    return run_node(lambda: Sender(options.cameras, options.rate_hz), [])


if __name__ == "__main__":
    sys.exit(main())
