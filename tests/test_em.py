"""Mixtures and the majorised M-step against finite differences, an independent library, and their guarantees."""

import math

import pytest
import torch

from bayesattn_core import attention, em, gradcheck, training


def head_case(d_v=7, T=9, C=4, seed=0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"W_Q": (6, 3), "W_K": (6, 3), "W_V": (6, d_v), "W_O": (d_v, C)}
    weights = {n: torch.randn(*batch, *s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    X = torch.randn(*batch, T, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(C, (*batch, T), generator=generator)
    w = torch.rand(T, generator=generator, dtype=torch.float64)
    return X, weights, targets, w / w.sum()


@pytest.mark.parametrize("causal", [True, False])
def test_mixture_gradients_against_finite_differences(causal):
    X, weights, targets, w = head_case()
    head = attention.forward(X, weights, targets, w, causal)
    tensors = {"scores": attention.scores(head.queries, head.keys), "values": head.values}
    W_O = weights["W_O"]

    def loss(t):
        return em.mixture(t["scores"], t["values"], W_O, targets, w, causal).loss

    mixed = em.mixture(*tensors.values(), W_O, targets, w, causal)
    gradients = dict(zip(tensors, em.mixture_gradients(mixed, W_O, targets, w), strict=True))
    gradcheck.gradcheck(loss, tensors, gradients)
    for name, judge in gradcheck.autograd(loss, tensors, tensors).items():
        assert torch.allclose(gradients[name], judge, rtol=0, atol=1e-14)
    assert mixed.responsibilities.sum(-1).allclose(torch.ones(9).double())
    by_hand = mixed.attention * (-mixed.expert_losses).exp()
    assert torch.allclose(mixed.responsibilities, by_hand / by_hand.sum(-1, keepdim=True), atol=1e-14)
    assert torch.allclose(mixed.loss, -(w * by_hand.sum(-1).log()).sum(), atol=1e-14)


@pytest.mark.parametrize("d_v", [2, 3, 7])
def test_the_majorised_step_never_raises_the_loss(d_v):
    X, weights, targets, w = head_case(d_v, seed=d_v)
    losses = []
    for _ in range(60):
        head = attention.forward(X, weights, targets, w)
        losses.append(head.loss.item())
        step = em.majorised_step(head.attention @ X, weights["W_O"], head.probabilities, targets, w)
        weights = weights | {"W_V": weights["W_V"] + step}
    falls = torch.tensor(losses, dtype=torch.float64).diff()
    assert falls.max() <= 1e-12
    assert losses[-1] < losses[0] - 0.1


def test_the_majorised_step_is_the_formula_of_the_book():
    X, weights, targets, w = head_case()
    head = attention.forward(X, weights, targets, w)
    Z, W_O, D = head.attention @ X, weights["W_O"], w.diag()
    centring = torch.eye(4).double() - 0.25
    right = torch.linalg.pinv(W_O @ centring @ W_O.mT, rtol=1e-10)
    residual = head.probabilities - torch.nn.functional.one_hot(targets, 4)
    formula = -2 * torch.linalg.pinv(Z.mT @ D @ Z, rtol=1e-10) @ Z.mT @ D @ residual @ W_O.mT @ right
    assert torch.allclose(em.majorised_step(Z, W_O, head.probabilities, targets, w), formula, rtol=0, atol=1e-9)
    _, gradients = attention.gradients(X, weights, targets, w)
    assert (formula * gradients.W_V).sum() < 0  # a descent direction


def test_the_majorised_step_keeps_its_promise_in_float32():
    X, weights, targets, w = head_case()
    single = {n: 0.1 * W.float() for n, W in weights.items()}
    rates = dict.fromkeys(attention.WEIGHTS, 0.0)
    run = training.descend(X.float(), single, targets, rates, 40, position_weights=w.float(), value_step="majorised")
    assert run.loss.diff().max() < 1e-6
    double = {n: W.double() for n, W in single.items()}
    same = training.descend(X, double, targets, rates, 40, position_weights=w, value_step="majorised")
    assert torch.allclose(run.loss.double(), same.loss, atol=1e-5)


def test_route_is_attention_times_inputs():
    for case in gradcheck.random_cases():
        head = attention.forward(*case)
        for block in (2, 80):
            Z = attention.route(case.X, case.weights, case.causal, block)
            assert torch.allclose(Z, head.attention @ case.X, rtol=0, atol=1e-14)


def test_gaussian_mixture_against_torch_distributions():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    means = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    shares, variance = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.7
    components = torch.distributions.MultivariateNormal(means, variance * torch.eye(2).double())
    joint = components.log_prob(x[:, None]) + shares.log()
    assert torch.allclose(em.gaussian_scores(x, means, shares, variance).softmax(-1), joint.softmax(-1), atol=1e-14)
    likelihood = em.gaussian_log_likelihood(x, means, shares, variance)
    assert likelihood.item() == pytest.approx(joint.logsumexp(-1).mean().item(), abs=1e-13)
    last = -math.inf
    for _ in range(30):
        now = em.gaussian_log_likelihood(x, means, shares, variance).item()
        assert now >= last - 1e-13
        last = now
        responsibilities, means, shares = em.gaussian_em_step(x, means, shares, variance)
        assert responsibilities.sum(-1).allclose(torch.ones(50).double())
    assert shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda S, V, W, y, w: em.mixture(S[:-1], V, W, y, w), "scores must have size 9 in dimension -2"),
        (lambda S, V, W, y, w: em.mixture(S, V, W[:-1], y, w), "W_O must have size 7 in dimension -2"),
        (lambda S, V, W, y, w: em.mixture(S, V, W, y + 4, w), "class indices from 0 to 3"),
        (lambda S, V, W, y, w: em.mixture(S, V, W, y.double(), w), "targets must be class indices (int64)"),
        (lambda S, V, W, y, w: em.mixture(S, V, W, y, w[:-1]), "position_weights must have size 9"),
        (lambda S, V, W, y, w: em.gaussian_scores(V, V, w, 0.0), "variance must be finite and above 0, got 0.0"),
        (lambda S, V, W, y, w: em.gaussian_scores(V, V, -w, 1.0), "shares must be positive"),
        (lambda S, V, W, y, w: em.gaussian_scores(V, V[:, :2], w, 1.0), "means must have size 7 in dimension -1"),
    ],
)
def test_bad_input_is_named(call, message):
    X, weights, targets, w = head_case()
    head = attention.forward(X, weights, targets, w)
    with pytest.raises((ValueError, TypeError)) as raised:
        call(attention.scores(head.queries, head.keys), head.values, weights["W_O"], targets, w)
    assert message in str(raised.value)
