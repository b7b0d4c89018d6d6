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
LEAN = "nothing: the lean kernels run everywhere, and kernels engine runs the engine's plain PyTorch operations"


def choice(folder: Path | None) -> Choice:
    """What a driver with kernels "auto" takes on this machine's best device for the checkpoint in `folder`, and why."""
    import torch

    from wamdiff2_core.decode.pick import decide
    from wamdiff2_core.kernel_choice import foresee

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if folder is None:  # what can run here is known without
        return decide("auto", torch.device(device), torch.bfloat16, None)
    return foresee(folder, device, "bfloat16").choice


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


def _engine(found: Choice) -> Finding:
    import torch

    if found.word == "lean":
        return Finding("engine", OPTIONAL, f"kernels lean ({found.reason})", f"{LEAN}; the demo needs no more")
    return Finding("engine", OK, f"kernels engine {found.word} ({found.reason}, {torch.cuda.get_device_name()})", BUILD)


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
