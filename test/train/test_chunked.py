"""Losses in chunks are those of the full computation, in value and in gradient, without its logits."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wamdiff2_core.distill.chunked import chunked_both, chunked_cross_entropy, chunked_divergence, select
from wamdiff2_core.distill.divergence import token_divergence
from wamdiff2_core.errors import ConfigError

OPTIONS = [
    {"kind": "jsd", "temperature": 1.0, "top_k": 0},
    {"kind": "jsd", "temperature": 0.6, "top_k": 5},
    {"kind": "forward_kl", "temperature": 2.0, "top_k": 0},
    {"kind": "forward_kl", "temperature": 1.0, "top_k": 3},
]


class Case:
    """N tokens, their heads, and a different upstream gradient for each token; some weights are 0."""

    def __init__(self, count=13, classes=29, dtype=torch.float64, seed=0):
        make = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

        self.hidden, self.head = normal(count, 8).requires_grad_(), normal(classes, 8).requires_grad_()
        self.teacher_hidden, self.teacher_head = normal(count, 12), normal(classes, 12)
        self.target = torch.randint(classes, (count,), generator=make)
        # (2, N), of cross-entropy and of divergence: some tokens have both, some one, every fourth none
        self.weight = (torch.rand(2, count, generator=make) * 2).to(torch.promote_types(dtype, torch.float32))
        self.weight[:, ::4] = 0.0
        self.weight[0, 1::4] = 0.0
        self.weight[1, 2::4] = 0.0
        self.upstream = torch.rand(2, count, generator=make).to(self.weight.dtype)

    def full(self, **options):
        """Cross-entropy and divergence (2, N) from all logits at once."""
        logits = F.linear(self.hidden, self.head)
        entropy = F.cross_entropy(logits.to(self.weight.dtype), self.target, reduction="none")
        distance = token_divergence(logits, F.linear(self.teacher_hidden, self.teacher_head), **options)
        return torch.stack([entropy, distance]) * self.weight

    def both(self, chunk, **options):
        return torch.stack(chunked_both(*self.parts(), chunk=chunk, **options))

    def parts(self, at=slice(None)):
        """The arguments of chunked_both, of these tokens."""
        return (
            self.hidden[at],
            self.head,
            self.target[at],
            self.weight[0, at],
            self.teacher_hidden[at],
            self.teacher_head,
            self.weight[1, at],
        )

    def divergence(self, chunk, **options):
        parts = (self.hidden, self.head, self.teacher_hidden, self.teacher_head, self.weight[1])
        return chunked_divergence(*parts, chunk=chunk, **options)

    def gradients(self, losses, upstream=None):
        """To hidden states and head, each token's loss with an upstream gradient of its own."""
        return torch.autograd.grad((losses * (self.upstream if upstream is None else upstream)).sum(), self.leaves)

    @property
    def leaves(self):
        return self.hidden, self.head


@pytest.mark.parametrize("chunk", [1, 4, 13, 50])
@pytest.mark.parametrize("options", OPTIONS)
def test_both_are_the_full_computation(options, chunk):
    case = Case()
    found, truth = case.both(chunk, **options), case.full(**options)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(case.gradients(found), case.gradients(truth)):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("chunk", [5, 13])
def test_each_alone_is_its_part_of_both(chunk):
    case = Case()
    entropy = chunked_cross_entropy(case.hidden, case.head, case.target, case.weight[0], chunk)
    distance = case.divergence(chunk, top_k=4)
    both = case.both(chunk, top_k=4)
    for index, alone in enumerate((entropy, distance)):
        assert torch.equal(alone, both[index])
        upstream = case.upstream[index]
        truth = case.gradients(case.full(top_k=4)[index], upstream)
        unused_other = case.gradients(case.both(chunk, top_k=4)[index], upstream)
        for ours, theirs, wanted in zip(case.gradients(alone, upstream), unused_other, truth):
            torch.testing.assert_close(ours, wanted, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(theirs, wanted, rtol=1e-11, atol=1e-13)


def test_gradient_by_differences():
    case = Case(count=5, classes=6)

    def run(hidden, head):
        return chunked_both(hidden, head, *case.parts()[2:], chunk=2, temperature=0.9)

    assert torch.autograd.gradcheck(run, case.leaves)


@pytest.mark.parametrize("options", OPTIONS)
def test_fp32(options):
    case = Case(count=40, classes=211, dtype=torch.float32)
    found, truth = case.both(16, **options), case.full(**options)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(case.gradients(found), case.gradients(truth)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_head_tied_to_the_embedding_gets_both_gradients():
    case = Case()
    ids = torch.arange(13) % 29
    results = []
    for chunked in (True, False):
        table = case.head.detach().clone().requires_grad_()
        case.hidden, case.head = torch.tanh(F.embedding(ids, table)), table
        losses = case.both(4) if chunked else case.full()
        results.append(torch.autograd.grad((losses * case.upstream).sum(), table)[0])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("master", [torch.float32, torch.bfloat16])
def test_products_run_in_autocast_dtype_and_the_rest_in_fp32(master):
    case = Case(count=24, classes=64, dtype=torch.float32)
    with torch.no_grad():
        case.head = case.head.to(master).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, truth = case.both(7), case.full()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)
    ours, theirs = case.gradients(found), case.gradients(truth)
    exact = Case(count=24, classes=64, dtype=torch.float32)
    exact_gradients = exact.gradients(exact.full())
    assert [x.dtype for x in ours] == [torch.float32, master]
    for a, b, best in zip(ours, theirs, exact_gradients):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
        assert (a.float() - best).norm() <= 1.2 * (b.float() - best).norm()  # no worse than autocast's own


def test_without_autocast_the_head_says_the_dtype():
    case = Case(count=8, dtype=torch.float32)
    head = case.head.detach().bfloat16()
    loss = chunked_cross_entropy(case.hidden, head, case.target, case.weight[0], 3)
    logits = F.linear(case.hidden.bfloat16(), head).float()
    expected = F.cross_entropy(logits, case.target, reduction="none") * case.weight[0]
    torch.testing.assert_close(loss, expected)
    assert loss.dtype == torch.float32


def test_backward_computes_as_forward_did_wherever_it_runs():
    case = Case(dtype=torch.float32)
    expected = case.gradients(case.both(4))
    losses = case.both(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.gradients(losses)
    for ours, wanted in zip(found, expected):
        assert torch.equal(ours, wanted)


def test_a_bf16_head_sums_its_gradient_over_chunks_in_fp32():
    case = Case(count=600, classes=16, dtype=torch.float32)
    with torch.no_grad():
        case.head = case.head.bfloat16().requires_grad_()
    small, whole = (case.gradients(case.both(chunk))[1].double() for chunk in (1, 600))
    assert (small - whole).norm() <= 4e-3 * whole.norm()  # bf16 rounds to 2e-3; a sum of 600 in bf16 would be worse


def test_no_tokens_no_loss():
    case = Case(count=0)
    losses = case.both(4)
    assert losses.shape == (2, 0)
    to_hidden, to_head = case.gradients(losses)
    assert to_hidden.shape == (0, 8) and to_head.shape == (29, 8) and to_head.abs().max() == 0


def test_dead_rows_give_nothing_and_skipping_them_changes_nothing():
    case = Case()
    dead = case.weight.sum(0) == 0
    with torch.no_grad():
        case.hidden[dead] = float("nan")
    case.teacher_hidden[case.weight[1] == 0] = float("inf")
    case.target[case.weight[0] == 0] = -100
    losses = case.both(4)
    to_hidden, to_head = case.gradients(losses)
    assert losses[:, dead].abs().max() == 0 and to_hidden[dead].abs().max() == 0
    assert losses.isfinite().all() and to_hidden.isfinite().all() and to_head.isfinite().all()

    at = select(case.weight.sum(0))
    assert at.tolist() == [i for i in range(13) if i % 4]
    fewer = torch.stack(chunked_both(*case.parts(at), chunk=4))
    torch.testing.assert_close(losses[:, at], fewer, rtol=1e-12, atol=1e-14)
    small_to_hidden, small_to_head = case.gradients(fewer, case.upstream[:, at])
    torch.testing.assert_close(to_hidden, small_to_hidden, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(to_head, small_to_head, rtol=1e-12, atol=1e-14)


def test_select_flattens():
    assert select(torch.tensor([[0.0, 1.0], [0.5, 0.0]])).tolist() == [1, 2]
    assert select(torch.zeros(2, 3)).shape == (0,)


def test_no_gradient_reaches_the_teacher_or_a_frozen_head():
    case = Case()
    case.teacher_hidden.requires_grad_()
    case.teacher_head.requires_grad_()
    case.divergence(4).sum().backward()
    assert case.teacher_hidden.grad is None and case.teacher_head.grad is None
    case.head = case.head.detach()
    expected = case.hidden.grad.clone()
    case.hidden.grad = None
    case.divergence(4).sum().backward()
    assert case.head.grad is None
    torch.testing.assert_close(case.hidden.grad, expected)


class Largest(TorchDispatchMode):
    """Records the most elements any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return result


@pytest.mark.parametrize("options", OPTIONS)
def test_no_tensor_of_all_logits_is_made(options):
    case = Case(count=64, classes=501)
    chunk = 8
    with Largest() as chunked:
        case.gradients(case.both(chunk, **options))
    with Largest() as full:
        case.gradients(case.full(**options))
    assert full.elements >= 64 * 501  # the measure sees what it should
    assert chunked.elements <= max(chunk * (501 + 1), 501 * 12)  # a chunk's logits, or a head


def test_bad_arguments_are_named():
    case = Case()
    with pytest.raises(ConfigError, match="chunk"):
        case.both(0)
    with pytest.raises(ConfigError, match="divergence"):
        case.both(4, kind="hellinger")
    with pytest.raises(ConfigError, match="teacher_head"):
        chunked_divergence(case.hidden, case.head, case.teacher_hidden, case.teacher_head[:5], case.weight[1], chunk=4)
    with pytest.raises(ConfigError, match="weight"):
        chunked_cross_entropy(case.hidden, case.head, case.target, case.weight[0, :5], 4)
