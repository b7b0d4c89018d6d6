"""Divergences of token distributions: known values, bounds, gradients, and logits at the extremes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from wamdiff2_core.distill.divergence import DIVERGENCES, token_divergence, weighted_divergence
from wamdiff2_core.errors import ConfigError

LN2 = math.log(2.0)
LOGITS = st.lists(st.floats(-120, 120, width=32), min_size=3, max_size=3)


def plain(student, teacher, kind="jsd", temperature=1.0, top_k=0):
    """The definition, by autograd in fp64; fit for moderate logits only."""
    p, q = ((x.double() / temperature).softmax(-1) for x in (student, teacher.detach()))
    if top_k:
        chosen = q.topk(top_k).indices
        p, q = (torch.cat([x.gather(-1, chosen), 1 - x.gather(-1, chosen).sum(-1, keepdim=True)], -1) for x in (p, q))
    if kind == "forward_kl":
        return (q * (q.log() - p.log())).sum(-1)
    m = (p + q) / 2
    return 0.5 * (p * (p.log() - m.log())).sum(-1) + 0.5 * (q * (q.log() - m.log())).sum(-1)


def finite_with_gradient(student, teacher, **options):
    student = student.clone().requires_grad_()
    value = token_divergence(student, teacher, **options)
    value.sum().backward()
    assert value.isfinite().all() and student.grad.isfinite().all()
    return value.detach(), student.grad


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 1, 5, 19, 20, 30])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_value_and_gradient_are_those_of_the_definition(kind, top_k, temperature):
    torch.manual_seed(top_k)
    student, teacher = torch.randn(2, 6, 20) * 2, torch.randn(2, 6, 20) * 2
    ours, theirs = student.clone().requires_grad_(), student.double().requires_grad_()
    value = token_divergence(ours, teacher, kind, temperature, top_k)
    truth = plain(theirs, teacher, kind, temperature, top_k if top_k < 20 else 0)
    upstream = torch.rand(2, 6)
    (value * upstream).sum().backward()
    (truth * upstream).sum().backward()
    assert value.dtype == torch.float32 and value.shape == (2, 6)
    torch.testing.assert_close(value.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 3])
def test_gradient_by_differences(kind, top_k):
    torch.manual_seed(1)
    teacher = torch.randn(3, 7, dtype=torch.float64)
    student = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: token_divergence(x, teacher, kind, 0.8, top_k), student)


def test_known_values():
    apart = token_divergence(torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0, 0.0]]))
    assert apart.item() == pytest.approx(LN2, abs=1e-6)
    # p = (1/2, 1/2), q = (1, 0): 0.5 ln(2/3) / 2 + 0.5 ln 2 / 2 + 0.5 ln(4/3)
    half = token_divergence(torch.zeros(1, 2), torch.tensor([[0.0, -math.inf]]))
    assert half.item() == pytest.approx(0.25 * math.log(2 / 3) + 0.25 * LN2 + 0.5 * math.log(4 / 3), abs=1e-6)
    assert token_divergence(torch.zeros(1, 2), torch.tensor([[0.0, -math.inf]]), "forward_kl").item() == pytest.approx(
        LN2, abs=1e-6
    )


@settings(deadline=None, max_examples=200)
@given(LOGITS, LOGITS, st.floats(0.05, 5.0), st.sampled_from([0, 1, 2]))
def test_bounds_and_symmetry(student, teacher, temperature, top_k):
    p, q = torch.tensor([student]), torch.tensor([teacher])
    value, gradient = finite_with_gradient(p, q, temperature=temperature, top_k=top_k)
    full = token_divergence(p, q, temperature=temperature)
    assert -1e-6 <= value.item() <= LN2 + 1e-6
    assert value.item() <= full.item() + 1e-6  # coarser classes never lie further apart
    assert abs(gradient.sum().item()) <= 1e-5 / temperature  # a shift of all logits changes nothing
    assert torch.equal(full, token_divergence(q, p, temperature=temperature))


@settings(deadline=None, max_examples=100)
@given(LOGITS, LOGITS, st.sampled_from([0, 1, 2]))
def test_forward_kl_bounds(student, teacher, top_k):
    p, q = torch.tensor([student]), torch.tensor([teacher])
    value, _ = finite_with_gradient(p, q, kind="forward_kl", top_k=top_k)
    full = token_divergence(p, q, "forward_kl")
    assert -1e-5 <= value.item() <= full.item() + 1e-4
    assert 2 * token_divergence(p, q).item() ** 2 <= full.item() + 1e-4  # JSD <= sqrt(KL / 2), by Pinsker


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("top_k", [0, 8])
def test_equal_logits(kind, scale, top_k):
    logits = torch.randn(64, 1152) * scale
    value, gradient = finite_with_gradient(logits, logits, kind=kind, top_k=top_k)
    assert value.min() >= -1e-6 and value.max() <= 1e-6
    assert gradient.abs().max() <= 1e-6
    assert token_divergence(logits, logits + 7.0, kind).min() >= -1e-5


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 1])
@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        ([0.0, -120.0], [-120.0, 0.0]),
        ([-120.0, 0.0], [0.0, -120.0]),
        ([0.0, -120.0], [0.0, -120.0]),
        ([-120.0, -120.0], [-120.0, -120.0]),
        ([0.0, -120.0], [-120.0, -120.0]),
    ],
)
def test_extreme_logits_at_a_low_temperature(kind, top_k, student, teacher):
    value, _ = finite_with_gradient(
        torch.tensor([student]), torch.tensor([teacher]), kind=kind, temperature=0.05, top_k=top_k
    )
    expected = 0.0 if student == teacher else (LN2 if kind == "jsd" else 2400.0)
    if teacher != [-120.0, -120.0] or student == teacher:
        assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 2, 3])
@pytest.mark.parametrize("banned", [-math.inf, torch.finfo(torch.float32).min])
def test_banned_tokens_are_as_if_absent(kind, top_k, banned):
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 5), torch.randn(4, 5)
    ban = torch.tensor([False, False, True, False, True])
    value, gradient = finite_with_gradient(
        student.masked_fill(ban, banned), teacher.masked_fill(ban, banned), kind=kind, top_k=top_k
    )
    short, short_gradient = finite_with_gradient(student[:, ~ban], teacher[:, ~ban], kind=kind, top_k=top_k)
    torch.testing.assert_close(value, short)
    torch.testing.assert_close(gradient[:, ~ban], short_gradient)
    assert gradient[:, ban].abs().max() == 0
    one_sided, _ = finite_with_gradient(student.masked_fill(ban, banned), teacher, kind=kind, top_k=top_k)
    assert kind == "forward_kl" or one_sided.max() <= LN2 + 1e-6


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("dead", [math.nan, math.inf])
def test_dead_rows_give_nothing(kind, dead):
    logits = torch.randn(2, 3, 8)
    student, teacher = logits.clone(), torch.randn(2, 3, 8)
    student[1], teacher[1] = dead, dead  # a row without a masked token
    student.requires_grad_()
    weight = torch.tensor([[1.0, 0.5, 2.0], [0.0, 0.0, 0.0]])
    loss = weighted_divergence(student, teacher, weight, kind)
    loss.sum().backward()
    assert loss[1].tolist() == [0.0, 0.0, 0.0] and student.grad[1].abs().max() == 0
    torch.testing.assert_close(loss[0], token_divergence(logits[0], teacher[0], kind) * weight[0])
    assert student.grad[0].isfinite().all() and student.grad[0].abs().max() > 0


def test_small_distances_keep_their_digits():
    torch.manual_seed(0)
    teacher, step = torch.randn(32, 1152) * 3, torch.randn(32, 1152)
    for size in (1e-1, 1e-2, 1e-3):
        student = teacher + step * size
        value = token_divergence(student, teacher).double()
        truth = token_divergence(student.double(), teacher.double())
        torch.testing.assert_close(value, truth, rtol=1e-2, atol=0.0)


class Waits(TorchDispatchMode):
    """Records operations whose result's size or value the host must wait for, which a CUDA graph cannot hold."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        by_mask = name in ("index", "index_put", "index_put_") and any(i.dtype == torch.bool for i in args[1])
        if name in self.FORBIDDEN or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 3])
def test_nothing_waits_for_the_device(kind, top_k):
    student, teacher, weight = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8), torch.tensor([1.0, 0, 1, 0])
    with Waits() as waits:
        weighted_divergence(student, teacher, weight, kind, 0.5, top_k).sum().backward()
    assert waits.found == []
    with Waits() as waits:
        student[weight > 0].sum().item()
    assert waits.found == ["index", "_local_scalar_dense"]  # the measure sees what it should


@pytest.mark.gpu
@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("top_k", [0, 16])
def test_captured_in_a_cuda_graph(kind, top_k):
    torch.manual_seed(0)
    student, teacher = torch.randn(64, 1152, device="cuda", requires_grad=True), torch.randn(64, 1152, device="cuda")
    weight = (torch.rand(64, device="cuda") - 0.3).clamp(min=0)
    student.grad = torch.zeros_like(student)

    def step():
        student.grad.zero_()
        loss = weighted_divergence(student, teacher, weight, kind, 0.7, top_k).sum()
        loss.backward()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(2):  # other logits, and a replay gives what the eager step gives
        with torch.no_grad():
            student.copy_(torch.randn_like(student))
        graph.replay()
        captured = loss.clone(), student.grad.clone()
        torch.testing.assert_close(step(), captured[0])
        torch.testing.assert_close(student.grad, captured[1])


def test_no_gradient_reaches_the_teacher():
    student, teacher = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    token_divergence(student, teacher).sum().backward()
    assert teacher.grad is None and student.grad.abs().max() > 0
    assert not token_divergence(student.detach(), teacher).requires_grad


def test_values_are_fp32_and_gradients_in_the_dtype_of_the_logits():
    student, teacher = torch.randn(3, 8).bfloat16().requires_grad_(), torch.randn(3, 8).bfloat16()
    value = token_divergence(student, teacher)
    value.sum().backward()
    assert value.dtype == torch.float32 and student.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, token_divergence(student.float(), teacher.float()))


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "reverse_kl"},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_k": 1.5},
    ],
)
def test_bad_settings_are_named(options):
    with pytest.raises(ConfigError):
        token_divergence(torch.zeros(1, 2), torch.zeros(1, 2), **options)


def test_logits_of_different_vocabularies_are_refused():
    with pytest.raises(ConfigError, match="shape"):
        token_divergence(torch.zeros(1, 2), torch.zeros(1, 3))
