"""Trains rows of the proof one after the other in this process, all on one source of frames on the device.

Several processes may be given the same rows: each run is locked while it is trained, so that whoever is free takes the
next one. A lock goes with its process, so a killed one leaves none behind; its run goes on from its last save.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.proof.rows import BUILT, Run, runs_of
from wamdiff2_core.distill.recipe import Recipe, load_recipe
from wamdiff2_core.errors import ConfigError

if TYPE_CHECKING:
    from wamdiff2_core.distill.sources import Source

RECIPES = Path(__file__).parent.parent / "recipes"
POLL_S = 1.0
DEVICE_LOST = 3  # exit code: this process cannot use its device any more, a new one can


@dataclass(frozen=True)
class Plan:
    """What one process trains. `overrides`: key=value for all rows, ROW.key=value for one."""

    root: Path
    data: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str = "cuda:0"
    recipes: Path = RECIPES
    overrides: tuple[str, ...] = ()
    wait_minutes: float = 60.0  # longest wait for something that another process trains
    vision_from: Path | None = None  # checkpoint that the random models take their vision tower from

    def __post_init__(self) -> None:
        for text in self.overrides:
            owner, dot, _ = text.partition("=")[0].rpartition(".")
            if "=" not in text or (dot and owner not in self.rows):
                raise ConfigError(f"override {text!r}: expected key=value or ROW.key=value of {', '.join(self.rows)}")

    def recipe(self, run: Run) -> Recipe:
        """The recipe of a run with its paths, seed, device and overrides."""
        mine = [f"{part}={need.checkpoint(self.root)}" for part, need in run.needs().items()]
        mine += [f"data={json.dumps(self.data)}", f"out={run.folder(self.root)}", f"name={run.row}"]
        mine += [f"device={json.dumps(self.device)}", f"seed={run.seed}"]
        general = [text for text in self.overrides if "." not in text.partition("=")[0]]
        special = [text.removeprefix(f"{run.row}.") for text in self.overrides if text.startswith(f"{run.row}.")]
        return load_recipe(self.recipes / f"{run.row}.yaml", [*mine, *general, *special])


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """True while this process alone holds the folder's lock; False if another one has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


class Session:
    """The trainings of one process, with the frames they share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.source: Source | None = None
        self.told: set[str] = set()

    def run(self) -> int:
        """Train all runs to their end. 0: all done; 1: some failed or were skipped; 3: the device is lost."""
        runs = runs_of(self.plan.rows, self.plan.seeds)
        for run in runs:
            if run.row not in BUILT:
                self.plan.recipe(run)  # a bad recipe stops us now, not in ten minutes
            (run.folder(self.plan.root) / "FAILED").unlink(missing_ok=True)
        since = time.monotonic()
        try:
            while any(run.state(self.plan.root) in ("ready", "waiting") for run in runs):
                if self._next(runs):
                    since = time.monotonic()
                elif time.monotonic() - since > 60.0 * self.plan.wait_minutes:
                    break
                else:
                    self._say("waiting for what other processes train")
                    time.sleep(POLL_S)
        except DeviceLost:
            return DEVICE_LOST
        finally:
            if self.source is not None:
                self.source.close()
        return self._report(runs)

    def _next(self, runs: Sequence[Run]) -> bool:
        """Train the first run that is ready and free; False if there is none now."""
        for run in runs:
            if run.state(self.plan.root) != "ready":
                continue
            with claim(run.folder(self.plan.root)) as ours:
                if ours and run.state(self.plan.root) == "ready":
                    self._attempt(run)
                    return True
        return False

    def _attempt(self, run: Run) -> None:
        """Train and mark DONE; whatever goes wrong is written to FAILED, and the rows that do not need it go on."""
        print(f"=== {run.label} on {self.plan.device}", flush=True)
        folder = run.folder(self.plan.root)
        try:
            facts = self._build(run) if run.row in BUILT else self._train(run)
        except Exception as error:  # whatever is wrong with one row must not end the others
            text = "".join(traceback.format_exception(error))
            (folder / "FAILED").write_text(text)
            print(f"{text}=== FAILED {run.label}: {type(error).__name__}: {error}", flush=True)
            if "CUDA error" in str(error):
                raise DeviceLost from error
            return
        finally:
            _free()
        mark(folder / "DONE", json.dumps(facts))
        print(f"=== done {run.label}: {facts}", flush=True)

    def _train(self, run: Run) -> dict:
        from wamdiff2_core.distill.trainer import Trainer

        recipe = self.plan.recipe(run)
        trainer = Trainer(recipe, self.source)  # which draws anew from this recipe's seed, whatever ran before
        self.source = trainer.source
        began = time.monotonic()
        trainer.run()
        return {"steps": trainer.clock.step, "wall_s": round(time.monotonic() - began, 1), "device": recipe.device}

    def _build(self, run: Run) -> dict:
        """What needs no training, by the same command as by hand; the folder appears whole or not at all."""
        target = run.checkpoint(self.plan.root)
        if not (target / "config.json").is_file():
            new = target.with_name(f".new-{uuid.uuid4().hex[:8]}")
            needs = [str(need.checkpoint(self.plan.root)) for need in run.needs().values()]
            eyes = ["--vision-from", str(self.plan.vision_from)] if self.plan.vision_from and not needs else []
            how = ["training.grow", *needs] if needs else ["training.build_tiny", *eyes]
            subprocess.run([sys.executable, "-m", *how, "--out", str(new), "--seed", str(run.seed)], check=True)
            os.replace(new, target)
        return {}

    def _report(self, runs: Sequence[Run]) -> int:
        states = {run: run.state(self.plan.root) for run in runs}
        for run, state in states.items():
            if state == "done":
                continue
            needs = [f"{need.label} {need.state(self.plan.root)}" for need in run.needs().values()]
            print(f"=== {state} {run.label} (needs {', '.join(needs) or 'nothing'})", flush=True)
        done = sum(state == "done" for state in states.values())
        print(f"=== {done} of {len(runs)} runs done", flush=True)
        return 0 if done == len(runs) else 1

    def _say(self, text: str) -> None:
        if text not in self.told:
            print(f"=== {text}", flush=True)
            self.told.add(text)


class DeviceLost(Exception):
    """The accelerator's context is broken: nothing more can run in this process."""


def mark(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text + "\n")
    os.replace(new, path)


def _free() -> None:
    """Give a finished run's memory back before the next one starts."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
