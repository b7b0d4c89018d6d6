"""The option `--kernels` of the commands that make a driver, or run a node that does."""

from __future__ import annotations

from typing import Annotated

import typer

from wamdiff2_core.errors import ConfigError


def _known(word: str | None) -> str | None:
    """The word, if nodes know it; a driver checks its own. ConfigError before a result is cleared for a node's sake."""
    from wamdiff2_ros.parameters import KERNELS

    if word is not None and word not in KERNELS:
        raise ConfigError(f"--kernels: expected one of {', '.join(KERNELS)}; got {word!r}")
    return word


_WORDS = "auto (the engine with Triton's kernels where they run, else lean), lean, plain, engine, torch, triton, ..."
Kernels = Annotated[str, typer.Option(help=f"What decodes: {_WORDS}")]
NodeKernels = Annotated[
    str | None, typer.Option(help=f"What decodes: {_WORDS}; default: the parameter file's", callback=_known)
]
