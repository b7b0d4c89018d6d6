"""Passes captured as CUDA graphs. Without CUDA the same functions run as they are.

Life of a graph: `prepare` runs the pass a few times on a side stream, so that libraries allocate what they need, then
captures it; `run` replays it. A graph reads and writes the addresses that were there at its capture, for ever: a pass
may use tensors that live as long as the engine, and what it allocates itself inside. All graphs share one memory pool,
which is right because they run one after the other and nothing that one of them allocates is read after it has ended.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Hashable

import torch

from wamdiff2_core.errors import Wamdiff2Error

WARM_UP_RUNS = 2

log = logging.getLogger(__name__)


class CaptureError(Wamdiff2Error):
    """A pass could not be captured as a CUDA graph; nothing is left of the attempt."""


class GraphSet:
    """Graphs by key. Not for several threads at once; other threads may use CUDA meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._passes: dict[Hashable, Callable[[], None]] = {}
        self._pool: tuple[int, int] | None = None
        self._stream: torch.cuda.Stream | None = None

    def __len__(self) -> int:
        return len(self._passes)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._passes

    def prepare(self, key: Hashable, run: Callable[[], None]) -> None:
        """Make `run` ready under `key`, once. It runs here: whatever it reads must be such that nothing changes.

        Raises CaptureError, with the cause; the set is as it was before then.
        """
        if key in self._passes:
            return
        if self._cuda:
            self._graphs[key] = self._capture(key, run)
        self._passes[key] = run

    def drop(self, key: Hashable) -> None:
        """Forget a pass; its memory serves passes that are captured later."""
        self._passes.pop(key, None)
        self._graphs.pop(key, None)

    def run(self, key: Hashable) -> None:
        """Launch a pass that was prepared."""
        if self._cuda:
            self._graphs[key].replay()
        else:
            self._passes[key]()

    def eager(self, key: Hashable) -> None:
        """Run the pass behind a key as it is, for comparison with its graph."""
        self._passes[key]()

    def _capture(self, key: Hashable, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.device(self._device):
                graph = self._recorded(run, pool)
        except Exception as error:
            self._abandon(pool)
            cause = _first_cause(error)
            raise CaptureError(f"pass {key}: expected to be captured, got {type(cause).__name__}: {cause}") from error
        self._pool = pool
        log.info("captured pass %s", key)
        return graph

    def _recorded(self, run: Callable[[], None], pool: tuple[int, int]) -> torch.cuda.CUDAGraph:
        """Warm up and capture, on the stream of all captures."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_RUNS):
                run()
            self._stream.synchronize()
            # thread_local: what other threads do with CUDA meanwhile neither breaks the capture nor is refused.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph

    def _abandon(self, pool: tuple[int, int]) -> None:
        """Give back what a failed capture held."""
        # An invalid capture ends with an error, and PyTorch then leaves the allocator in the middle of it.
        try:
            torch._C._cuda_endAllocateToPool(self._device.index or 0, pool)
            torch._C._cuda_releasePool(self._device.index or 0, pool)
        except (AttributeError, RuntimeError) as error:
            log.debug("pool of a failed capture: %s", error)  # PyTorch has ended it itself
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def _first_cause(error: BaseException) -> BaseException:
    """What went wrong first. Frees the tensors that the frames of the errors hold."""
    traceback.clear_frames(error.__traceback__)
    while error.__context__ is not None:
        error = error.__context__
        traceback.clear_frames(error.__traceback__)
    return error
