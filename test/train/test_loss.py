"""Losses: only trained answer tokens count, whatever stands elsewhere; counts are summed before dividing."""

import pytest
import torch
from micro import micro_recipe

from wamdiff2_core.distill.corruption import Corruption
from wamdiff2_core.distill.layout import Rows, first_of_block
from wamdiff2_core.distill.loss import Share, Weights, answer_weights, autoregressive, from_labels, masked_losses
from wamdiff2_core.errors import ConfigError


def make_rows(answer, lengths, given=None) -> Rows:
    answer = torch.tensor(answer)
    count = answer.shape[0]
    given = torch.zeros_like(answer, dtype=torch.bool) if given is None else torch.tensor(given)
    zeros = torch.zeros(count, 2, dtype=torch.long)
    return Rows(
        zeros,
        torch.full((count,), 2),
        zeros.expand(3, -1, -1),
        answer,
        torch.tensor(lengths),
        given,
        torch.arange(count),
        torch.zeros(count, dtype=torch.long),
    )


def diffusion(logits, rows, live, block, noise, prediction="next", weighting="flat") -> Share:
    """Cross-entropy of masked tokens, from logits: outputs with the identity as output matrix."""
    recipe = micro_recipe(max_steps=1, weighting=weighting)
    left_out = first_of_block(block, rows.answer.shape[1]) if prediction == "next" else None
    weights = Weights.of(rows, live, noise, left_out, recipe)
    return masked_losses(logits, torch.eye(logits.shape[-1]), rows.answer, weights, None, recipe)["diffusion"]


def test_prompt_and_padding_labels_do_not_move_the_loss():
    logits = torch.randn(1, 3, 8, requires_grad=True)
    labels = torch.tensor([[-100, 5, 2]])
    share = from_labels(logits, labels)
    share.mean().backward()
    assert share.count.item() == 2
    bumped = logits.detach().clone()
    bumped[0, 2] += 50.0  # predicts beyond the end
    assert torch.equal(from_labels(bumped, labels).mean(), from_labels(logits, labels).mean().detach())
    ignored = from_labels(bumped, torch.tensor([[5, -100, 2]]))
    bumped[0, 0] += torch.randn(8) * 9
    assert torch.equal(from_labels(bumped, torch.tensor([[5, -100, 2]])).mean(), ignored.mean())
    assert logits.grad[0, 2].abs().sum() == 0


def test_scaffold_dead_and_fill_positions():
    rows = make_rows([[5, 6, 7, 1, 1, 1, 1, 1]], [4], [[False, True, False, False, False, False, False, False]])
    assert answer_weights(rows, torch.tensor([6]), 0.25)[0].tolist() == [1, 0, 1, 1, 0.25, 0.25, 0, 0]
    logits = torch.full((1, 8, 9), float("nan"))
    logits[0, [0, 2, 3]] = 0.0
    share = autoregressive(logits, torch.eye(9), rows)  # NaN where nothing is learnt does not matter
    assert share.count.item() == 3 and torch.isclose(share.mean(), torch.tensor(9.0).log())


def test_first_token_of_a_block_belongs_to_the_clean_stream():
    rows = make_rows([[1, 2, 3, 4, 5, 6, 7, 8]], [8])
    everything = torch.ones(1, 8, dtype=torch.bool)
    corruption = Corruption(rows.answer, everything, torch.full((1, 8), 0.5))
    live, block = torch.tensor([8]), torch.tensor([4])
    logits = torch.zeros(1, 8, 9)
    assert diffusion(logits, rows, live, block, corruption).count.item() == 6
    assert diffusion(logits, rows, live, block, corruption, prediction="same").count.item() == 8
    single = diffusion(logits, rows, live, torch.tensor([1]), corruption)
    assert single.count.item() == 0 and single.mean().item() == 0.0
    with pytest.raises(ConfigError):
        diffusion(logits, rows, live, block, corruption, weighting="none")


def test_inverse_t_weighting_is_the_bound():
    rows = make_rows([[1, 2, 3, 4]], [4])
    masked = torch.tensor([[False, True, False, True]])
    t = torch.full((1, 4), 0.5)
    share = diffusion(
        torch.zeros(1, 4, 9),
        rows,
        torch.tensor([4]),
        torch.tensor([4]),
        Corruption(rows.answer, masked, t),
        weighting="inverse_t",
    )
    assert torch.isclose(share.total[0], 2 * torch.tensor(9.0).log() / 0.5) and share.count.item() == 3


def test_counts_are_summed_before_dividing():
    five, one = Share(torch.tensor([10.0]), torch.tensor([5.0])), Share(torch.tensor([4.0]), torch.tensor([1.0]))
    both = Share(torch.cat([five.total, one.total]), torch.cat([five.count, one.count]))
    assert torch.isclose(both.mean(), torch.tensor(14.0 / 6.0))
    assert Share(torch.zeros(1), torch.zeros(1)).mean().item() == 0.0
