"""What a benchmark is to `wamdiff2 evaluate all`: a name, what it needs, and figures of one checkpoint and setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wamdiff2_core.evaluate.decode_grid import Setting

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """One measurement. `options`: the benchmark's entry of the configuration; paths in it start where the command runs.

    out: a folder that only this checkpoint, setting and seed write to; rows found there are gone on with.
    checkpoint: a folder; None for a benchmark that does not decode. kernels: what decodes, see `pick.WORDS`.
    """

    options: Options
    out: Path
    checkpoint: Path | None = None
    setting: Setting = field(default_factory=Setting)
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    workers: int = 1
    tell: Callable[[str], None] = lambda text: None
    kernels: str = "auto"


@dataclass(frozen=True)
class Figure:
    """One number of one measurement. None: could not be measured, and `note` says why.

    count: samples behind it. main: a quality that plots show, against latency too; few of a benchmark.
    values: one per seed, from a benchmark that covers several seeds by itself; `value` is then their mean.
    """

    name: str
    value: float | None
    unit: str = ""
    more_is_better: bool = True
    count: int = 0
    main: bool = False
    note: str = ""
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What a measurement gives. data: which samples, with a fingerprint or split; version: of the benchmark's rules.

    failed: samples that could not be answered or scored; how the figures count them is the benchmark's to say, in
    `problems` too. latency_ms: median of one answer alone, None where answers were not timed one by one.
    files: official output files, for whoever wants to hand them in. kernels: what decoded; empty: nothing did.
    """

    figures: tuple[Figure, ...]
    data: str
    version: str
    failed: int = 0
    problems: tuple[str, ...] = ()
    latency_ms: float | None = None
    forwards: float | None = None
    files: tuple[str, ...] = ()
    kernels: str = ""


class Benchmark(Protocol):
    """A row of the table.

    name: its entry in the configuration, a word. title: for readers. decodes: it runs the checkpoint, once for each
    setting (False: it scores files made elsewhere, once). seeded: another seed gives other samples even where decoding
    draws nothing (routes of a world); else further seeds are measured only at a temperature above 0.
    own_world: its figures are of our own test world, and the table says so.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def decodes(self) -> bool: ...
    @property
    def seeded(self) -> bool: ...
    @property
    def own_world(self) -> bool: ...

    def needs(self, options: Options) -> list[str]:
        """What is absent, a line each; empty: it can run. ConfigError for options that it does not know."""
        ...

    def run(self, request: Request) -> Measured:
        """Measure. Wamdiff2Error where nothing could be measured: the table then holds that text, no number."""
        ...
