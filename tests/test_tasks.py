"""The sticky chain: its draws, and its exact answers against enumeration."""

import itertools
import math

import pytest
import torch

from bayesattn_core import tasks


def test_the_ring_and_the_published_ring():
    ring = tasks.ring_transition(8, 0.3)
    assert torch.allclose(ring.sum(-1), torch.ones(8, dtype=torch.float64))
    assert ring.diagonal().tolist() == pytest.approx([0.3] * 8)
    assert ring[0, 1] == pytest.approx(2 * ring[0, 2].item())
    assert ring[0, 1] == ring[0, 7]
    published = tasks.ring_transition(8, 0.3, authors=True)
    assert published[0, 0].item() == pytest.approx(0.3 + 0.7 * 0.3 / (0.3 + 2 + 1 + 2 / 3 + 1 / 4))
    assert round(published[0, 0].item(), 4) == 0.3498
    assert round(tasks.entropy_rate(published), 4) == 1.8292


def test_entropy_rate_and_stationary_distribution_of_a_known_chain():
    transition = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    assert tasks.stationary(transition).tolist() == pytest.approx([0.75, 0.25])

    def binary(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    assert tasks.entropy_rate(transition) == pytest.approx(0.75 * binary(0.1) + 0.25 * binary(0.3))
    assert tasks.entropy(torch.tensor([1.0, 0.0])).item() == 0.0


def small_chain(noise=1.3):
    generator = torch.Generator().manual_seed(5)
    transition = tasks.ring_transition(3, 0.5)
    transition = transition @ torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    means = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    return tasks.sticky_chain(generator, transition, means, T=5, noise=noise)


def test_filter_and_positionwise_answers_against_enumeration():
    chain, noise = small_chain(), 1.3
    filtered = tasks.filter_predictive(chain, noise)
    positionwise = tasks.positionwise_predictive(chain, noise)
    pi = tasks.stationary(chain.transition)
    for b in range(2):
        density = torch.distributions.Normal(chain.means[b], noise)  # (C, d_x)
        likelihood = torch.stack([density.log_prob(x).sum(-1).exp() for x in chain.inputs[b]])  # (T, C)
        for t in range(5):
            by_hand = torch.zeros(3, dtype=torch.float64)
            for path in itertools.product(range(3), repeat=t + 1):  # y_0 ... y_t, the symbols behind x_1 ... x_{t+1}
                weight = torch.tensor(1 / 3, dtype=torch.float64)
                for k, symbol in enumerate(path):
                    weight = weight * likelihood[k, symbol]
                    if k:
                        weight = weight * chain.transition[path[k - 1], symbol]
                by_hand += weight * chain.transition[path[-1]]
            assert torch.allclose(filtered[b, t], by_hand / by_hand.sum(), atol=1e-12)
            alone = (pi * likelihood[t]) / (pi * likelihood[t]).sum() @ chain.transition
            assert torch.allclose(positionwise[b, t], alone, atol=1e-12)


def test_draws_follow_the_chain():
    means = torch.zeros(50, 8, 2)
    transition = tasks.ring_transition()
    chain = tasks.sticky_chain(torch.Generator().manual_seed(0), transition, means, T=4000)
    assert (chain.targets == chain.symbols[:, 1:]).all()
    pairs = torch.zeros(8, 8, dtype=torch.float64)
    pairs.index_put_(
        (chain.symbols[:, :-1].flatten(), chain.symbols[:, 1:].flatten()), torch.ones(200_000).double(), True
    )
    assert torch.allclose(pairs / pairs.sum(-1, keepdim=True), transition, atol=0.015)
    assert abs(chain.inputs.std().item() - 1) < 0.01
    again = tasks.sticky_chain(torch.Generator().manual_seed(0), transition, means, T=4000)
    assert torch.equal(chain.inputs, again.inputs)
    louder = tasks.sticky_chain(torch.Generator().manual_seed(0), transition, means, T=4000, noise=3.0)
    assert torch.allclose(louder.inputs, 3 * chain.inputs)
    one_way = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])  # rows are where from
    cycle = tasks.sticky_chain(torch.Generator().manual_seed(2), one_way, torch.zeros(3, 1), T=6)
    assert ((cycle.symbols[1:] - cycle.symbols[:-1]) % 3 == 1).all()
    noiseless = tasks.sticky_chain(torch.Generator().manual_seed(1), transition, torch.randn(8, 2), T=9, noise=0.0)
    assert torch.equal(noiseless.inputs, noiseless.means[noiseless.symbols[:-1]])


def test_author_draws_leave_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    chain, weights = tasks.author_draws(42)
    assert torch.equal(before, torch.get_rng_state())
    assert chain.inputs.shape == (1999, 20)
    assert {name: tuple(W.shape) for name, W in weights.items()} == {
        "W_Q": (20, 10), "W_K": (20, 10), "W_V": (20, 15), "W_O": (15, 8),
    }  # fmt: skip
    torch.manual_seed(42)  # the script's own first draw of the weights
    assert torch.equal(weights["W_Q"], torch.randn(20, 10) * 0.1)


def test_the_linear_baseline_is_the_optimum():
    chain = small_chain()
    inputs, targets = chain.inputs.repeat(1, 4, 1), chain.targets.repeat(1, 4).roll(1, -1)
    W = tasks.fit_linear(inputs, targets, 3)
    p = (inputs @ W).softmax(-1)
    gradient = inputs.mT @ (p - torch.nn.functional.one_hot(targets, 3)) / inputs.shape[-2]
    assert gradient.abs().max() < 1e-6  # stationary, and the problem is convex
    assert W.shape == (2, 2, 3)
    with pytest.raises(ValueError, match="steps must suffice"):
        tasks.fit_linear(inputs, targets, 3, steps=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.ring_transition(1), "C must be at least 2, got 1"),
        (lambda: tasks.ring_transition(8, 1.5), "self_prob must be finite and at least 0 and at most 1, got 1.5"),
        (lambda: tasks.stationary(torch.ones(2, 2)), "transition must be probabilities"),
        (lambda: tasks.stationary(torch.ones(2, 3) / 3), "transition must have size 3"),
        (lambda: tasks.author_draws(-1), "seed must be at least 0, got -1"),
        (lambda: tasks.sticky_chain(torch.Generator(), tasks.ring_transition(), torch.zeros(8, 2), 0), "T must be at"),
        (lambda: tasks.sticky_chain(torch.Generator(), tasks.ring_transition(), torch.zeros(7, 2)), "means must have"),
        (
            lambda: tasks.filter_predictive(small_chain()._replace(transition=2 * torch.eye(3))),
            "transition must be probabilities",
        ),
        (
            lambda: tasks.filter_predictive(small_chain()._replace(inputs=torch.zeros(2, 5, 3))),
            "inputs must have size 2",
        ),
        (
            lambda: tasks.filter_predictive(small_chain()._replace(inputs=torch.zeros(2, 0, 2))),
            "inputs must not be empty",
        ),
        (
            lambda: tasks.positionwise_predictive(
                small_chain()._replace(inputs=torch.full((2, 5, 2), math.nan).double())
            ),
            "inputs must be finite",
        ),
        (lambda: tasks.fit_linear(torch.ones(4, 2), torch.full((4,), 3), 3), "targets must be class indices (int64)"),
        (lambda: tasks.fit_linear(torch.ones(4, 2), torch.zeros(3, dtype=torch.int64), 3), "targets must have size 4"),
        (lambda: tasks.filter_predictive(small_chain(), noise=0), "noise must be finite and above 0, got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
        call()
    assert message in str(raised.value)


def test_lookup_against_a_loop_that_reads_the_sequences():
    task = tasks.lookup(torch.Generator().manual_seed(3), 40, T=12, K=4, C=3)
    assert task.inputs.shape == (40, 13, 12)
    exact = tasks.lookup_predictive(task, 3)
    assert torch.allclose(exact.sum(-1), torch.ones(()))
    for n in range(40):
        known = {}
        for t in range(1, 13):
            row = task.inputs[n, t]
            key, value, query = row[:4].argmax().item(), row[4:7].argmax().item(), row[7:11].argmax().item()
            assert (row.sum(), row[-1]) == (3, 0)
            assert known.setdefault(key, value) == value  # a binding holds throughout its sequence
            assert query != key
            assert bool(task.seen[n, t]) == (query in known)
            if query in known:
                assert task.targets[n, t] == known[query]
                assert exact[n, t, known[query]] == 1
            else:
                assert torch.allclose(exact[n, t], torch.full((3,), 1 / 3))
    assert task.position_weights.tolist() == pytest.approx([0] + [1 / 12] * 12)


def test_a_position_alone_says_nothing_about_its_answer():
    task = tasks.lookup(torch.Generator().manual_seed(4), 20_000, T=2, K=3, C=2)
    rows, answers = task.inputs[:, 1:].flatten(0, 1)[:, :-1].long(), task.targets[:, 1:].flatten()
    for symbols in rows.unique(dim=0):
        share = answers[(rows == symbols).all(-1)].double().mean().item()
        assert abs(share - 0.5) < 0.04


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sequences": 0}, "sequences must be at least 1"),
        ({"T": 0}, "T must be at least 1"),
        ({"K": 1}, "K must be at least 2"),
        ({"C": 1}, "C must be at least 2"),
    ],
)
def test_lookup_refuses_bad_sizes(asked, message):
    with pytest.raises(ValueError, match=message):
        tasks.lookup(torch.Generator(), **({"sequences": 1} | asked))


def test_lookup_refuses_what_cannot_be_right():
    task = tasks.lookup(torch.Generator().manual_seed(0), 5, K=3, C=2)
    with pytest.raises(ValueError, match="C must be the task's number of values, got 3"):
        tasks.lookup_predictive(task, 3)
    with pytest.raises(TypeError, match="dtype must be a floating-point dtype"):
        tasks.lookup(torch.Generator(), 1, dtype=torch.int64)
