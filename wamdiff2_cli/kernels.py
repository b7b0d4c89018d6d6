"""The option `--kernels` of the commands that make a driver, or run a node that does."""

from __future__ import annotations

from typing import Annotated

import typer

_WORDS = "auto (the engine with Triton's kernels where they run, else lean), lean, plain, engine, torch, triton, ..."
Kernels = Annotated[str, typer.Option(help=f"What decodes: {_WORDS}")]
NodeKernels = Annotated[str | None, typer.Option(help=f"What decodes: {_WORDS}; default: the parameter file's")]
