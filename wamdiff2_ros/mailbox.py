"""Newest-only mailbox: callbacks put frames in, the worker takes the newest group of all cameras."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace

from wamdiff2_ros.frame_groups import Frame, FrameGroup, GroupRules, apart, lags_s, newest_group
from wamdiff2_ros.pace import Pace

HISTORY = 4  # frames kept per camera: enough to match cameras that come one frame apart


class FrameMailbox:
    """Holds at most one group: the newest that the rules allow. Safe between threads.

    `dropped` counts groups that a newer one replaced before they were taken, `resets` how often all was forgotten.
    `waited_for`: somebody waits in `take`.
    """

    def __init__(self, cameras: tuple[str, ...], rules: GroupRules | None = None) -> None:
        self._rules = rules or GroupRules()
        self._histories: dict[str, deque[Frame]] = {name: deque(maxlen=HISTORY) for name in cameras}
        self._first_stamp_s: float | None = None
        self._ready: FrameGroup | None = None
        self._last_stamp_s: float | None = None
        self._arrived = threading.Condition()
        self._closed = False
        self._last_group_s = time.monotonic()
        self._pace = Pace()
        self.waited_for = False
        self.dropped = 0
        self.resets = 0

    def put(self, frame: Frame) -> None:
        """Store a frame. A stamp before the camera's last one means that time went back: all is forgotten."""
        with self._arrived:
            history = self._histories[frame.camera]
            if history and frame.stamp_s < history[-1].stamp_s:
                self._forget()
            history.append(frame)
            if self._first_stamp_s is None:
                self._first_stamp_s = frame.stamp_s
            group = newest_group(self._histories, self._rules, self._first_stamp_s)
            if group is None or (self._last_stamp_s is not None and group.stamp_s <= self._last_stamp_s):
                return
            if self._ready is not None:
                self.dropped += 1
            self._ready = replace(group, epoch=self.resets)
            self._last_stamp_s = group.stamp_s
            self._last_group_s = time.monotonic()
            self._pace.add(group.stamp_s, self._last_group_s)
            self._arrived.notify()

    def take(self, timeout_s: float, soon_s: float = 0.0) -> FrameGroup | None:
        """The newest group, once; None after `timeout_s` without one, or when the mailbox is closed.

        If the next one is due within `soon_s`, it is waited for (see Pace).
        """
        with self._arrived:
            self.waited_for = True
            self._arrived.wait_for(lambda: self._ready is not None or self._closed, timeout_s)
            old = self._ready
            wait_s = self._pace.wait_s(time.monotonic(), soon_s) if old is not None else 0.0
            if wait_s > 0.0:
                self._arrived.wait_for(lambda: self._ready is not old or self._closed, wait_s)
            self.waited_for = False
            group, self._ready = self._ready, None
            return None if self._closed else group

    @property
    def rules(self) -> GroupRules:
        return self._rules

    def set_rules(self, rules: GroupRules) -> None:
        with self._arrived:
            self._rules = rules

    def clear(self) -> None:
        """Forget all frames: the clock jumped, or a camera's sender was started anew."""
        with self._arrived:
            self._forget()

    def wait_anew(self) -> None:
        """Count the time without a group from now on: there could be none before."""
        with self._arrived:
            self._last_group_s = time.monotonic()

    def close(self) -> None:
        """Wake the worker for good."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def last_received_s(self) -> dict[str, float | None]:
        """Steady time of each camera's newest frame, None where none came."""
        with self._arrived:
            return {name: frames[-1].received_s if frames else None for name, frames in self._histories.items()}

    def silent_s(self, now_s: float) -> float:
        """Steady seconds since the last group was complete (or since the mailbox was made)."""
        with self._arrived:
            return now_s - self._last_group_s

    def problems(self) -> dict[str, str]:
        """By camera, what its stamps have against a group: too far behind the others, or apart from them."""
        with self._arrived:
            if self._first_stamp_s is None:
                return {}
            rules = self._rules
            late = {
                name: f"stamps differ between cameras: this one's are {lag_s:.2f} s behind the newest"
                for name, lag_s in lags_s(self._histories, self._first_stamp_s).items()
                if lag_s > rules.late_s
            }
            return late or apart(self._histories, rules.tolerance_s)

    def newest(self, camera: str) -> Frame | None:
        with self._arrived:
            history = self._histories[camera]
            return history[-1] if history else None

    def _forget(self) -> None:
        self.resets += 1
        self._ready = self._first_stamp_s = self._last_stamp_s = None
        self._pace.clear()
        for history in self._histories.values():
            history.clear()
