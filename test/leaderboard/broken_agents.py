"""Agents that the leaderboard must not fall over: WAMDIFF2_TEST_BREAK says where they break."""

from __future__ import annotations

import os
from typing import Any

from wamdiff2_ros.bench2drive_reference_agent import ReferenceAgent


def get_entry_point() -> str:
    return "BrokenAgent"


class BrokenAgent(ReferenceAgent):
    def setup(self, path_to_conf_file: str) -> None:
        super().setup(path_to_conf_file)
        if os.environ["WAMDIFF2_TEST_BREAK"] == "setup":
            raise RuntimeError("no weights")

    def sensors(self) -> list[dict[str, Any]]:
        made = super().sensors()
        return made + made[-1:] if os.environ["WAMDIFF2_TEST_BREAK"] == "sensors" else made
