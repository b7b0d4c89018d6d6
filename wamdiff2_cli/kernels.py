"""The option `--kernels` of the commands that make a driver, or run a node that does."""

from __future__ import annotations

from typing import Annotated

import typer

from wamdiff2_core.errors import ConfigError


def _known(word: str | None) -> str | None:
    """The word, if it is one; drivers and nodes know the same. ConfigError before anything is read or cleared."""
    from wamdiff2_ros.parameters import KERNELS

    if word is not None and word not in KERNELS:
        raise ConfigError(f"--kernels: expected one of {', '.join(KERNELS)}; got {word!r}")
    return word


_OTHERS = "lean, plain, engine, or the engine with one set: torch, torch_fp8, triton, triton_fp8, flashinfer"
_HELP = f"What decodes: auto (the engine with Triton's kernels where they run, else lean), {_OTHERS}"
Kernels = Annotated[str, typer.Option(help=_HELP, callback=_known)]
BatchKernels = Annotated[
    str, typer.Option(help=f"What decodes: auto (lean: batches here are long), {_OTHERS}", callback=_known)
]
ConfiguredKernels = Annotated[str | None, typer.Option(help=f"{_HELP}; default: as configured", callback=_known)]
NodeKernels = Annotated[str | None, typer.Option(help=f"{_HELP}; default: the parameter file's", callback=_known)]
