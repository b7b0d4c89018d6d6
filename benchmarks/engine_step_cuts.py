"""Cuts that engine_step_tune.py tries for the kernels of a step, the tables that hold them, and entries to paste.

A config names a cut for each of KINDS: a Flow, or None for the kernel without weights ahead (gated, heads, out, down),
a Chunks (attend), a Tiles (choose).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias

from wamdiff2_core.decode.engine.triton_table import (
    ATTEND,
    BUCKETS,
    FLOW,
    HOPPER_SHARED,
    MOST_SPLITS,
    TABLE,
    Chunks,
    Flow,
    Key,
    Tiles,
    bucket_of,
    chunks_of,
    flow_of,
    tiles_of,
)

Cut: TypeAlias = Flow | Chunks | Tiles | None
Config: TypeAlias = dict[str, Cut]

PRODUCTS = ("gated", "heads", "out", "down")
KINDS = ("gated", "heads", "attend", "out", "down", "choose")
"""Those whose cuts cost a step most come first."""
PAGE, PREFIX, PLACES = 16, 1024, 1280
"""Places of a page, those in front of the step's tokens, those that a row has room for."""
SHAPES = ("2b", "4b", "8b")
_ROOMS = (200 * 1024, 150 * 1024, 108 * 1024)  # for stages: one program a processor, the like with less, two programs


@dataclass(frozen=True)
class Model:
    """Widths of a text model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @classmethod
    def of(cls, shape: str) -> Model:
        """Qwen3-VL's, as its public configurations give them."""
        from benchmarks.real_shapes import TEXT  # takes seconds: not for the processes that compile

        four = {"hidden": 2560, "mlp": 9728, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab_size": 151_936}
        text = ({"4b": four} | TEXT)[shape]
        return cls(
            text["hidden"], text["heads"], text["kv_heads"], text["head_dim"], text["mlp"], text["vocab_size"]
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One step to tune for: `width` tokens of each of `rows` rows, with weights of so many bits."""

    model: Model
    bits: int
    rows: int
    width: int

    def __post_init__(self) -> None:
        if self.bits not in (16, 8):
            raise ValueError(f"bits: expected 16 or 8, got {self.bits}")
        if self.rows < 1 or self.width < 1 or self.tokens > BUCKETS[-1]:
            raise ValueError(f"steps: expected 1 to {BUCKETS[-1]} tokens, got {self.rows}x{self.width}")

    @property
    def tokens(self) -> int:
        return self.rows * self.width

    @property
    def weight_bytes(self) -> int:
        return self.bits // 8

    @property
    def group(self) -> int:
        return self.model.heads // self.model.kv_heads

    def __str__(self) -> str:
        return f"{self.bits} bits {self.rows}x{self.width}"

    def product(self, kind: str) -> Key:
        """The key of a product in FLOW or TABLE."""
        model = self.model
        inner = model.heads * model.head_dim
        name, outputs, inputs = {
            "gated": ("gated", model.ffn, model.hidden),
            "heads": ("heads", inner + 2 * model.kv_heads * model.head_dim, model.hidden),
            "out": ("add", model.hidden, inner),
            "down": ("add", model.hidden, model.ffn),
            "choose": ("choose", model.vocab, model.hidden),
        }[kind]
        return name, outputs, inputs, bucket_of(self.tokens), self.weight_bytes

    def place(self, kind: str) -> tuple[dict, tuple]:
        """The table that holds the cut of a kernel, and its key there."""
        if kind == "attend":
            return ATTEND, (self.rows, self.group * self.width, self.model.kv_heads, self.model.head_dim)
        return TABLE if kind == "choose" else FLOW, self.product(kind)


def current(case: Case) -> Config:
    """What the tables and their rules say."""
    model = case.model
    attend = chunks_of(case.rows, case.width, case.group, model.kv_heads, PLACES, model.head_dim, True)
    found: Config = {kind: flow_of(*case.product(kind)) for kind in PRODUCTS}
    return found | {"attend": attend, "choose": tiles_of(*case.product("choose"))}


def without_flow(case: Case) -> Config:
    """The same with the kernels that read no weights ahead."""
    return current(case) | dict.fromkeys(PRODUCTS)


@contextmanager
def apply(case: Case, config: Config) -> Iterator[None]:
    """The tables with these cuts in them, as they were behind it."""
    tables: tuple[dict, ...] = (TABLE, ATTEND, FLOW)
    before = [dict(table) for table in tables]
    try:
        for kind, cut in config.items():
            table, key = case.place(kind)
            table[key] = cut
        yield
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)


def candidates(case: Case, kind: str) -> list[Cut]:
    """Cuts worth a try, without repeats, those first that promise most."""
    found: Iterator[Cut]
    if kind == "attend":
        found = _chunks(case)
    else:
        found = _tiles(case) if kind == "choose" else _flows(case, kind)
    return list(dict.fromkeys(found))


def _flows(case: Case, kind: str) -> Iterator[Cut]:
    """A program a processor or somewhat more, three turns at least, stages up to what fits."""
    yield None
    _, outputs, inputs, bucket, weight_bytes = case.product(kind)
    pairs = 2 if kind == "gated" else 1
    heights = {"gated": (64, 48), "out": (64, 32, 16)}.get(kind, (64,))
    for rows in (rows for rows in heights if outputs % rows == 0):
        for block_k in (128, 64) if weight_bytes == 2 else (128, 256):
            for splits in (1, 2, 3, 4, 6):
                turns, rest = divmod(inputs, splits * block_k)
                if rest or turns < 3 or not 90 <= outputs // rows * splits <= 200:
                    continue
                # 64 rows are kept in shared memory whatever is used of them.
                turn = block_k * (64 * pairs * weight_bytes + 2 * bucket)
                for room in _ROOMS:
                    stages = min(turns + 1, room // turn, 12)
                    if stages >= 3:
                        for early in (True, False):
                            yield Flow(block_k, splits, stages, early, 8 if bucket == 128 else 4, rows)


def _chunks(case: Case) -> Iterator[Cut]:
    """Around the block of queries that there is now; splits that scratch is made for."""
    model, queries = case.model, case.group * case.width
    now = chunks_of(case.rows, case.width, case.group, model.kv_heads, PLACES, model.head_dim, True).block_m
    blocks = [(now, warps) for warps in ((4, 8) if now >= 64 else (4, 2))] + [(now // 2, 4)] * (now >= 64)
    for block_k, stages, fused, ahead in (
        (64, 2, False, True), (64, 2, False, False), (32, 2, False, True), (64, 3, False, False),
        (128, 2, False, True), (128, 2, False, False), (16, 2, False, True), (32, 2, True, True),
    ):  # fmt: skip
        for splits in (16, 8, 4) if case.rows == 1 else (8, 4, 2):
            for block_m, warps in blocks:
                programs = -(-queries // block_m) * case.rows * model.kv_heads * splits
                shared = 2 * model.head_dim * (block_m + 2 * stages * block_k)
                if splits > MOST_SPLITS or block_m % case.group or fused and splits * block_m > 512:
                    continue
                if 32 <= programs <= 528 and shared <= HOPPER_SHARED:
                    yield Chunks(block_m, block_k, splits, warps, stages, fused, ahead)


def _tiles(case: Case) -> Iterator[Cut]:
    _, outputs, inputs, bucket, weight_bytes = case.product("choose")
    for block_n, block_k, warps, stages in (
        (128, 128, 4, 4), (128, 128, 4, 5), (128, 64, 4, 5), (128, 64, 4, 8), (128, 128, 8, 4), (128, 64, 8, 3),
        (64, 128, 4, 6), (64, 256, 4, 4), (128, 256, 4, 3), (128, 256, 8, 4), (128, 64, 4, 3),
    ):  # fmt: skip
        fits = block_k * (block_n * weight_bytes + 2 * bucket) * stages <= _ROOMS[0]
        if fits and outputs % block_n == 0 and inputs % block_k == 0:
            yield Tiles(block_n, block_k, 1, warps, stages, True)
            if bucket == 128:  # as many tokens as outputs: either may lie along the tensor cores' tall side
                yield Tiles(block_n, block_k, 1, warps, stages)


def text_of(cut: Cut) -> str:
    """As the tables are written: fields in their order, those at their default left out."""
    if cut is None:
        return "None"
    told, skipped = [], False
    for one in fields(cut):
        value: Any = getattr(cut, one.name)
        if one.default is not MISSING and value == one.default:
            skipped = True
        else:
            told.append(f"{one.name}={value!r}" if skipped else repr(value))
    return f"{type(cut).__name__}({', '.join(told)})"


def entries(case: Case, config: Config, was: Config) -> dict[str, list[str]]:
    """Lines to paste into each table, with what is new marked."""
    found: dict[str, list[str]] = {"FLOW": [], "TABLE": [], "ATTEND": []}
    for kind in config:
        table, key = case.place(kind)
        name = "ATTEND" if table is ATTEND else "TABLE" if table is TABLE else "FLOW"
        told = ", ".join(json.dumps(part) for part in key)
        note = "" if config[kind] == was[kind] else f"  # was {text_of(was[kind])}"
        found[name].append(f"    ({told}): {text_of(config[kind])},{note}")
    return found
