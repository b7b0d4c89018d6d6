"""Training data on the accelerator: a ring of decoded frames, fed from shards in the background while training
goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wamdiff2_core.distill.arrays import NAMES_KEPT, DataSpec, Frames, TaskArrays
from wamdiff2_core.distill.augment import jitter, to_patches
from wamdiff2_core.distill.feeder import Feeder, find_shards, tensor
from wamdiff2_core.distill.layout import Rows
from wamdiff2_core.errors import DataError
from wamdiff2_core.model.images import ImageFormat
from wamdiff2_core.tasks import TASKS, ask, detect, plan

__all__ = ["Batch", "Feeder", "Ring", "find_shards", "wait_for"]

_RANKS: dict[str, Callable[[], tuple[int, ...] | None]] = {
    "plan": plan.ranks,
    "detect": detect.ranks,
    "ask": ask.ranks,
}
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
        self.surplus = self.surplus_shards = 0  # frames of the last shard, and shards, that found no room
        self.drawable = torch.zeros((), device=device)  # `filled`, where the device reads it
        self.bad: Counter[str] = Counter()
        self.bad_names: list[str] = []
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)
        cameras = [spec.sizes.count(size) for size in spec.groups()]
        self.images = [
            torch.empty(capacity, n, h, w, 3, dtype=torch.uint8, device=device)
            for (w, h), n in zip(spec.groups(), cameras, strict=True)
        ]
        self.ranks = {task: _ranks(task, spec.answer_room[task]).to(device) for task in TASKS}
        self.taught: Taught | None = None  # answers that stand for the truth while this is set
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
        self.bad_names = (self.bad_names + frames.bad_names)[:NAMES_KEPT]
        taken = 0
        while taken < frames.count:
            start = self.seen % self.capacity
            size = min(frames.count - taken, self.capacity - start)
            source, target = slice(taken, taken + size), slice(start, start + size)
            for ring, images in zip(self.images, frames.images, strict=True):
                ring[target].copy_(tensor(images)[source], non_blocking=True)
            for task, table in self.tables.items():
                for name in _ROW_FIELDS:
                    table[name][target].copy_(tensor(getattr(frames.tasks[task], name))[source], non_blocking=True)
            if self.taught is not None:
                self.taught.forget(target)
            taken += size
            self.seen += size
            self.filled = min(self.capacity, self.filled + size)
        self.drawable.fill_(self.filled)

    def draw(self, count: int, strength: float, free_share: float = 0.0) -> Batch:
        """`count` random frames with one row of each task; rows that a frame lacks have length 0 and carry no loss.

        free_share: of rows that are trained without a scaffold, so that the model can also write all of an answer.
        """
        if not self.filled:
            raise DataError("no frames to draw from")
        # Not randint(filled): a captured step draws again and again while the ring fills.
        point = torch.rand(count, device=self.device, generator=self.generator)
        chosen = (point * self.drawable).long().clamp(max=self.capacity - 1)
        rows = {task: self._rows(number, task, chosen) for number, task in enumerate(TASKS)}
        if free_share > 0.0:
            rows = {task: self._freed(part, free_share) for task, part in rows.items()}
        return Batch(self.patches(chosen, strength), rows)

    def _freed(self, rows: Rows, share: float) -> Rows:
        keep = torch.rand(rows.given.shape[0], 1, device=self.device, generator=self.generator) >= share
        return replace(rows, given=rows.given & keep)

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
        if self.taught is not None:
            part |= self.taught.in_place_of(task, chosen, part)
        return Rows(
            prompt=part["prompt"].long(),
            prompt_length=torch.where(there, part["prompt_length"].long(), 0),
            prompt_positions=part["positions"].long().permute(1, 0, 2),
            answer=part["answer"].long(),
            answer_length=torch.where(there, part["answer_length"].long(), 0),
            given=part["given"],
            ranks=self.ranks[task].expand(chosen.shape[0], -1),
            frame=torch.arange(chosen.shape[0], device=self.device),
            task=torch.full_like(chosen, number),
        )


class Taught:
    """A teacher's answers to the frames of a ring, where it gave one that can be used; elsewhere the truth stays."""

    def __init__(self, ring: Ring, tasks: Sequence[str]) -> None:
        room, device = ring.spec.answer_room, ring.device
        self.answers = {
            task: torch.zeros(ring.capacity, room[task], dtype=ring.tables[task]["answer"].dtype, device=device)
            for task in tasks
        }
        self.lengths = {task: torch.zeros(ring.capacity, dtype=torch.int64, device=device) for task in tasks}
        self.asked = torch.zeros(ring.capacity, dtype=torch.bool, device=device)

    def open_frames(self, filled: int) -> Tensor:
        """Frames that the teacher has not seen yet."""
        return (~self.asked[:filled]).nonzero()[:, 0]

    def forget(self, frames: slice) -> None:
        """Other frames stand there now."""
        self.asked[frames] = False
        for lengths in self.lengths.values():
            lengths[frames] = 0

    def put(self, task: str, frames: Tensor, answer: Tensor, length: Tensor, usable: Tensor) -> None:
        """Answers (n, C) of lengths (n,) to frames (n,)."""
        self.answers[task][frames] = answer.to(self.answers[task].dtype)
        self.lengths[task][frames] = torch.where(usable, length, 0)

    def in_place_of(self, task: str, chosen: Tensor, truth: dict[str, Tensor]) -> dict[str, Tensor]:
        """answer and answer_length of the chosen frames: the teacher's, or the truth."""
        if task not in self.answers:
            return {}
        length = self.lengths[task][chosen]
        answer = torch.where((length > 0)[:, None], self.answers[task][chosen], truth["answer"])
        return {"answer": answer, "answer_length": torch.where(length > 0, length, truth["answer_length"].long())}


def _ranks(task: str, room: int) -> Tensor:
    """(C,) order in which a task's answer positions are decided, -1 where there is none."""
    found = torch.full((room,), -1, dtype=torch.int64)
    ranks = torch.tensor((_RANKS[task]() or ())[:room], dtype=torch.int64)
    found[: len(ranks)] = ranks
    return found


def wait_for(ring: Ring, feeder: Feeder, frames: int, timeout_s: float) -> None:
    """Fill the ring with at least `frames` frames (or all there are). DataError when they do not come in time.

    From a feeder that does not follow, the ring is filled to the end, always with the same frames in the same places,
    and the feeder is closed: nothing is written later. What finds no room is counted and said.
    """
    end = time.monotonic() + timeout_s
    wanted = min(frames, ring.capacity) if feeder.follow else ring.capacity
    while ring.filled < wanted:
        for ready in feeder.poll(1):
            ring.write(ready if feeder.follow else _fitting(ready, ring))
        if feeder.finished and not feeder.poll(0):
            break
        if time.monotonic() > end:
            raise DataError(f"expected {wanted} frames within {timeout_s:.0f} s, got {ring.filled}")
        time.sleep(0.002)
    if not ring.filled:
        raise DataError(f"no usable frames in {', '.join(map(str, feeder.folders))}: {dict(ring.bad) or 'no shards'}")
    if not feeder.follow and not feeder.finished:
        feeder.close()
        ring.surplus_shards = feeder.found - feeder.taken
    if ring.surplus or ring.surplus_shards:
        print(
            f"the ring is full with {ring.filled} frames: {ring.surplus} frames of the last shard and "
            f"{ring.surplus_shards} further shards are not used",
            flush=True,
        )


def _fitting(frames: Frames, ring: Ring) -> Frames:
    """Only as many frames as the ring has free places."""
    room = ring.capacity - ring.filled
    ring.surplus += max(0, frames.count - room)
    return frames.first(room)
