"""Pictures are decoded when they arrive, while the worker waits for the others of their group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from wamdiff2_ros.images import message_to_rgb

Picture = Future[np.ndarray]


class Ahead:
    """One picture per camera at most is decoded ahead and held; a busy worker's frames are not: most are dropped."""

    def __init__(self, decoders: Executor, waited_for: Callable[[], bool]) -> None:
        """`waited_for`: whether a worker waits for frames now."""
        self._decoders = decoders
        self._waited_for = waited_for
        self._jobs: dict[str, tuple[Any, Picture]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def arrived(self, camera: str, message: Any) -> None:
        """A frame has come. Called by the node's callbacks."""
        with self._lock:
            before = self._jobs.get(camera)
            if self._closed or not self._waited_for() or (before is not None and not before[1].done()):
                return
            self._jobs[camera] = message, self._decoders.submit(message_to_rgb, message)

    def picture(self, camera: str, message: Any) -> Picture:
        """The picture of this very message, begun now if it was not. Its result raises DataError for a broken one."""
        with self._lock:
            begun, picture = self._jobs.pop(camera, (None, None))
        if begun is message and picture is not None:
            return picture
        return self._decoders.submit(message_to_rgb, message)

    def close(self) -> None:
        """Nothing is begun any more by `arrived`, and nothing held."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
