"""A small disk for the recorder, that can be filled and freed: a tmpfs whose size is changed while it is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOM_MB = 1024  # free at the start, and after each time that it was full
LEFT_KB = 256


class Disk:
    """Use as a context manager. Where no tmpfs may be mounted, it is a plain folder, and `why_not` says why."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.why_not = ""

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not sys.platform.startswith("linux") or shutil.which("mount") is None:
            self.why_not = "no mount command here"
        elif os.geteuid() != 0:
            self.why_not = "mounting a tmpfs needs root"
        else:
            self.why_not = self._mount("-t", "tmpfs", "-o", f"size={ROOM_MB}m", "tmpfs", str(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        if not self.why_not:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)

    @property
    def mounted(self) -> bool:
        return not self.why_not

    def shrink(self) -> None:
        """Leave next to no room: the disk is full after a moment of recording. OSError if it cannot be resized."""
        self._leave(LEFT_KB)

    def grow(self) -> None:
        """Room again. OSError if it cannot be resized."""
        self._leave(ROOM_MB * 1024)

    def _leave(self, free_kb: int) -> None:
        # Between looking and resizing others may write more than is to be left, and less than is used is refused.
        problem = self._resize(free_kb)
        while problem and free_kb < ROOM_MB * 1024:
            free_kb *= 2
            problem = self._resize(free_kb)
        if problem:
            raise OSError(problem)

    def _resize(self, free_kb: int) -> str:
        """What stands in the way; empty if as much is free now."""
        size_kb = shutil.disk_usage(self.folder).used // 1024 + free_kb
        return self._mount("-o", f"remount,size={size_kb}k", str(self.folder))

    def _mount(self, *arguments: str) -> str:
        """What `mount` complains about; empty if it worked."""
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"mount {' '.join(arguments)}: {done.stderr.strip()}"
