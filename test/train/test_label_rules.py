"""Rules that other trainers were reported to break: what may move a loss, and what may not, in every loss we have."""

import math

import pytest
import torch
import torch.nn.functional as F

from wamdiff2_core.distill.chunked import chunked_cross_entropy, chunked_divergence
from wamdiff2_core.distill.divergence import weighted_divergence
from wamdiff2_core.distill.loss import from_labels, token_loss

IGNORE = -100


def same_position(logits, labels):
    """Cross-entropy of labels at their own position, as masked tokens are learnt with "same"."""
    return token_loss(logits, labels.clamp(min=0), (labels != IGNORE).float()).sum()


def in_chunks(logits, labels):
    """The same from hidden states: logits under the identity as head."""
    flat = labels.flatten()
    weight = (flat != IGNORE).float()
    return chunked_cross_entropy(logits.flatten(0, 1), torch.eye(logits.shape[-1]), flat, weight, 2).sum()


def distance(logits, labels):
    teacher = torch.linspace(-2, 2, logits.numel()).view(logits.shape)
    return weighted_divergence(logits, teacher, (labels != IGNORE).float()).sum()


def distance_in_chunks(logits, labels):
    teacher = torch.linspace(-2, 2, logits.numel()).view(-1, logits.shape[-1])
    eye, weight = torch.eye(logits.shape[-1]), (labels != IGNORE).float().flatten()
    return chunked_divergence(logits.flatten(0, 1), eye, teacher, eye, weight, chunk=2).sum()


LOSSES = [same_position, in_chunks, distance, distance_in_chunks]


def loss_and_gradient(loss, logits, labels):
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels)
    value.backward()
    return value.detach(), logits.grad


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bump", [9.0, -1e4, math.nan])
def test_a_prompt_logit_does_not_move_the_loss(loss, bump):
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 8), torch.tensor([[IGNORE, 5, 2]])
    value, gradient = loss_and_gradient(loss, logits, labels)
    bumped = logits.clone()
    bumped[0, 0, 3] += bump
    moved, moved_gradient = loss_and_gradient(loss, bumped, labels)
    assert torch.equal(moved, value) and torch.equal(moved_gradient, gradient)
    assert gradient[0, 0].abs().max() == 0 and gradient[0, 1:].abs().min() > 0
    answer = logits.clone()
    answer[0, 1, 3] += 1.0
    assert loss(answer, labels) != value  # an answer logit does move it


@pytest.mark.parametrize("loss", [same_position, in_chunks])
def test_cross_entropy_is_that_of_the_answer_tokens(loss):
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 8), torch.tensor([[IGNORE, 5, 2]])
    expected = -logits[0, 1].log_softmax(-1)[5] - logits[0, 2].log_softmax(-1)[2]
    torch.testing.assert_close(loss(logits, labels), expected)


def test_next_token_loss_is_that_of_the_answer_tokens():
    """Logits at i predict label i + 1: the last prompt logit counts, the ones before it and the last one do not."""
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 4, 8), torch.tensor([[IGNORE, IGNORE, 5, 2]])
    value, gradient = loss_and_gradient(lambda *pair: from_labels(*pair).mean(), logits, labels)
    torch.testing.assert_close(value, F.cross_entropy(logits[0, 1:3], torch.tensor([5, 2])))
    assert gradient[0, [0, 3]].abs().max() == 0 and gradient[0, 1:3].abs().min() > 0
    bumped = logits.clone()
    bumped[0, [0, 3]] += 50.0
    assert torch.equal(from_labels(bumped, labels).mean(), value)


def test_padding_does_not_move_the_next_token_loss():
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 8), torch.tensor([[IGNORE, 5, 2]])
    plain = from_labels(logits, labels)
    padded = from_labels(F.pad(logits, (0, 0, 0, 3), value=math.nan), F.pad(labels, (0, 3), value=IGNORE))
    assert padded.count.item() == plain.count.item() == 2
    assert torch.equal(padded.mean(), plain.mean())


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_does_not_move_a_loss(loss):
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 8), torch.tensor([[IGNORE, 5, 2]])
    short = logits.clone()
    short[0, 2] = math.nan  # padding logits may be anything
    cut = torch.tensor([[IGNORE, 5, IGNORE]])
    value, gradient = loss_and_gradient(loss, short, cut)
    assert torch.equal(value, loss(logits, cut)) and gradient[0, [0, 2]].abs().max() == 0
    assert loss(logits, labels) > value


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_without_masked_tokens_gives_zero(loss):
    logits = torch.randn(2, 3, 8)
    logits[1] = math.nan
    labels = torch.tensor([[1, 5, 2], [IGNORE, IGNORE, IGNORE]])
    value, gradient = loss_and_gradient(loss, logits, labels)
    assert value.isfinite() and gradient.isfinite().all() and gradient[1].abs().max() == 0
    nothing, gradient = loss_and_gradient(loss, logits, torch.full((2, 3), IGNORE))
    assert nothing.item() == 0.0 and gradient.abs().max() == 0
