"""Closed-loop drives of every checkpoint as it is finished: one pool of workers, drives of all rows interleaved.

Each drive is one line of RUN/eval/drives.jsonl, written at once. A drive that raises, or whose worker dies, is a line
with `error`: named and counted, not driven again unless asked for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from training.proof.rows import ORDER, ROWS, Decoding, Run, trained
from training.proof.train import claim
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_sim.evaluate import EXPERT, TOWNS, Job, read_rows, score_of
from wamdiff2_sim.evaluate import run as make_drive

FILE = Path("eval") / "drives.jsonl"
SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
FAILURES_TO_STOP = 8  # when nothing but failures came, something is wrong with the machine, not with the drives
LAST = ("teacher_ar", "teacher_blocks", "base")
ROUTES_AT_A_TIME = 2  # per town, before the next seed's turn


@dataclass(frozen=True)
class Tour:
    """What to drive. All rows drive the same routes with the same traffic; `minutes` 0: until all is driven."""

    root: Path
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    towns: tuple[str, ...] = TOWNS
    routes_per_town: int = 4
    first_route: int = 1000
    workers: int = 2
    minutes: float = 0.0
    device: str = "cpu"
    dtype: str = "auto"
    latency_s: float | None = 0.2
    plan_period_s: float = 0.25
    length_m: tuple[float, float] = Job.length_m
    traffic: tuple[int, int] = Job.traffic
    egl_devices: tuple[int, ...] = ()
    expert: bool = False
    retry: bool = False
    decoding: dict[str, Decoding] = field(default_factory=dict)  # in place of a row's own

    def __post_init__(self) -> None:
        if min(self.workers, self.routes_per_town) < 1 or self.minutes < 0 or not self.towns:
            raise ConfigError(f"expected workers, routes_per_town >= 1, minutes >= 0 and towns, got {self}")


@dataclass(frozen=True)
class Drive:
    """One unit of work and whose it is."""

    run: Run
    round: int
    job: Job

    @property
    def turn(self) -> tuple:
        """Smallest first: the first routes of all rows of the first seed, then of the next, then further routes.

        What is not compared (and slow on a processor, if large) comes when all others have driven.
        """
        row = ORDER.index(self.run.row) if self.run.row in ORDER else -1
        return (self.run.row in LAST, self.round // ROUTES_AT_A_TIME, self.run.seed, self.round, row, self.job.town)


def drives_of(tour: Tour, run: Run) -> list[Drive]:
    """All drives of a run's checkpoint."""
    expert = run.row == EXPERT
    how = Decoding(0, 1, 0.9) if expert else tour.decoding.get(run.row, ROWS[run.row].decoding)
    where = EXPERT if expert else str(run.checkpoint(tour.root.resolve()))
    return [
        Drive(run, k, Job(where, town, tour.first_route + k, how.block_size, how.steps, how.threshold, tour.device,
                          tour.dtype, tour.length_m, tour.traffic, tour.latency_s, tour.plan_period_s, how.rule))
        for k in range(tour.routes_per_town) for town in tour.towns
    ]  # fmt: skip


class Pool:
    """N processes of one worker each, so that a worker that dies names its drive and takes no other with it."""

    def __init__(self, size: int, egl_devices: Sequence[int]) -> None:
        self._egl = [str(egl_devices[k % len(egl_devices)]) if egl_devices else "" for k in range(size)]
        self._slots = [self._start(k) for k in range(size)]
        self._busy: dict[Future[dict], tuple[int, Drive, float]] = {}

    def _start(self, slot: int) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare, initargs=(os.getpid(), self._egl[slot]))

    @property
    def free(self) -> list[int]:
        taken = {slot for slot, _, _ in self._busy.values()}
        return [slot for slot in range(len(self._slots)) if slot not in taken]

    @property
    def busy(self) -> int:
        return len(self._busy)

    def submit(self, slot: int, drive: Drive) -> None:
        self._busy[self._slots[slot].submit(make_drive, drive.job)] = (slot, drive, time.monotonic())

    def finished(self, timeout_s: float) -> list[dict]:
        """Rows of the drives that ended within `timeout_s`; as soon as there is one."""
        if not self._busy:
            time.sleep(timeout_s)
            return []
        rows = []
        for future in wait(self._busy, timeout_s, FIRST_COMPLETED).done:
            slot, drive, began = self._busy.pop(future)
            rows.append(row_of(drive, future, time.monotonic() - began))
            if isinstance(future.exception(), RuntimeError):
                self._slots[slot].shutdown(wait=False)  # its process may be gone: the next drive gets a new one
                self._slots[slot] = self._start(slot)
        return rows

    def close(self) -> None:
        """End the workers now, with whatever they drive."""
        for child in multiprocessing.active_children():
            child.terminate()
        for slot in self._slots:
            slot.shutdown(wait=True, cancel_futures=True)


def row_of(drive: Drive, future: Future[dict], wall_s: float) -> dict:
    """The line of a drive that ended, well or not."""
    who = {"row": drive.run.row, "model_seed": drive.run.seed, "wall_s": round(wall_s, 1)}
    error = future.exception()
    if error is not None:
        where = {"town": drive.job.town, "seed": drive.job.seed, "block_size": drive.job.block_size}
        return {"key": drive.job.key, **who, **where, "error": f"{type(error).__name__}: {error}"[:500]}
    return {**future.result(), **who}


def _prepare(parent: int, egl_device: str) -> None:
    """In a worker: one thread each, its graphics device, and an end when the parent is gone."""
    for name in SINGLE_THREADED:
        os.environ[name] = "1"
    if egl_device:
        os.environ["WAMDIFF2_EGL_DEVICE"] = egl_device
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)  # also from the middle of a drive

    threading.Thread(target=watch, daemon=True).start()


class Evaluation:
    """The queue of drives: fed by checkpoints as they appear, emptied by the pool."""

    def __init__(self, tour: Tour) -> None:
        self.tour, self.file = tour, tour.root / FILE
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.expected = [Run(EXPERT, 0)] if tour.expert else []
        self.expected += trained(tour.rows, tour.seeds)
        rows = read_rows(self.file)
        if tour.retry and any("error" in row for row in rows):
            rows = [row for row in rows if "error" not in row]
            self.file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.driven = {json.dumps(row["key"]) for row in rows}
        self.known: set[Run] = set()
        self.queue: list[Drive] = []
        self.failed = self.made = 0

    def run(self) -> int:
        """Drive until all is driven or the time is up. 0: all driven; 1: some drives failed; 2: some are left."""
        with claim(self.file.parent) as ours:
            if not ours:
                raise ConfigError(f"{self.file}: another process is driving for this run")
            for name in SINGLE_THREADED:  # before the workers import anything
                os.environ[name] = "1"
            pool = Pool(self.tour.workers, self.tour.egl_devices)
            end = time.monotonic() + 60.0 * self.tour.minutes if self.tour.minutes else float("inf")
            try:
                with self.file.open("a") as sink:
                    while time.monotonic() < end and self._step(pool, sink, min(2.0, end - time.monotonic())):
                        pass
            finally:
                pool.close()
        left = len(self.queue) + pool.busy + sum(run not in self.known for run in self.expected)
        print(f"=== {self.made} drives made, {self.failed} of them failed, {left} left", flush=True)
        return 2 if left else int(self.failed > 0)

    def _step(self, pool: Pool, sink, timeout_s: float) -> bool:
        """Hand out drives, take in rows; False once nothing is left and nothing will come."""
        self._look()
        for slot in pool.free[: len(self.queue)]:
            pool.submit(slot, self.queue.pop(0))
        if not pool.busy and all(run in self.known or self._hopeless(run) for run in self.expected):
            return False
        for row in pool.finished(max(0.0, timeout_s)):
            self.made += 1
            self.failed += "error" in row
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            print(_line(self.made, len(self.queue), row), flush=True)
            if self.failed == self.made >= FAILURES_TO_STOP:
                raise DataError(f"the first {self.made} drives all failed, the last with {row['error']}")
        return True

    def _look(self) -> None:
        """Add the drives of checkpoints that were finished since the last look."""
        unknown = [run for run in self.expected if run not in self.known]
        new = [run for run in unknown if run.row == EXPERT or run.done(self.tour.root)]
        for run in new:
            self.known.add(run)
            every = drives_of(self.tour, run)
            self.queue += [drive for drive in every if json.dumps(drive.job.key) not in self.driven]
        if new:
            self.queue.sort(key=lambda drive: drive.turn)

    def _hopeless(self, run: Run) -> bool:
        return run.row != EXPERT and run.state(self.tour.root) in ("failed", "skipped")


def _line(made: int, left: int, row: dict) -> str:
    head = f"{made} (+{left}) {row['row']}/seed{row['model_seed']} {row['town']} {row['seed']} {row['wall_s']:.0f} s"
    if "error" in row:
        return f"{head} FAILED {row['error']}"
    return f"{head} score {score_of(row):.1f} completion {row['route_completion']:.2f} failures {row['failures']}"
