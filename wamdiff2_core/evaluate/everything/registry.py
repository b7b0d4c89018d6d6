"""The benchmarks of this package, in the order of the table. The world's own one joins where the command is made."""

from __future__ import annotations

from wamdiff2_core.evaluate.everything.benchmark import Benchmark


def benchmarks() -> tuple[Benchmark, ...]:
    """All of them. Imported here and not above: a benchmark may need libraries that another does not."""
    return ()
