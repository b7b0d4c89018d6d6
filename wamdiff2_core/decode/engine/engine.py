"""The engine: owns weights, pages, lanes and graphs of one model, and runs calls through them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.graphs import GraphSet
from wamdiff2_core.decode.engine.kernel_sets import KernelSet, kernel_set
from wamdiff2_core.decode.engine.lane import Lane, LaneSize
from wamdiff2_core.decode.engine.pages import PagePool, PageTable
from wamdiff2_core.decode.engine.prompt import PromptBuffers, bucket_of
from wamdiff2_core.decode.engine.request import AllowedSets
from wamdiff2_core.decode.engine.step import Passes
from wamdiff2_core.decode.engine.vision import VisionPasses
from wamdiff2_core.decode.engine.weights import pack
from wamdiff2_core.decode.segment import Segment, encode
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.checkpoint import LoadedModel
from wamdiff2_core.model.vision import ImageFeatures

Use = tuple[str, int, bool]  # a kind of pass: its name, its block size, whether tokens are drawn
Encode = Callable[[LoadedModel, Tensor | None, Tensor | None], ImageFeatures | None]


class Engine:
    """One call at a time; calls of several threads wait for one another."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig | None = None,
        kernels: str | KernelSet = "auto",
    ) -> None:
        """kernels: see `kernel_set`.

        Raises ConfigError for a model that the engine cannot run.
        """
        self.loaded, self.config = loaded, config or EngineConfig()
        self.device = loaded.device
        ahead = self.config.lookahead
        self.lookahead = int(self.device.type == "cuda") if ahead is None else ahead
        self.dtype = loaded.model.model.language_model.embed_tokens.weight.dtype
        if isinstance(kernels, str):
            kernels = kernel_set(kernels, loaded, self.config)
        self.kernels = kernels
        weights = pack(loaded, self.config.max_length, kernels.fp8)
        self.row_pages = self.config.row_pages
        self.pool = PagePool(
            layers=len(weights.layers),
            pages=1 + self.config.all_pages,
            page_size=self.config.page_size,
            shape=weights.shape,
            device=self.device,
            dtype=self.dtype,
        )
        self.vocabulary = Vocabulary.of(loaded)
        self.sets = AllowedSets(weights.vocab_size, self.device)
        self.passes = Passes(
            weights=weights,
            ops=self.kernels.ops,
            moves=self.kernels.moves,
            pool=self.pool,
            sets=self.sets,
            following=loaded.prediction == "next",
            by_block=loaded.context == "block_causal",
            whole_table=self.device.type == "cuda",
            choices=self.kernels.choices,
            planner=self.kernels.planner,
        )
        self.deepstack_layers = len(loaded.config.vision_config.deepstack_visual_indexes)
        self.graphs = GraphSet(self.device)
        self.vision = VisionPasses(loaded, self.graphs, kernels.image_layer)
        captured = self.config.capture_images
        captured = self.device.type == "cuda" if captured is None else captured
        self.encode: Encode = self.vision if captured else encode
        self.lock = threading.RLock()
        self._last = torch.cuda.Event() if self.device.type == "cuda" else None
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._prompts: dict[tuple[int, int, bool], PromptBuffers] = {}
        self._tables: dict[int, PageTable] = {}
        self._warm: set[tuple[int, int, bool, Use]] = set()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One caller at a time. On a GPU a caller's stream waits for what the caller before it has launched."""
        with self.lock:
            if self._last is not None:
                torch.cuda.current_stream(self.device).wait_event(self._last)
            try:
                yield
            finally:
                if self._last is not None:
                    self._last.record(torch.cuda.current_stream(self.device))

    def rows_of(self, count: int) -> int:
        """The batch size that a call of `count` rows runs with."""
        for rows in self.config.rows:
            if count <= rows:
                return rows
        raise ConfigError(f"rows: the engine was made for at most {self.config.rows[-1]} in one call, got {count}")

    def lane(self, count: int, block_size: int) -> Lane:
        """The lane of a call of `count` rows, made when it is first asked for."""
        if block_size not in self.config.block_sizes:
            raise ConfigError(f"block_size: the engine was made for {self.config.block_sizes}, got {block_size}")
        key = (self.rows_of(count), block_size)
        if key not in self._lanes:
            size = LaneSize(*key, self.config.max_answer, self.row_pages, self.passes.weights.hidden_size)
            self._lanes[key] = Lane(size, self.vocabulary, self.passes.following, self.device, self.dtype)
        return self._lanes[key]

    def prompt(self, count: int, length: int, images: bool, use: Use | None = None) -> PromptBuffers:
        """Buffers for prompts of `count` rows of up to `length` tokens: the smallest that are warmed up for this use

        (None: for any), if any fit, else those of the bucket.
        """
        rows = self.rows_of(count)
        warm = [width for r, width, i, u in self._warm if (r, i) == (rows, images) and use in (None, u)]
        fitting = [width for width in warm if width >= length]
        key = (rows, min(fitting, default=bucket_of(length, self.config.buckets)), images)
        if key not in self._prompts:
            weights = self.passes.weights
            layers = self.deepstack_layers if images else 0
            sizes = (weights.hidden_size, weights.shape.head_dim, layers)
            self._prompts[key] = PromptBuffers(key[0], key[1], *sizes, self.device, self.dtype)
        return self._prompts[key]

    def table(self, rows: int) -> PageTable:
        """The page table of prefills of so many rows."""
        if rows not in self._tables:
            self._tables[rows] = PageTable(rows, self.row_pages, self.device)
        return self._tables[rows]

    def call_passes(self, lane: Lane, prompt: PromptBuffers, drawn: bool) -> dict[str, Hashable]:
        """Keys of the passes of a call, by name; captured here if that has not been done yet.

        Must come before the call's own inputs: getting ready runs passes, on rows that are idle.
        """
        size = (lane.size.rows, lane.size.block_size, drawn)
        keys: dict[str, Hashable] = {
            "first": ("first", *size, prompt.width, prompt.deepstack is not None),
            "wide": ("wide", *size),
            "narrow": ("narrow", *size),
            "report": ("report", *size[:2]),
        }
        if any(key not in self.graphs for key in keys.values()):
            lane.request.clear()
            lane.answers.idle()
            lane.table.load([])
            prompt.clear()
            self.plan(lane.size.rows, [], self.passes.widths(lane, prompt))
            if drawn:
                lane.uniforms.send()
            self.graphs.prepare(keys["first"], partial(self.passes.first, lane, prompt, drawn))
            self.graphs.prepare(keys["wide"], partial(self.passes.wide, lane, drawn))
            self.graphs.prepare(keys["narrow"], partial(self.passes.narrow, lane, drawn))
            self.graphs.prepare(keys["report"], lane.write_report)
        return keys

    def prefill_pass(self, prompt: PromptBuffers, block_size: int) -> Hashable:
        """Key of the pass that fills a prefix; captured here if that has not been done yet."""
        block = self._filling(block_size)[1]
        key = ("prefill", prompt.rows, prompt.width, prompt.deepstack is not None, block)
        if key not in self.graphs:
            table = self.table(prompt.rows)
            table.load([])
            prompt.clear()
            self.plan(prompt.rows, [], (prompt.width,))
            self.graphs.prepare(key, partial(self.passes.prefill, table, prompt, block))
        return key

    def plan(self, rows: int, pages: Sequence[Sequence[int]], widths: Sequence[int]) -> None:
        """Before passes on these pages, see Planner.plan_passes. Most kernel sets need no plan: nothing is done."""
        if self.kernels.planner is not None:
            self.kernels.planner.plan_passes(rows, pages, widths)

    def clear_behind(self, pages: Sequence[int], written: int) -> None:
        """Before passes whose first writes the first `written` places of these pages, see KernelSet.planner."""
        if self.kernels.planner is not None:
            self.pool.clear_values(pages[written // self.pool.page_size :])

    @torch.inference_mode()
    def warm_up(self, shapes: Sequence[CallShape]) -> None:
        """Get ready for these calls: afterwards they neither allocate nor capture, whichever comes next.

        Shorter prompts are served, too. A call of another shape gets ready when it comes, which takes seconds on a GPU.
        """
        with self.turn():
            for shape in shapes:
                lane = self.lane(shape.rows, shape.block_size)
                use = ("first", shape.block_size, shape.drawn)
                self.call_passes(lane, self._warmed(shape.rows, shape.prompt, shape.images, use), shape.drawn)
                if shape.grids and self.encode is self.vision:
                    self.vision.prepare(shape.grids)
                if shape.prefix:
                    use = self._filling(shape.block_size)
                    self.prefill_pass(self._warmed(1, shape.prefix, shape.prefix_images, use), shape.block_size)

    def _warmed(self, count: int, length: int, images: bool, use: Use) -> PromptBuffers:
        bucket = bucket_of(length, self.config.buckets)
        self._warm.add((self.rows_of(count), bucket, images, use))
        return self.prompt(count, bucket, images, use)

    def _filling(self, block_size: int) -> Use:
        """The use of a pass that fills a prefix; the block size matters to block-causal context only."""
        return "prefill", block_size if self.passes.by_block else 1, False

    def prefill(self, segment: Segment, pages: Sequence[Sequence[int]], block_size: int) -> None:
        """Fill pages of R rows with the keys and values of a segment (R, Q) that begins a prompt."""
        rows, width = len(segment.embeds), segment.width
        prompt = self.prompt(rows, width, segment.deepstack is not None, self._filling(block_size))
        key = self.prefill_pass(prompt, block_size)
        for row in pages:
            self.clear_behind(row, width)
        self.table(prompt.rows).load(pages)
        self.plan(prompt.rows, pages, (prompt.width,))
        prompt.load(segment, [width] * rows, [0] * rows)
        self.graphs.run(key)
