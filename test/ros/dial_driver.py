"""A driver whose latency depends on the setting, and which can say whether stats told what it was asked with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness import FakeDriver

from wamdiff2.msg import Stats
from wamdiff2_core.decode.config import DecodingConfig
from wamdiff2_core.scene import Scene
from wamdiff2_ros.conversions import stamp_seconds


class DialDriver(FakeDriver):
    """`cost_ms` by setting, such as {"8x8": 300.0}; others answer at once. `load`: a factor on all of them."""

    def __init__(self, cost_ms: Mapping[str, float]) -> None:
        super().__init__()
        self.cost_ms = cost_ms
        self.load = 1.0
        self.asked: dict[float, DecodingConfig] = {}

    def answer(self, scene: Scene, tasks: Sequence[str]) -> Mapping[str, Any]:
        before = self.decoding
        time.sleep(self.cost_ms.get(f"{before.block_size}x{before.steps}", 0.0) * self.load * 1e-3)
        self.asked[scene.stamp_s] = self.decoding if self.decoding == before else DecodingConfig(block_size=999)
        return super().answer(scene, tasks)

    def agrees(self, stats: Iterable[Stats]) -> bool:
        """True if each message tells the setting that the answer of its stamp was made with (one task only)."""
        return all(self._told(message) for message in stats)

    def _told(self, message: Stats) -> bool:
        used = self.asked[stamp_seconds(message.header.stamp)]
        told = (message.block_size, message.steps, message.rule)
        return told == (used.block_size, used.steps, used.rule) and abs(message.threshold - used.threshold) < 1e-6
