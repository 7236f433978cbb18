"""Arms and controls: the rates that were meant, matched first steps, and runs in the order that was asked for."""

import math

import pytest
import torch

from bayesattn_core import attention, experiments, geometry, recorded, records, tasks, training


@pytest.fixture
def short():
    """Two fresh chains cut to 40 positions."""
    chain, weights = experiments.setting(tasks.fresh_draws, [900, 901])
    return chain._replace(
        inputs=chain.inputs[:, :40], targets=chain.targets[:, :40], symbols=chain.symbols[:, :41]
    ), weights


def test_arms_are_the_papers_and_its_controls():
    assert experiments.ARMS["sgd"] == {"W_Q": 0.01, "W_K": 0.01, "W_V": 0.01, "W_O": 0.01}
    assert experiments.ARMS["em"] == {"W_Q": 0.01, "W_K": 0.01, "W_V": 0.1, "W_O": 0.01}
    assert sorted(experiments.ARMS["o-x10"].values()) == pytest.approx(sorted(experiments.ARMS["em"].values()))
    assert experiments.ARMS["em-frozen-qk"] == {"W_Q": 0.0, "W_K": 0.0, "W_V": 0.1, "W_O": 0.01}


def test_seeds_that_tune_are_never_reported():
    sets = [set(s) for s in (tasks.AUTHOR_SEEDS, experiments.FRESH_SEEDS, experiments.TUNING_SEEDS)]
    sets += [set(experiments.LOOKUP_SEEDS), set(experiments.LOOKUP_TUNING_SEEDS)]
    assert sum(map(len, sets)) == len(set.union(*sets))


def test_fresh_draws_differ_in_everything():
    (one, w_one), (two, w_two) = tasks.fresh_draws(100), tasks.fresh_draws(101)
    assert not torch.equal(one.means, two.means)
    assert not torch.equal(one.symbols, two.symbols)
    assert not torch.equal(w_one["W_Q"], w_two["W_Q"])
    assert torch.equal(one.inputs, tasks.fresh_draws(100)[0].inputs)
    assert one.inputs.shape == (1999, 20)


@pytest.mark.parametrize("how", experiments.MATCHES)
def test_matched_first_steps_are_as_large(short, how):
    chain, weights = short
    rate = experiments.matched_rates(chain, weights, how)
    assert rate.shape == (2,)

    def size(rates):
        run = experiments.descend_arms(chain, weights, {n: r[:, None] for n, r in rates.items()}, 1)
        moved = torch.stack([(run.weights[n][:, 0] - weights[n]).flatten(1).norm(dim=-1) for n in weights], -1)
        return moved.sum(-1) if how == "sum" else moved.norm(dim=-1)

    em = {name: torch.full((2,), r) for name, r in experiments.ARMS["em"].items()}
    assert torch.allclose(size(dict.fromkeys(attention.WEIGHTS, rate)), size(em), rtol=1e-3)
    with pytest.raises(ValueError, match="how must be one of sum, total, got 'most'"):
        experiments.matched_rates(chain, weights, "most")


def test_fair_runs_come_in_the_order_asked_for(short):
    chain, weights = short
    arms = ["em", "m-step", "sum-matched", "sgd"]
    rates = experiments.fair_rates(chain, weights, arms)
    run = experiments.descend_fair(chain, weights, rates, arms, 3, snapshots=[0, 3])
    assert run.loss.shape == (4, 2, 4)
    for k, arm in enumerate(("em", None, None, "sgd")):
        if arm:
            alone = experiments.descend_arms(chain, weights, experiments.stack_rates([arm]), 3)
            assert torch.allclose(run.loss[:, :, k], alone.loss[:, :, 0], atol=1e-6)
            assert torch.allclose(run.weights["W_V"][:, k], alone.weights["W_V"][:, 0], atol=1e-6)
    sgd = experiments.stack_rates(["sgd"])
    m_step = experiments.descend_arms(chain, weights, sgd, 3, value_step="majorised")
    assert torch.allclose(run.loss[:, :, 1], m_step.loss[:, :, 0], atol=1e-6)
    assert torch.equal(run.snapshots[0]["W_V"][:, 2], weights["W_V"])
    assert torch.equal(run.snapshots[3]["W_V"], run.weights["W_V"])
    with pytest.raises(ValueError, match="arm must be one of"):
        experiments.fair_rates(chain, weights, ["adam"])


def test_a_run_can_be_held_and_gone_on_with(short):
    chain, weights = short
    rates = experiments.stack_rates(["em"])
    whole = experiments.descend_arms(chain, weights, rates, 6, snapshots=[2])
    rest = training.descend(chain.inputs[:, None], whole.snapshots[2], chain.targets[:, None], rates, 4)
    assert torch.equal(rest.loss, whole.loss[2:])


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("sticky-fair-authors", tasks.author_draws),
        ("sticky-fair-fresh", tasks.fresh_draws),
        ("sticky-shuffled", experiments.shuffled_draws),
    ],
)
def test_the_fair_records_replay(name, draws):
    """First steps, and final weights against final losses, of two seeds and every arm."""
    record = records.read(name)
    seeds, arms = record.config["seeds"][:2], record.config["arms"]
    chain, weights = experiments.setting(draws, seeds)
    rates = experiments.fair_rates(chain, weights, arms)
    replay = experiments.descend_fair(chain, weights, rates, arms, 2)
    assert torch.allclose(replay.loss, record.metrics["loss"][:3, :2], rtol=0, atol=1e-4)
    final = {n: record.weights[n][:2] for n in attention.WEIGHTS}
    mean = attention.uniform_weights(chain.inputs)
    loss, _, _ = attention.blockwise(chain.inputs[:, None], final, chain.targets[:, None], mean)
    assert torch.allclose(loss, record.metrics["loss"][-1, :2], rtol=0, atol=1e-4)


def test_shuffled_labels_are_the_same_labels_elsewhere():
    (chain, weights), (shuffled, same) = tasks.author_draws(42), experiments.shuffled_draws(42)
    assert torch.equal(weights["W_V"], same["W_V"])
    assert torch.equal(chain.inputs, shuffled.inputs)
    assert torch.equal(chain.targets.sort().values, shuffled.targets.sort().values)
    stays = (chain.targets[1:] == chain.targets[:-1]).double().mean()  # sticky
    assert (shuffled.targets[1:] == shuffled.targets[:-1]).double().mean() < stays / 2
    assert torch.equal(shuffled.targets, experiments.shuffled_draws(42)[0].targets)
    assert not torch.equal(shuffled.targets, experiments.shuffled_draws(43)[0].targets)


@pytest.mark.parametrize("name", ["sticky-frozen", "sticky-frozen-content"])
def test_the_frozen_records_replay(name):
    """First steps from the freeze at the start, and what was held stays held: of two seeds and every arm."""
    record = records.read(name)
    seeds, arms = record.config["seeds"][:2], record.config["arms"]
    chain, weights = experiments.setting(tasks.author_draws, seeds)
    rates = experiments.fair_rates(chain, weights, arms)
    for f, what in enumerate(record.config["freezes"]):
        names = recorded.FREEZES[what]
        held = {name: rate * (name not in names) for name, rate in rates.items()}
        replay = experiments.descend_arms(chain, weights, held, 2)
        assert torch.allclose(replay.loss, record.metrics["loss"][:3, :2, :, f, 0], rtol=0, atol=1e-4)
        for name in names:
            assert torch.equal(replay.weights[name], weights[name][:, None].expand_as(replay.weights[name]))
    whole = records.read("sticky-fair-authors")
    # before the freeze, the run is the one that was not frozen; tuned SGD is left out: it stands at the edge of stability,
    # where spikes of the loss blow rounding up
    columns = [whole.config["arms"].index(arm) for arm in arms[:2]]
    for s, step in enumerate(record.config["freeze_steps"]):
        expected = whole.metrics["loss"][: step + 1][:, :, columns, None].expand(
            -1, -1, -1, len(record.config["freezes"])
        )
        assert torch.allclose(record.metrics["loss"][: step + 1, :, :2, :, s], expected, rtol=0, atol=1e-4)


def test_the_converged_record_replays():
    record, short_runs = records.read("sticky-converged"), records.read("sticky-fair-authors")
    seeds, arms, every = record.config["seeds"], record.config["arms"], record.config["every"]
    chain, weights = experiments.setting(tasks.author_draws, seeds[:1])
    replay = experiments.descend_fair(chain, weights, experiments.fair_rates(chain, weights, arms), arms, every)
    assert torch.allclose(replay.loss[::every], record.metrics["loss"][:2, :1], rtol=0, atol=1e-4)
    columns = [short_runs.config["arms"].index(arm) for arm in arms[:2]]  # SGD and EM-like
    expected = short_runs.metrics["loss"][::every][:, :, columns]
    assert torch.allclose(record.metrics["loss"][:101, :, :2], expected, rtol=0, atol=1e-4)
    mean = attention.uniform_weights(chain.inputs)
    final = {n: record.weights[n][:1] for n in attention.WEIGHTS}
    loss, _, _ = attention.blockwise(chain.inputs[:, None], final, chain.targets[:, None], mean)
    assert torch.allclose(loss, record.metrics["loss"][-1, :1], rtol=0, atol=1e-4)


def test_the_lookup_records_replay():
    """First steps of every arm, the final weights' distance to the exact answer, and one run with routing held."""
    record = records.read("lookup-fair")
    seeds, arms, every = record.config["seeds"][:2], record.config["arms"], record.config["every"]
    task, weights, options = experiments.lookup_setting(seeds)
    rates = experiments.fair_rates(task, weights, arms, experiments.LOOKUP_SCALE, "lookup-tuning")
    replay = experiments.descend_fair(task, weights, rates, arms, every, **options)
    assert torch.allclose(replay.loss[::every], record.metrics["loss"][:2, :2], rtol=0, atol=1e-3)
    unseen = experiments.lookup_stream(seeds, -1)
    divergence, _, _ = experiments.evaluate_lookup(unseen, {n: W[:2] for n, W in record.weights.items()})
    assert torch.allclose(divergence, record.metrics["divergence"][-1, :2], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "what"), [("lookup-frozen", "routing"), ("lookup-frozen-content", "content")])
def test_the_frozen_lookup_records_replay(name, what):
    """One seed of tuned SGD, held from step 100 to the end."""
    seeds, frozen = experiments.LOOKUP_SEEDS, records.read(name)
    at, steps = 100, frozen.config["steps"]
    column, place = frozen.config["arms"].index("tuned-sgd"), frozen.config["freeze_steps"].index(at)
    task, weights, options = experiments.lookup_setting(seeds[:1])
    rates = experiments.fair_rates(task, weights, ["tuned-sgd"], experiments.LOOKUP_SCALE, "lookup-tuning")
    before = experiments.descend_arms(task, weights, rates, at, **options)
    task, _, options = experiments.lookup_setting(seeds[:1], at)
    held = {name: rate * (name not in recorded.FREEZES[what]) for name, rate in rates.items()}
    X, targets = task.inputs[:, None], task.targets[:, None]
    rest = training.descend(X, before.weights, targets, held, steps - at, **options)
    unseen = experiments.lookup_stream(seeds[:1], -1)
    divergence, _, _ = experiments.evaluate_lookup(unseen, rest.weights)
    assert torch.allclose(
        divergence[0, 0],
        frozen.metrics["divergence"][0, 0, column, frozen.config["freezes"].index(what), place],
        rtol=0.05,
        atol=1e-3,
    )


@pytest.mark.parametrize(("name", "tail"), [("sticky-tuning", 1), ("lookup-tuning", None)])
def test_the_tuned_rates_are_those_that_the_tuning_record_prefers(name, tail):
    record = records.read(name)
    loss = record.metrics["loss"]
    final = loss[-(tail or len(loss)) :].mean((0, -1)).nan_to_num(torch.inf)
    for k, (family, factors) in enumerate(record.config["families"].items()):
        base = record.config["bases"][int(final[k].argmin())]
        assert experiments.tuned_rates(family, name) == experiments.per_weight(base, **factors)


def test_lookup_streams_are_the_same_for_every_arm_and_fresh_at_every_step():
    first, again = (experiments.lookup_stream([900, 901], step, sequences=3) for step in (0, 0))
    other = experiments.lookup_stream([900, 901], 1, sequences=3)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.inputs[0], first.inputs[1])
    task, weights, options = experiments.lookup_setting([900, 901], 7)
    assert torch.equal(task.inputs, experiments.lookup_stream([900, 901], 7).inputs)
    assert torch.equal(options["stream"](2)[0][:, 0], experiments.lookup_stream([900, 901], 9).inputs)
    assert weights["W_Q"].shape == (2, 25, 10)


@pytest.mark.parametrize("how", experiments.MATCHES)
def test_matched_first_steps_on_shared_sequences(how):
    task, weights, options = experiments.lookup_setting([900])
    rate = experiments.matched_rates(task, weights, how).item()

    def size(rates):
        run = experiments.descend_arms(task, weights, {n: torch.tensor([r]) for n, r in rates.items()}, 1, **options)
        moved = torch.stack([(run.weights[n][0, 0] - weights[n][0]).norm() for n in weights])
        return moved.sum() if how == "sum" else moved.norm()

    em = {n: 100 * r for n, r in experiments.ARMS["em"].items()}
    assert torch.allclose(size(dict.fromkeys(weights, 100 * rate)), size(em), rtol=1e-3)


def test_what_is_measured_along_a_lookup_run():
    """The last snapshot is the final state; a head that attends uniformly and answers uniformly is log C away."""
    task, weights, options = experiments.lookup_setting([900])
    rates = experiments.stack_rates(["sgd", "em"])
    run = experiments.descend_arms(task, weights, rates, 4, snapshots=[0, 2, 4], **options)
    unseen = experiments.lookup_stream([900], -1)
    along = experiments.along_lookup(unseen, run.snapshots, run.weights)
    for name in ("attention_left", "values_left"):
        assert along[name].shape == (3, 1, 2)
        assert along[name][-1].abs().max() < 1e-6
        assert (along[name][0] > 0).all()
    for name in ("attention_path", "values_path"):
        assert (along[name].diff(dim=0) >= 0).all()
        assert (along[name][-1] >= along[name.replace("path", "left")][0] * (1 - 1e-4)).all()  # no path beats the chord
    assert torch.allclose(along["values_cka"][-1], torch.ones(1, 2))
    silent = {n: torch.zeros_like(M) for n, M in run.weights.items()}
    divergence, attention_rows, values = experiments.evaluate_lookup(unseen, silent)
    expected = (unseen.seen[..., 1:].float().mean() * math.log(8)).item()
    assert divergence.flatten().tolist() == pytest.approx([expected] * 2, rel=1e-5)
    assert attention_rows.shape == (1, 2, 64, 25, 25)
    assert values.shape == (1, 2, 8, 15)


def test_what_is_fetched_is_the_rows_of_the_values():
    """A planted W_V: rows of keys, values and queries are told apart; unsupervised rows do not count."""
    task, weights, _ = experiments.lookup_setting([900])
    rows = torch.arange(25.0)[:, None].expand(25, 15)
    heads = {n: (rows if n == "W_V" else W[0]).expand(1, 1, *W.shape[-2:]).clone() for n, W in weights.items()}
    _, _, values = experiments.evaluate_lookup(task, heads)
    assert values[0, 0, :, 0].tolist() == list(range(8, 16))
    turned = heads | {"W_Q": 30 * heads["W_Q"]}
    along = experiments.along_lookup(task, {0: heads, 1: turned}, turned)
    states = [experiments.evaluate_lookup(task, W)[1][..., 1:, :].flatten(-3, -2) for W in (heads, turned)]
    expected = geometry.jensen_shannon(*states).mean(-1)
    assert torch.allclose(along["attention_left"][0], expected, atol=1e-6)


def test_bad_arms_and_seeds_are_named():
    task, weights, options = experiments.lookup_setting([900])
    rates = experiments.fair_rates(task, weights, ["sgd", "em"])
    for arms in (["em", "em"], ["sgd"], []):
        with pytest.raises(ValueError, match="arms must be one name for each of the 2 columns of rates"):
            experiments.descend_fair(task, weights, rates, arms, 1, **options)
    with pytest.raises(ValueError, match="arms must not be empty"):
        experiments.fair_rates(task, weights, [])
    with pytest.raises(ValueError, match="scale must be"):
        experiments.fair_rates(task, weights, ["sgd"], -1.0)
    with pytest.raises(ValueError, match="seeds must not be empty"):
        experiments.lookup_stream([], 0)
    with pytest.raises(ValueError, match="seeds must not be empty"):
        experiments.rank_weights(4, [])
    with pytest.raises(ValueError, match="step must be at most"):
        experiments.lookup_stream([900], 99_999)
    with pytest.raises(ValueError, match="arm must be one of"):
        experiments.matched_rates(task, weights, "sum", "adam")
