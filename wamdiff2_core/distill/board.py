"""Scalars for TensorBoard: `tensorboard --logdir OUT/tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wamdiff2_core.errors import ConfigError

MISSING = (
    "tensorboard: true needs the package tensorboard, which is not installed: "
    "pip install 'wamdiff2[train]', or set tensorboard=false"
)


class Board:
    """Events of one run in `folder`. Those of an earlier sitting behind `step` are hidden from the viewer."""

    def __init__(self, folder: Path, step: int) -> None:
        """ConfigError where the package is missing."""
        self._writer: Any = _writer_class()(str(folder), purge_step=step + 1, flush_secs=20)

    def add(self, group: str, values: Mapping[str, float], step: int) -> None:
        """One value for each tag `group/name`."""
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)

    def text(self, tag: str, text: str) -> None:
        self._writer.add_text(tag, text)

    def close(self) -> None:
        self._writer.close()


def require_tensorboard() -> None:
    """ConfigError where the package is missing: better before a run than at its first line."""
    _writer_class()


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ConfigError(MISSING) from error
    return SummaryWriter
