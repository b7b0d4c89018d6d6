"""Runs every benchmark whose data is there, on every checkpoint, way to decode and seed, into one report.

What is absent is said, what fails is said; neither stops the others, and neither leaves a number.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wamdiff2_core.decode.pick import needs_an_engine
from wamdiff2_core.errors import ConfigError, Wamdiff2Error
from wamdiff2_core.evaluate.decode_grid import Setting
from wamdiff2_core.evaluate.everything.benchmark import Benchmark, Measured, Request
from wamdiff2_core.evaluate.everything.config import Config
from wamdiff2_core.evaluate.everything.table import Cell, absence, rows
from wamdiff2_core.evaluate.frame_batches import fingerprint
from wamdiff2_core.evaluate.kernels_used import settled
from wamdiff2_core.evaluate.machine import machine
from wamdiff2_core.model.checkpoint import torch_device, torch_dtype

# What a user can do something about: errors of ours, a full disk, a device out of memory, a process of a pool that was
# killed, a library that is missing. Anything else is a fault of ours, whose traceback is told. Neither ends the others,
# which may have run for hours: all are in the report, and the command's exit code is 1.
EXPECTED = (Wamdiff2Error, OSError, RuntimeError, MemoryError, ImportError)
FILES = "files"  # the folder of a benchmark that scores files made elsewhere


@dataclass(frozen=True)
class Place:
    """Where one measurement belongs. checkpoint: its name in the table; setting None: it does not decode."""

    checkpoint: str = ""
    folder: Path | None = None
    setting: Setting | None = None
    seed: int = 0


def evaluate(
    config: Config, benchmarks: Sequence[Benchmark], tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The report: rows, absent, errors, what it was measured on.

    ConfigError for a benchmark that there is not, and, before any runs, for kernels that a checkpoint cannot get;
    CheckpointError for a device or type that is none.
    """
    known = {benchmark.name: benchmark for benchmark in benchmarks}
    unknown = set(config.benchmarks) - set(known)
    if unknown:
        raise ConfigError(f"benchmarks: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    needs = {name: _needs(config, benchmark) for name, benchmark in known.items()}
    decodes = any(benchmark.decodes and not needs[name] for name, benchmark in known.items())
    if decodes:
        _check_machine(config)
    cells: list[Cell] = []
    errors: list[dict[str, Any]] = []
    for name, benchmark in known.items():
        if needs[name]:
            tell(f"{benchmark.title}: left out: {'; '.join(needs[name])}")
            continue
        for place in places(config, benchmark):
            tell(_told(benchmark, place))
            try:
                cells.append(Cell(benchmark, place.checkpoint, place.folder, place.setting, place.seed,
                                  _measure(config, benchmark, place, tell)))  # fmt: skip
            except Exception as error:  # noqa: BLE001 told and in the report
                told = str(error) if isinstance(error, EXPECTED) else traceback.format_exc()
                tell(f"{benchmark.title}: failed: {told}")
                errors.append(_error(benchmark, place, error))
    return {
        "what": "all",
        "rows": rows(cells),
        "absent": [absence(known[name], lines) for name, lines in needs.items() if lines],
        "errors": errors,
        "settings": dict(config.source),
        "checkpoints": {name: _checkpoints(folders) for name, folders in config.checkpoints.items()},
        "machine": machine(config.device if decodes else "cpu")
        | {"device": config.device, "dtype": config.dtype, "workers": config.workers}
        | {"kernels": config.kernels},
    }


def places(config: Config, benchmark: Benchmark) -> Iterator[Place]:
    """Measurements of one benchmark. Where decoding draws nothing and the samples stay the same, one seed is all."""
    if not benchmark.decodes:
        yield Place()
        return
    for name, folders in config.checkpoints.items():
        for folder in folders:
            for setting in config.settings:
                drawn = benchmark.seeded or setting.temperature > 0.0
                for seed in config.seeds if drawn else config.seeds[:1]:
                    yield Place(name, folder, setting, seed)


def _needs(config: Config, benchmark: Benchmark) -> list[str]:
    if benchmark.name not in config.benchmarks:
        return ["it is not named in the configuration"]
    lines = benchmark.needs(config.benchmarks[benchmark.name])
    if not benchmark.decodes:
        return lines
    if not config.checkpoints:
        return [*lines, "`checkpoints` names none"]
    folders = [folder for several in config.checkpoints.values() for folder in several]
    return lines + [f"{f} is no checkpoint folder" for f in folders if not (f / "config.json").is_file()]


def _check_machine(config: Config) -> None:
    """What cannot run here, device or engine asked for by name, would fail in each row, after hours in the last."""
    torch_dtype(config.dtype, torch_device(config.device))
    if not needs_an_engine(config.kernels):
        return
    sizes = [setting.block_size for setting in config.settings]
    for folder in (folder for several in config.checkpoints.values() for folder in several):
        settled(folder, (config.device,), config.dtype, config.kernels, sizes)


def _measure(config: Config, benchmark: Benchmark, place: Place, tell: Callable[[str], None]) -> Measured:
    setting = place.setting or Setting()
    if setting.temperature:
        setting = replace(setting, seed=setting.seed + place.seed)
    out = config.out / benchmark.name / _folder_name(place)
    out.mkdir(parents=True, exist_ok=True)
    options = config.benchmarks[benchmark.name]
    return benchmark.run(
        Request(
            options,
            out,
            place.folder,
            setting,
            place.seed,
            config.device,
            config.dtype,
            config.workers,
            tell,
            config.kernels,
        )  # fmt: skip
    )


def _folder_name(place: Place) -> str:
    """A name of its own for every checkpoint folder, setting and seed."""
    if place.folder is None:
        return FILES
    told = f"{place.folder.resolve()}|{place.setting}|{place.seed}"
    size = place.setting.block_size if place.setting else 0
    return f"{place.folder.name}_B{size}_{place.seed}_{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def _told(benchmark: Benchmark, place: Place) -> str:
    if place.folder is None:
        return f"{benchmark.title}"
    return f"{benchmark.title}: {place.checkpoint} ({place.folder}), {place.setting}, seed {place.seed}"


def _error(benchmark: Benchmark, place: Place, error: Exception) -> dict[str, Any]:
    return {
        "benchmark": benchmark.title,
        "checkpoint": str(place.folder or ""),
        "setting": str(place.setting or ""),
        "seed": place.seed,
        "error": f"{type(error).__name__}: {error}",
    }


def _checkpoints(folders: Sequence[Path]) -> list[dict[str, str]]:
    return [{"folder": str(folder), "weights": fingerprint(folder)} for folder in folders if folder.is_dir()]
