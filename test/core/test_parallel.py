"""Work shared with a pool: the order of map, the errors of map, and it goes on where the pool never comes to it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from wamdiff2_core.parallel import mapped


def test_results_come_in_order_whoever_made_them() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert mapped(pool, pow, range(50), [2] * 50) == [k * k for k in range(50)]


def test_a_busy_pool_is_not_waited_for() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(go_on.wait, 60.0)
        threads = mapped(pool, lambda _: threading.current_thread(), range(5))
        go_on.set()
        assert busy.result(60.0)
    assert threads == [threading.current_thread()] * 5


def test_an_error_is_raised_to_who_asked() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
        mapped(pool, lambda k: 1 // k, [3, 2, 1, 0])


def test_columns_of_different_length_are_an_error() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="zip"):
        mapped(pool, pow, [1, 2], [3])
