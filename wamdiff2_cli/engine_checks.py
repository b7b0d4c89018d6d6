"""The captured engine's side of `wamdiff2 doctor`: which kernels it would take here, and why not others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wamdiff2_cli.findings import OK, OPTIONAL, Finding
from wamdiff2_core.errors import Wamdiff2Error

if TYPE_CHECKING:
    from wamdiff2_core.decode.pick import Choice

BUILD = "`wamdiff2 doctor --build` compiles them before the first frame does"
COMPARED = "only for comparing its kernels on NVIDIA GPUs"
LEAN = "nothing: the lean kernels run everywhere, and kernels engine runs the engine's plain PyTorch operations"


def choice(folder: Path | None, kernels: str = "auto") -> Choice:
    """What a driver with these kernels takes on this machine's best device for the checkpoint in `folder`, and why.

    ConfigError for kernels that cannot run there.
    """
    import torch

    from wamdiff2_core.decode.pick import decide
    from wamdiff2_core.kernel_choice import foresee

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if folder is None:  # what can run here is known without
        return decide(kernels, torch.device(device), torch.bfloat16, None)
    return foresee(folder, device, "bfloat16", kernels).choice


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
    yield from _flashinfer(folder)


def _engine(found: Choice) -> Finding:
    import torch

    if found.word == "lean":
        return Finding("engine", OPTIONAL, f"kernels lean ({found.reason})", f"{LEAN}; the demo needs no more")
    return Finding("engine", OK, f"kernels engine {found.word} ({found.reason}, {torch.cuda.get_device_name()})", BUILD)


def _flashinfer(folder: Path | None) -> Iterator[Finding]:
    """Whether kernels "flashinfer" can run, then a line for each thing that they need; one line until installed."""
    from wamdiff2_core.decode.engine.flashinfer_ops import here

    found = here()
    package = found[0]
    if not package.ok:
        yield Finding("flashinfer", OPTIONAL, f"kernels flashinfer: {package.found}", f"{package.do}: {COMPARED}")
        return
    try:
        choice(folder, "flashinfer")
    except Wamdiff2Error as error:
        yield Finding("flashinfer", OPTIONAL, str(error), COMPARED)
    else:
        yield Finding(
            "flashinfer", OK, "kernels flashinfer run where they are asked for; auto never takes them", COMPARED
        )
    for one in found:
        yield Finding(f"flashinfer {one.name}", OK if one.ok else OPTIONAL, one.found, one.do)
