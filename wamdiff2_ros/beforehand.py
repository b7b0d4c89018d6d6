"""What the nodes of a run would fail with, said before results are cleared and processes are started.

A node says it too, but under its long line of parameters, after everything else has been started for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from wamdiff2_ros.graph import NodeSpec
from wamdiff2_ros.loading import dial_block_sizes
from wamdiff2_ros.parameters import Settings, changed
from wamdiff2_ros.settings_report import file_parameters

ALWAYS_RUN = ("auto", "lean", "plain")  # kernels that are never refused on a CPU


def check(nodes: Iterable[NodeSpec], parameter_file: Path | None) -> None:
    """Raises ConfigError, one line, for parameters of a driver node that it would refuse, and for kernels that cannot

    run its checkpoint on its device; CheckpointError for a device or a checkpoint that is none.
    """
    for spec in nodes:
        if spec.executable == "driver_node" and not spec.module:
            check_kernels(settings_of(spec, parameter_file))


def settings_of(spec: NodeSpec, parameter_file: Path | None) -> Settings:
    """The settings that a driver node of a run starts with: the file's, and its own, which win. ConfigError."""
    given = {} if parameter_file is None else file_parameters(parameter_file, f"/{spec.name}")
    given |= spec.parameters
    known = {one.name for one in fields(Settings)}
    return changed(Settings(), {name: _plain(value) for name, value in given.items() if name in known}, False)


def set_in(parameter_file: Path) -> Settings:
    """Cameras and checkpoint that a parameter file sets for the driver, else the defaults. ConfigError, one line."""
    given = file_parameters(parameter_file, "/wamdiff2")
    return changed(Settings(), {name: given[name] for name in ("cameras", "checkpoint") if name in given}, False)


def check_kernels(settings: Settings) -> None:
    """See `check`. Loads PyTorch only where there is something to ask: a GPU, or kernels that not every machine has."""
    if settings.device == "cpu" and settings.kernels in ALWAYS_RUN:
        return
    from wamdiff2_core.kernel_choice import foresee

    sizes = dial_block_sizes(settings)
    foreseen = foresee(settings.checkpoint, settings.device, settings.dtype, settings.kernels, sizes)
    foreseen.check_candidates(settings.candidates)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
