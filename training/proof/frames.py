"""Held-out frames: every finished checkpoint in large batches on one device, the main figures of all rows first.

Rows go to RUN/eval/frames/<row>_seed<k>_<part>.jsonl.gz (frame_store.py), agreements with teachers to
RUN/eval/overlap/. What is there already is not measured again.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from training.proof.forks import at_forks
from training.proof.overlap import held_out_ring, overlaps
from training.proof.rows import ROWS, Run, run_of, trained
from training.proof.train import claim, mark
from wamdiff2_core.distill.data import Ring
from wamdiff2_core.driver import Driver
from wamdiff2_core.errors import ConfigError, DataError
from wamdiff2_core.evaluate.decode_grid import Setting, parse_settings
from wamdiff2_core.evaluate.frame_batches import camera_sizes, evaluate
from wamdiff2_core.evaluate.frame_table import FrameTable, load_table

FOLDER, OVERLAP = Path("eval") / "frames", Path("eval") / "overlap"
# Quality against forwards: how many steps, from which probability on a token is kept, with and without the scaffold.
STEPS = (
    "B=32,steps=1|2|3|4|6|8|12|16|24|32,threshold=0.9,scaffold=on|off;"
    "B=32,steps=1|2|3,threshold=0.6,rule=ordered;"
    "B=32,steps=32,threshold=0.3|0.4|0.5|0.6|0.7|0.8|0.95|0.99,scaffold=on|off;"
    "B=32,steps=3,threshold=0.3|0.4|0.5|0.6|0.7|0.8,scaffold=on|off;"
    "B=1,steps=1,scaffold=on|off"
)
BLOCKS = (
    "B=4|8|16|32,steps=3,threshold=0.6,rule=ordered;"
    "B=4,steps=1|2|3|4;B=8,steps=1|2|3|4|8;B=16,steps=1|2|3|4|8|16;B=32,steps=1|2|3|4|8|16|32"
)
STEPS_ROWS, BLOCKS_ROWS = ("stage3",), ("stage1", "same")
FORK_ROWS = ("ar", "stage1", "stage2", "stage3", "kl", "ar_teacher", "teacher_ar", "teacher_blocks")
FORK_STEPS = 16
OVERLAP_ROWS = ("stage2", "stage3", "kl", "ar_teacher")
PARTS = ("main", "forks", "overlap", "steps", "blocks")
OVERLAP_TEACHERS = {"teacher_blocks": 32, "teacher_ar": 1}


@dataclass(frozen=True)
class Look:
    """What to measure on. `sweep_frames`, `fork_frames`, `overlap_frames`: of the held-out frames, evenly chosen."""

    root: Path
    data: Path
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str = "cuda:0"
    dtype: str = "auto"
    frames: int = 0
    sweep_frames: int = 512
    fork_frames: int = 256
    fork_draws: int = 16
    overlap_frames: int = 512
    minutes: float = 0.0
    once: bool = False  # measure what is finished now, and do not wait for more
    batch: int = 0
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        if not self.parts or not set(self.parts) <= set(PARTS):
            raise ConfigError(f"parts: expected some of {', '.join(PARTS)}; got {', '.join(self.parts) or 'none'}")


@dataclass(frozen=True, order=True)
class Unit:
    """One piece of work on one checkpoint; in the order in which they are done."""

    turn: int
    seed: int
    place: int
    row: str
    part: str


def units_of(run: Run) -> list[Unit]:
    """Main figures of everything first; sweeps of further seeds last."""
    parts = {"main": 0}
    if run.row in FORK_ROWS:
        parts["forks"] = 1
    if run.row in OVERLAP_ROWS:
        parts["overlap"] = 1
    if run.row in STEPS_ROWS:
        parts["steps"] = 2
    if run.row in BLOCKS_ROWS:
        parts["blocks"] = 2
    place = list(ROWS).index(run.row)
    return [Unit(turn, run.seed, place, run.row, part) for part, turn in parts.items()]


def settings_of(unit: Unit, look: Look) -> list[Setting]:
    """How the answers of a part are decoded."""
    how = ROWS[unit.row].decoding
    main = Setting(how.block_size, how.steps, how.threshold, how.rule)
    if unit.part == "forks":
        steps = min(FORK_STEPS, how.block_size)  # many: what is asked is the model, not how few steps it bears
        return [Setting(how.block_size, steps, 0.9, temperature=1.0, seed=k) for k in range(look.fork_draws)]
    return {"main": [main], "steps": parse_settings(STEPS), "blocks": parse_settings(BLOCKS)}[unit.part]


def store_of(root: Path, row: str, seed: int, part: str) -> Path:
    return root / FOLDER / f"{row}_seed{seed}_{part}.jsonl.gz"


class Watch:
    """The queue of units and the frames that they share."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.runs = list(trained(look.rows, look.seeds))
        self.end = time.monotonic() + 60.0 * look.minutes if look.minutes else float("inf")
        self.settled: set[Unit] = set()
        self.failed = 0

    def run(self) -> int:
        """Measure until all is measured or the time is up. 0: all; 1: something failed; 2: some is left."""
        folder = self.look.root / FOLDER
        with claim(folder) as ours:
            if not ours:
                raise DataError(f"{folder}: another process is measuring for this run")
            while time.monotonic() < self.end:
                unit = next(iter(self._ready()), None)
                if unit is not None:
                    self._attempt(unit)
                elif self.look.once or not self._expected():
                    break
                else:
                    time.sleep(1.0)
        left = len(self._ready()) + len(self._expected())
        print(f"=== {len(self.settled)} parts measured, {self.failed} failed, {left} left", flush=True)
        return 2 if left else int(self.failed > 0)

    def _ready(self) -> list[Unit]:
        """What can be measured now, best first."""
        done = [run for run in self.runs if run.done(self.look.root)]
        units = (unit for run in done for unit in units_of(run) if unit.part in self.look.parts)
        return sorted(unit for unit in units if unit not in self.settled and self._able(unit))

    def _able(self, unit: Unit) -> bool:
        teachers = [run_of(name, unit.seed) for name in OVERLAP_TEACHERS]
        return unit.part != "overlap" or all(run.done(self.look.root) for run in teachers)

    def _expected(self) -> list[Run]:
        return [run for run in self.runs if run.state(self.look.root) in ("ready", "waiting")]

    def _attempt(self, unit: Unit) -> None:
        began = time.monotonic()
        name = f"{unit.row}/seed{unit.seed} {unit.part}"
        try:
            whole = self._overlap(unit) if unit.part == "overlap" else self._measure(unit)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint must not end the others
            traceback.print_exception(error)
            print(f"=== FAILED {name}: {type(error).__name__}: {error}", flush=True)
            self.failed += 1
        else:
            said = "" if whole else " (time is up, the rest another time)"
            print(f"=== {name}: {time.monotonic() - began:.1f} s{said}", flush=True)
        self.settled.add(unit)

    def _measure(self, unit: Unit) -> bool:
        """Decode all settings of a part that its file lacks; False if time ran out."""
        run = Run(unit.row, unit.seed)
        out = store_of(self.look.root, unit.row, unit.seed, unit.part)
        settings = settings_of(unit, self.look)
        checkpoint = run.checkpoint(self.look.root)
        done = 0
        for measured in evaluate(checkpoint, self._tables[unit.part], out, settings, self.look.device,
                                 self._dtype, batch=self.look.batch):  # fmt: skip
            done += 1
            if unit.part == "main":
                figures = measured.figures()
                print(f"{run.label} {json.dumps({name: figures[name] for name in SHOWN})}", flush=True)
            if time.monotonic() > self.end:
                break
        return done == len(settings)

    def _overlap(self, unit: Unit) -> bool:
        root = self.look.root
        out = root / OVERLAP / f"{unit.row}_seed{unit.seed}.json"
        if not out.is_file():
            paths = {name: (run_of(name, unit.seed).checkpoint(root), size) for name, size in OVERLAP_TEACHERS.items()}
            out.parent.mkdir(parents=True, exist_ok=True)
            mark(out, json.dumps(overlaps(Run(unit.row, unit.seed).checkpoint(root), paths, self._ring)))
        return True

    @property
    def _dtype(self) -> str:
        """What "auto" means on this device; said by name, since the rows' files keep it."""
        on_gpu = self.look.device.startswith("cuda")
        return self.look.dtype if self.look.dtype != "auto" else "bfloat16" if on_gpu else "float32"

    @cached_property
    def _any(self) -> Path:
        """A finished checkpoint; all see the same cameras."""
        return next(run.checkpoint(self.look.root) for run in self.runs if run.done(self.look.root))

    @cached_property
    def _tables(self) -> dict[str, FrameTable]:
        """Frames by part."""
        table = load_table(self.look.data, camera_sizes(Driver.from_checkpoint(self._any)), self.look.frames)
        few = list(_spread(len(table.frames), self.look.sweep_frames))
        forks = self._forks(table)
        return {"main": table, "steps": _some(table, few), "blocks": _some(table, few), "forks": forks}

    def _forks(self, table: FrameTable) -> FrameTable:
        number = {frame.name: index for index, frame in enumerate(table.frames)}
        before = at_forks(table.frames)
        if not before:
            raise DataError(f"{self.look.data}: no frame shortly before a junction")
        chosen = [before[k] for k in _spread(len(before), self.look.fork_frames)]
        pictures = _some(table, [number[frame.name] for frame in chosen]).pictures
        return FrameTable(tuple(chosen), pictures)

    @cached_property
    def _ring(self) -> Ring:
        return held_out_ring(self._any, self.look.data, self.look.overlap_frames, self.look.device)


SHOWN = ("ade_m", "answers_correct", "map50", "forwards_per_plan", "parse_failures_share")


def _spread(count: int, most: int) -> Iterator[int]:
    """At most `most` of 0..count-1, evenly."""
    take = min(count, most)
    return (count * k // take for k in range(take))


def _some(table: FrameTable, index: list[int]) -> FrameTable:
    frames = tuple(table.frames[k] for k in index)
    return FrameTable(frames, {camera: images[index] for camera, images in table.pictures.items()})
