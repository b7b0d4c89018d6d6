"""Makes training and evaluation data: `python -m wamdiff2_sim.dataset --out DIR --frames N --seed S --workers W`.

Each worker is a process of its own that writes whole shards; one that is killed leaves nothing half done, and a
later call goes on
where the earlier one stopped. `--frames 0` writes shards until it is killed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_sim.data.shards import STATISTICS, ShardWriter, shard_path

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess
    from multiprocessing.sharedctypes import Synchronized

    from wamdiff2_sim.data.frames import FrameSource

RIG = Path(__file__).resolve().parent.parent / "config" / "rig_three.yaml"
SINGLE_THREADED = ("LP_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """What to make. `frames` 0: without end. `egl_devices`: given to the workers in turn; empty: the default
    device.
    """

    out: Path
    frames: int
    seed: int = 0
    workers: int = 2
    maps: tuple[str, ...] = ("procedural",)
    shard_frames: int = 256
    rig: Path = RIG
    perturb: bool = True
    egl_devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.frames < 0 or self.workers < 1 or self.shard_frames < 1 or self.seed < 0 or not self.maps:
            raise ConfigError(f"expected frames >= 0, workers >= 1, shard_frames >= 1, seed >= 0 and maps, got {self}")

    @property
    def shards(self) -> int | None:
        """How many shards there will be; None without end."""
        return -(-self.frames // self.shard_frames) if self.frames else None

    def size(self, index: int) -> int:
        """Frames in shard `index`: the last one may be smaller."""
        return min(self.shard_frames, self.frames - index * self.shard_frames) if self.frames else self.shard_frames


def work(job: Job, worker: int, done: Synchronized) -> None:
    """Write shards worker, worker + workers, ... ; count frames in the shared value `done`."""
    for name in SINGLE_THREADED:
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    import cv2

    from wamdiff2_core.rig import load_rig
    from wamdiff2_sim.data.frames import FrameSource

    cv2.setNumThreads(1)
    device = job.egl_devices[worker % len(job.egl_devices)] if job.egl_devices else None
    source = FrameSource(load_rig(job.rig), job.maps, job.perturb, device)
    index, parent = worker, os.getppid()
    while job.shards is None or index < job.shards:
        if not shard_path(job.out, index).exists():
            _write_shard(job, source, index, done, parent)
        index += job.workers
    source.close()


def _write_shard(job: Job, source: FrameSource, index: int, done: Synchronized, parent: int) -> None:
    """One shard; gives up when the parent process is gone, so that no worker outlives a killed job."""
    writer = ShardWriter(job.out, index)
    for frame in source.frames(job.seed, index):
        if os.getppid() != parent:
            raise SystemExit(1)
        writer.add(frame)
        with done.get_lock():
            done.value += 1
        if writer.frames >= job.size(index):
            break
    writer.close()


def run(job: Job, console: Console) -> float:
    """Run the workers to the end; seconds taken. Raises Wamdiff2Error when a worker fails."""
    job.out.mkdir(parents=True, exist_ok=True)
    for name in SINGLE_THREADED:
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", _finished(job))
    workers = [
        context.Process(target=work, args=(job, k, done), name=f"dataset worker {k}") for k in range(job.workers)
    ]
    began = time.monotonic()
    for process in workers:
        process.start()
    try:
        _watch(job, workers, done, console)
    finally:
        for process in workers:
            process.terminate()
            process.join()
    return time.monotonic() - began


def _watch(job: Job, workers: Sequence[SpawnProcess], done: Synchronized, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.1f} frames/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    first, began = done.value, time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("frames", total=job.frames or None, rate=0.0)
        while True:
            alive = [process for process in workers if process.is_alive()]
            rate = (done.value - first) / max(time.monotonic() - began, 1e-3)
            progress.update(task, completed=done.value, rate=rate)
            failed = [process.name for process in workers if process.exitcode not in (None, 0)]
            if failed:
                raise Wamdiff2Error(f"{', '.join(failed)} failed; finished shards are in {job.out}")
            if not alive:
                return
            alive[0].join(timeout=0.5)


def _finished(job: Job) -> int:
    """Frames of the shards that an earlier call has made."""
    if job.shards is None:
        return 0
    return sum(job.size(index) for index in range(job.shards) if shard_path(job.out, index).exists())


def statistics(folder: Path) -> dict[str, Any]:
    """Shares over all shards of a folder, weighted by frames; answers as counts."""
    total = 0
    sums: dict[str, dict[str, float]] = {}
    answers: dict[str, int] = {}
    for path in sorted(folder.glob(f"shard_*/{STATISTICS}")):
        one = json.loads(path.read_text(encoding="utf-8"))
        total += one["frames"]
        for answer, count in one.pop("answers").items():
            answers[answer] = answers.get(answer, 0) + count
        for name, shares in one.items():
            if name != "frames":
                for key, share in shares.items():
                    sums.setdefault(name, {}).setdefault(key, 0.0)
                    sums[name][key] += share * one["frames"]
    shares = {
        name: {key: round(value / max(total, 1), 3) for key, value in sorted(part.items(), key=lambda item: -item[1])}
        for name, part in sums.items()
    }
    return {"frames": total, **shares, "answers": dict(sorted(answers.items(), key=lambda item: -item[1]))}


def _arguments(argv: Sequence[str] | None) -> Job:
    parser = argparse.ArgumentParser(prog="python -m wamdiff2_sim.dataset", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, required=True, help="0: until killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--maps", default="procedural", help="procedural, or names like Town01,Town02")
    parser.add_argument("--shard-frames", type=int, default=256)
    parser.add_argument("--rig", type=Path, default=RIG)
    parser.add_argument("--natural", action="store_true", help="no perturbed moments (evaluation)")
    parser.add_argument("--egl-devices", default="", help="EGL device numbers for the workers in turn, like 0,1")
    got = parser.parse_args(argv)
    devices = tuple(int(text) for text in got.egl_devices.split(",") if text)
    return Job(
        got.out,
        got.frames,
        got.seed,
        got.workers,
        tuple(got.maps.split(",")),
        got.shard_frames,
        got.rig,
        not got.natural,
        devices,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. 0: done, 1: a worker failed or a setting is wrong, 130: interrupted."""
    console = Console(stderr=True)
    try:
        job = _arguments(argv)
        before = _finished(job)
        seconds = run(job, console)
    except Wamdiff2Error as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except KeyboardInterrupt:
        return 130
    found = statistics(job.out)
    console.print_json(json.dumps({**found, "answers": dict(list(found["answers"].items())[:25])}))
    console.print(
        f"{found['frames']} frames in {job.out}, {(found['frames'] - before) / max(seconds, 1e-3):.1f} frames/s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
