"""Decoded frames from a worker process to the training process: in shared memory, without copying or pickling them.

A shard's arrays lie in one anonymous memory file (Linux `memfd`): it is bound by the machine's memory, not by the size
of /dev/shm, and is gone when the last of its arrays is. Only its descriptor and where the arrays lie go through the
pool's pipe.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from multiprocessing import reduction
from typing import Any

import numpy as np

from wamdiff2_core.distill.arrays import Frames, TaskArrays


@dataclass(frozen=True)
class Place:
    """Where an array lies in its memory file: offset in bytes, shape, numpy's name of the dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Parcel:
    """Frames as they go through the pipe: a descriptor of the memory file, its size, and the places of the arrays."""

    descriptor: Any  # multiprocessing's DupFd: detach() gives this process's own descriptor
    size: int
    images: list[Place]
    tasks: dict[str, dict[str, Place]]
    bad: Counter[str]
    bad_names: list[str]

    def open(self) -> Frames:
        """The frames in this process; can be called once."""
        descriptor = self.descriptor.detach()
        try:
            memory = mmap.mmap(descriptor, self.size)
        finally:
            os.close(descriptor)

        def array(place: Place) -> np.ndarray:
            return np.ndarray(place.shape, np.dtype(place.dtype), memory, place.offset)

        tasks = {
            task: TaskArrays(**{name: array(place) for name, place in parts.items()})
            for task, parts in self.tasks.items()
        }
        return Frames([array(place) for place in self.images], tasks, self.bad, self.bad_names)


class SharedRoom:
    """Makes arrays of zeros in one memory file (`zeros`, like numpy's) and sends frames made of them (`parcel`)."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("wamdiff2 frames")
        self._size = mmap.PAGESIZE  # never empty, so that frames without content can be mapped, too
        os.ftruncate(self._descriptor, self._size)
        self._offsets: dict[int, int] = {}

    def __enter__(self) -> SharedRoom:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def zeros(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        kind = np.dtype(dtype)
        size = max(1, int(np.prod(shape)) * kind.itemsize)
        offset = self._size
        self._size += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._descriptor, self._size)
        array = np.ndarray(tuple(shape), kind, mmap.mmap(self._descriptor, size, offset=offset))
        self._offsets[array.ctypes.data] = offset
        return array

    def parcel(self, frames: Frames) -> Parcel:
        """Frames whose arrays were made here, or are the first rows of such."""
        names = [item.name for item in fields(TaskArrays)]
        return Parcel(
            reduction.DupFd(self._descriptor),
            self._size,
            [self._place(images) for images in frames.images],
            {
                task: {name: self._place(getattr(arrays, name)) for name in names}
                for task, arrays in frames.tasks.items()
            },
            frames.bad,
            frames.bad_names,
        )

    def _place(self, array: np.ndarray) -> Place:
        return Place(self._offsets[array.ctypes.data], array.shape, array.dtype.str)
