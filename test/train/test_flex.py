"""The mask of packed streams as a FlexAttention rule and as a dense mask: who sees whom, outputs and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from wamdiff2_core.distill.attention import attend, block_mask, dense, prepared, reach, stream_mask
from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.masks import CONTEXTS, Labels, Part

SAMPLES = ((23, 30), (9, 8), (40, 33), (5, 1))  # prompt and answer tokens


def packed(block: int, fill: int = 32, length: int = 512, streams: int = 2) -> tuple[Labels, torch.Tensor]:
    """Labels and document numbers (S, length): samples with their rooms filled up, the second stream starts later."""
    rows = []
    for stream in range(streams):
        tokens = []
        for number, (prompt, answer) in enumerate(SAMPLES[stream:]):
            room, live = -(-answer // fill) * fill, min(-(-answer // block) * block, -(-answer // fill) * fill)
            tokens += [(int(Part.PROMPT), place, number) for place in range(prompt)]
            for part in (Part.CLEAN, Part.NOISY):
                tokens += [(int(part if place < live else Part.PAD), place, number) for place in range(room)]
        assert len(tokens) <= length
        rows.append(tokens + [(int(Part.PAD), 0, -1)] * (length - len(tokens)))
    part, order, document = torch.tensor(rows).unbind(2)
    return Labels(part, order // block, order), document


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("block", [1, 4, 8, 32])
def test_the_rule_in_numbers_is_the_rule_in_words(context, block):
    labels, document = packed(block)
    expected = stream_mask(labels, document, context)
    blocks = stream_mask(labels, document, context, "flex")
    assert torch.equal(dense(blocks), expected)
    assert expected.any(2).all()  # nobody sees nothing
    assert not expected[:, :, 0][document != 0].any()  # no other sample sees the first token


@pytest.mark.parametrize("tile", [16, 128])
def test_tiles_hold_what_the_rule_says(tile):
    labels, document = packed(8, length=520)  # not a whole number of tiles
    mask = block_mask(reach(labels, document, "causal"), tile)
    expected = F.pad(stream_mask(labels, document, "causal"), (0, -520 % tile))
    some, all_seen = (_tiled(F.pad(expected, (0, 0, 0, -520 % tile), value=there), tile) for there in (False, True))
    some, all_seen = some.any(3), all_seen.all(3)  # rows behind the last query do not matter
    listed = mask.to_dense()[:, 0].bool()
    assert torch.equal(listed, some)
    whole = torch.zeros_like(some)
    for stream in range(2):
        for row in range(some.shape[1]):
            count = mask.full_kv_num_blocks[stream, 0, row]
            whole[stream, row, mask.full_kv_indices[stream, 0, row, :count].long()] = True
    assert torch.equal(whole, all_seen)
    assert some.float().mean() < 0.6


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("block", [1, 4, 8, 32])
@pytest.mark.parametrize("heads", [(4, 2), (2, 2)])
def test_flex_equals_dense(context, block, heads):
    labels, document = packed(block)
    q, k, v = _inputs(heads, labels.part.shape)
    mask = stream_mask(labels, document, context, "flex")
    wide = prepared(stream_mask(labels, document, context), torch.float32)
    with torch.no_grad():
        out = flex_attention(q, k, v, block_mask=mask, scale=0.3, enable_gqa=heads[0] != heads[1])
        torch.testing.assert_close(out, attend(q, k, v, wide, 0.3), atol=2e-6, rtol=1e-5)
    real = (labels.part != Part.PAD)[:, None, :, None]
    found = _gradients(q, k, v, prepared(mask, torch.float32), real)
    for mine, theirs in zip(found, _gradients(q, k, v, wide, real), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)
        assert mine.abs().max() > 1e-3


def test_padding_gets_no_gradient_from_others():
    labels, document = packed(4)
    q, k, v = _inputs((2, 1), labels.part.shape)
    real = (labels.part != Part.PAD)[:, None, :, None]
    _, key, value = _gradients(q, k, v, prepared(stream_mask(labels, document, "causal"), torch.float32), real)
    assert not key.masked_select(~real).any() and not value.masked_select(~real).any()


def test_wrong_settings():
    labels, document = packed(4)
    with pytest.raises(ConfigError, match="context"):
        reach(labels, document, "full")
    with pytest.raises(ConfigError, match="at most 32768 tokens, got 32769"):
        reach(labels, torch.zeros(1, 32769), "causal")


@pytest.mark.gpu
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("block", [1, 4, 32])
def test_compiled_kernel_equals_dense_in_bf16(context, block):
    labels, document = (value.to("cuda") for value in packed(block))
    q, k, v = (value.to("cuda", torch.bfloat16) for value in _inputs((4, 2), labels.part.shape, 64))
    real = (labels.part != Part.PAD)[:, None, :, None]
    mine = prepared(stream_mask(labels, document, context, "flex"), torch.bfloat16)
    assert mine.blocks is not None
    wide = prepared(stream_mask(labels, document, context), torch.float32)
    expected = attend(q.float(), k.float(), v.float(), wide, 0.125)
    out = attend(q, k, v, mine, 0.125)
    assert ((out.float() - expected) * real).abs().max() < 0.03
    found = _gradients(q, k, v, mine, real)
    for bf16, fp32 in zip(found, _gradients(q.float(), k.float(), v.float(), wide, real), strict=True):
        assert (bf16.float() - fp32).abs().max() < 0.03 * fp32.abs().max()


def _tiled(mask: torch.Tensor, tile: int) -> torch.Tensor:
    """(S, L, L) -> (S, T, T, tile * tile)."""
    return mask.unflatten(2, (-1, tile)).unflatten(1, (-1, tile)).transpose(2, 3).flatten(3)


def _inputs(heads: tuple[int, int], shape: torch.Size, width: int = 16) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    streams, length = shape
    return tuple(torch.randn(streams, h, length, width, generator=generator) for h in (heads[0], heads[1], heads[1]))


def _gradients(q, k, v, mask, real):
    """Of a loss over real tokens only, for query, key and value."""
    leaves = [part.detach().clone().requires_grad_(True) for part in (q, k, v)]
    out = attend(*leaves, mask, 0.125)
    (torch.where(real, out, 0.0).float() ** 2).sum().backward()
    return [leaf.grad for leaf in leaves]
