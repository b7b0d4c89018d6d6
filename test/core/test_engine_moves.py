"""The Triton kernels that move answers, against the plain ones: interpreted on a processor, compiled on a GPU."""

from __future__ import annotations

from triton_cases import DEVICE  # isort: skip  (before anything imports Triton)

from dataclasses import replace

import pytest
import torch
from test_engine_parity import SCAFFOLDS, alike, plain
from tiny_models import EOS, MASK, loaded, prompt

from wamdiff2_core import DecodingConfig
from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.config import RULES
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.decoder import EngineDecoder
from wamdiff2_core.decode.engine.kernel_sets import KernelSet, plain_set
from wamdiff2_core.decode.engine.lane import Lane, LaneSize
from wamdiff2_core.decode.engine.moves import TorchMoves
from wamdiff2_core.decode.engine.moves_rows import lined_up, looked_up
from wamdiff2_core.decode.engine.moves_triton import TritonMoves
from wamdiff2_core.decode.engine.request import AllowedSets, RowRequest
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps
from wamdiff2_core.decode.engine.weights import TextWeights

PLACE = torch.device(DEVICE)
HERE = pytest.mark.skipif(DEVICE != "cpu", reason="with a GPU, test_engine_gpu.py runs whole answers")
PAGE, ROWS = 4, 5
STATE = ("tokens", "decided", "confidence", "start", "steps", "share", "log", "code", "passes", "moves", "ahead")
LIMITS = [64, 9, 33, 24]  # and an idle row


def lane(size: int, following: bool, output_mask: bool, config: DecodingConfig) -> Lane:
    """Four rows with scaffolds, limits and prompts of their own, at their beginning."""
    vocabulary = Vocabulary(MASK, torch.tensor([EOS, 3], device=PLACE), 96, output_mask)
    made = Lane(LaneSize(ROWS, size, 64, 30, 8), vocabulary, following, PLACE, torch.float32)
    rows = [RowRequest(limit, 4 * row, 5 + row, 7 + row, 0.0, SCAFFOLDS[row]) for row, limit in enumerate(LIMITS)]
    made.request.load(rows, config, AllowedSets(96, PLACE))
    made.table.load([[1 + 30 * row + at for at in range(30)] for row in range(len(rows))])
    made.answers.begin()
    return made


def rows_of(*lengths: int) -> torch.Tensor:
    """Different numbers everywhere."""
    return torch.randn(*lengths, generator=torch.Generator().manual_seed(sum(lengths))).to(PLACE)


@pytest.mark.parametrize(("size", "following"), [(1, True), (1, False), (3, True), (4, False), (8, True)])
@pytest.mark.parametrize("wide", [False, True])
def test_rows_that_a_pass_begins_and_ends_with(size: int, following: bool, wide: bool) -> None:
    """Embeddings and turns of what was taken; what is predicted from, its ids, and the carry of rows that went on."""
    made = lane(size, following, False, DecodingConfig(size, 2))
    table = TextWeights(rows_of(96, 24), (), rows_of(96, 24), rows_of(60, 6), rows_of(60, 6), None)
    bits = torch.arange(9 * 3, dtype=torch.int32, device=PLACE).view(9, 3)
    moves = [one(PAGE, 60, False) for one in (TorchMoves, TritonMoves)]
    sets = torch.arange(5 * size, device=PLACE).view(5, -1) % 9
    taken = replace(moves[0].take(made, made.table.pages, wide), sets=sets)
    if wide:
        taken = replace(taken, rolled=torch.tensor([True, False, True, False, True], device=PLACE))
    plain_rows, ours = (one.look_up(table, taken) for one in moves)
    for name in ("embeds", "cos", "sin", "slot", "limit"):
        assert torch.equal(getattr(plain_rows, name), getattr(ours, name)), name
    width = taken.ids.shape[1]
    assert ours.embeds.shape == (ROWS, width, 24)
    # Not only whole tensors: a first pass gives the end of a longer one.
    hidden = rows_of(ROWS, width + 2, 8)[:, 2:] if not wide else rows_of(ROWS, width, 8)
    carry = rows_of(ROWS, 8)
    seen = []
    for one in moves:
        made.carry.copy_(carry)
        seen.append((*one.line_up(made, hidden, taken, bits, wide), made.carry.clone()))
    for want, got in zip(*seen, strict=True):
        assert torch.equal(want, got)
    assert torch.equal(seen[0][2], carry) != (wide and following)
    if following:
        first = torch.where(taken.rolled[:, None], hidden[:, size - 1], carry) if wide else carry
        assert torch.equal(seen[1][0].view(ROWS, size, 8)[:, 0], first)


def test_rows_that_lie_otherwise_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        looked_up(rows_of(8, 4).T, rows_of(3, 4), rows_of(3, 4), *(torch.zeros(1, 1, dtype=torch.int64),) * 2, False)
    with pytest.raises(ValueError, match="expected 6 tokens a row, got 5"):
        sets = torch.zeros(2, 3, dtype=torch.int64)
        lined_up(rows_of(2, 8), rows_of(2, 5, 8), sets[:, 0] > 0, sets[:, :1].int(), sets, True, True, False)


@pytest.mark.parametrize(
    ("size", "following", "output_mask", "by_block"),
    [(1, True, False, False), (1, False, False, True), (3, False, True, True), (4, True, False, True),
     (4, True, True, False), (8, False, False, False)],
)  # fmt: skip
@pytest.mark.slow
def test_random_predictions(size: int, following: bool, output_mask: bool, by_block: bool) -> None:
    """Everything that is written, after each of many passes, with end and mask tokens, ties and broken numbers."""
    generator = torch.Generator().manual_seed(size)
    for number, rule in enumerate(RULES):
        config = DecodingConfig(size, (1, 2, 3, 9)[number], rule, 0.6)
        lanes = [lane(size, following, output_mask, config) for _ in range(2)]
        moves = [one(PAGE, 60, by_block) for one in (TorchMoves, TritonMoves)]
        for turn in range(10):
            wide = bool(torch.rand(1, generator=generator) < 0.6)
            seen = random_seen(size, generator, broken=turn > 3)
            taken = []
            for moving, one in zip(moves, lanes, strict=True):
                taken.append(moving.take(one, one.table.pages, wide))
                moving.step(one, seen)
            for name in ("ids", "turn", "slot", "limit", "rolled", "sets"):
                assert torch.equal(getattr(taken[0], name), getattr(taken[1], name)), (rule, turn, name)
            for name in STATE:
                assert torch.equal(*(getattr(one.answers, name) for one in lanes)), (rule, turn, name)
            assert torch.equal(*(one.flags.device for one in lanes))
        assert len(set(lanes[0].answers.code.tolist())) > 1 and lanes[0].answers.start.max() > 0


def random_seen(size: int, generator: torch.Generator, broken: bool) -> Seen:
    choices = torch.tensor([5, 6, 7, 8, 9, 10, EOS, 3, MASK])
    weights = torch.tensor([4.0] * 6 + [0.3, 0.3, 1.0])
    tokens = choices[torch.multinomial(weights, ROWS * size, True, generator=generator)].view(ROWS, size)
    certainty, probability = (torch.randint(1, 6, (ROWS, size), generator=generator) / 5.0 for _ in range(2))
    usable = torch.rand(ROWS, size, generator=generator) > 0.02 * broken
    certainty = certainty.masked_fill(~usable, torch.nan)
    return Seen(*(one.to(PLACE) for one in (tokens, probability, certainty, usable)))


@HERE
@pytest.mark.parametrize(
    ("prediction", "context", "size", "rule", "lookahead"),
    [
        ("next", "causal", 1, "dynamic", 1),
        ("next", "causal", 8, "ordered", 0),
        ("same", "block_causal", 4, "static", 1),
    ],
)
def test_whole_answers(prediction: str, context: str, size: int, rule: str, lookahead: int) -> None:
    """Through the engine."""
    model = loaded(prediction, context)
    config = EngineConfig(max_length=128, max_answer=64, lookahead=lookahead)
    moves = TritonMoves(config.page_size, config.max_length, context == "block_causal")
    decoder = EngineDecoder(model, config, replace(plain_set(model, config), moves=moves))
    settings = DecodingConfig(size, 3, rule, 0.3, max_new_tokens=20)
    ids = [prompt(n)[0] for n in (3, 17, 9)]
    pair = [
        one.generate(ids, config=settings, scaffold=list(SCAFFOLDS[:3]), max_new_tokens=[12, 20, 16])
        for one in (decoder, plain(prediction, context))
    ]
    for got, want in zip(*pair, strict=True):
        alike(got, want, batch=True)


@HERE
@pytest.mark.parametrize(("prediction", "context", "size"), [("next", "causal", 1), ("same", "block_causal", 4)])
@pytest.mark.slow
def test_all_kernels_together(prediction: str, context: str, size: int) -> None:
    """Products, attention, choice and moves in one engine, which must stand that their outputs are reused."""
    model = loaded(prediction, context)
    config = EngineConfig(max_length=64, max_answer=16, rows=(2,), block_sizes=(size,), page_size=4, lookahead=1)
    text = model.config.text_config
    sizes = Sizes(
        tokens=16, rows=2, places=64, hidden=text.hidden_size, heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads, head_dim=text.head_dim, ffn=text.intermediate_size, vocab=text.vocab_size,
    )  # fmt: skip
    ops = TritonOps(config.page_size, sizes, dtype=torch.float32, device=DEVICE)
    moves = TritonMoves(config.page_size, config.max_length, context == "block_causal")
    decoder = EngineDecoder(model, config, KernelSet("triton", ops, moves, choices=sizes.tokens))
    settings = DecodingConfig(size, 2, "dynamic", 0.3, max_new_tokens=8)
    rows = [prompt(3)[0], prompt(6)[0]]
    scaffold = [None, SCAFFOLDS[1]]
    got = decoder.generate(rows, config=settings, scaffold=scaffold, max_new_tokens=[2 * size, 3])
    want = plain(prediction, context).generate(rows, config=settings, scaffold=scaffold, max_new_tokens=[2 * size, 3])
    for a, b in zip(got, want, strict=True):
        alike(a, b, batch=True)
