"""The fixtures that evaluation and commands share: see test/evaluate/made_up.py."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parents[1] / "evaluate"
sys.path[:0] = [str(HERE), str(HERE.parent / "train")]  # made_up.py, bags.py; micro.py and shards.py

from made_up import bag, micro, shards  # noqa: E402, F401
