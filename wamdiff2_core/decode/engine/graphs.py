"""Passes captured as CUDA graphs. Without CUDA the same functions run as they are.

Life of a graph: `prepare` runs the pass a few times on a side stream, so that libraries allocate what they need, then
captures it; `run` replays it. A graph reads and writes the addresses that were there at its capture, for ever: a pass
may use tensors that live as long as the engine, and what it allocates itself inside. All graphs share one memory pool,
which is right because they run one after the other and nothing that one of them allocates is read after it has ended.
"""

from __future__ import annotations

import gc
import logging
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
        try:
            with torch.cuda.device(self._device):
                self._warm_up(run)
                if self._pool is None:
                    self._pool = torch.cuda.graph_pool_handle()
                graph = torch.cuda.CUDAGraph()
                # thread_local: what other threads do with CUDA meanwhile neither breaks the capture nor is refused.
                with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    run()
        except Exception as error:
            graph = None
            self._release()
            raise CaptureError(f"pass {key}: expected to be captured, got {type(error).__name__}: {error}") from error
        log.info("captured pass %s", key)
        return graph

    def _warm_up(self, run: Callable[[], None]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(side)

    def _release(self) -> None:
        """Give back what a failed capture held. Its pool goes too when no graph uses it."""
        if not self._graphs:
            self._pool = None
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
