"""The life of a graph without a GPU: CUDA is stood in for, and what is asked of it is noted."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from wamdiff2_core.decode.engine.graphs import WARM_UP_RUNS, CaptureError, GraphSet


class Graph:
    """Notes what happens; a capture in which something was raised is invalid, as CUDA has it."""

    notes: list[object] = []
    invalid = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        Graph.notes.append(("begin", capture_error_mode))

    def capture_end(self) -> None:
        Graph.notes.append("end")
        if Graph.invalid:
            raise RuntimeError("the capture was invalidated")

    def replay(self) -> None:
        Graph.notes.append("replay")


@pytest.fixture
def graphs(monkeypatch) -> GraphSet:
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    stand_in = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda one: nullcontext(),
        "device": lambda one: nullcontext(),
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda device: None,
        "empty_cache": lambda: Graph.notes.append("empty cache"),
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda device, pool, name=name: Graph.notes.append(name), raising=False)
    Graph.notes, Graph.invalid = [], False
    return GraphSet(torch.device("cuda", 0))


def test_a_pass_is_warmed_up_captured_once_and_then_replayed(graphs) -> None:
    runs = []
    for _ in range(2):
        graphs.prepare("a", lambda: runs.append(len(Graph.notes)))
    assert runs == [0] * WARM_UP_RUNS + [1]
    graphs.run("a")
    graphs.run("a")
    assert Graph.notes == [("begin", "thread_local"), "end", "replay", "replay"]
    graphs.eager("a")
    assert len(runs) == WARM_UP_RUNS + 2 and len(graphs) == 1


@pytest.mark.parametrize("when", [0, WARM_UP_RUNS])
def test_a_failed_capture_names_its_cause_and_leaves_the_set_as_it_was(graphs, when: int) -> None:
    graphs.prepare("a", lambda: None)
    Graph.notes, runs = [], []

    def fails() -> None:
        runs.append(1)
        if len(runs) > when:
            Graph.invalid = True
            raise ValueError("it waits for the host")

    with pytest.raises(CaptureError, match=r"pass b: expected to be captured, got ValueError: it waits for the host"):
        graphs.prepare("b", fails)
    begun = [("begin", "thread_local"), "end"] if when else []
    assert Graph.notes == [*begun, "_cuda_endAllocateToPool", "_cuda_releasePool", "empty cache"]
    assert "b" not in graphs and len(graphs) == 1
    Graph.invalid = False
    graphs.prepare("b", lambda: None)
    assert "b" in graphs
