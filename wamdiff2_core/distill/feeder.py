"""Shards in the background: worker processes decode them, and frames come in a fixed order."""

from __future__ import annotations

import multiprocessing
import re
import threading
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from queue import Empty, Full, Queue

import cv2
import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.distill.arrays import DataSpec, Frames
from wamdiff2_core.distill.handover import Parcel, SharedRoom
from wamdiff2_core.distill.samples import Encoder, read_shard
from wamdiff2_core.errors import DataError


class Feeder:
    """Finds shards, decodes them in worker processes and hands them over in order of their names.

    Without `follow` these are the shards there are at the start; with it new ones are looked for until the end.
    holdout: shards whose number is a multiple of it are left for evaluation (0: none). share: (rank, ranks) that divide
    the shards among themselves.
    """

    def __init__(
        self,
        folders: list[Path],
        spec: DataSpec,
        *,
        workers: int = 2,
        follow: bool = False,
        holdout: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.folders, self.spec, self.workers, self.follow, self.holdout = folders, spec, workers, follow, holdout
        self.share = share
        self.found = self.taken = 0  # shards known of, and shards that `poll` gave away
        self.alike = False  # all ranks read the same shards
        self._ready: Queue[Frames] = Queue(maxsize=8)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shard feeder", daemon=True)

    def start(self) -> Feeder:
        self._thread.start()
        return self

    @property
    def finished(self) -> bool:
        """Nothing more will come."""
        return not self._thread.is_alive() and self._ready.empty()

    def poll(self, most: int = 2) -> list[Frames]:
        """What is ready now, at most `most` shards. A worker's error is raised here."""
        if self._error is not None:
            raise DataError(f"reading shards failed: {self._error!r}") from self._error
        found: list[Frames] = []
        while len(found) < most:
            try:
                found.append(self._ready.get_nowait())
            except Empty:
                break
        self.taken += len(found)
        return found

    def close(self) -> None:
        """End the workers and drop what was not taken."""
        self._stop.set()
        self._thread.join(timeout=30)
        while not self._ready.empty():
            self._ready.get_nowait()

    def _run(self) -> None:
        try:
            if not self.workers:
                self._feed(None)
                return
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=_start_worker, initargs=(self.spec,)
            )
            try:
                self._feed(pool)
            finally:
                pool.shutdown(cancel_futures=True)
        except BaseException as error:  # handed to the training loop, which raises it  # noqa: BLE001
            self._error = error

    def _feed(self, pool: ProcessPoolExecutor | None) -> None:
        encoder = None if pool else Encoder(self.spec)
        known: set[Path] = set()
        waiting: deque[Future[Parcel]] = deque()
        todo: deque[Path] = deque()
        while not self._stop.is_set():
            if not todo and (self.follow or not known):
                todo.extend(path for path in self._shards() if path not in known)
                known.update(todo)
                self.found = len(known)
            if not todo and not waiting:
                if not self.follow:
                    return
                self._stop.wait(0.5)
                continue
            if encoder is not None:
                self._hand_over(read_shard(todo.popleft(), encoder))
                continue
            while pool is not None and todo and len(waiting) < 2 * self.workers:
                waiting.append(pool.submit(_decode, str(todo.popleft())))
            self._hand_over(waiting.popleft().result().open())

    def _shards(self) -> list[Path]:
        """This rank's. Where fewer shards than ranks are there, all ranks read all of them."""
        found = find_shards(self.folders, self.holdout)
        rank, ranks = self.share
        if self.follow:  # places in the list change as shards come
            return [path for path in found if (_number(path) or 0) % ranks == rank]
        self.alike = ranks > 1 and len(found) < ranks
        return found if self.alike else found[rank::ranks]

    def _hand_over(self, frames: Frames) -> None:
        if self.follow:  # training goes on meanwhile
            frames = _pinned(frames)
        while not self._stop.is_set():
            try:
                self._ready.put(frames, timeout=0.5)
                return
            except Full:
                continue


def find_shards(folders: list[Path], holdout: int = 0, held_out: bool = False) -> list[Path]:
    """Finished shard folders in name order: those to train on, or (`held_out`) those kept for evaluation."""
    found = sorted(path.parent for folder in folders for path in folder.glob("shard_*/samples.json"))
    return [path for path in found if _is_held_out(path, holdout) == held_out]


def _is_held_out(path: Path, holdout: int) -> bool:
    number = _number(path)
    return bool(holdout) and number is not None and number % holdout == 0


def _number(path: Path) -> int | None:
    """Of a shard, from its name."""
    digits = re.search(r"(\d+)$", path.name)
    return None if digits is None else int(digits[1])


def tensor(array: np.ndarray | Tensor) -> Tensor:
    """The same memory as a tensor."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _pinned(frames: Frames) -> Frames:
    """Page-locked copies, so that the copy to the accelerator overlaps with its work."""
    if not torch.cuda.is_available():
        return frames
    frames.images = [tensor(images).pin_memory() for images in frames.images]
    for arrays in frames.tasks.values():
        for name in vars(arrays):
            setattr(arrays, name, tensor(getattr(arrays, name)).pin_memory())
    return frames


_encoder: Encoder | None = None


def _start_worker(spec: DataSpec) -> None:
    global _encoder
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _encoder = Encoder(spec)


def _decode(folder: str) -> Parcel:
    assert _encoder is not None  # set by the pool's initializer
    with SharedRoom() as room:
        return room.parcel(read_shard(Path(folder), _encoder, room.zeros))
