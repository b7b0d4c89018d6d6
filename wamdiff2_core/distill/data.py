"""Training data on the accelerator: a ring of decoded frames, fed from shards in the background while training
goes on.
"""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue

import torch
from torch import Tensor

from wamdiff2_core.distill.augment import jitter, to_patches
from wamdiff2_core.distill.layout import Rows
from wamdiff2_core.distill.samples import DataSpec, Encoder, Frames, TaskArrays, read_shard
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.images import ImageFormat
from wamdiff2_core.tasks import TASKS

_ROW_FIELDS = ("prompt", "positions", "prompt_length", "answer", "answer_length", "given", "rows")


@dataclass(frozen=True)
class Batch:
    """F frames: patches per size group (cameras * F, n, values) with their grids, and one batch of rows per task."""

    patches: list[tuple[Tensor, int, int]]
    rows: dict[str, Rows]


class Ring:
    """Room for `capacity` frames on one device; the oldest are overwritten. Drawing a batch never waits for the
    host.
    """

    def __init__(self, spec: DataSpec, capacity: int, device: torch.device, seed: int = 0) -> None:
        self.spec, self.capacity, self.device = spec, capacity, device
        self.form = ImageFormat.from_folder(spec.checkpoint)
        self.filled = self.seen = 0
        self.bad: Counter[str] = Counter()
        self.bad_names: list[str] = []
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        cameras = [spec.sizes.count(size) for size in spec.groups()]
        self.images = [
            torch.empty(capacity, n, h, w, 3, dtype=torch.uint8, device=device)
            for (w, h), n in zip(spec.groups(), cameras, strict=True)
        ]
        self.tables: dict[str, dict[str, Tensor]] = {}
        for task in TASKS:
            like = TaskArrays.empty(1, spec.prompts[task], spec.prompt_room[task], spec.answer_room[task])
            self.tables[task] = {
                name: torch.zeros(
                    capacity,
                    *getattr(like, name).shape[1:],
                    device=device,
                    dtype=torch.from_numpy(getattr(like, name)).dtype,
                )
                for name in _ROW_FIELDS
            }

    def write(self, frames: Frames) -> None:
        """Copy frames in behind the newest one; ordered with the batches drawn, since both use the current stream."""
        self.bad.update(frames.bad)
        self.bad_names = (self.bad_names + frames.bad_names)[:20]
        taken = 0
        while taken < frames.count:
            start = self.seen % self.capacity
            size = min(frames.count - taken, self.capacity - start)
            source, target = slice(taken, taken + size), slice(start, start + size)
            for ring, images in zip(self.images, frames.images, strict=True):
                ring[target].copy_(_tensor(images)[source], non_blocking=True)
            for task, table in self.tables.items():
                for name in _ROW_FIELDS:
                    table[name][target].copy_(_tensor(getattr(frames.tasks[task], name))[source], non_blocking=True)
            taken += size
            self.seen += size
            self.filled = min(self.capacity, self.filled + size)

    def draw(self, count: int, strength: float) -> Batch:
        """`count` random frames with one row of each task; rows that a frame lacks have length 0 and carry no loss."""
        if not self.filled:
            raise DataError("no frames to draw from")
        chosen = torch.randint(self.filled, (count,), device=self.device, generator=self.generator)
        rows = {task: self._rows(number, task, chosen) for number, task in enumerate(TASKS)}
        return Batch(self.patches(chosen, strength), rows)

    def batch(self, frames: Tensor, row: int = 0) -> Batch:
        """These frames as they are, with row number `row` of each task (for evaluation)."""
        pick = torch.full_like(frames, row)
        return Batch(
            self.patches(frames, 0.0), {task: self._rows(n, task, frames, pick) for n, task in enumerate(TASKS)}
        )

    def patches(self, chosen: Tensor, strength: float) -> list[tuple[Tensor, int, int]]:
        """Augmented patches of the chosen frames, camera after camera in each size group."""
        groups = []
        for images in self.images:
            stacked = images[chosen].transpose(0, 1).flatten(0, 1)
            patch = self.form.patch_size
            pixels = to_patches(jitter(stacked, strength, self.generator), self.form)
            groups.append((pixels, stacked.shape[1] // patch, stacked.shape[2] // patch))
        return groups

    def _rows(self, number: int, task: str, chosen: Tensor, pick: Tensor | None = None) -> Rows:
        table = self.tables[task]
        have = table["rows"][chosen].long()
        if pick is None:
            pick = (torch.rand(chosen.shape, device=self.device, generator=self.generator) * have).long()
        there = pick < have
        pick = pick.clamp(max=table["prompt"].shape[1] - 1)
        part = {name: table[name][chosen, pick] for name in _ROW_FIELDS if name != "rows"}
        return Rows(
            prompt=part["prompt"].long(),
            prompt_length=torch.where(there, part["prompt_length"].long(), 0),
            prompt_positions=part["positions"].long().permute(1, 0, 2),
            answer=part["answer"].long(),
            answer_length=torch.where(there, part["answer_length"].long(), 0),
            given=part["given"],
            frame=torch.arange(chosen.shape[0], device=self.device),
            task=torch.full_like(chosen, number),
        )


class Feeder:
    """Finds shards, decodes them in worker processes and hands them over in order; with `follow` it keeps looking
    for new ones.

    holdout: shards whose number is a multiple of it are left for evaluation (0: none).
    """

    def __init__(
        self, folders: list[Path], spec: DataSpec, *, workers: int = 2, follow: bool = False, holdout: int = 0
    ) -> None:
        self.folders, self.spec, self.workers, self.follow, self.holdout = folders, spec, workers, follow, holdout
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
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            if self.workers:
                context = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(
                    self.workers, mp_context=context, initializer=_start_worker, initargs=(self.spec,)
                ) as pool:
                    self._feed(pool)
            else:
                self._feed(None)
        except BaseException as error:  # handed to the training loop, which raises it  # noqa: BLE001
            self._error = error

    def _feed(self, pool: ProcessPoolExecutor | None) -> None:
        encoder = None if pool else Encoder(self.spec)
        known: set[Path] = set()
        waiting: deque[Future[Frames]] = deque()
        todo: deque[Path] = deque()
        while not self._stop.is_set():
            if not todo:
                todo.extend(path for path in find_shards(self.folders, self.holdout) if path not in known)
                known.update(todo)
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
            self._hand_over(waiting.popleft().result())

    def _hand_over(self, frames: Frames) -> None:
        pinned = _pinned(frames)
        while not self._stop.is_set():
            try:
                self._ready.put(pinned, timeout=0.5)
                return
            except Full:
                continue


def find_shards(folders: list[Path], holdout: int = 0, held_out: bool = False) -> list[Path]:
    """Finished shard folders in name order: those to train on, or (`held_out`) those kept for evaluation."""
    found = sorted(path.parent for folder in folders for path in folder.glob("shard_*/samples.json"))
    return [path for path in found if _is_held_out(path, holdout) == held_out]


def _is_held_out(path: Path, holdout: int) -> bool:
    digits = re.search(r"(\d+)$", path.name)
    return bool(holdout) and digits is not None and int(digits[1]) % holdout == 0


def wait_for(ring: Ring, feeder: Feeder, frames: int, timeout_s: float) -> None:
    """Fill the ring with at least `frames` frames (or all there are). DataError when they do not come in time."""
    end = time.monotonic() + timeout_s
    while ring.filled < min(frames, ring.capacity):
        for ready in feeder.poll():
            ring.write(ready)
        if feeder.finished and not feeder.poll(0):
            break
        if time.monotonic() > end:
            raise DataError(f"expected {frames} frames within {timeout_s:.0f} s, got {ring.filled}")
        time.sleep(0.02)
    if not ring.filled:
        raise DataError(f"no usable frames in {', '.join(map(str, feeder.folders))}: {dict(ring.bad) or 'no shards'}")


def _tensor(array: object) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _pinned(frames: Frames) -> Frames:
    """Page-locked copies, so that the copy to the accelerator overlaps with its work."""
    if not torch.cuda.is_available():
        return frames
    frames.images = [_tensor(images).pin_memory() for images in frames.images]
    for arrays in frames.tasks.values():
        for name in _ROW_FIELDS:
            setattr(arrays, name, _tensor(getattr(arrays, name)).pin_memory())
    return frames


_encoder: Encoder | None = None


def _start_worker(spec: DataSpec) -> None:
    global _encoder
    torch.set_num_threads(1)
    _encoder = Encoder(spec)


def _decode(folder: str) -> Frames:
    assert _encoder is not None  # set by the pool's initializer
    return read_shard(Path(folder), _encoder)
