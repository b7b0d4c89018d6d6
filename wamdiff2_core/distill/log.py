"""What a run says about itself: log.csv, evaluation.csv, TensorBoard, and a progress bar where there is a terminal,
one line a time where there is none.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch import Tensor

from wamdiff2_core.distill.board import Board, require_tensorboard
from wamdiff2_core.distill.csv_file import GrowingCsv, read_csv, step_of
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.step import KINDS, Losses
from wamdiff2_core.tasks import TASKS

if TYPE_CHECKING:
    from wamdiff2_core.distill.optimise import Clock
    from wamdiff2_core.distill.sources import Source

LOG, EVALUATION, BOARD, BAD = "log.csv", "evaluation.csv", "tensorboard", "bad_samples.txt"
TOTAL, COUNT = " total", " count"  # of sums of a part
GROUPS = (*TASKS, "answers")  # streams have all tasks in one
PARTS = tuple(f"{task}_{kind}" for task in GROUPS for kind in KINDS)  # those that plots and readers know
BAD_SHOWN = 5  # names of bad samples that are printed at a time; all are in the file


class Totals:
    """Sums of losses on the device, read once per interval. A part's mean is over its tokens, the loss's over steps."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self.steps = self._rows = 0

    def add(self, losses: Losses) -> None:
        """Take in a step without reading it."""
        values = {"loss": losses.loss.detach(), "tokens": losses.tokens}
        for task, shares in losses.shares.items():
            for kind, share in shares.items():
                values[f"{task}_{kind}{TOTAL}"] = share.total.detach().sum()
                values[f"{task}_{kind}{COUNT}"] = share.count.detach().sum()
            self._rows += max(share.total.numel() for share in shares.values())
        for name, value in values.items():
            if name in self._sums:
                self._sums[name] += value
            else:  # a copy: a captured step writes its next result into the same tensors
                self._sums[name] = value.to(torch.float64, copy=True)
        self.steps += 1

    def take(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Means since the last call, over all processes, and start anew. `reduce` sums a vector over processes."""
        vector = torch.stack(list(self._sums.values()))
        sums = reduce(torch.cat((vector, vector.new_tensor([self._rows])))).tolist()
        values, steps = dict(zip([*self._sums, "rows"], sums, strict=True)), self.steps
        self._sums, self.steps, self._rows = {}, 0, 0
        means = {"loss": values["loss"] / steps, "tokens": values["tokens"], "rows": values["rows"]}
        for name in [name.removesuffix(TOTAL) for name in values if name.endswith(TOTAL)]:
            if values[name + COUNT] > 0:  # else none of the tokens of these steps were of this part
                means[name] = values[name + TOTAL] / values[name + COUNT]
        return means


class BadSamples:
    """What could not be used, on all ranks and in all sittings: each counted once, and named in a file that grows.

    everyones: see TrainLog; writes: is this rank 0?
    """

    def __init__(self, path: Path, everyones: Callable[[Any], list[Any]], writes: bool) -> None:
        self.path, self._everyones, self._writes = path, everyones, writes
        self._sent = self._unnamed = 0
        self._known: set[str] | None = None  # lines of the file

    @property
    def count(self) -> int:
        return len(self._known or ()) + self._unnamed

    def news(self, source: Source) -> str:
        """Look at all sources; what is new in the file, "" where nothing is. All ranks call."""
        names, self._sent = source.bad_names[self._sent :], len(source.bad_names)
        told = self._everyones((dict(source.bad), names, sum(source.bad.values()) - self._sent))
        if not self._writes:
            return ""
        if self._known is None:
            self._known = set(self.path.read_text("utf-8").splitlines()) if self.path.exists() else set()
        self._unnamed = sum(unnamed for _, _, unnamed in told)  # sources keep only so many names
        lines = dict.fromkeys(" ".join(name.splitlines()) for _, some, _ in told for name in some)
        found = [line for line in lines if line not in self._known]
        if not found:
            return ""
        self._known.update(found)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in found)
        return self._said(found, {reason for bad, _, _ in told for reason in bad})

    def _said(self, found: Sequence[str], reasons: set[str]) -> str:
        why = Counter(max((r for r in reasons if f": {r}" in line), key=len, default="other") for line in found)
        parts = ", ".join(f"{count} {reason}" for reason, count in why.most_common())
        more = [f"  ... {len(found) - BAD_SHOWN} more in {self.path}"] if len(found) > BAD_SHOWN else []
        head = f"{len(found)} bad samples, not trained on ({parts}); {self.count} so far:"
        return "\n".join([head, *(f"  {line}" for line in found[:BAD_SHOWN]), *more])


class TrainLog:
    """The log of one sitting. rank: of this process; only 0 writes and speaks. reduce: sums over processes; everyones:
    each process' value, on rank 0 (elsewhere nothing)."""

    def __init__(
        self,
        out: Path,
        recipe: Recipe,
        rank: int = 0,
        reduce: Callable[[Tensor], Tensor] = lambda values: values,
        everyones: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        self.recipe, self.out, self.path = recipe, out, out / LOG
        self._speaks, self._reduce = rank == 0, reduce
        self._totals = Totals()
        self._since = time.monotonic()
        self._terminal = self._speaks and sys.stdout.isatty()
        self._bar = _progress_bar(self._terminal)
        self._job: TaskID | None = None
        self._csv, self._evaluations = GrowingCsv(self.path), GrowingCsv(out / EVALUATION)
        self._board: Board | None = None
        self._bad = BadSamples(out / BAD, everyones, self._speaks)
        if recipe.tensorboard and self._speaks:
            require_tensorboard()

    def __enter__(self) -> TrainLog:
        self._bar.start()
        self._job = self._bar.add_task(self.recipe.name, total=1.0, said="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._board is not None:
            self._board.close()

    def begin(self, step: int, source: Source) -> None:
        """Start of a sitting. Lines and events of an earlier sitting behind the resumed step are dropped."""
        if self._speaks:
            self.out.mkdir(parents=True, exist_ok=True)
            self._csv.begin(step)
            self._evaluations.begin(step)
            if self.recipe.tensorboard:
                self._board = Board(self.out / BOARD, step)
                self._board.text("recipe", _as_text(self.recipe))
        told = self._bad.news(source)
        self._say(f"{self.recipe.name}: step {step}, {source.filled} frames, {self._bad.count} bad")
        self._tell(told)
        self._since = time.monotonic()

    def add(self, losses: Losses) -> None:
        """Add a step's losses without reading them."""
        self._totals.add(losses)

    def write(self, clock: Clock, lr: float, source: Source) -> float:
        """One line for the interval since the last; returns its mean loss (0 for an empty interval)."""
        if not self._totals.steps:
            return 0.0
        means = self._totals.take(self._reduce)
        self._tell(self._bad.news(source))
        took = max(1e-9, time.monotonic() - self._since)
        self._since = time.monotonic()
        if self._speaks:
            self._keep(clock, lr, source, means, took)
        return means["loss"]

    def _keep(self, clock: Clock, lr: float, source: Source, means: dict[str, float], took: float) -> None:
        parts = {name: round(value, 5) for name, value in means.items() if name not in ("loss", "tokens", "rows")}
        speed = {"tokens_per_s": round(means["tokens"] / took), "rows_per_s": round(means["rows"] / took, 1)}
        data = {"frames": source.filled, "frames_seen": source.seen, "bad": self._bad.count}
        memory = {"memory_gb": _memory_gb(source.device)}
        loss = round(means["loss"], 5)
        head = {"step": clock.step, "seconds": round(clock.seconds, 1), "progress": round(clock.progress, 4)}
        self._csv.add({**head, "lr": round(lr, 10), "loss": loss, **parts, **speed, **data, **memory})
        if self._board is not None:
            self._board.add("loss", {"total": means["loss"], **parts}, clock.step)
            self._board.add("rate", {"lr": lr, **speed}, clock.step)
            self._board.add("data", data, clock.step)
            self._board.add("machine", memory, clock.step)
        self._progress(clock, loss, {**parts, **speed, **data})

    def evaluated(self, step: int) -> bool:
        """Are figures of this step there already, from this sitting or an earlier one?"""
        return any(step_of(self._evaluations.path, row) == step for row in read_csv(self._evaluations.path))

    def evaluation(self, clock: Clock, figures: Mapping[str, float]) -> None:
        """Keep the figures of an evaluation at this step."""
        if self._speaks:
            head = {"step": clock.step, "seconds": round(clock.seconds, 1), "progress": round(clock.progress, 4)}
            self._evaluations.add({**head, **{name: round(value, 6) for name, value in figures.items()}})
            if self._board is not None:
                self._board.add("evaluation", figures, clock.step)
            shown = " ".join(f"{name}={value:.4g}" for name, value in figures.items())
            self._say(f"[{clock.seconds:7.1f} s {100 * clock.progress:5.1f}%] step {clock.step} evaluation {shown}")
        self._since = time.monotonic()  # the time that an evaluation takes is none of training's

    def _progress(self, clock: Clock, loss: float, row: Mapping[str, float]) -> None:
        left = clock.seconds * (1.0 - clock.progress) / max(clock.progress, 1e-6)
        parts = " ".join(f"{name}={row[name]:.3f}" for name in PARTS if name in row)
        said = (
            f"step {clock.step} loss={loss:.4f} {parts} {row['rows_per_s']:.0f} rows/s {row['tokens_per_s']} tok/s "
            f"frames {row['frames']} ETA {left / 60:.1f} min"
        )
        if self._job is not None:
            self._bar.update(self._job, completed=clock.progress, said=said)
        self._say(f"[{clock.seconds:7.1f} s {100 * clock.progress:5.1f}%] {said}")

    def _tell(self, bad: str) -> None:
        """Of samples that could not be used; over the progress bar, too."""
        if bad and self._speaks:
            self._bar.console.print(bad, highlight=False, markup=False) if self._terminal else print(bad, flush=True)

    def _say(self, text: str) -> None:
        if self._speaks and not self._terminal:
            print(text, flush=True)


def _progress_bar(shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>5.1f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
        console=Console(),
        disable=not shown,
    )


def _as_text(recipe: Recipe) -> str:
    """The recipe's fields, a line each, as Markdown."""
    return "\n".join(f"    {name}: {value}" for name, value in vars(recipe).items())


def _memory_gb(device: torch.device) -> float:
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else 0.0
