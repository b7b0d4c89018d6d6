"""Who sees whom: the mask's rules, and that a real model obeys them."""

from __future__ import annotations

import pytest
import torch
from tiny_models import EOS, MASK, loaded

from wamdiff2_core.errors import ConfigError
from wamdiff2_core.model.masks import Part, attention_mask, concat, label, training_labels

PROMPT, RESPONSE, B = 5, 12, 4
CLEAN, NOISY = PROMPT, PROMPT + RESPONSE


def labels(block_size: int = B):
    return training_labels(torch.tensor([PROMPT]), torch.tensor([RESPONSE]), block_size, PROMPT, RESPONSE)


def mask(context: str, block_size: int = B):
    return attention_mask(labels(block_size), labels(block_size), context)[0]


def rule(q: int, k: int, context: str, block_size: int) -> bool:
    """The three rules, token by token, written out."""

    def part(index: int) -> tuple[str, int]:
        if index < CLEAN:
            return "prompt", index
        return ("clean", index - CLEAN) if index < NOISY else ("noisy", index - NOISY)

    (a, i), (b, j) = part(q), part(k)
    past = j <= i if context == "causal" else j // block_size <= i // block_size
    if a == "prompt":
        return b == "prompt" and past
    if a == "clean":
        return b == "prompt" or (b == "clean" and past)
    if b == "prompt":
        return True
    return j // block_size < i // block_size if b == "clean" else j // block_size == i // block_size


@pytest.mark.parametrize("context", ["causal", "block_causal"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 5, 12, 32])
def test_every_pair(context: str, block_size: int) -> None:
    got = mask(context, block_size)
    size = PROMPT + 2 * RESPONSE
    want = torch.tensor([[rule(q, k, context, block_size) for k in range(size)] for q in range(size)])
    assert torch.equal(got, want)


def test_block_size_one_is_causal_in_both_contexts() -> None:
    assert torch.equal(mask("causal", 1), mask("block_causal", 1))
    clean = mask("causal", 1)[:NOISY, :NOISY]
    assert torch.equal(clean, torch.ones(NOISY, NOISY).tril().bool())


def test_padding_is_seen_by_padding_only_and_never_blind() -> None:
    row = training_labels(torch.tensor([3, PROMPT]), torch.tensor([RESPONSE, 6]), B, PROMPT, RESPONSE)
    seen = attention_mask(row, row, "causal")
    pad = row.part == Part.PAD
    assert not (seen & pad[:, None, :] & ~pad[:, :, None]).any()
    assert seen.any(-1).all()


def test_unknown_context() -> None:
    one = label(Part.PROMPT, torch.arange(3), 2)
    with pytest.raises(ConfigError, match="block_causal"):
        attention_mask(one, one, "bidirectional")


def hidden_states(context: str, ids: torch.Tensor) -> torch.Tensor:
    """A real tiny model over [prompt | clean | noisy]; noisy tokens at their twins' positions."""
    model = loaded("same", context).model
    twins = torch.arange(PROMPT, PROMPT + RESPONSE)
    positions = torch.cat((torch.arange(PROMPT), twins, twins)).expand(3, 1, -1)
    with torch.no_grad():
        out = model(
            input_ids=ids[None], position_ids=positions, attention_mask=mask(context)[None, None], use_cache=False
        )
    return out.logits[0]


@pytest.mark.parametrize("context", ["causal", "block_causal"])
def test_model_keeps_noise_out_of_the_clean_stream(context: str) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, EOS, (PROMPT + 2 * RESPONSE,))
    other = ids.clone()
    other[NOISY:] = MASK
    before, after = hidden_states(context, ids), hidden_states(context, other)
    assert torch.equal(before[:NOISY], after[:NOISY])
    assert not torch.allclose(before[NOISY:], after[NOISY:])


@pytest.mark.parametrize("context", ["causal", "block_causal"])
@pytest.mark.parametrize("block", [0, 1])
def test_model_keeps_noisy_blocks_apart(context: str, block: int) -> None:
    """Noisy block b does not change when block b + 1, or its own clean twin and later, change; the past counts."""
    torch.manual_seed(2)
    ids = torch.randint(0, EOS, (PROMPT + 2 * RESPONSE,))
    mine = slice(NOISY + block * B, NOISY + (block + 1) * B)
    before = hidden_states(context, ids)[mine]
    future = ids.clone()
    future[NOISY + (block + 1) * B :] = MASK
    future[CLEAN + block * B : NOISY] = MASK
    assert torch.equal(before, hidden_states(context, future)[mine])
    past = ids.clone()
    past[CLEAN - 1 + block * B] = MASK
    assert not torch.allclose(before, hidden_states(context, past)[mine])


@pytest.mark.parametrize("context", ["causal", "block_causal"])
def test_decoding_sees_what_training_showed(context: str) -> None:
    """Keys of a decoder step [prompt | clean blocks | noisy block] are the training row with the rest cut away."""
    full, block = labels(), 2
    queries = full[0, NOISY + block * B : NOISY + (block + 1) * B]
    keys = concat([full[0, : CLEAN + block * B], queries])
    got = attention_mask(queries, keys, context)
    rows = mask(context)[NOISY + block * B : NOISY + (block + 1) * B]
    assert torch.equal(got[:, : CLEAN + block * B], rows[:, : CLEAN + block * B])
    assert got.all() and int(rows.sum()) == got.numel()
