"""Quality of service by kind of topic."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# Sensor streams: the newest sample counts, a lost one is not sent again. Fits senders of both kinds. Depth 1 also where
# this process gets too little CPU: deeper queues then lost more of six raw cameras and made the rest half a second
# late (benchmarks/camera_delivery.py).
SENSOR_IN = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
# Some links lose parts of large images for best effort; then a sender that is reliable may be asked to repeat.
IMAGES_IN = {
    "best_effort": SENSOR_IN,
    "reliable": QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE),
}
ODOMETRY_IN = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=20, reliability=ReliabilityPolicy.BEST_EFFORT)
# Where the sender, a reliable one, waits for the answer to every sample.
EVERY_ODOMETRY_IN = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=20, reliability=ReliabilityPolicy.RELIABLE)
# What we publish: reliable, so that any subscriber matches.
SENSOR_OUT = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=10, reliability=ReliabilityPolicy.RELIABLE)
OUTPUT = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=20, reliability=ReliabilityPolicy.RELIABLE)
# Said once, valid until replaced: late joiners get it too.
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
CLOCK_OUT = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
# An instruction or question may come from a latched sender or from one that is not: volatile fits both.
TEXT_IN = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE)
# The newest command counts, and it must arrive.
CONTROL = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE)
