"""A training step as one CUDA graph: drawing, forward, backward, clipping, optimiser and average in a single launch.

A small model's step is a thousand kernels of a few microseconds; launched one by one, the host is the limit. Everything
that changes from step to step (learning rate, phase, how full the ring is, random numbers) is read on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")
WARM_UP = 3


class CapturedStep(Generic[Result]):
    """body: does one step and returns tensors. The first WARM_UP calls run it as it is, the next one captures it.

    After capture the tensors of the result are always the same ones, overwritten by each call. generators: all random
    number generators that the body uses.
    """

    def __init__(self, body: Callable[[], Result], generators: Sequence[torch.Generator]) -> None:
        self._body, self._generators = body, generators
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()
        self._calls = 0
        self._result: Result | None = None

    def __call__(self) -> Result:
        self._calls += 1
        if self._graph is not None:
            self._graph.replay()
        elif self._calls <= WARM_UP:
            self._result = self._aside()
        else:
            self._capture()
        assert self._result is not None
        return self._result

    def _aside(self) -> Result:
        """On a stream of its own, as capture will be: gradients and optimiser state are allocated for it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._body()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._result = self._body()
        self._graph = graph
        graph.replay()
