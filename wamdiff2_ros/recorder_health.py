"""The recorder's status for /diagnostics."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from wamdiff2_ros.bag_thread import FULL, RECORDING, State


def status(
    name: str,
    state: State,
    facts: Mapping[str, object],
    free_mb: float,
    unreadable: Mapping[str, str],
    notes: Mapping[str, str],
) -> DiagnosticStatus:
    """ERROR while nothing is written, WARN when something was dropped or cannot be recorded."""
    dropped = sum(state.dropped.values())
    level, text = DiagnosticStatus.OK, f"recording, {state.written} messages"
    if state.name == FULL:
        level, text = DiagnosticStatus.ERROR, f"not writing, waiting for room: {state.reason}"
    elif state.name != RECORDING:
        level, text = DiagnosticStatus.ERROR, f"not writing: {state.reason}"
    elif dropped or unreadable or notes:
        level = DiagnosticStatus.WARN
        text += f", {dropped} dropped" if dropped else ""
        text += f"; not recorded: {', '.join(sorted(unreadable))}" if unreadable else ""
    values: dict[str, object] = {
        "arrived": state.arrived,
        "written": state.written,
        "dropped": dropped,
        "waiting": state.queued,
        "waiting MiB": f"{state.queued_bytes / 2**20:.1f}",
        "most waiting MiB": f"{state.most_queued_bytes / 2**20:.1f}",
        "free MiB": f"{free_mb:.1f}",
        "times full": state.times_full,
        **facts,
    }
    values.update({f"dropped {topic} ({reason})": count for (reason, topic), count in state.dropped.items()})
    values.update({f"not recorded {topic}": reason for topic, reason in unreadable.items()})
    values.update({f"note {topic}": note for topic, note in notes.items()})
    pairs = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
    return DiagnosticStatus(level=level, name=f"{name}: bag", message=text, hardware_id="wamdiff2", values=pairs)
