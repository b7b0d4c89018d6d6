"""A little work for several threads, the one that asks among them: handing over costs more than a small picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


def help_with(
    futures: Iterable[Future[Any]],
    alone: Sequence[Callable[[], Any]],
    kept: tuple[type[Exception], ...] = (),
) -> list[Future[Any]]:
    """The futures, all begun: what no thread had taken yet was done here, by the function of the same place.

    Errors of these kinds are kept for who asks for the result; others are raised at once.
    """
    begun = list(futures)
    for index in reversed(range(len(begun))):  # threads take them from the front
        if begun[index].cancel():
            begun[index] = _done(alone[index], kept)
    return begun


def mapped(pool: Executor, call: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
    """`call` on each row of the columns, as `map` does, by the pool and this thread."""
    rows = list(zip(*columns, strict=True))
    futures = [pool.submit(call, *row) for row in rows]
    return [future.result() for future in help_with(futures, [partial(call, *row) for row in rows])]


def _done(call: Callable[[], Any], kept: tuple[type[Exception], ...]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except kept as error:
        future.set_exception(error)
    return future
