"""Calls of the kernels beside a step's own layers, on tensors without contents: to compile them ahead.

For `triton_ahead`, whose stand-in for a driver must be installed by then. The arguments come from the very functions
that an engine calls, so that Triton finds the results again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from wamdiff2_core.decode.blocks import Vocabulary
from wamdiff2_core.decode.engine.config import EngineConfig
from wamdiff2_core.decode.engine.lane import Lane, LaneSize
from wamdiff2_core.decode.engine.moves_rows import looked_up
from wamdiff2_core.decode.engine.moves_triton import TritonMoves
from wamdiff2_core.decode.engine.state import Seen
from wamdiff2_core.decode.engine.triton_prompt import silu_gate, turned_heads
from wamdiff2_core.decode.engine.triton_vision import EPS, added_norm, normed

_META = torch.device("meta")


def compile_prompt(ffn: int | None, vision: Any = None, dtype: torch.dtype = torch.bfloat16) -> None:
    """What prompts of any length and images of any size run. ffn: of the text model; vision: its vision_config.

    None leaves that half out.
    """
    if ffn is not None:
        silu_gate(torch.empty(256, 2 * ffn, dtype=dtype, device=_META))
    if vision is not None:
        size = vision.hidden_size // vision.num_heads
        qkv = torch.empty(1, 64, 3, vision.num_heads, size, dtype=dtype, device=_META)
        cos, sin = (torch.empty(64, size, dtype=torch.float32, device=_META) for _ in range(2))
        turned_heads(qkv, cos, sin)
        patches = torch.empty(64, vision.hidden_size, dtype=dtype, device=_META)
        norm = torch.nn.LayerNorm(vision.hidden_size, eps=EPS, device=_META, dtype=dtype)
        normed(patches, norm)
        added_norm(patches, patches, norm, patches[0])


def compile_moves(
    config: EngineConfig, rows: int, block_size: int, vocabulary: Vocabulary, following: bool, by_block: bool,
    text: Any, pdl: bool = False,
) -> None:  # fmt: skip
    """How answers move in the lane of so many rows and blocks of that size: for first, narrow and wide passes.

    vocabulary: as `Vocabulary.of` makes it; following: "next" prediction; by_block: a block-causal model; text: the
    model's text_config; pdl: see TritonOps.
    """

    def empty(*lengths: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*lengths, dtype=dtype, device=_META)

    # A lane takes the mask's id for a filling, or reads an end's, which a tensor without contents does not tell.
    absent = replace(vocabulary, mask=vocabulary.mask or 0, eos=vocabulary.eos.to(_META))
    hidden, angles = text.hidden_size, empty(64, text.head_dim)
    size = LaneSize(rows, block_size, config.max_answer, -(-config.max_length // config.page_size), hidden)
    lane = Lane(size, absent, following, _META, torch.bfloat16)
    moves = TritonMoves(config.page_size, config.max_length, by_block, pdl)
    bits = empty(8, -(-vocabulary.size // 32), dtype=torch.int32)
    for wide in (False, True):
        taken = moves.take(lane, lane.table.pages, wide)
        looked_up(empty(64, hidden), angles, angles, taken.ids, taken.turn, pdl)
        moves.line_up(lane, empty(rows, taken.ids.shape[1], hidden), taken, bits, wide)
    tokens = torch.empty(rows, block_size, dtype=torch.int64, device=_META)
    certainty = torch.empty(rows, block_size, dtype=torch.float32, device=_META)
    moves.step(lane, Seen(tokens, certainty, certainty, torch.empty_like(tokens, dtype=torch.bool)))
