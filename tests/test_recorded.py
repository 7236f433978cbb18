"""The recording functions themselves, run tiny and compared with runs put together by hand; and records against themselves."""

import dataclasses
import itertools
import math
import re
import time
from types import SimpleNamespace

import pytest
import torch

from bayesattn_core import __main__ as commands
from bayesattn_core import (
    attention,
    experiments,
    geometry,
    manifolds,
    networks,
    recorded,
    records,
    tasks,
    training,
    tunnels,
)

CPU = torch.device("cpu")


@pytest.fixture
def short(monkeypatch):
    """Author draws cut to 40 positions."""
    honest = experiments.setting

    def setting(draws, seeds, device="cpu"):
        chain, weights = honest(draws, seeds, device)
        cut = {"inputs": chain.inputs[:, :40], "targets": chain.targets[:, :40], "symbols": chain.symbols[:, :41]}
        return chain._replace(**cut), weights

    monkeypatch.setattr(experiments, "setting", setting)
    return setting


def test_a_frozen_record_holds_what_it_says_from_when_it_says(short):
    seeds, freezes = [900, 901], ("values", "routing", "content")
    record = recorded.record_frozen(CPU, freezes, seeds, 5, (0, 3))
    assert record.metrics["loss"].shape == (6, 2, 3, 3, 2)
    chain, weights = short(tasks.author_draws, seeds)
    rates = experiments.fair_rates(chain, weights, recorded.FROZEN_ARMS)
    assert record.config["rates"]["W_V"] == rates["W_V"].tolist()
    for f, what in enumerate(freezes):
        held_names = {"values": {"W_V"}, "routing": {"W_Q", "W_K"}, "content": {"W_V", "W_O"}}[what]
        for s, step in enumerate((0, 3)):
            free = experiments.descend_arms(chain, weights, rates, step)
            held = {name: rate * (name not in held_names) for name, rate in rates.items()}
            rest = training.descend(chain.inputs[:, None], free.weights, chain.targets[:, None], held, 5 - step)
            expected = torch.cat([free.loss[:step], rest.loss])
            assert torch.allclose(record.metrics["loss"][:, :, :, f, s], expected, atol=1e-6)


def test_a_frozen_lookup_record_goes_on_with_its_stream(monkeypatch):
    seeds = [900]
    record = recorded.record_lookup_frozen(CPU, ("values",), seeds, 5, (0, 3))
    task, weights, _ = experiments.lookup_setting(seeds)
    rates = experiments.fair_rates(task, weights, recorded.FROZEN_ARMS, experiments.LOOKUP_SCALE, "lookup-tuning")
    weights = {name: W[:, None] for name, W in weights.items()}
    for step in range(5):  # one step at a time, held from 3 on
        now = experiments.lookup_stream(seeds, step)
        used = {name: rate * (step < 3 or name != "W_V") for name, rate in rates.items()}
        shared = {"position_weights": now.position_weights, "sequences": True}
        weights = training.descend(now.inputs[:, None], weights, now.targets[:, None], used, 1, **shared).weights
    expected, _, _ = experiments.evaluate_lookup(experiments.lookup_stream(seeds, -1), weights)
    assert torch.allclose(record.metrics["divergence"][0, :, :, 0, 1], expected, atol=1e-6)
    assert not torch.allclose(record.metrics["divergence"][0, :, :, 0, 0], expected, atol=1e-6)


def test_the_lookup_record_is_evaluated_on_sequences_of_its_own():
    record = recorded.record_lookup(CPU, [900], 10)
    assert record.metrics["loss"].shape == (2, 1, len(experiments.FAIR_ARMS))
    unseen = experiments.lookup_stream([900], -1)
    expected, _, _ = experiments.evaluate_lookup(unseen, record.weights)
    assert torch.allclose(record.metrics["divergence"][-1], expected, atol=1e-6)
    task, weights, _ = experiments.lookup_setting([900])
    rates = experiments.fair_rates(task, weights, experiments.FAIR_ARMS, 100.0, "lookup-tuning")
    assert record.config["rates"]["W_Q"] == rates["W_Q"].tolist()


def test_tuning_takes_the_lowest_mean_loss_and_never_a_diverged_one(short):
    chain, weights = short(tasks.fresh_draws, [902])
    families, bases = {"sgd": {}, "em": {"W_V": 10.0}}, (0.01, 0.1, 1e9)
    record = recorded.tune("sticky", chain, weights, (902,), families, bases, 60, 1)
    assert record.metrics["loss"].shape == (61, 2, 3, 1)
    assert record.metrics["loss"][:, :, 2].isnan().all()
    assert (record.metrics["loss"][-1, :, 1] < record.metrics["loss"][-1, :, 0]).all()
    assert record.config["tuned"] == {"sgd": 0.1, "em": 0.1}


def test_metrics_are_kept_at_every_so_many_steps(short):
    record = recorded.record_fair(tasks.author_draws, (900, 901), CPU, ("sgd", "em"), 6, 3, (0, 6))
    assert record.metrics["loss"].shape == (3, 2, 2)
    assert record.config["every"] == 3
    whole = recorded.record_fair(tasks.author_draws, (900, 901), CPU, ("sgd", "em"), 6)
    assert torch.equal(record.metrics["loss"], whole.metrics["loss"][::3])
    assert torch.equal(record.weights["W_V@6"], record.weights["W_V"])


@pytest.mark.parametrize(
    ("name", "draws", "steps"),
    [
        ("sticky-fair-authors", tasks.author_draws, (0, 100, 500, 1000)),
        ("sticky-converged", tasks.author_draws, (1000, 5000, 10_000)),
        ("sticky-fair-fresh", tasks.fresh_draws, (None,)),
        ("sticky-shuffled", experiments.shuffled_draws, (0, 100, 1000)),
    ],
)
def test_recorded_weights_have_the_recorded_loss_on_every_seed(name, draws, steps):
    record = records.read(name)
    chain, _ = experiments.setting(draws, record.config["seeds"])
    loss, mean = record.metrics["loss"], attention.uniform_weights(chain.inputs)
    for step in steps:
        W = {n: record.weights[n if step is None else f"{n}@{step}"] for n in attention.WEIGHTS}
        found, _, _ = attention.blockwise(chain.inputs[:, None], W, chain.targets[:, None], mean)
        expected = loss[-1 if step is None else step // record.config["every"]]
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_recorded_lookup_weights_are_as_far_from_exact_as_recorded_on_every_seed():
    record = records.read("lookup-fair")
    found, _, _ = experiments.evaluate_lookup(experiments.lookup_stream(record.config["seeds"], -1), record.weights)
    assert torch.allclose(found, record.metrics["divergence"][-1], rtol=1e-3, atol=1e-4)
    for what in ("attention", "values"):
        left, path = record.metrics[f"{what}_left"], record.metrics[f"{what}_path"]
        assert left[-1].abs().max() < 1e-5
        travelled = path[-1] - path
        assert (left <= travelled * (1 + 1e-3) + 1e-4).all()  # no chord is longer than its path


def test_the_rank_record_measures_what_it_says():
    record = recorded.record_ranks(CPU, (2, 4), (900, 901), 5)
    seeds, arms = (900, 901), list(experiments.RANK_ARMS)
    batches = [experiments.rank_stream(4, seeds, step) for step in range(7)]
    assert not torch.equal(batches[0][0], batches[1][0])
    for _, targets in batches:
        assert not torch.equal(targets[:, 3], targets[:, 0])
        assert torch.equal(targets[:, 3].sort().values, targets[:, 0].sort().values)
    start = experiments.rank_weights(4, seeds)
    for k, arm in enumerate(arms):
        rates = {name: 0.1 * experiments.RANK_ARMS[arm].get(name, 1.0) for name in attention.WEIGHTS}
        weights, losses = start, []
        for inputs, targets in batches[:5]:  # one step at a time
            run = training.descend(inputs, weights, targets[:, k], rates, 1)
            weights, losses = run.weights, [*losses, run.loss[0]]
        moved = batches[6][0] @ (weights["W_V"] - start["W_V"])
        expected = geometry.effective_rank(moved.double()).float()
        assert torch.allclose(record.metrics["effective_rank_moved"][1, :, k], expected, rtol=1e-3)
        assert torch.allclose(record.metrics["loss"][1, :, k, 0], losses[0], rtol=1e-4)
        held = [name for name, W in weights.items() if torch.equal(W, start[name])]
        assert held == [name for name, rate in rates.items() if rate == 0]
    # with W_O held the displacement has C - 1 directions, exactly
    assert record.metrics["effective_rank_moved"][0, :, arms.index("fixed-output")].max() < 1 + 1e-3


@pytest.mark.parametrize("name", recorded.recorded_cells())
def test_a_recorded_cell_trains_and_scores_again(name, monkeypatch, tmp_path):
    """The first twenty steps of seed 0, and its recorded weights on the evaluation sequences."""
    record, cell = records.read(name), dict(recorded.CELLS[name])
    assert record.config["seed"] == list(range(cell.pop("seeds")))
    tuning = {float(rate): loss for rate, loss in record.config["tuning"].items()}
    best = min(tuning, key=tuning.get)
    assert record.config["rate"] == best
    assert tuning.keys() >= set(recorded.CELL_RATES)
    assert best not in (recorded.CELL_RATES[0], recorded.CELL_RATES[-1]) or len(tuning) > 3
    settings = networks.settings(**cell, rate=best)
    given = dataclasses.asdict(settings) | {"seed": record.config["seed"], "snapshots": record.config["snapshots"]}
    since = {name: getattr(settings, name) for name in ("matrices", "held", "held_from")}  # settings that came later
    assert {key: (since | record.config)[key] for key in given} == given
    losses, honest = [], networks.mean_loss

    class Enough(Exception):
        pass

    def watched(*given):
        losses.append(honest(*given))
        if len(losses) > 20:
            raise Enough
        return losses[-1]

    monkeypatch.setattr(networks, "mean_loss", watched)
    with pytest.raises(Enough):
        networks.train(settings, tmp_path / "run")
    first = torch.stack(losses[:20]).detach().reshape(2, 10).mean(1)
    assert torch.allclose(record.metrics["loss"][:2, 0], first, rtol=1e-3)
    assert bool(record.weights) == (not recorded.CURVES_ALONE & set(cell))
    if not record.weights:
        with pytest.raises(ValueError, match="name must be of a cell whose weights are kept"):
            recorded.trained(name)
        return
    _, model, _ = recorded.trained(name)
    found = networks.evaluate(model, networks.draw(settings, None))["kl"].float()
    assert torch.allclose(found.nan_to_num(-1), record.metrics["kl"][-1, :, 0].nan_to_num(-1), atol=1e-4)
    if "longer/kl" not in record.metrics:
        return
    tunnel = networks.longer(settings.tunnel)
    batch = networks.draw(settings, None, CPU, tunnel)
    found = {"longer/kl": networks.evaluate(model, batch)["kl"]}
    for predictor, p in tunnel.predictors(batch).items():
        found[f"longer/predictor/{predictor}"] = networks.judge(batch, p.log())["kl"]
    assert {key for key in record.metrics if key.startswith("longer/")} == set(found)
    for key, value in found.items():
        expected = record.metrics[key][..., 0]
        assert torch.allclose(value.float().nan_to_num(-1), expected.nan_to_num(-1), atol=2e-5, rtol=1e-3), key


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Cells of 20 steps, tuned in 100, on tiny networks; their single runs in a temporary folder."""
    monkeypatch.setattr(recorded, "RUNS", tmp_path / "runs")
    honest = networks.settings
    small = {"batch": 4, "parameters": 3000, "layers": 1, "sequences": 10, "evaluations": 3, "warmup": 2}

    def settings(task, architecture, profile="quick", **changes):
        steps = 100 if changes.pop("steps", None) else 20
        return honest(task, architecture, profile, **(changes | small | {"steps": steps}))

    monkeypatch.setattr(networks, "settings", settings)
    return tmp_path / "runs" / "quick"


def test_a_cell_keeps_its_best_rate_and_stacks_its_seeds(tiny):
    record = recorded.record_cell("bijection", "lstm", CPU, 2)
    folder = tiny / "bijection-lstm"
    losses = {
        float(path.name.removeprefix("rate-")): records.read(path.name, folder).metrics["loss"][-100:].mean().item()
        for path in folder.glob("rate-*")
    }
    assert losses == {float(rate): pytest.approx(loss) for rate, loss in record.config["tuning"].items()}
    best = min(losses, key=losses.get)
    assert record.config["rate"] == best
    inner = min(recorded.CELL_RATES, key=losses.get)
    expected = {1e-3: {3e-4}, 3e-3: set(), 1e-2: {3e-2}}[inner]  # the next rate where the best is at an end
    assert set(losses) == set(recorded.CELL_RATES) | expected
    seeds = [records.read(f"seed-{k}", folder) for k in (0, 1)]
    for k, run in enumerate(seeds):
        assert torch.equal(record.metrics["kl"][..., k].nan_to_num(-1), run.metrics["kl"].nan_to_num(-1))
        assert torch.allclose(record.metrics["loss"][:, k], run.metrics["loss"].reshape(2, 10).mean(1))
    assert not any(name.startswith("probe@") for name in record.weights)
    probed = recorded.record_cell("bijection", "transformer", CPU, 1).weights
    assert {name.rpartition("/")[2] for name in probed if name.startswith("probe@20/")} == set(recorded.PROBED)
    assert not torch.equal(seeds[0].metrics["loss"], seeds[1].metrics["loss"])


def test_another_shape_takes_the_rate_of_the_recorded_cell(tiny):
    usual = records.read("bijection-lstm").config
    record = recorded.record_cell("bijection", "lstm", CPU, 1, soft=True)
    assert record.config["soft"]
    assert (record.config["rate"], record.config["tuning"]) == (usual["rate"], usual["tuning"])
    assert not list(tiny.rglob("rate-*"))
    assert recorded.record_cell("bijection", "lstm", CPU, 1, decay=0.1).config["tuning"] != usual["tuning"]


def test_of_other_shapes_only_curves_are_kept(tiny):
    assert recorded.record_cell("bijection", "lstm", CPU, 1, layers=2).weights == {}


def test_a_single_run_of_other_settings_is_refused(tiny, tmp_path):
    settings = networks.settings("bijection", "lstm", rate=1e-2)
    run = recorded.run_once(settings, tmp_path / "run", CPU, math.inf)
    assert torch.equal(
        recorded.run_once(settings, tmp_path / "run", CPU, math.inf).metrics["loss"], run.metrics["loss"]
    )
    with pytest.raises(ValueError, match=r"got .*run with {'rate': 0.01}: remove it"):
        recorded.run_once(dataclasses.replace(settings, rate=3e-2), tmp_path / "run", CPU, math.inf)


def test_the_rates_are_widened_at_either_end(tiny, monkeypatch):
    for best, expected in ((1e-3, {3e-4}), (3e-3, set()), (1e-2, {3e-2})):

        def run_once(settings, out, device, until, best=best):
            loss = torch.full((100,), abs(math.log(settings.rate / best)))
            return records.Record({}, {"loss": loss}, {}, {})

        monkeypatch.setattr(recorded, "run_once", run_once)
        assert set(recorded.tune_cell("bijection", "lstm", CPU)) == set(recorded.CELL_RATES) | expected


def test_a_cell_goes_on_when_its_time_is_over(tiny):
    """Stopped every few steps until it is done, it is the cell that was never stopped."""
    whole = recorded.record_cell("hmm-fixed-sticky", "transformer", CPU, 2, positions="none")
    recorded.RUNS = recorded.RUNS.with_name("other")
    for _ in range(500):
        try:
            pieces = recorded.record_cell(
                "hmm-fixed-sticky", "transformer", CPU, 2, until=time.perf_counter() + 0.3, positions="none"
            )
            break
        except networks.Unfinished:
            continue
    assert pieces.config == whole.config
    for name, value in whole.metrics.items():
        assert torch.equal(pieces.metrics[name].nan_to_num(-1), value.nan_to_num(-1))
    T = networks.longer(networks.TASKS["hmm-fixed-sticky"]["quick"]).T
    assert whole.metrics["longer/kl"].shape == whole.metrics["longer/predictor/window-4"].shape == (T, 2)
    assert not any(name.startswith("probe@") for name in whole.weights)


def test_tuning_reaches_its_rate_in_both_profiles():
    """A warm-up as long as the tuning itself would judge every rate by half of it."""
    for profile in networks.PROFILES:
        chosen = networks.settings("bijection", "lstm", profile, **(recorded.CELL_TUNING | {"rate": 1.0}))
        rates = [networks.learning_rate(chosen, step) for step in range(chosen.steps)]
        assert max(rates) == pytest.approx(1.0)
        assert rates.index(max(rates)) < 250
        assert rates[-1] < 0.11


@pytest.fixture
def dry(monkeypatch, tmp_path):
    """The paper profile with cells of 30 steps, tuned in 40, on tiny networks, and a clock that goes a second on at
    each look: `record(out, *words)` runs the command on it and gives its exit code."""
    size = {"layers": 1, "parameters": 2000, "steps": 30, "warmup": 10, "rate": 1e-3}
    monkeypatch.setattr(networks, "PAPER", size | {"batch": 4, "sequences": 10, "evaluations": 3})
    monkeypatch.setattr(recorded, "CELL_TUNING", recorded.CELL_TUNING | {"steps": 40, "warmup": 10})
    small = {"bijection": tunnels.Bijection(V=4, L=3), "recall-4": tunnels.Recall(N=2, keys=3, values=3, queries=2)}
    for task, tunnel in small.items():
        monkeypatch.setitem(networks.TASKS, task, {"paper": tunnel})
    seconds = itertools.count(0.0)
    for module in (commands, networks):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))

    def record(out, *words):
        monkeypatch.setattr(recorded, "RUNS", tmp_path / "runs" / out)
        given = ["record", *words, "--profile", "paper", "--device", "cpu", "--out", str(tmp_path / out)]
        return commands.main(given)

    return record


def test_the_paper_profile_is_recorded_in_pieces(dry, tmp_path, capsys):
    """The command, again and again until it is done, makes the records that it makes without a stop."""
    names = ("bijection-mlp", "recall-4-transformer")
    first, second = (f"paper-{name}" for name in names)
    assert dry("whole", *names) == 0
    assert "time is over" not in capsys.readouterr().out
    codes, shares, finished, last = [], [], [], (None, None, 0)
    for _ in range(100):
        codes.append(dry("pieces", *names, "--minutes", "1"))
        said = capsys.readouterr().out.splitlines()[-1]
        if codes[-1] == 0:
            break
        pattern = r"(\S+): time is over at (rate-\S+|seed-\d), (\d+) of (\d+) steps, (.*) ms a step; (.*) % of all steps are done; run again to go on"
        cell, run, step, steps, pace, share = re.fullmatch(pattern, said).groups()
        finished.append((tmp_path / "pieces" / first).exists())
        assert cell == (second if finished[-1] else first)
        assert 0 < int(step) <= int(steps) == (40 if run.startswith("rate") else 30)
        taken = int(step) - (last[2] if last[:2] == (cell, run) else 0)  # in this piece
        looks = taken + 1  # at the clock: before each step and when the time is over
        assert float(pace) == pytest.approx(1000 * looks / taken, abs=0.06)
        last = (cell, run, int(step))
        shares.append((cell, float(share)))
    assert codes == [3] * len(finished) + [0]
    assert not finished[0]
    assert finished[-1]
    assert len(codes) > 8
    assert shares == sorted(shares)
    assert shares[-1][1] <= 100
    assert said == str(tmp_path / "pieces" / second)
    for name in (first, second):
        whole, pieces = (records.read(name, tmp_path / out) for out in ("whole", "pieces"))
        assert whole.config == pieces.config
        assert whole.config["profile"] == "paper"
        assert whole.weights == pieces.weights == {}
        assert whole.metrics.keys() == pieces.metrics.keys()
        for key, value in whole.metrics.items():
            assert torch.equal(pieces.metrics[key].nan_to_num(-1), value.nan_to_num(-1)), key
    assert dry("pieces", *names, "--minutes", "1") == 0
    assert capsys.readouterr().out.count("is already recorded") == 2


def test_a_piece_however_short_goes_on_by_a_step(dry, capsys):
    for step in (1, 2, 3):
        assert dry("short", "bijection-mlp", "--minutes", "0.0001") == 3
        assert f"time is over at rate-0.001, {step} of 40 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recorded.record_cell("bijection", "lstm", CPU, seeds=0), "seeds must be at least 1"),
        (lambda: recorded.record_cell("bijection", "lstm", CPU, rate=0.1), "changes must leave rate, seed, snapshots alone"),
        (lambda: recorded.record_cell("bijection", "lstm", CPU, batch=0), "batch must be at least 1"),
        (lambda: recorded.tune_cell("bijection", "lstm", CPU, steps=3), "changes must leave rate, seed, steps alone"),
        (lambda: recorded.record_geometry(CPU, ()), "names must not be empty"),
        (lambda: recorded.record_geometry(CPU, ("foo",)), "names must be one of"),
        (lambda: recorded.record_geometry(CPU, ("recall-8-lstm", "bijection-lstm")), "the same number of seeds"),
        (lambda: recorded.record_sculpting(CPU, ()), "sculpted must not be empty"),
        (lambda: recorded.record_sculpting(CPU, ("foo",)), "sculpted must be one of"),
        (lambda: recorded.record_frozen(CPU, ("foo",)), "freezes must be one of routing"),
        (lambda: recorded.record_lookup_frozen(CPU, ("foo",)), "freezes must be one of routing"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_refused_before_anything_is_trained(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sculpting_is_measured_along_training(monkeypatch, tmp_path):
    monkeypatch.setattr(recorded, "RUNS", tmp_path)
    few = {"seeds": 2, "steps": 4, "parameters": 4000, "batch": 2, "sequences": 4}
    record = recorded.record_sculpting(CPU, ("recall-8",), 3, **few)
    assert record.config["steps_of"] == {"recall-8": [0, 1, 4]}
    assert record.metrics["recall-8/attention"].shape == record.metrics["recall-8/values"].shape == (3, 2, 2)
    assert record.metrics["recall-8/keys"].shape == (3, 2, 2, 4)
    assert record.metrics["recall-8/values"][-1].abs().max() == 0
    settings = networks.settings("recall-8", "transformer", seed=1, **{k: v for k, v in few.items() if k != "seeds"})
    batch = networks.draw(settings, None)
    keys = networks.build(settings).record(batch.inputs)[1]["keys"][:, 2, 1:16:2].half().double()
    tokens = batch.inputs[:, 0:16:2]  # that the values are bound to
    unit = keys / keys.norm(dim=-1, keepdim=True)
    cosines = (unit @ unit.mT).abs()
    apart = [c[t[:, None] != t].mean() for c, t in zip(cosines, tokens, strict=True)]
    assert record.metrics["recall-8/keys"][0, 1, 1, 2].item() == pytest.approx(
        torch.stack(apart).mean().item(), rel=1e-5
    )


@pytest.mark.skipif("manifold-training" not in recorded.recorded_names(), reason="record manifold-training is missing")
@pytest.mark.parametrize("task", [task for task in recorded.SCULPTED if not task.startswith("recall")])
def test_sculpting_is_that_of_the_probes_that_are_shipped(task):
    settings, _, record = recorded.trained(f"{task}-transformer")
    steps, layers = manifolds.probes(record.weights)
    sculpted = records.read("manifold-training")
    assert sculpted.config["steps_of"][task] == steps
    tokens = networks.draw(settings, None).inputs[: networks.PROBES]
    for name, values in manifolds.along_training(layers, tokens).items():
        assert torch.allclose(sculpted.metrics[f"{task}/{name}"][:, 0].double(), values, atol=0.02)


@pytest.mark.parametrize("name", recorded.GEOMETRY_CELLS)
def test_the_measures_of_a_network_are_those_of_its_shipped_weights(name):
    settings, model, _ = recorded.trained(name)
    geometries = records.read("manifold-networks")
    c = geometries.config["cells"].index(name)
    fit, judge = (manifolds.fresh_batch(settings, which) for which in (0, 1))
    for k, network in enumerate((model, networks.build(settings))):
        found = manifolds.measure(network, fit, judge, torch.Generator().manual_seed(0))
        kept = {measure: values[c, 0, k].item() for measure, values in geometries.metrics.items()}
        told = {measure: value for measure, value in kept.items() if not math.isnan(value)}
        assert found == pytest.approx(told, rel=0.02, abs=2e-3)
