"""Work shared out to processes that each keep one device, results as they are ready."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any


def spread(
    work: Callable[[Any, str, Any], Any], told: Any, items: Sequence[Any], workers: int, devices: Sequence[str]
) -> Iterator[Any]:
    """work(told, device, item) for all items, in any order; in this process for one worker.

    Worker k always has device k modulo their number, so that it loads a checkpoint once.
    """
    if workers == 1 or len(items) < 2:
        for item in items:
            yield work(told, devices[0], item)
        return
    workers = min(workers, len(items))
    context = multiprocessing.get_context("spawn")
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(workers)]
    try:
        pending = [
            pools[k % workers].submit(work, told, devices[k % workers % len(devices)], item)
            for k, item in enumerate(items)
        ]
        for future in as_completed(pending):
            yield future.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
