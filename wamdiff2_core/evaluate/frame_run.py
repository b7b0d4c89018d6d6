"""Evaluates a checkpoint on labelled frames: several block sizes, several processes, resumable.

`python -m wamdiff2_core.evaluate.frame_run CHECKPOINT DATA --out FILE.json` (or `wamdiff2 evaluate frames`) keeps one
line per frame and block size in FILE.jsonl beside FILE.json, and skips what that file already holds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wamdiff2_core.errors import CheckpointError, ConfigError, DataError, Wamdiff2Error
from wamdiff2_core.evaluate.frame_figures import figures
from wamdiff2_core.evaluate.frames import Frame, answer_frame, read_frames
from wamdiff2_core.evaluate.kernels_used import key_part, name_part, settled, told

BLOCK_SIZES = (1, 4, 8, 16, 32)


@dataclass(frozen=True)
class FrameJob:
    """What to evaluate and how. `frames` 0: all there are. `threads`: of torch, in each of `workers` processes.

    kernels: see `pick.WORDS`; `run` settles what auto and engine stand for.
    """

    checkpoint: Path
    data: Path
    out: Path
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    steps: int = 8
    threshold: float = 0.9
    rule: str = "dynamic"
    frames: int = 500
    device: str = "cpu"
    dtype: str = "float32"
    workers: int = 1
    threads: int = 1
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if not (self.checkpoint / "config.json").is_file():
            raise CheckpointError(f"{self.checkpoint} is no checkpoint folder: it has no config.json")
        if not self.block_sizes or min(self.block_sizes) < 1 or self.workers < 1 or self.threads < 1 or self.frames < 0:
            raise ConfigError(f"expected block sizes, workers and threads >= 1 and frames >= 0, got {self}")

    @property
    def rows_file(self) -> Path:
        return self.out.with_suffix(".jsonl")

    def key(self, frame: str, block_size: int) -> list[object]:
        """What makes two rows the same measurement."""
        where = [str(self.checkpoint.resolve()), str(self.data.resolve())]
        how = [self.steps, self.threshold, self.rule, self.device, self.dtype, self.threads]
        return [*where, frame, block_size, *how, *key_part(self.kernels, self.device)]


def run(job: FrameJob, console: Console, kind_of: Callable[[str], str] = lambda question: "") -> dict[str, object]:
    """Evaluate and write `job.out`; returns what it holds: settings, machine, and `results` by block size.

    Raises ConfigError for kernels that cannot run, before anything is written.
    """
    from wamdiff2_core.evaluate.machine import machine
    from wamdiff2_core.evaluate.summary import write_json

    choice = settled(job.checkpoint, (job.device,), job.dtype, job.kernels, job.block_sizes)
    job = replace(job, kernels=choice.word)
    frames = read_frames(job.data, job.frames)
    job.rows_file.parent.mkdir(parents=True, exist_ok=True)
    rows = _measured(job, frames)
    todo = _todo(job, frames, rows)
    columns = (TextColumn("frames"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, job.rows_file.open("a", encoding="utf-8") as sink:
        bar = progress.add_task("frames", total=len(frames), completed=len(frames) - len(todo))
        for made in _results(job, todo):
            for row in made:
                rows.append(row)
                sink.write(json.dumps(row, allow_nan=False) + "\n")
            sink.flush()
            progress.advance(bar)
    report: dict[str, object] = {"what": "frames", "settings": _settings(job, frames, rows) | told(choice)}
    report["machine"] = machine(job.device)
    report["results"] = figures(rows, kind_of)
    write_json(job.out, report)
    return report


def recount(out: Path, kind_of: Callable[[str], str] = lambda question: "") -> dict[str, object]:
    """Figures anew from the rows beside a result file, such as one brought from a machine without faster-coco-eval.

    DataError if either file is missing or the rows are not those of the result.
    """
    from wamdiff2_core.evaluate.summary import write_json
    from wamdiff2_core.evaluate.tables import read_report

    report, file = read_report(out), out.with_suffix(".jsonl")
    if report["what"] != "frames" or not file.is_file():
        raise DataError(f"{out}: expected a result of `evaluate frames` with its rows in {file.name} beside it")
    settings = report["settings"]
    wanted = [settings[name] for name in ("steps", "threshold", "rule", "device", "dtype", "threads")]
    if "kernels" in settings:  # results of before there was a choice do not say it
        wanted += name_part(settings["kernels"], settings["device"])
    name = Path(settings["checkpoint"]).name
    rows = [row for row in _read(file) if row["key"][4:] == wanted and Path(row["key"][0]).name == name]
    if not rows:
        raise DataError(f"{file}: none of its rows belongs to the settings in {out.name}")
    report["results"] = figures(rows, kind_of)
    write_json(out, report)
    return report


def _settings(job: FrameJob, frames: Sequence[Frame], rows: Sequence[dict]) -> dict[str, object]:
    maps = sorted({str(frame.meta.get("map", "")) for frame in frames} - {""})
    shown = {"checkpoint": str(job.checkpoint), "data": str(job.data), "maps": maps, "frames": len(frames)}
    shown["workers"] = sorted({row["workers"] for row in rows})  # an earlier call may have used other numbers
    names = ("steps", "threshold", "rule", "device", "dtype", "threads")
    return {**shown, **{name: getattr(job, name) for name in names}}


def _measured(job: FrameJob, frames: Sequence[Frame]) -> list[dict]:
    """Rows of an earlier call that belong to this job."""
    wanted = {json.dumps(job.key(frame.name, block)) for frame in frames for block in job.block_sizes}
    if not job.rows_file.is_file():
        return []
    return [row for row in _read(job.rows_file) if json.dumps(row["key"]) in wanted]


def _read(file: Path) -> list[dict]:
    """Rows of a file, from which a last line that a kill cut short is taken away."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines = lines[:-1]
        file.write_text("".join(lines), encoding="utf-8")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{file}: expected JSON in every line: {error}; delete it to start anew") from error


def _todo(job: FrameJob, frames: Sequence[Frame], rows: Sequence[dict]) -> list[tuple[Frame, tuple[int, ...]]]:
    done = {json.dumps(row["key"]) for row in rows}
    todo = []
    for frame in frames:
        blocks = tuple(block for block in job.block_sizes if json.dumps(job.key(frame.name, block)) not in done)
        if blocks:
            todo.append((frame, blocks))
    return todo


def _results(job: FrameJob, todo: Sequence[tuple[Frame, tuple[int, ...]]]) -> Iterator[list[dict]]:
    if job.workers == 1:
        for frame, blocks in todo:
            yield _work(job, frame, blocks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(job.workers, mp_context=context) as pool:
        pending = [pool.submit(_work, job, frame, blocks) for frame, blocks in todo]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


_drivers: dict[tuple, object] = {}  # one per process: loading a checkpoint costs more than a frame
_warm: dict[tuple, set[int]] = {}  # block sizes that each has answered with


def _work(job: FrameJob, frame: Frame, blocks: Sequence[int]) -> list[dict]:
    import torch

    from wamdiff2_core.driver import Driver

    # An engine is made for its block sizes.
    key = (str(job.checkpoint), job.device, job.dtype, job.kernels, job.block_sizes)
    if key not in _drivers:
        torch.set_num_threads(job.threads)
        _drivers[key] = Driver.from_checkpoint(
            job.checkpoint, job.device, job.dtype, kernels=job.kernels, block_sizes=job.block_sizes
        )
        _warm[key] = set()
    driver: Driver = _drivers[key]  # type: ignore[assignment]
    rows = []
    for block in blocks:
        driver.decoding = replace(
            driver.decoding, block_size=block, steps=min(job.steps, block), threshold=job.threshold, rule=job.rule
        )
        if block not in _warm[key]:
            answer_frame(driver, frame)  # the first call allocates, an engine's captures: not measured
            _warm[key].add(block)
        head = {"key": job.key(frame.name, block), "block_size": block, "workers": job.workers}
        rows.append({**head, **answer_frame(driver, frame)})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. 0: done; 1: an input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--block-sizes", type=lambda text: tuple(int(v) for v in text.split(",")), default=BLOCK_SIZES)
    for name, default in (("steps", 8), ("frames", 500), ("workers", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threshold", type=float, default=0.9)
    for name, text in (("rule", "dynamic"), ("device", "cpu"), ("dtype", "float32"), ("kernels", "auto")):
        parser.add_argument(f"--{name}", default=text)
    console = Console(stderr=True)
    try:
        report = run(FrameJob(**vars(parser.parse_args(argv))), console)
    except Wamdiff2Error as error:
        console.print(f"[red]{error}[/red]")
        return 1
    for line in report["results"]:  # type: ignore[attr-defined]
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
