"""Pictures are decoded while their group is waited for: the same pictures, one a camera, and errors are not lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ros
pytest.importorskip("rclpy")

from sensor_msgs.msg import CompressedImage  # noqa: E402

from wamdiff2_core.errors import DataError  # noqa: E402
from wamdiff2_ros import conversions as cv  # noqa: E402
from wamdiff2_ros.ahead import Ahead  # noqa: E402
from wamdiff2_ros.images import fill_compressed, message_to_rgb  # noqa: E402

CAMERA = "cam_front"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


class Counting:
    """An executor that counts what it is given."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.submitted = pool, 0

    def submit(self, *call: Any) -> Any:
        self.submitted += 1
        return self.pool.submit(*call)


def message(grey: int) -> CompressedImage:
    return fill_compressed(CompressedImage(), cv.header(1.0, CAMERA), np.full((8, 16, 3), grey, np.uint8))


def test_a_picture_that_was_begun_is_not_begun_twice(pool: ThreadPoolExecutor) -> None:
    counting = Counting(pool)
    ahead = Ahead(counting, lambda: True)  # type: ignore[arg-type]
    sent = message(90)
    ahead.arrived(CAMERA, sent)
    assert np.array_equal(ahead.picture(CAMERA, sent).result(30.0), message_to_rgb(sent))
    assert counting.submitted == 1


def test_another_message_gets_its_own_picture(pool: ThreadPoolExecutor) -> None:
    ahead = Ahead(pool, lambda: True)
    ahead.arrived(CAMERA, message(90))
    other = message(200)
    assert np.array_equal(ahead.picture(CAMERA, other).result(30.0), message_to_rgb(other))


def test_a_busy_worker_has_nothing_begun(pool: ThreadPoolExecutor) -> None:
    counting = Counting(pool)
    ahead = Ahead(counting, lambda: False)  # type: ignore[arg-type]
    ahead.arrived(CAMERA, message(90))
    assert counting.submitted == 0


def test_a_flood_begins_no_more_than_one_picture_at_a_time() -> None:
    never_done = SimpleNamespace(submit=lambda *call: Future())
    counting = Counting(never_done)  # type: ignore[arg-type]
    ahead = Ahead(counting, lambda: True)  # type: ignore[arg-type]
    for grey in range(20):
        ahead.arrived(CAMERA, message(grey))
    assert counting.submitted == 1


def test_a_broken_picture_is_told_when_it_is_asked_for(pool: ThreadPoolExecutor) -> None:
    ahead = Ahead(pool, lambda: True)
    broken = CompressedImage(format="jpeg", data=b"\xff\xd8\xff none")
    ahead.arrived(CAMERA, broken)
    with pytest.raises(DataError, match="JPEG"):
        ahead.picture(CAMERA, broken).result(30.0)


def test_closed_it_begins_nothing(pool: ThreadPoolExecutor) -> None:
    counting = Counting(pool)
    ahead = Ahead(counting, lambda: True)  # type: ignore[arg-type]
    ahead.close()
    ahead.arrived(CAMERA, message(90))
    assert counting.submitted == 0
