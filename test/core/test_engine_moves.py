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
from wamdiff2_core.decode.engine.moves_triton import TritonMoves
from wamdiff2_core.decode.engine.request import AllowedSets, RowRequest
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.triton_ops import Sizes, TritonOps

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
