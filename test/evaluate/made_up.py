"""A micro checkpoint with random weights, made-up shards and a made-up bag, for evaluation and commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from micro import build_micro

    return build_micro(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shards import write_shard

    root = tmp_path_factory.mktemp("shards")
    for number in range(2):
        write_shard(root, number, 3)
    return root


@pytest.fixture(scope="session")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bags import write_drive

    return write_drive(tmp_path_factory.mktemp("bag") / "bag")
