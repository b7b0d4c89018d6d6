"""Small bags of numbered strings, and what is in a bag as rosbags reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rosbags.highlevel import AnyReader

from wamdiff2_ros.bag_writer import BagWriter, Limits, typestore

STORE = typestore()
STRING = "std_msgs/msg/String"
TOPICS = ("/a", "/b")
START_NS = 1_700_000_000_000_000_000


def cdr(text: str) -> bytes:
    return bytes(STORE.serialize_cdr(STORE.types[STRING](data=text), STRING))


def write_numbers(
    path: Path, chunks: int = 4, per_chunk: int = 6, limits: Limits | None = None
) -> list[tuple[str, bytes]]:
    """A finished bag of so many chunks, alternating between two topics; returns (topic, CDR) in order."""
    bag, told = BagWriter(path, limits), []
    for topic in TOPICS:
        bag.add_topic(topic, STRING)
    for k in range(chunks * per_chunk):
        topic, data = TOPICS[k % 2], cdr(f"{k} " + "x" * (k % 7) * 11)
        bag.write(topic, START_NS + k * 10**7, data, sequence=k // 2 + 1)
        told.append((topic, data))
        if k % per_chunk == per_chunk - 1:
            bag.flush()
    bag.close()
    return told


def read(bag: Path) -> list[tuple[str, bytes]]:
    """(topic, CDR) as rosbags reads them, which is strict about metadata and index."""
    with AnyReader([bag], default_typestore=STORE) as reader:
        return [(connection.topic, bytes(data)) for connection, _, data in reader.messages()]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk in memory of so many bytes ("4m"); skips the test where it cannot be mounted."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
