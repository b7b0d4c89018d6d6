"""Do six raw 1600x900 cameras at 10 Hz arrive from one process in another, and how late?

    python benchmarks/camera_delivery.py [--seconds 10] [--sender reliable] [--no-profile] [--json]

The receiver subscribes as the driver node does. The profile is config/fastdds.xml, as launch files and `wamdiff2` set
it; --no-profile shows what happens without. Latency: from just before publishing to the callback, on one clock.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from wamdiff2_ros.qos import SENSOR_IN
from wamdiff2_ros.supervisor import environment

CAMERAS, WIDTH, HEIGHT = 6, 1600, 900
LIMIT_S = 60.0  # for the two processes to find each other
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


def topic(camera: int) -> str:
    return f"/delivery/camera_{camera}/image"


def send(frames: int, rate_hz: float, reliable: bool) -> None:
    """Publish that many frames of each camera, spread over each period as free running cameras are."""
    reliability = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
    node = Node("delivery_sender")
    senders = [node.create_publisher(Image, topic(k), QoSProfile(depth=10, reliability=reliability)) for k in range(6)]
    pixels = np.random.default_rng(0).integers(0, 256, HEIGHT * WIDTH * 3, np.uint8).tobytes()
    message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=WIDTH * 3, data=array.array("B", pixels))
    until_s = time.monotonic() + LIMIT_S
    while not all(sender.get_subscription_count() for sender in senders):
        if time.monotonic() > until_s:
            raise SystemExit("nobody listens")
        time.sleep(0.02)
    begin_s, period_s = time.monotonic() + 0.2, 1.0 / (rate_hz * CAMERAS)
    for index in range(frames * CAMERAS):
        time.sleep(max(0.0, begin_s + index * period_s - time.monotonic()))
        sent_ns = time.time_ns()
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(sent_ns, 1_000_000_000)
        senders[index % CAMERAS].publish(message)
    time.sleep(1.0)  # the last ones are on their way
    node.destroy_node()


def receive(sender: subprocess.Popen[bytes]) -> list[float]:
    """Latencies in ms of all that arrives until the sender has ended."""
    latencies: list[float] = []

    def arrived(camera: int, message: Image) -> None:
        stamp = message.header.stamp
        latencies.append((time.time_ns() - stamp.sec * 1_000_000_000 - stamp.nanosec) * 1e-6)

    node = Node("delivery_receiver")
    for camera in range(CAMERAS):
        node.create_subscription(Image, topic(camera), partial(arrived, camera), SENSOR_IN)
    executor = rclpy.executors.SingleThreadedExecutor()
    executor.add_node(node)
    while sender.poll() is None:
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    node.destroy_node()
    if sender.returncode:
        raise SystemExit(f"the sender ended with exit code {sender.returncode}")
    return latencies


def measure(seconds: float, rate_hz: float, reliable: bool, profile: bool) -> dict[str, Any]:
    """Sent, arrived, share and latency (ms) of one run."""
    own = environment()
    variables = {name: value for name, value in own.items() if profile or name not in PROFILES}
    os.environ.update({name: value for name, value in variables.items() if name in PROFILES})  # before rclpy.init
    frames = max(1, round(seconds * rate_hz))
    flags = ["--send", str(frames), "--rate", str(rate_hz), *(["--sender", "reliable"] if reliable else [])]
    sender = subprocess.Popen([sys.executable, __file__, *flags], env=variables)
    rclpy.init()
    try:
        latencies = receive(sender)
    finally:
        sender.kill()
        rclpy.try_shutdown()
    sent = frames * CAMERAS
    median, p99 = np.percentile(latencies, [50, 99]).tolist() if latencies else (float("nan"), float("nan"))
    return {
        "sender": "reliable" if reliable else "best effort",
        "profile": profile,
        "rate_hz": rate_hz,
        "sent": sent,
        "arrived": len(latencies),
        "share": len(latencies) / sent,
        "median_ms": round(median, 2),
        "p99_ms": round(p99, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=10.0, help="frames per second of each camera")
    parser.add_argument("--sender", choices=("best_effort", "reliable"), default="best_effort")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)  # the other process
    given = parser.parse_args()
    if given.send is not None:
        rclpy.init()
        send(given.send, given.rate, given.sender == "reliable")
        rclpy.try_shutdown()
        return
    result = measure(given.seconds, given.rate, given.sender == "reliable", not given.no_profile)
    if given.json:
        print(json.dumps(result))
        return
    print(
        f"{CAMERAS} cameras {WIDTH}x{HEIGHT} rgb8 at {given.rate:g} Hz, {result['sender']}, "
        f"{'with' if result['profile'] else 'without'} profile: {result['arrived']} of {result['sent']} arrived "
        f"({result['share']:.1%}), latency median {result['median_ms']} ms, p99 {result['p99_ms']} ms"
    )


if __name__ == "__main__":
    main()
