"""The checkpoint that a command works with."""

from __future__ import annotations

from pathlib import Path

from wamdiff2_core.errors import CheckpointError


def checkpoint_folder(named: Path | None) -> Path:
    """The named folder, or the one that comes with the project. CheckpointError, with what to do, if it is none."""
    from wamdiff2_ros.graph import default_checkpoint

    folder = named or default_checkpoint()
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is no checkpoint folder (no config.json): name another with --checkpoint DIR")
    return folder
