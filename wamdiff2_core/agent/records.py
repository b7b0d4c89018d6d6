"""What an agent leaves behind for each route: metric_info.json for the comfort score, and a report of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wamdiff2_core.evaluate.summary import write_json


class RouteRecords:
    """Collects and writes. `folder` None: nothing is written (SAVE_PATH is not set)."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._metric: dict[str, Any] = {}

    def tick(self, info: dict[str, Any]) -> None:
        """Take in the leaderboard's `get_metric_info()` of a tick."""
        self._metric[str(len(self._metric))] = info

    def write(self, report: dict[str, Any]) -> None:
        """Both files, whole or not at all. A route that is driven again replaces its files."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "metric_info.json", self._metric)
        write_json(self.folder / "wamdiff2.json", report)


def record_folder(save_path: str | None, save_name: str) -> Path | None:
    """SAVE_PATH/<save name>, or None where either is missing."""
    return Path(save_path) / save_name if save_path and save_name else None
