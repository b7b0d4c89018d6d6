"""Which kernels a measurement decodes with: settled before its first row, and a part of what tells rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wamdiff2_core.decode.pick import Choice, decide, named
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.kernel_choice import foresee
from wamdiff2_core.model.checkpoint import torch_device, torch_dtype


def settled(
    checkpoint: Path | str,
    devices: Sequence[str] = ("cpu",),
    dtype: str = "float32",
    kernels: str = "auto",
    block_sizes: Sequence[int] = (),
) -> Choice:
    """What the word `kernels` stands for on these devices. Drivers are then made with that choice's word.

    Raises ConfigError for kernels that cannot run there, and where devices would decode with different ones;
    CheckpointError for a device that is not there.
    """
    found = [_on(checkpoint, device, dtype, kernels, block_sizes) for device in devices]
    if len({one.word for one in found}) > 1:
        told = "; ".join(f"{device}: {one.kernels} ({one.reason})" for device, one in zip(devices, found, strict=True))
        raise ConfigError(f"kernels {kernels}: expected the same on all devices, got {told}")
    return found[0]


def key_part(kernels: str, device: str = "cpu") -> list[str]:
    """What a row's key says of them: nothing for lean on a CPU, which rows were made with before there was a choice.

    Elsewhere rows of before do not tell whether a driver took an engine by itself, so that they are nobody's.
    kernels: a word that is settled; "auto" counts as lean on a CPU.
    """
    return name_part(kernels if kernels == "auto" else named(kernels), device)


def name_part(name: str, device: str) -> list[str]:
    """`key_part` of kernels by the name that a decoder gives itself."""
    of_before = name in ("auto", "lean") and device.split(":")[0] == "cpu"
    return [] if of_before else [name]


def told(choice: Choice) -> dict[str, str]:
    """For the settings in a result file: what ran, as `Driver.kernels` says it, and why."""
    return {"kernels": choice.kernels, "kernels_reason": choice.reason}


def _on(checkpoint: Path | str, device: str, dtype: str, kernels: str, block_sizes: Sequence[int]) -> Choice:
    place = torch_device(device)
    at_once = decide(kernels, place, torch_dtype(dtype, place), None)  # often known without the checkpoint's files
    if not at_once.kernels.startswith("engine"):
        return at_once
    return foresee(checkpoint, device, dtype, kernels, block_sizes).choice
