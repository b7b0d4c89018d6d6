"""QoS of recorded topics: one subscription that fits all senders, and what they offer as a bag says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime

DEPTH = 100
_INFINITE = QosTime(9223372036, 854775807)  # how rosbag2 writes it


def latched(publishers: Sequence[Any]) -> bool:
    """Every sender keeps its last messages for those who come later."""
    return all(p.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for p in publishers)


def matching(publishers: Sequence[Any]) -> QoSProfile:
    """Reliable and latched where every publisher of the topic is; such a subscription matches them all."""
    reliable = all(p.qos_profile.reliability == ReliabilityPolicy.RELIABLE for p in publishers)
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched(publishers) else DurabilityPolicy.VOLATILE
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=durability,
    )


def matches(subscribed: QoSProfile, publishers: Sequence[Any]) -> bool:
    """False when a sender offers less than the subscription asks for: nothing of it would arrive."""
    asked = matching(publishers)
    reliable = subscribed.reliability == ReliabilityPolicy.RELIABLE
    kept = subscribed.durability == DurabilityPolicy.TRANSIENT_LOCAL
    return not (reliable and asked.reliability != subscribed.reliability) and not (
        kept and asked.durability != subscribed.durability
    )


def offered(publishers: Sequence[Any]) -> tuple[Qos, ...]:
    """What each sender offers, every field filled in, without repetitions."""
    return tuple(dict.fromkeys(_as_written(publisher.qos_profile) for publisher in publishers))


def _as_written(profile: QoSProfile) -> Qos:
    return Qos(
        QosHistory(int(profile.history)),
        int(profile.depth),
        QosReliability(int(profile.reliability)),
        QosDurability(int(profile.durability)),
        _time(profile.deadline),
        _time(profile.lifespan),
        QosLiveliness(int(profile.liveliness)),
        _time(profile.liveliness_lease_duration),
        bool(profile.avoid_ros_namespace_conventions),
    )


def _time(duration: Any) -> QosTime:
    seconds, nanoseconds = divmod(int(duration.nanoseconds), 10**9)
    return _INFINITE if seconds >= _INFINITE.sec else QosTime(seconds, nanoseconds)
