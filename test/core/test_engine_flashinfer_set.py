"""The engine on FlashInfer's kernel set, with the library's stand-in: answers are those of the plain decoder, in fp32.

Attention that was not planned for the pages at hand raises (`install_strict`), and what nobody owns in the pool is NaN
before every call: what no call has written must not show.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import product

import pytest
import torch
from flashinfer_stand_in import Tape, install, install_strict
from test_engine_golden import TINY, scene
from test_engine_parity import CASES, KINDS, SCAFFOLDS, SMALL, alike, plain
from tiny_models import loaded, prompt

from wamdiff2_core import DecodingConfig
from wamdiff2_core.decode import pick
from wamdiff2_core.decode.config import RULES
from wamdiff2_core.decode.engine import flashinfer_ops, kernel_sets
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.flashinfer_ops import FlashInferOps
from wamdiff2_core.decode.engine.pages import PagePool
from wamdiff2_core.driver import Driver

_MADE: dict[tuple, EngineDecoder] = {}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """The stand-in, strict, on tiny fp32 models: heads and types are the library's own business elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        install_strict(patch)
        patch.setattr(kernel_sets, "why_not_flashinfer", lambda *_: None)
        patch.setattr(flashinfer_ops, "check_sizes", lambda *_: None)
        _MADE.clear()
        yield
        _MADE.clear()


def engine(prediction="next", context="causal", lookahead=0, captured=False) -> EngineDecoder:
    """One engine per model; captured: passes run once under a tape, and all calls replay it."""
    key = (prediction, context, lookahead, captured)
    if key not in _MADE:
        config = EngineConfig(**SMALL, lookahead=lookahead)
        decoder = EngineDecoder(loaded(prediction, context), config, "flashinfer")
        # As on a GPU: passes read the whole page table, whatever a call uses of it.
        object.__setattr__(decoder.engine.passes, "whole_table", True)
        if captured:
            tape_graphs(decoder)
        _MADE[key] = decoder
    decoder = _MADE[key]
    poison(decoder)
    return decoder


def poison(decoder: EngineDecoder) -> None:
    """NaN in all pages that nobody owns, page 0 among them."""
    pool = decoder.engine.pool
    for page in (0, *pool.free):
        pool.values[:, page * pool.page_size : (page + 1) * pool.page_size] = torch.nan
        pool.keys[:, page * pool.page_size : (page + 1) * pool.page_size] = torch.nan


def tape_graphs(decoder: EngineDecoder) -> None:
    """Passes become tapes, as they become graphs on a GPU: prepared once, replayed for every call."""
    graphs, tapes = decoder.engine.graphs, {}
    prepare = graphs.prepare

    def prepared(key: Hashable, run: Callable[[], None]) -> None:
        if key not in graphs:
            prepare(key, run)
            tapes[key] = Tape.of(run)

    graphs.prepare = prepared  # type: ignore[method-assign]
    graphs.run = lambda key: tapes[key].replay()  # type: ignore[method-assign]


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_every_rule_as_the_passes_are_and_as_they_were_captured(
    prediction: str, context: str, block_size: int, lookahead: int
) -> None:
    settings = product(RULES, ((1, 0.9), (3, 0.0), (4, 0.25)))
    for number, (rule, (steps, threshold)) in enumerate(settings):
        config = DecodingConfig(block_size, steps, rule, threshold, max_new_tokens=block_size + 5)
        ids = prompt(9) if number % 2 else prompt(5, images=2)
        want = plain(prediction, context).generate(*ids, config=config)
        mine = engine(prediction, context, lookahead, captured=number % 3 > 0)
        alike(mine.generate(*ids, config=config), want)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("captured", [False, True])
def test_lengths_on_and_off_the_edges_of_pages_and_buckets(prediction: str, context: str, captured: bool) -> None:
    """Captured on idle rows, replayed at every length: each has other pages than the one before."""
    for length, block_size in product((300, 1, 15, 16, 17, 63, 64, 65, 2), (1, 8)):
        config = DecodingConfig(block_size, 3, threshold=0.3, max_new_tokens=12)
        ids, _, _ = prompt(length)
        want = plain(prediction, context).generate(ids, config=config)
        alike(engine(prediction, context, captured=captured).generate(ids, config=config), want)


@pytest.mark.parametrize(("prediction", "context", "block_size", "lookahead"), CASES)
def test_batches_of_rows_with_lengths_and_speeds_of_their_own(
    prediction: str, context: str, block_size: int, lookahead: int
) -> None:
    """1 to 4 rows with different prompts, images, limits, scaffolds; places of one lie between those of another."""
    prompts = [prompt(7, images=1), prompt(33), prompt(2, images=2), prompt(16)]
    limits = [5, 40, 24, 33]
    for count, rule in zip((1, 2, 3, 4), RULES, strict=True):
        chosen = prompts[:count]
        pixels = torch.cat([one for _, one, _ in chosen if one is not None])
        grids = torch.cat([one for _, _, one in chosen if one is not None])
        arguments = {
            "config": DecodingConfig(block_size, 3, rule, 0.3, max_new_tokens=64),
            "scaffold": [SCAFFOLDS[(row + count) % 4] for row in range(count)],
            "max_new_tokens": limits[:count],
        }
        mine = engine(prediction, context, lookahead, captured=count != 3)
        got, want = (
            one.generate([ids for ids, _, _ in chosen], pixels, grids, **arguments)
            for one in (mine, plain(prediction, context))
        )
        for a, b in zip(got, want, strict=True) if count > 1 else [(got, want)]:
            alike(a, b, batch=count > 1)


@pytest.mark.parametrize(("prediction", "context"), KINDS)
@pytest.mark.parametrize("captured", [False, True])
def test_shared_prefixes(prediction: str, context: str, captured: bool) -> None:
    """Full pages are shared, the last one is copied: what lies behind its end in there must be numbers, too."""
    theirs = plain(prediction, context)
    ids, pixels, grids = prompt(70, images=1)
    for cut, block_size in ((4, 8), (15, 4), (16, 8), (17, 4), (31, 8), (64, 4)):
        front, behind = ((pixels, grids), (None, None)) if cut > 34 else ((None, None), (pixels, grids))
        mine = engine(prediction, context, captured=captured)
        prefixes = [one.prefill(ids[:cut], *front, block_size=block_size) for one in (mine, theirs)]
        config = DecodingConfig(block_size, 3, threshold=0.3, max_new_tokens=20)
        for _ in range(2):
            poison(mine)
            got, want = (
                one.generate(ids[cut:], *behind, config=config, prefix=prefix)
                for one, prefix in zip((mine, theirs), prefixes, strict=True)
            )
            alike(got, want)
            poison(mine)
            endings = [prompt(n, seed=n)[0] for n in (1, 4, 17)]
            got, want = (
                one.generate(endings, config=config, prefix=prefix)
                for one, prefix in zip((mine, theirs), prefixes, strict=True)
            )
            for a, b in zip(got, want, strict=True):
                alike(a, b, batch=True)


def test_a_prefix_of_several_rows() -> None:
    mine, theirs = engine(captured=True), plain()
    ids, pixels, grids = prompt(21, images=1)
    pictures = torch.cat((pixels, pixels.flip(0))), grids.repeat(2, 1)
    fronts = [one.prefill([ids, ids], *pictures) for one in (mine, theirs)]
    poison(mine)
    endings = [prompt(n, seed=n)[0] for n in (3, 9, 20)]
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=20)
    got, want = (
        one.generate(endings, config=config, prefix=front.rows([1, 0, 1]))
        for one, front in zip((mine, theirs), fronts, strict=True)
    )
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)


@pytest.mark.parametrize("captured", [False, True])
def test_drawn_tokens(captured: bool) -> None:
    config = DecodingConfig(8, 4, "dynamic", 0.3, max_new_tokens=40, temperature=0.8, seed=7)
    rows = [prompt(7)[0], prompt(12)[0], prompt(3)[0]]
    got, want = (
        one.generate(rows, config=config, temperatures=[0.8, 0.0, 1.5]) for one in (engine(captured=captured), plain())
    )
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)


@pytest.mark.parametrize(("block_size", "tasks"), [(8, ("plan", "ask")), (32, ("plan", "detect", "ask"))])
def test_a_driver_of_the_trained_checkpoint(monkeypatch, block_size: int, tasks: tuple[str, ...]) -> None:
    """Asked for by its word: tasks as one batch behind the pictures, each alone, drawn candidates."""
    monkeypatch.setattr(pick, "why_not_flashinfer", lambda *_: None)
    told = []
    for word in ("flashinfer", "lean"):
        driver = Driver.from_checkpoint(TINY, decoding=DecodingConfig(block_size, 4, "ordered"), kernels=word)
        driver.max_new_tokens |= {"detect": 2 * block_size, "ask": block_size}
        if word == "flashinfer":
            assert driver.kernels == "engine flashinfer" and isinstance(driver.decoder, EngineDecoder)
            poison(driver.decoder)
        answers = driver.answer(scene(block_size), tasks)
        drawn = driver.plan_candidates(scene(1), 3, temperature=1.0, seed=3)
        told.append([one.text for one in (*answers.values(), driver.plan(scene(2)), *drawn)])
    assert told[0] == told[1] and len(set(told[0])) > len(tasks)


def test_a_row_that_breaks_leaves_the_others_and_those_that_come_after_alone() -> None:
    """A row of NaN writes NaN into its pages; whoever gets them next must not see it."""
    mine, theirs = engine(captured=True), plain()
    config = DecodingConfig(8, 3, threshold=0.3, max_new_tokens=20)
    ids, pixels, grids = prompt(20, images=1)
    other = prompt(33)[0]
    broken = torch.full_like(pixels, torch.nan)
    got, want = (one.generate([ids, other], broken, grids, config=config) for one in (mine, theirs))
    assert got[0].status == "invalid" and got[1].tokens == want[1].tokens
    for length in (5, 20, 60):
        ids = prompt(length)[0]
        alike(mine.generate(ids, config=config), theirs.generate(ids, config=config))


def test_a_pass_without_its_plan_is_caught_here(monkeypatch) -> None:
    """The stand-in is strict: with this the tests above would not pass without their plans."""
    decoder, config = engine(), DecodingConfig(8, 3, max_new_tokens=12)
    decoder.generate(prompt(40)[0], config=config)
    monkeypatch.setattr(decoder.engine, "plan", lambda *_: None)
    with pytest.raises(AssertionError, match="planned"):
        decoder.generate(prompt(60)[0], config=config)
    with pytest.raises(AssertionError, match="planned"):
        decoder.prefill(prompt(40)[0])


def test_what_was_warmed_up_makes_nothing_afterwards(monkeypatch) -> None:
    decoder = EngineDecoder(loaded(), EngineConfig(**SMALL), "flashinfer")
    made: list[tuple] = []
    make = FlashInferOps._make
    monkeypatch.setattr(FlashInferOps, "_make", lambda self, *form: (made.append(form), make(self, *form))[1])
    sizes = (1, 8, 32)
    decoder.engine.warm_up([CallShape(rows, size, 64, prefix=64) for rows, size in product((1, 4), sizes)])
    assert {(rows, width) for rows, width, _ in made} == {
        *product((1, 4), (1, 8, 16, 32, 64)), *((rows, 64 + size) for rows in (1, 4) for size in (0, 8, 32)),
    }  # fmt: skip
    count = len(made)
    for size, rows in product(sizes, (1, 3)):
        prefix = decoder.prefill(prompt(20)[0])
        decoder.generate([prompt(9)[0]] * rows, config=DecodingConfig(size, 4, max_new_tokens=40), prefix=prefix)
    assert len(made) == count


def test_other_sets_pay_nothing_for_it(monkeypatch) -> None:
    monkeypatch.setattr(PagePool, "clear_values", lambda *_: pytest.fail("cleared"))
    decoder = EngineDecoder(loaded(), EngineConfig(**SMALL), "torch")
    assert decoder.engine.kernels.planner is None and decoder.engine.passes.planner is None
    decoder.generate(prompt(9)[0], config=DecodingConfig(8, 3, max_new_tokens=12), prefix=decoder.prefill(prompt(5)[0]))


def test_cleared_pages_are_those_that_were_named() -> None:
    pool = engine().engine.pool
    pool.values.fill_(1.0)
    pool.clear_values([7, 3, 4, 9, 5])
    zero = (pool.values == 0).all(dim=(0, 2, 3)).view(-1, pool.page_size)
    assert zero.all(1).nonzero().flatten().tolist() == [3, 4, 5, 7, 9] and zero.any(1).sum() == 5
    pool.clear_values([])
    assert (pool.values == 0).sum() == 5 * pool.page_size * pool.values[:, 0].numel()
