"""Shared by the training tests: one micro checkpoint and one small set of shards a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from micro import build_micro
from shards import write_shard


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory) -> Path:
    return build_micro(tmp_path_factory.mktemp("micro") / "checkpoint")


@pytest.fixture(scope="session")
def shard_root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    write_shard(root, 1, 8)
    return root
