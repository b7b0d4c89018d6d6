"""What moves on the device, against the rules of `blocks.py` and `accept.py`; and that nothing there waits for it."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, MASK, loaded, prompt
from torch.utils._python_dispatch import TorchDispatchMode

from wamdiff2_core import BlockDecoder, DecodingConfig
from wamdiff2_core.decode.accept import accept
from wamdiff2_core.decode.blocks import Prediction, Vocabulary, apply_step, block_ranks, open_block, scaffold_block
from wamdiff2_core.decode.config import RULES
from wamdiff2_core.decode.engine.config import CallShape, EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.request import AllowedSets, Request, RowRequest
from wamdiff2_core.decode.engine.rules import keep
from wamdiff2_core.decode.engine.schedule import schedule
from wamdiff2_core.decode.engine.state import Answers, Code, Seen
from wamdiff2_core.decode.scaffold import Scaffold
from wamdiff2_core.errors import ConfigError

CPU = torch.device("cpu")
VOCABULARY = Vocabulary(MASK, torch.tensor([EOS, 3]), 96, output_mask=False)


class Unwaiting(TorchDispatchMode):
    """Refuses every operation whose result the host must know before it can go on."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        boolean = [one for one in args if isinstance(one, (list, tuple))]
        indexed = "aten.index" in name and any(
            isinstance(t, torch.Tensor) and t.dtype == torch.bool for part in boolean for t in part
        )
        if indexed or any(waiting in name for waiting in self.WAITING):
            raise AssertionError(f"{name} waits for the device")
        self.calls += 1
        return func(*args, **(kwargs or {}))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES), st.integers(1, 9), st.booleans())
def test_rules_keep_what_the_plain_ones_keep(seed: int, rule: str, width: int, last: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = 5
    certainty = torch.randint(0, 6, (rows, width), generator=generator) / 5.0  # with ties
    masked = torch.rand(rows, width, generator=generator) < 0.6
    rank = torch.randint(-1, 3, (rows, 1), generator=generator) * torch.ones(1, width, dtype=torch.int64)
    rank = torch.where(rank < 0, -1, torch.randint(0, 3, (rows, width), generator=generator))
    share = torch.randint(1, width + 1, (rows,), generator=generator)
    config = DecodingConfig(rule=rule, threshold=0.6)
    want = accept(config, certainty, masked, share, last, rank)
    which = torch.full((rows,), RULES.index(rule))
    got = keep(certainty, masked, which, torch.full((rows,), 0.6), share, rank, torch.full((rows,), last))
    assert torch.equal(got, want)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES), st.sampled_from((1, 2, 4, 8)), st.booleans())
def test_a_block_moves_as_the_plain_one_does(seed: int, rule: str, size: int, output_mask: bool) -> None:
    """Random predictions, end and mask tokens among them, three rows of which the last ends in the block."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = Vocabulary(MASK, VOCABULARY.eos, 96, output_mask)
    config = DecodingConfig(size, 3, rule, 0.5)
    scaffolds = [None, Scaffold(((4, 5), (9,), None, (EOS,)), (1, 0, 0, 0)), Scaffold(((7,),))]
    limits = [64, 64, 3]
    plain_given, _ = scaffold_block(scaffolds, 0, size, vocabulary)
    needed = torch.arange(size) < torch.tensor(limits)[:, None]
    plain = open_block(plain_given, needed, vocabulary, config, block_ranks(scaffolds, 0, size, CPU))
    answers = started(vocabulary, config, scaffolds, limits)
    for _ in range(4):
        assert torch.equal(answers.block, plain.tokens)
        assert torch.equal(answers.masked(), plain.masked)
        assert torch.equal(answers.confidence[:, :size], plain.confidence)
        assert torch.equal(answers.steps, plain.steps)
        if not plain.masked.any():
            break
        tokens = torch.tensor([5, 6, EOS, 3, MASK])[torch.randint(0, 5, (3, size), generator=generator)]
        certainty = torch.randint(1, 6, (3, size), generator=generator) / 5.0
        usable = torch.ones(3, dtype=torch.bool)
        apply_step(plain, Prediction(tokens, certainty, certainty, usable), vocabulary, config)
        answers.apply(Seen(tokens, certainty, certainty, usable[:, None].expand(3, size)))


def started(vocabulary, config, scaffolds, limits) -> Answers:
    request = Request(len(limits), 64, config.block_size, CPU)
    rows = [RowRequest(limit, 0, 5, 5, 0.0, one) for limit, one in zip(limits, scaffolds, strict=True)]
    request.load(rows, config, AllowedSets(96, CPU))
    answers = Answers(request, vocabulary, following=False)
    answers.begin()
    return answers


def seen_of(tokens: list[list[int]], certainty: float = 0.99) -> Seen:
    ids = torch.tensor(tokens)
    sure = torch.full(ids.shape, certainty)
    return Seen(ids, sure, sure, torch.ones_like(ids, dtype=torch.bool))


def test_what_is_done_does_not_move() -> None:
    """Complete, truncated, invalid and idle rows stay as they are, whatever passes still run."""
    answers = started(VOCABULARY, DecodingConfig(4, 4), [None] * 4, [8, 4, 8, 8])
    answers.request._staged.device[3, 3 * answers.places] = 0  # the fourth row is idle
    answers.begin()
    seen = seen_of([[5, EOS, 6, 6], [5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8]])
    seen.usable[2, 1] = False
    answers.apply(seen)
    assert answers.code.tolist() == [Code.COMPLETE, Code.TRUNCATED, Code.INVALID, Code.IDLE]
    names = ("tokens", "decided", "confidence", "start", "steps", "log", "share", "code", "passes", "moves")
    before = {name: getattr(answers, name).clone() for name in names}
    for _ in range(3):
        answers.roll()
        answers.apply(seen_of([[9] * 4] * 4))
    for name, value in before.items():
        assert torch.equal(getattr(answers, name), value), name
    assert answers.log[:, 0].tolist() == [1, 1, 1, 0] and answers.passes.tolist() == [1, 1, 1, 0]


def test_rows_go_on_alone() -> None:
    answers = started(VOCABULARY, DecodingConfig(2, 4, "sequential"), [None, Scaffold((None, (9,)))], [6, 6])
    answers.apply(seen_of([[5, 6], [7, 8]]))
    assert answers.masked().tolist() == [[False, True], [False, False]]
    assert answers.roll().tolist() == [False, True]
    assert answers.start.tolist() == [0, 2]
    answers.apply(seen_of([[5, 6], [7, 8]]))
    assert answers.tokens[:, :4].tolist() == [[5, 6, MASK, MASK], [7, 9, 7, MASK]]
    assert answers.log[:, :2].tolist() == [[2, 0], [1, 1]]


def test_nan_at_places_that_are_not_asked_for() -> None:
    """With "next" prediction a lone first position is read from the clean token before it."""
    for following, want in ((True, Code.RUNNING), (False, Code.INVALID)):
        answers = started(VOCABULARY, DecodingConfig(3, 9, "dynamic"), [Scaffold((None, (5,), (6,)))], [6])
        answers.following = following
        seen = seen_of([[7, 7, 7]])
        seen.usable[0, 2] = False
        answers.apply(seen)
        assert answers.code.tolist() == [want]


def test_sets_of_allowed_tokens() -> None:
    sets = AllowedSets(96, CPU, count=4)
    a, b, c = Scaffold((None, (0, 31, 32), (95,))), Scaffold(((1,), (0, 31, 32))), Scaffold(((63, 64),))
    for scaffold in (a, b):
        sets.make_room([scaffold])
        assert allowed(sets, scaffold) == [None if ids is None else set(ids) for ids in scaffold.allowed]
    sets.make_room([c, None])  # full: the others give way
    assert allowed(sets, c) == [{63, 64}]
    with pytest.raises(Exception, match="at most 3"):
        sets.make_room([Scaffold(((1,), (2,), (3,), (4,)))])
    with pytest.raises(Exception, match="vocabulary of 96"):
        AllowedSets(96, CPU).table_of(Scaffold(((96,),)))


def allowed(sets: AllowedSets, scaffold: Scaffold) -> list[set[int] | None]:
    found: list[set[int] | None] = []
    for row in sets.table_of(scaffold)[2].tolist():
        ids = {id_ for id_ in range(96) if int(sets.bits[row, id_ // 32]) >> (id_ % 32) & 1}
        found.append(None if len(ids) == 96 else ids)
    return found


@pytest.mark.parametrize("rule", ["static", "sequential", "ordered"])
def test_counted_schedules_are_right(rule: str) -> None:
    """A pass is wide exactly when a row waits, as the rows themselves would say."""
    ranked = Scaffold(tuple((4, 5) if place % 3 else (6,) for place in range(16)), (1, 0, 2, 2) * 4)
    ending = Scaffold((*((7,),) * 4, (4, 5), (8,), (9,), (4, 5), (4, 5), (EOS,)), (0, 1) * 5)
    free = ranked if rule == "ordered" else None
    for size, steps in product((2, 4, 8), (1, 2, 3, 8)):
        config, limits, narrow = DecodingConfig(size, steps, rule), [16, 11], 0
        answers = started(VOCABULARY, config, [free, ending], limits)
        answers.apply(seen_of([[5] * size] * 2))
        for kind in schedule(config, [free, ending], limits, VOCABULARY.eos.tolist(), guess=True):
            waiting = bool((answers.running & ~answers.masked().any(1)).any())
            if not bool(answers.running.any()):
                assert kind is None  # nothing is left that could be counted
                break
            assert kind == ("wide" if waiting else "narrow")
            narrow += kind == "narrow"
            if kind == "wide":
                answers.roll()
            answers.apply(seen_of([[5] * size] * 2))
        assert steps == 1 or size < 8 or narrow


def test_what_cannot_be_counted_is_wide_or_asked_for() -> None:
    shorter = Scaffold(((4, 5),) * 6, (0,) * 6)
    for rule, scaffold in (("dynamic", shorter), ("ordered", shorter), ("ordered", None)):
        for guess, want in ((True, "wide"), (False, None)):
            kinds = schedule(DecodingConfig(4, 4, rule), [scaffold], [8], [EOS], guess)
            assert [next(kinds) for _ in range(5)] == [want] * 5
    counted = schedule(DecodingConfig(4, 4, "ordered"), [shorter], [6], [EOS], True)
    assert [next(counted) for _ in range(3)] == ["wide", None, None]


def engine(prediction: str, context: str) -> EngineDecoder:
    return EngineDecoder(loaded(prediction, context), EngineConfig(max_length=96, max_answer=32, rows=(1, 2)))


@pytest.mark.parametrize(("prediction", "context"), product(("next", "same"), ("causal", "block_causal")))
@pytest.mark.parametrize("drawn", [False, True])
@torch.inference_mode()
def test_no_pass_waits_for_the_device(prediction: str, context: str, drawn: bool) -> None:
    """Each pass on rows in the middle of an answer."""
    decoder = engine(prediction, context)
    for block_size in (1, 4):
        rows = [prompt(5)[0], prompt(7)[0]]
        config = DecodingConfig(block_size, 3, "ordered", max_new_tokens=32, temperature=float(drawn), seed=1)
        decoder.generate(rows, config=config)
        one = decoder.engine
        lane = one.lane(2, block_size)
        requests = [RowRequest(32, 0, len(row), len(row), float(drawn)) for row in rows]
        lane.request.load(requests, config, one.sets)
        buffers = one.prompt(2, 7, False)
        buffers._staged.device[0] = torch.tensor([5, 7])
        keys = one.call_passes(lane, buffers, drawn)
        with Unwaiting() as mode:
            for name in ("first", "narrow", "wide", "wide", "narrow"):
                one.graphs.run(keys[name])
            assert mode.calls > 100
        assert lane.answers.moves.max() >= 3


def test_a_pass_that_waits_would_be_seen() -> None:
    with Unwaiting(), pytest.raises(AssertionError, match="waits"):
        bool(torch.ones(1).any())
    with Unwaiting(), pytest.raises(AssertionError, match="waits"):
        torch.ones(3)[torch.tensor([True, False, True])]


def test_a_call_takes_the_buffers_that_its_own_kind_was_warmed_up_with() -> None:
    """A smaller bucket that another block size, a prefix or a draw got ready does not lead to a pass of its own."""
    decoder = engine("next", "causal")
    shapes = [CallShape(1, 4, 32), CallShape(1, 8, 64), CallShape(1, 8, 16, prefix=128), CallShape(2, 8, 16)]
    decoder.engine.warm_up([*shapes, CallShape(2, 8, 64, drawn=True)])
    passes = len(decoder.engine.graphs)
    for size, count in ((8, 30), (4, 30), (8, 10)):
        decoder.generate(prompt(count)[0], config=DecodingConfig(size, 2, max_new_tokens=8))
    prefix = decoder.prefill(prompt(30, images=1)[0], *prompt(30, images=1)[1:])
    decoder.generate(prompt(9)[0], config=DecodingConfig(8, 2, max_new_tokens=8), prefix=prefix)
    decoder.generate([prompt(9)[0]] * 2, config=DecodingConfig(8, 2, max_new_tokens=8, temperature=1.0, seed=0))
    assert len(decoder.engine.graphs) == passes


def test_the_pool_has_the_pages_that_were_asked_for() -> None:
    assert EngineConfig(rows=(1, 4), max_length=64, prefixes=2).all_pages == 6 * 4
    assert EngineConfig(rows=(1, 64), max_length=64, pages=30).all_pages == 30
    with pytest.raises(ConfigError, match="pages: expected at least the 4 of one row, got 3"):
        EngineConfig(max_length=64, pages=3)


def test_nothing_grows_after_warming_up() -> None:
    """Addresses and sizes of all tensors that the engine holds, and the passes it has, over different calls."""
    decoder = engine("next", "causal")
    shapes = [CallShape(rows, size, 32, images) for rows, size, images in product((1, 2), (1, 4, 8), (False, True))]
    decoder.engine.warm_up([*shapes, CallShape(1, 4, 32, prefix=64), CallShape(2, 8, 32, drawn=True)])
    before, passes = storage(decoder.engine), len(decoder.engine.graphs)
    assert len(before) > 40
    prefix = decoder.prefill(*prompt(40, images=1))
    for size, rows, images in product((1, 4, 8), (1, 2), (0, 2)):
        config = DecodingConfig(size, 3, max_new_tokens=9 + size)
        ids, pixels, grids = prompt(11, images=images)
        if images:
            pixels, grids = torch.cat([pixels] * rows), torch.cat([grids] * rows)
        decoder.generate([ids] * rows, pixels, grids, config=config)
        decoder.generate([prompt(size + 1)[0]] * rows, config=config, prefix=prefix)
    decoder.generate([prompt(3)[0]] * 2, config=DecodingConfig(8, 2, max_new_tokens=8, temperature=1.0, seed=0))
    assert storage(decoder.engine) == before and len(decoder.engine.graphs) == passes
    config = DecodingConfig(8, max_new_tokens=32)
    want = BlockDecoder(decoder.loaded, "plain").generate(prompt(3)[0], config=config)
    assert decoder.generate(prompt(3)[0], config=config).tokens == want.tokens


def storage(root) -> set[tuple[int, int]]:
    """(address, bytes) of every tensor that hangs on an object of the engine."""
    found: set[tuple[int, int]] = set()
    seen: set[int] = set()
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.add((one.untyped_storage().data_ptr(), one.untyped_storage().nbytes()))
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one
        elif type(one).__module__.startswith("wamdiff2_core.decode") and hasattr(one, "__dict__"):
            todo += vars(one).values()
    return found
