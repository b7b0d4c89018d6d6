"""FlashInfer's kernel set on a GPU, in bfloat16: it answers as the plain decoder, ties apart; replays follow plans."""

from __future__ import annotations

import gc
import tempfile
from functools import lru_cache
from itertools import product
from pathlib import Path

import pytest
import torch
from test_engine_gpu import no_waiting, part_at_ties_only, restore, snapshot
from tiny_models import block_diffusion, config_dict, prompt, random_model, save

from wamdiff2_core import BlockDecoder, DecodingConfig, load_model
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.flashinfer_ops import ready
from wamdiff2_core.decode.engine.kernel_sets import why_not_triton
from wamdiff2_core.model.checkpoint import LoadedModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ready(), reason="FlashInfer cannot be used here, see its checks"),
    pytest.mark.timeout(900),  # the first run compiles
]

SMALL = {"max_length": 448, "max_answer": 64, "rows": (1, 4)}
HEADS = {
    "head_dim": 64, "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [12, 10, 10]},
}  # fmt: skip


@lru_cache(maxsize=4)
def model(prediction: str = "next", context: str = "causal") -> LoadedModel:
    config = {**config_dict(**HEADS), "block_diffusion": block_diffusion(prediction, context)}
    with tempfile.TemporaryDirectory() as folder:
        return load_model(save(Path(folder), config, random_model(config, 0)), device="cuda", dtype="bfloat16")


@lru_cache(maxsize=4)
def engine(prediction: str = "next", context: str = "causal") -> EngineDecoder:
    return EngineDecoder(model(prediction, context), EngineConfig(**SMALL), "flashinfer")


def poison(decoder: EngineDecoder) -> None:
    """NaN in all pages that nobody owns."""
    pool = decoder.engine.pool
    slots = (torch.tensor([0, *pool.free])[:, None] * pool.page_size + torch.arange(pool.page_size)).flatten().cuda()
    with torch.inference_mode():
        pool.keys[:, slots], pool.values[:, slots] = torch.nan, torch.nan


def test_what_lies_beside_its_kernels_is_tritons_where_it_can_run() -> None:
    expected = "torch" if why_not_triton(torch.device("cuda"), torch.bfloat16) else "triton"
    assert engine().kernels == "engine flashinfer" and engine().engine.kernels.moves.name == expected


@pytest.mark.parametrize(("prediction", "context"), [("next", "causal"), ("same", "block_causal")])
def test_it_agrees_with_the_plain_decoder_where_that_is_sure(prediction, context, record_property) -> None:
    """Lengths on and off the edges of pages and buckets; whatever nobody has written is NaN."""
    mine, theirs = engine(prediction, context), BlockDecoder(model(prediction, context), "plain")
    pairs = []
    for seed, size in product(range(20), (1, 4, 8, 16, 32)):
        config = DecodingConfig(size, size, "sequential", max_new_tokens=8)
        ids, pixels, grids = prompt((15, 16, 17, 63, 64, 65, 300)[seed % 7] + seed // 7, seed, images=seed % 3)
        poison(mine)
        pairs.append(tuple(one.generate(ids, pixels, grids, config=config) for one in (mine, theirs)))
    part_at_ties_only(pairs, record_property)


def test_batches_behind_a_prefix_agree_too(record_property) -> None:
    """Ragged rows whose full pages are shared and whose last one is copied."""
    mine, theirs, pairs = engine(), BlockDecoder(model(), "plain"), []
    for length, size in product((15, 16, 17, 37), (4, 32)):
        config = DecodingConfig(size, 4, "sequential", max_new_tokens=8)
        poison(mine)
        fronts = [one.prefill(*prompt(length, images=1), size) for one in (mine, theirs)]
        poison(mine)
        rests = [prompt(n, seed=n)[0] for n in (3, 18, 1)]
        got, want = (
            one.generate(rests, config=config, prefix=front) for one, front in zip((mine, theirs), fronts, strict=True)
        )
        pairs += zip(got, want, strict=True)
    part_at_ties_only(pairs, record_property)


@torch.inference_mode()
def test_a_replay_at_other_lengths_is_the_pass_itself() -> None:
    """From the same beginnings, planned for other pages than at capture; other lengths, other numbers."""
    decoder, outcomes = engine(), []
    for length, size in product((5, 40, 200), (1, 8)):
        decoder.generate(prompt(length)[0], config=DecodingConfig(size, 3, threshold=0.3, max_new_tokens=40))
        one = decoder.engine
        lane, buffers = one.lane(1, size), one.prompt(1, length, False)
        keys = one.call_passes(lane, buffers, False)
        lane.answers.code.zero_()
        lane.answers.start.zero_()
        pages = [list(range(one.row_pages, 0, -1))]
        one.clear_behind(pages[0], 0)
        lane.table.load(pages)
        one.plan(1, pages, one.passes.widths(lane, buffers))
        for name in ("first", "narrow", "wide", "wide"):
            held = snapshot(one, lane)
            one.graphs.eager(keys[name])
            eager = [tensor.clone() for tensor in held]
            restore(held)
            one.graphs.run(keys[name])
            for a, b in zip(eager, held, strict=True):
                assert torch.allclose(a.float().nan_to_num(), b.float().nan_to_num(), rtol=0.02, atol=0.02)
        outcomes.append(tuple(lane.answers.confidence[0, : 2 * size].tolist()))
    assert len(set(outcomes)) == len(outcomes)


@torch.inference_mode()
def test_no_pass_waits() -> None:
    decoder = engine()
    for size in (1, 8):
        decoder.generate(prompt(5)[0], config=DecodingConfig(size, 3, max_new_tokens=20))
        one = decoder.engine
        keys = one.call_passes(one.lane(1, size), one.prompt(1, 5, False), False)
        torch.cuda.synchronize()
        with no_waiting():
            for name in ("first", "narrow", "wide"):
                one.graphs.eager(keys[name])
                one.graphs.run(keys[name])


def test_thousands_of_replays_and_their_plans_keep_memory_flat() -> None:
    """Each call has other pages than the one before it, so each is planned anew."""
    decoder = engine()
    config = DecodingConfig(8, 8, "static", max_new_tokens=64)
    prompts = [prompt(length)[0] for length in (9, 60, 30)]
    want = [decoder.generate(ids, config=config) for ids in prompts]
    passes = sum(sum(one.steps_per_block) for one in want)
    gc.collect()
    torch.cuda.synchronize()
    before, graphs = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), len(decoder.engine.graphs)
    for _ in range(-(-3_000 // passes)):
        assert [decoder.generate(ids, config=config).tokens for ids in prompts] == [one.tokens for one in want]
    gc.collect()
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert len(decoder.engine.graphs) == graphs


def test_after_warming_up_nothing_is_captured_or_taken() -> None:
    decoder = EngineDecoder(model(), EngineConfig(**SMALL), "flashinfer")
    sizes = (1, 8, 32)
    decoder.engine.warm_up([CallShape(rows, size, 64) for rows, size in product((1, 4), sizes)])
    for rows in (1, 3):  # what embeds prompts takes its memory once, too
        decoder.generate([prompt(20)[0]] * rows, config=DecodingConfig(8, 4, max_new_tokens=40))
    torch.cuda.synchronize()
    before, graphs = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), len(decoder.engine.graphs)
    for size, rows, length in product(sizes, (1, 3), (5, 33, 60)):
        decoder.generate([prompt(length)[0]] * rows, config=DecodingConfig(size, 4, max_new_tokens=40))
    gc.collect()
    torch.cuda.synchronize()
    assert len(decoder.engine.graphs) == graphs
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
