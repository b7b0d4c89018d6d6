"""The small disk of the fault test: filled and freed while others write to it."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wamdiff2_ros.faults import disk as module
from wamdiff2_ros.faults.disk import LEFT_KB, ROOM_MB, Disk

MB = 2**20
WRITE = "import sys\nwith open(sys.argv[1], 'wb', 0) as out:\n    while True:\n        out.write(bytes(65536))"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk") as made:
        if not made.mounted:
            pytest.skip(made.why_not)
        yield made


def free_kb(disk: Disk) -> int:
    return shutil.disk_usage(disk.folder).free // 1024


def test_full_after_a_moment_and_room_again(disk: Disk) -> None:
    (disk.folder / "bag").write_bytes(bytes(5 * MB))
    assert free_kb(disk) > (ROOM_MB - 6) * 1024
    disk.shrink()
    assert free_kb(disk) <= LEFT_KB
    with pytest.raises(OSError) as caught:
        (disk.folder / "more").write_bytes(bytes(MB))
    assert caught.value.errno == errno.ENOSPC
    disk.grow()
    (disk.folder / "more").write_bytes(bytes(MB))


def test_one_who_writes_on_while_the_disk_shrinks(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = subprocess.run, []

    def slow(command: list[str], **options) -> subprocess.CompletedProcess:
        if "-o" in command and len(seen) < 3:  # more than is to be left comes between looking and resizing
            (disk.folder / f"bag{len(seen)}").write_bytes(bytes((LEFT_KB << len(seen)) * 1024 + 8192))
        done = real(command, **options)
        seen.append(done.returncode)
        return done

    monkeypatch.setattr(module.subprocess, "run", slow)
    disk.shrink()
    assert seen == [*[32] * 3, 0]
    assert free_kb(disk) <= LEFT_KB << 3


def test_a_busy_writer_meets_the_full_disk(disk: Disk) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(disk.folder / "bag")], stderr=subprocess.PIPE, text=True
    )
    try:
        disk.shrink()
        assert "No space left" in writer.communicate(timeout=60)[1]
    finally:
        writer.kill()


def test_a_disk_that_cannot_be_resized_says_so(disk: Disk) -> None:
    subprocess.run(["umount", str(disk.folder)], check=True)
    with pytest.raises(OSError, match="remount"):
        disk.shrink()
