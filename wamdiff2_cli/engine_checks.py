"""The captured engine's side of `wamdiff2 doctor`: which kernels it would take here, and why not others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wamdiff2_cli.findings import OK, OPTIONAL, Finding
from wamdiff2_core.errors import ConfigError, Wamdiff2Error

BUILD = "`wamdiff2 doctor --build` compiles them before the first frame does"
PLAIN = "nothing: the engine runs its plain PyTorch operations"


@dataclass(frozen=True)
class Choice:
    """name: the kernel set that the engine takes; "none": it refuses the checkpoint. reason: why."""

    name: str
    reason: str


def choice(folder: Path | None) -> Choice:
    """What EngineDecoder(..., kernels="auto") takes on this machine for the checkpoint in `folder`."""
    import torch

    from wamdiff2_core.decode.engine.kernel_sets import why_not_triton

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = why_not_triton(device, torch.bfloat16)
    if problem is None and folder is not None:
        try:
            _fits(folder)
        except ConfigError as error:
            return Choice("none", f"{folder}: {error}")
    if problem is None:
        return Choice("triton", f"{torch.cuda.get_device_name()}, package triton")
    return Choice("torch", f"triton: {problem}")


def engine_findings(folder: Path | None) -> Iterator[Finding]:
    """Which kernel set, then FlashInfer: never missing, since plain PyTorch runs everywhere."""
    if importlib.util.find_spec("torch") is None:
        yield Finding("engine", OPTIONAL, "torch is not installed", "run `make setup`")
        return
    try:
        found = choice(folder)
    except Wamdiff2Error as error:
        yield Finding("engine", OPTIONAL, str(error), "name a checkpoint folder with --checkpoint DIR")
    else:
        yield _engine(found)
    yield from _flashinfer()


def text_config(folder: Path) -> Any:
    """transformers' config of a checkpoint's text model, without its weights. Raises CheckpointError."""
    from wamdiff2_core.model.checkpoint import qwen3_vl_config, read_json

    return qwen3_vl_config(read_json(folder / "config.json"), folder).text_config


def _fits(folder: Path) -> None:
    """ConfigError if Triton's kernels are not made for the checkpoint's sizes."""
    from wamdiff2_core.decode.engine.config import EngineConfig
    from wamdiff2_core.decode.engine.kernel_sets import triton_sizes

    triton_sizes(text_config(folder), EngineConfig())


def _engine(found: Choice) -> Finding:
    told = f"kernels {found.name} ({found.reason})"
    if found.name == "torch":
        return Finding("engine", OPTIONAL, told, f"{PLAIN}; the demo needs no more")
    if found.name == "none":
        return Finding("engine", OPTIONAL, told, 'take kernels="torch" for this checkpoint')
    return Finding("engine", OK, told, BUILD)


def _flashinfer() -> Iterator[Finding]:
    """A line for each thing that FlashInfer needs, once it is installed; one line until then."""
    from wamdiff2_core.decode.engine.flashinfer_ops import here

    found = here()
    package = found[0]
    if not package.ok:
        do = f"{package.do}: only for comparing its kernels on NVIDIA GPUs"
        yield Finding("flashinfer", OPTIONAL, package.found, do)
        return
    for one in found:
        yield Finding(f"flashinfer {one.name}", OK if one.ok else OPTIONAL, one.found, one.do)
