"""Descent: the paper's losses, the arms, snapshots, and what is refused."""

import csv
import math
from pathlib import Path

import pytest
import torch

from bayesattn_core import attention, experiments, records, tasks, training

REFERENCE = Path(__file__).parent / "data" / "sticky_losses.csv"  # the public script's losses, before each update
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def reference(last_step: int):
    """(step, {(seed, arm): loss}) of the public script up to a step."""
    with REFERENCE.open() as stream:
        for row in csv.DictReader(stream):
            step = int(row.pop("step"))
            if step <= last_step:
                yield step, {(int(key.split("_")[1]), key.split("_")[0]): float(value) for key, value in row.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_first_steps_are_the_published_ones(device):
    run = experiments.descend_authors([42, 2024], ["sgd", "em"], 25, device)
    steps = list(reference(25))
    assert len(steps) == 2
    for step, losses in steps:
        for (seed, arm), loss in losses.items():
            given = run.loss[step, [42, 2024].index(seed), ["sgd", "em"].index(arm)].item()
            assert given == pytest.approx(loss, abs=1e-5)


def test_the_record_is_the_published_experiment():
    record = records.read("sticky-authors")
    seeds, arms = record.config["seeds"], list(record.config["arms"])
    assert seeds == list(tasks.AUTHOR_SEEDS)
    assert record.config["arms"] == {arm: experiments.ARMS[arm] for arm in arms}
    steps = list(reference(1000))
    assert len(steps) == 41
    for step, losses in steps:
        for (seed, arm), loss in losses.items():
            assert record.metrics["loss"][step, seeds.index(seed), arms.index(arm)].item() == pytest.approx(
                loss, abs=1e-3
            )
    final = record.metrics["loss"][-1].double()
    assert final.mean(0).tolist() == pytest.approx([2.0310, 1.9319], abs=1e-3)
    assert final.std(0, correction=0).tolist() == pytest.approx([0.0214, 0.0258], abs=1e-3)


def test_the_record_replays():
    record = records.read("sticky-authors")
    seeds, arms = record.config["seeds"], list(record.config["arms"])
    replay = experiments.descend_authors(seeds, arms, 10)
    for name in record.metrics:
        assert torch.allclose(
            getattr(replay, name), record.metrics[name][:11], rtol=0, atol=1e-3 if name == "accuracy" else 1e-5
        )
    chain, _ = experiments.setting(tasks.author_draws, seeds)
    again = training.descend(chain.inputs[:, None], record.weights, chain.targets[:, None], experiments.ARMS["sgd"], 0)
    for name in record.metrics:
        assert torch.allclose(
            getattr(again, name)[0], record.metrics[name][-1], rtol=0, atol=1e-3 if name == "accuracy" else 1e-5
        )


def toy(T=7):
    generator = torch.Generator().manual_seed(11)
    shapes = {"W_Q": (4, 3), "W_K": (4, 3), "W_V": (4, 2), "W_O": (2, 5)}
    weights = {n: torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    X = torch.randn(T, 4, generator=generator, dtype=torch.float64)
    return X, weights, torch.randint(5, (T,), generator=generator)


def test_descent_is_torchs_own_sgd():
    X, weights, targets = toy()
    rates = {"W_Q": 0.3, "W_K": 0.0, "W_V": 0.5, "W_O": 0.1}
    run = training.descend(X, weights, targets, rates, 5)
    leaves = {n: W.clone().requires_grad_() for n, W in weights.items()}
    optimizer = torch.optim.SGD([{"params": [leaves[n]], "lr": rates[n]} for n in leaves])
    for step in range(6):
        f = attention.forward(X, leaves, targets)
        assert run.loss[step].item() == pytest.approx(f.loss.item(), abs=1e-14)
        assert run.accuracy[step].item() == pytest.approx((f.logits.argmax(-1) == targets).double().mean().item())
        assert run.entropy[step].item() == pytest.approx(
            torch.distributions.Categorical(f.probabilities).entropy().mean().item()
        )
        if step < 5:
            optimizer.zero_grad()
            f.loss.backward()
            optimizer.step()
    for name, leaf in leaves.items():
        assert torch.allclose(run.weights[name], leaf, rtol=0, atol=1e-14)
    assert torch.equal(run.weights["W_K"], weights["W_K"])


def test_arms_and_seeds_are_one_batch():
    X, weights, targets = toy()
    both = training.descend(
        X, {n: W[None] for n, W in weights.items()}, targets, experiments.stack_rates(["sgd", "em"]), 4
    )
    for k, arm in enumerate(["sgd", "em"]):
        alone = training.descend(X, weights, targets, experiments.ARMS[arm], 4)
        assert torch.allclose(both.loss[:, k], alone.loss, rtol=1e-14)
        assert torch.allclose(both.weights["W_V"][k], alone.weights["W_V"], rtol=0, atol=1e-15)
    assert not torch.allclose(both.loss[-1, 0], both.loss[-1, 1])


def test_snapshots_keep_what_is_asked_for():
    X, weights, targets = toy()
    run = training.descend(X, weights, targets, experiments.ARMS["em"], 4, snapshots=[0, 4], keep=training.SNAPSHOTS)
    assert sorted(run.snapshots) == [0, 4]
    final = attention.forward(X, run.weights, targets)
    assert torch.allclose(run.snapshots[4]["attention"], final.attention, rtol=0, atol=1e-15)
    assert torch.allclose(run.snapshots[4]["values"], final.values, rtol=0, atol=1e-15)
    assert torch.equal(run.snapshots[0]["W_Q"], weights["W_Q"])
    assert set(
        training.descend(X, weights, targets, experiments.ARMS["em"], 1, snapshots=[1], keep=["values"]).snapshots[1]
    ) == {"values"}


def test_metrics_count_supervised_positions_only():
    X, weights, targets = toy()
    w = torch.tensor([0, 0, 0.2, 0, 0, 0.2, 0], dtype=torch.float64)
    run = training.descend(X, weights, targets, experiments.ARMS["sgd"], 0, position_weights=w)
    f = attention.forward(X, weights, targets)
    right = (f.logits.argmax(-1) == targets)[[2, 5]].double().mean().item()
    assert run.accuracy[0].item() == pytest.approx(right)
    entropies = torch.distributions.Categorical(f.probabilities).entropy()[[2, 5]]
    assert run.entropy[0].item() == pytest.approx(entropies.mean().item())


@pytest.mark.parametrize("causal", [True, False])
def test_masks_reach_descent_and_snapshots(causal):
    X, weights, targets = toy()
    run = training.descend(X, weights, targets, training_rates(), 1, causal=causal, snapshots=[0], keep=["attention"])
    head = attention.forward(X, weights, targets, causal=causal)
    assert run.loss[0].item() == pytest.approx(head.loss.item(), abs=1e-14)
    assert torch.allclose(run.snapshots[0]["attention"], head.attention, rtol=0, atol=1e-15)


def training_rates():
    return experiments.ARMS["sgd"]


def test_any_batch_dimension_may_come_from_any_argument():
    X, weights, targets = toy()
    many = torch.stack([targets, targets.roll(1)])
    run = training.descend(X, weights, many, training_rates(), 2)
    for k in range(2):
        alone = training.descend(X, weights, many[k], training_rates(), 2)
        assert torch.allclose(run.loss[:, k], alone.loss, rtol=1e-14)
    w = torch.rand(3, 7, dtype=torch.float64)
    assert training.descend(X, weights, targets, training_rates(), 1, position_weights=w).loss.shape == (2, 3)


def test_weights_that_require_grad_are_left_alone():
    X, weights, targets = toy()
    leaves = {n: W.clone().requires_grad_() for n, W in weights.items()}
    run = training.descend(X, leaves, targets, training_rates(), 2)
    assert not run.weights["W_V"].requires_grad
    assert torch.equal(leaves["W_V"].detach(), weights["W_V"])


def test_a_person_who_is_watching_sees_progress(monkeypatch, capfd):
    monkeypatch.setattr(training, "watched", lambda: True)
    X, weights, targets = toy()
    training.descend(X, weights, targets, training_rates(), 3, label="watch me")
    assert "watch me" in capfd.readouterr().err


def test_divergence_is_refused_and_says_when():
    X, weights, targets = toy()
    rates, w, step, one_by_one = dict.fromkeys(attention.WEIGHTS, 1e60), attention.uniform_weights(X), 0, dict(weights)
    while torch.isfinite(attention.blockwise(X, one_by_one, targets, w)[0]):
        gradients = attention.blockwise(X, one_by_one, targets, w)[2]
        one_by_one = {n: W - rates[n] * gradients[n] for n, W in one_by_one.items()}
        step += 1
    assert step > 1
    with pytest.raises(training.Diverged, match=rf"finite loss, got .* at step {step}:") as raised:
        training.descend(X, weights, targets, rates, 100)
    assert "\n" not in str(raised.value)


def test_threshold_step_counts_losses_before_updates():
    losses = torch.tensor([3.0, 2.0, 1.0, 0.5])
    assert training.threshold_step(losses, 2.5) == 1
    assert training.threshold_step(losses, 2.0) == 2
    assert training.threshold_step(losses, 0.9) is None  # only the loss after the last update is below


def test_nobody_is_watching_the_tests(capfd):
    X, weights, targets = toy()
    training.descend(X, weights, targets, experiments.ARMS["sgd"], 3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, got -1"),
        ({"steps": 1.5}, "steps must be a whole number, got 1.5"),
        ({"rates": {"W_Q": 0.1}}, "rates must be a dict with the keys W_Q, W_K, W_V, W_O, got ['W_Q']"),
        ({"rates": experiments.ARMS["sgd"] | {"W_V": -0.1}}, "rates['W_V'] must be finite and not negative, got -0.1"),
        ({"rates": experiments.ARMS["sgd"] | {"W_V": math.nan}}, "rates['W_V'] must be finite"),
        ({"steps": 10**8}, "steps must be at most 10000000, got 100000000"),
        (
            {"rates": experiments.ARMS["sgd"] | {"W_V": "a"}},
            "rates['W_V'] must be a number or a tensor of numbers, got 'a'",
        ),
        ({"rates": experiments.ARMS["sgd"] | {"W_V": None}}, "rates['W_V'] must be a number or a tensor of numbers"),
        (
            {"rates": experiments.ARMS["sgd"] | {"W_V": torch.ones(2), "W_O": torch.ones(3)}},
            "rates must broadcast with the batch (), got shapes",
        ),
        ({"position_weights": torch.zeros(7).double()}, "position_weights must supervise at least one position"),
        ({"snapshots": [9]}, "snapshots must be steps from 0 to 3, got 9"),
        ({"keep": ["everything"]}, "keep must be one of weights, attention, values, got 'everything'"),
        ({"X": torch.full((7, 4), math.nan).double()}, "X must be finite"),
    ],
)
def test_bad_input_is_named(changes, message):
    X, weights, targets = toy()
    arguments = {"X": X, "weights": weights, "targets": targets, "rates": experiments.ARMS["sgd"], "steps": 3} | changes
    with pytest.raises((ValueError, TypeError)) as raised:
        training.descend(**arguments)
    assert message in str(raised.value)
    with pytest.raises(
        ValueError, match="arm must be one of sgd, em, all-x10, o-x10, qk-x10, vo-x10, em-frozen-qk, got 'adam'"
    ):
        experiments.stack_rates(["adam"])


def shared_head(runs=2, N=3, T=5):
    """Inputs (runs, N, T, 4), weights (runs, ...), targets (runs, N, T) and position weights (T,), in float64."""
    draw = torch.Generator().manual_seed(5)
    X = torch.randn(runs, N, T, 4, generator=draw, dtype=torch.float64)
    shapes = {"W_Q": (4, 2), "W_K": (4, 2), "W_V": (4, 3), "W_O": (3, 3)}
    W = {n: torch.randn(runs, *s, generator=draw, dtype=torch.float64) for n, s in shapes.items()}
    w = torch.full((T,), 1 / (T - 1), dtype=torch.float64)
    w[0] = 0
    return X, W, torch.randint(3, (runs, N, T), generator=draw), w


@pytest.mark.parametrize("value_step", training.VALUE_STEPS)
def test_sequences_share_a_head_as_autograd_sees_it(value_step):
    X, W, targets, w = shared_head()
    rates = dict.fromkeys(attention.WEIGHTS, 0.3)
    run = training.descend(
        X, W, targets, rates, 1, position_weights=w, sequences=True, value_step=value_step, snapshots=[0, 1]
    )
    leaves = {n: M.clone().requires_grad_() for n, M in W.items()}
    loss = attention.forward(X, {n: M[:, None] for n, M in leaves.items()}, targets, w).loss.mean(-1)
    loss.sum().backward()
    assert torch.allclose(run.loss[0], loss.detach(), atol=1e-14)
    p = attention.forward(X, {n: M[:, None] for n, M in W.items()}, targets, w).probabilities
    right = (w * (p.argmax(-1) == targets)).sum(-1).mean(-1)
    assert torch.allclose(run.accuracy[0], right, atol=1e-14)
    assert torch.allclose(run.entropy[0], (w * -(p * p.log()).sum(-1)).sum(-1).mean(-1), atol=1e-14)
    for name in attention.WEIGHTS:
        assert torch.equal(run.snapshots[0][name], W[name])
        assert torch.equal(run.snapshots[1][name], run.weights[name])
        if name != "W_V" or value_step == "gradient":
            assert torch.allclose(run.weights[name], W[name] - 0.3 * leaves[name].grad, atol=1e-14)
    # one sequence that shares with nobody is an ordinary run
    alone = training.descend(X[:, 0], W, targets[:, 0], rates, 3, position_weights=w, value_step=value_step)
    one = training.descend(
        X[:, :1], W, targets[:, :1], rates, 3, position_weights=w, sequences=True, value_step=value_step
    )
    assert torch.allclose(alone.loss, one.loss, atol=1e-12)
    assert torch.allclose(alone.accuracy, one.accuracy, atol=1e-12)


def test_majorised_steps_on_shared_sequences_never_raise_the_loss():
    X, W, targets, w = shared_head(N=6)
    rates = dict.fromkeys(attention.WEIGHTS, 0.0)
    run = training.descend(X, W, targets, rates, 20, position_weights=w, sequences=True, value_step="majorised")
    assert run.loss.diff(dim=0).max() <= 1e-12
    assert (run.loss[0] - run.loss[-1]).min() > 1e-3


def test_a_stream_gives_every_step_its_own_inputs():
    X, W, targets, w = shared_head()
    later = {k: (X + k, (targets + k) % 3) for k in (1, 2)}
    rates = dict.fromkeys(attention.WEIGHTS, 0.3)
    options = {"position_weights": w, "sequences": True}
    run = training.descend(X, W, targets, rates, 2, stream=later.__getitem__, **options)
    weights = W
    for k in range(3):
        x, y = later.get(k, (X, targets))
        step = training.descend(x, weights, y, rates, 1, **options)
        assert torch.equal(step.loss[0], run.loss[k])
        assert torch.equal(step.accuracy[0], run.accuracy[k])
        if k < 2:
            weights = step.weights
    assert torch.equal(weights["W_Q"], run.weights["W_Q"])
    with pytest.raises(ValueError, match="stream must keep the shapes"):
        training.descend(X, W, targets, rates, 2, stream=lambda k: (X[:, :2], targets), **options)
    with pytest.raises(ValueError, match="targets must be class indices from 0 to 2"):
        training.descend(X, W, targets, rates, 2, stream=lambda k: (X, targets + 1), **options)
    with pytest.raises(TypeError, match="must have X's dtype"):
        training.descend(X, W, targets, rates, 2, stream=lambda k: (X.float(), targets), **options)
    with pytest.raises(TypeError, match="stream must be a function"):
        training.descend(X, W, targets, rates, 2, stream=5, **options)
    with pytest.raises(ValueError, match="X must have at least 3 dimensions"):
        training.descend(X[0, 0], W, targets[0, 0], rates, 2, sequences=True)
    with pytest.raises(TypeError, match="sequences must be True or False"):
        training.descend(X, W, targets, rates, 2, sequences="no")
    with pytest.raises(ValueError, match="weights must be a dict"):
        training.descend(X, 5, targets, rates, 2, sequences=True)
