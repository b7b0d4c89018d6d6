"""Newest-only mailbox: callbacks put frames in, the worker takes the newest group of all cameras."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HISTORY = 4  # frames kept per camera: enough to match cameras that come one frame apart


@dataclass(frozen=True)
class Frame:
    """A camera's message, not decoded yet. `stamp_s` capture time; `received_s` on the steady clock."""

    camera: str
    stamp_s: float
    received_s: float
    message: Any
    age_at_receipt_s: float = 0.0  # below zero: stamped in the future


@dataclass(frozen=True)
class FrameGroup:
    """One frame of each camera, their stamps within the tolerance, in the order of the camera list."""

    frames: dict[str, Frame]

    @property
    def newest(self) -> Frame:
        """The frame captured last."""
        return max(self.frames.values(), key=lambda frame: frame.stamp_s)

    @property
    def stamp_s(self) -> float:
        """Capture time of the newest frame: the moment that a plan made from this group starts at."""
        return self.newest.stamp_s

    def age_s(self, now_s: float) -> float:
        """Age of the oldest frame at steady time `now_s`: what it had at receipt, and what passed since."""
        return max(max(0.0, f.age_at_receipt_s) + now_s - f.received_s for f in self.frames.values())


@dataclass
class _Camera:
    history: deque[Frame] = field(default_factory=lambda: deque(maxlen=HISTORY))
    received: int = 0


class FrameMailbox:
    """Holds at most one group: the newest whose cameras agree within `tolerance_s`. Safe between threads."""

    def __init__(self, cameras: tuple[str, ...], tolerance_s: float) -> None:
        self._tolerance_s = tolerance_s
        self._cameras = {name: _Camera() for name in cameras}
        self._ready: FrameGroup | None = None
        self._last_stamp_s: float | None = None
        self._arrived = threading.Condition()
        self._closed = False
        self._last_group_s = time.monotonic()
        self.dropped = 0
        self.resets = 0

    def put(self, frame: Frame) -> None:
        """Store a frame. A stamp before the camera's last one means that time went back: all is forgotten."""
        with self._arrived:
            camera = self._cameras[frame.camera]
            if camera.history and frame.stamp_s < camera.history[-1].stamp_s:
                self._forget()
            camera.history.append(frame)
            camera.received += 1
            group = self._newest_group()
            if group is None:
                return
            if self._ready is not None:
                self.dropped += 1
            self._ready = group
            self._last_stamp_s = group.stamp_s
            self._last_group_s = time.monotonic()
            self._arrived.notify()

    def take(self, timeout_s: float) -> FrameGroup | None:
        """The newest group, once; None after `timeout_s` without one, or when the mailbox is closed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._ready is not None or self._closed, timeout_s)
            group, self._ready = self._ready, None
            return None if self._closed else group

    def set_tolerance(self, tolerance_s: float) -> None:
        with self._arrived:
            self._tolerance_s = tolerance_s

    def clear(self) -> None:
        """Forget all frames (the clock jumped)."""
        with self._arrived:
            self._forget()

    def close(self) -> None:
        """Wake the worker for good."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def last_received_s(self) -> dict[str, float | None]:
        """Steady time of each camera's newest frame, None where none came."""
        with self._arrived:
            return {name: c.history[-1].received_s if c.history else None for name, c in self._cameras.items()}

    def silent_s(self, now_s: float) -> float:
        """Steady seconds since the last group was complete (or since the mailbox was made)."""
        with self._arrived:
            return now_s - self._last_group_s

    def newest(self, camera: str) -> Frame | None:
        with self._arrived:
            history = self._cameras[camera].history
            return history[-1] if history else None

    def _forget(self) -> None:
        self.resets += 1
        self._ready = None
        self._last_stamp_s = None
        for camera in self._cameras.values():
            camera.history.clear()

    def _newest_group(self) -> FrameGroup | None:
        """The group around the newest stamp that every camera has reached, if its cameras agree and it is a new one."""
        if any(not camera.history for camera in self._cameras.values()):
            return None
        reached_s = min(camera.history[-1].stamp_s for camera in self._cameras.values())
        frames = {
            name: min(camera.history, key=lambda frame: abs(frame.stamp_s - reached_s))
            for name, camera in self._cameras.items()
        }
        group = FrameGroup(frames)
        oldest_s = min(frame.stamp_s for frame in frames.values())
        if group.stamp_s - oldest_s > self._tolerance_s:
            return None
        if self._last_stamp_s is not None and group.stamp_s <= self._last_stamp_s:
            return None
        return group
