"""The rows of the proof: which run starts from which, who teaches it, and how its checkpoint is decoded.

RUN/<row>/seed<k>/ holds a training: checkpoint/, log.csv, and DONE or FAILED once it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import ConfigError

BUILT = {"random": "", "grown": "base"}  # made without training: random weights, or grown from the row named


@dataclass(frozen=True)
class Decoding:
    """How the answers of a row are decoded, in drives and on frames."""

    block_size: int
    steps: int
    threshold: float
    rule: str = "dynamic"


AUTOREGRESSIVE = Decoding(1, 1, 0.9)
DIFFUSION = Decoding(32, 3, 0.6, "ordered")


@dataclass(frozen=True)
class Row:
    """A row's recipe is training/recipes/NAME.yaml. `init`, `teacher`, `answers`: rows whose checkpoints it needs ("":
    none), to start from, to learn from token by token, and to take whole answers from.

    once: trained with seed 0 only, whatever the seed of the row that needs it.
    """

    name: str
    init: str
    teacher: str = ""
    answers: str = ""
    once: bool = False
    decoding: Decoding = DIFFUSION


ROWS = {
    row.name: row
    for row in (
        Row("base", "random", once=True, decoding=AUTOREGRESSIVE),
        Row("teacher_ar", "grown", once=True, decoding=AUTOREGRESSIVE),
        Row("ar", "base", decoding=AUTOREGRESSIVE),
        Row("stage1", "base"),
        Row("teacher_blocks", "teacher_ar", once=True),
        Row("stage2", "stage1", teacher="stage1"),
        Row("stage3", "stage2", teacher="teacher_blocks"),
        Row("direct", "base"),
        Row("kl", "stage2", teacher="teacher_blocks"),
        Row("ar_teacher", "stage2", teacher="teacher_ar"),
        Row("answers", "base", answers="teacher_ar", once=True),
        Row("same", "base", once=True),
    )
}
ORDER = ("random", "base", "grown", *(row for row in ROWS if row != "base"))


@dataclass(frozen=True)
class Run:
    """One training: a row with a seed."""

    row: str
    seed: int

    @property
    def label(self) -> str:
        return f"{self.row}/seed{self.seed}"

    def folder(self, root: Path) -> Path:
        return root / self.row / f"seed{self.seed}"

    def checkpoint(self, root: Path) -> Path:
        return self.folder(root) / "checkpoint"

    def needs(self) -> dict[str, Run]:
        """The runs whose checkpoints this one needs: {"init": .., "teacher": .., "answers": ..}."""
        if self.row in BUILT:
            parts = {"init": BUILT[self.row]}
        else:
            row = ROWS[self.row]
            parts = {"init": row.init, "teacher": row.teacher, "answers": row.answers}
        return {part: run_of(name, self.seed) for part, name in parts.items() if name}

    def done(self, root: Path) -> bool:
        return (self.folder(root) / "DONE").is_file()

    def state(self, root: Path) -> str:
        """done | failed | skipped (something it needs failed) | ready | waiting."""
        if self.done(root):
            return "done"
        if (self.folder(root) / "FAILED").is_file():
            return "failed"
        before = {run.state(root) for run in self.needs().values()}
        if before & {"failed", "skipped"}:
            return "skipped"
        return "ready" if before <= {"done"} else "waiting"


def run_of(row: str, seed: int) -> Run:
    """The run of a row that belongs to this seed."""
    return Run(row, 0 if row in BUILT or ROWS[row].once else seed)


def runs_of(rows: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Runs in the order of training: seed by seed, what others need first, with what is only built before it."""
    unknown = [name for name in rows if name not in ROWS]
    if unknown or not rows or not seeds:
        raise ConfigError(f"rows {unknown or rows} of seeds {seeds}: expected rows of {', '.join(ROWS)} and seeds")
    wanted = {run_of(name, seed) for name in rows for seed in seeds}
    wanted |= {need for run in wanted for need in run.needs().values() if need.row in BUILT}
    return sorted(wanted, key=lambda run: (run.seed, ORDER.index(run.row)))


def trained(rows: Sequence[str], seeds: Sequence[int]) -> Iterator[Run]:
    """The same without what is only built: what is evaluated."""
    return (run for run in runs_of(rows, seeds) if run.row not in BUILT)
