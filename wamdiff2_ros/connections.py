"""Are our topics connected? Publishers that are missing, of another type, of a QoS that does not match, or too many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration, Infinite
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible

from wamdiff2_ros.input_log import ERROR, OK, WARN, worst


@dataclass(frozen=True)
class Wanted:
    """An input: full topic name, type as in "std_msgs/msg/String", our QoS; required: nothing works without.

    single: two publishers at once contradict each other. instead: a topic that the user may have meant.
    """

    topic: str
    kind: str
    qos: QoSProfile
    required: bool
    single: bool = True
    instead: str = ""


def type_name(kind: Any) -> str:
    """ "std_msgs/msg/String" of that message class."""
    package, _, rest = kind.__module__.partition(".")
    return f"{package}/{rest.partition('.')[0]}/{kind.__name__}"


def input_connection(node: Any, wanted: Wanted) -> tuple[str, str]:
    """(OK, WARN or ERROR; what is wrong with the publishers of an input, empty if nothing)."""
    ends = node.get_publishers_info_by_topic(wanted.topic)
    if not ends:
        return (ERROR, f"no publisher{_hint(node, wanted)}") if wanted.required else (OK, "")
    bad = [problem for end in ends if (problem := _mismatch(end, wanted.kind, wanted.qos, publisher=True))]
    if bad:
        nothing_left = wanted.required and len(bad) == len(ends)
        return ERROR if nothing_left else WARN, "; ".join(bad)
    if wanted.single and len(ends) > 1:
        return WARN, f"{len(ends)} publishers at once: {', '.join(sorted(_name(end) for end in ends))}"
    return OK, ""


def output_connection(node: Any, topic: str, kind: str, qos: QoSProfile) -> tuple[str, str]:
    """The same for the subscribers of an output; WARN names those that get nothing."""
    ends = node.get_subscriptions_info_by_topic(topic)
    bad = [problem for end in ends if (problem := _mismatch(end, kind, qos, publisher=False))]
    return (WARN, "; ".join(bad)) if bad else (OK, "")


def outputs_connection(node: Any, publishers: Iterable[Any], qos: QoSProfile) -> tuple[str, str]:
    """All outputs together: (level, topic and problem of each that has one)."""
    states = [(OK, "")]
    for publisher in publishers:
        level, text = output_connection(node, publisher.topic_name, type_name(publisher.msg_type), qos)
        states.append((level, f"{publisher.topic_name}: {text}" if text else ""))
    return worst(states)


def _mismatch(end: Any, kind: str, qos: QoSProfile, publisher: bool) -> str:
    """Why an endpoint of others does not match ours; empty if it does. `publisher`: what the other one is."""
    role = "publisher" if publisher else "subscriber"
    if end.topic_type != kind:
        return f"{role} {_name(end)} has type {end.topic_type}, expected {kind}"
    theirs = _as_asked(end.qos_profile)
    offered, asked = (theirs, qos) if publisher else (qos, theirs)
    compatible, reason = qos_check_compatible(offered, asked)
    if compatible != QoSCompatibility.ERROR:
        return ""
    return f"QoS of {role} {_name(end)} does not match: {reason.replace('ERROR: ', '').strip('; ')}"


def _as_asked(qos: QoSProfile) -> QoSProfile:
    """A profile as it is seen in the graph, without the durations that nobody set: there they are infinite.

    The comparison of profiles takes an infinite deadline for one that was asked for.
    """
    return QoSProfile(
        history=qos.history,
        depth=max(qos.depth, 1),  # not told of endpoints in other processes, and of no meaning between two
        reliability=qos.reliability,
        durability=qos.durability,
        liveliness=qos.liveliness,
        deadline=_finite(qos.deadline),
        liveliness_lease_duration=_finite(qos.liveliness_lease_duration),
    )


def _finite(duration: Duration) -> Duration:
    return Duration() if duration.nanoseconds >= Infinite.nanoseconds else duration


def _hint(node: Any, wanted: Wanted) -> str:
    if wanted.instead and node.get_publishers_info_by_topic(wanted.instead):
        return f"; there is one of {wanted.instead}: see parameter image_transport"
    return ""


def _name(end: Any) -> str:
    return f"{end.node_namespace.rstrip('/')}/{end.node_name}"
