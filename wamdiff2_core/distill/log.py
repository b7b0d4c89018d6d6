"""What a run says about itself: log.csv, a progress bar where there is a terminal, one line a time where there is
none.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from wamdiff2_core.distill.data import Ring
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.distill.step import Losses
from wamdiff2_core.tasks import TASKS

if TYPE_CHECKING:
    from wamdiff2_core.distill.trainer import Clock

KINDS = ("ar", "diffusion")
COLUMNS = (
    "step",
    "seconds",
    "progress",
    "lr",
    "loss",
    *(f"{task}_{kind}" for task in TASKS for kind in KINDS),
    "tokens_per_s",
    "rows_per_s",
    "frames",
    "frames_seen",
    "bad",
    "memory_gb",
)


class TrainLog:
    """Sums losses on the device and reads them once per interval."""

    def __init__(self, out: Path, recipe: Recipe) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.recipe, self.path = recipe, out / "log.csv"
        self._sums: dict[str, Tensor] = {}
        self._rows = self._steps = 0
        self._since = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>5.1f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=Console(),
            disable=not self._terminal,
        )

    def __enter__(self) -> TrainLog:
        self._bar.start()
        self._job = self._bar.add_task(self.recipe.name, total=1.0, said="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, step: int, ring: Ring) -> None:
        """Start of a sitting. Lines of an earlier sitting behind the resumed step are dropped."""
        kept = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._say(
            f"{self.recipe.name}: step {step}, {ring.filled} frames, {sum(ring.bad.values())} bad"
            + (f" ({'; '.join(ring.bad_names[:5])})" if ring.bad_names else "")
        )
        self._since = time.monotonic()

    def add(self, losses: Losses) -> None:
        """Add a step's losses without reading them."""
        parts = {"loss": losses.loss, "tokens": losses.tokens}
        for task, shares in losses.shares.items():
            parts |= {f"{task}_{kind}": share.mean() for kind, share in shares.items()}
            self._rows += self.recipe.frames_per_step
        for name, value in parts.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value.detach()
        self._steps += 1

    def write(self, clock: Clock, lr: float, ring: Ring) -> float:
        """One line for the interval since the last; returns its mean loss (the last known is 0 for an empty
        interval).
        """
        if not self._steps:
            return 0.0
        names = list(self._sums)
        values = dict(zip(names, torch.stack([self._sums[name].float() for name in names]).tolist(), strict=True))
        took = max(1e-9, time.monotonic() - self._since)
        row: dict[str, float | int] = {
            name: round(value / self._steps, 5) for name, value in values.items() if name in COLUMNS
        }
        row |= {
            "step": clock.step,
            "seconds": round(clock.seconds, 1),
            "progress": round(clock.progress, 4),
            "lr": round(lr, 8),
            "tokens_per_s": round(values["tokens"] / took),
            "rows_per_s": round(self._rows / took, 1),
            "frames": ring.filled,
            "frames_seen": ring.seen,
            "bad": sum(ring.bad.values()),
            "memory_gb": _memory_gb(ring.device),
        }
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        self._progress(clock, row)
        loss = values["loss"] / self._steps
        self._sums, self._rows, self._steps, self._since = {}, 0, 0, time.monotonic()
        return loss

    def _progress(self, clock: Clock, row: dict[str, float | int]) -> None:
        left = clock.seconds * (1.0 - clock.progress) / max(clock.progress, 1e-6)
        parts = " ".join(f"{name}={row[name]:.3f}" for name in COLUMNS[5:11] if name in row)
        said = (
            f"step {row['step']} loss={row['loss']:.4f} {parts} "
            f"{row['rows_per_s']:.0f} rows/s {row['tokens_per_s']} tok/s "
            f"frames {row['frames']} ETA {left / 60:.1f} min"
        )
        self._bar.update(self._job, completed=clock.progress, said=said)
        self._say(f"[{clock.seconds:7.1f} s {100 * clock.progress:5.1f}%] {said}")

    def _say(self, text: str) -> None:
        if not self._terminal:
            print(text, flush=True)


def _memory_gb(device: torch.device) -> float:
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else 0.0
