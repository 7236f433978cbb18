"""Training of networks: decided by its settings alone, resumable after any interruption, and refused with clear errors."""

import dataclasses
import itertools
import math
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bayesattn_core import __main__ as commands
from bayesattn_core import models, networks, records, training

SMALL = {"steps": 12, "batch": 8, "parameters": 3000, "layers": 1, "warmup": 4, "evaluations": 5, "sequences": 20}


def small(task="bijection", architecture="transformer", **changes):
    return networks.Settings(task, architecture, **(SMALL | changes))


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_training_is_decided_by_its_settings_and_learns(architecture, tmp_path):
    settings = small(architecture=architecture, steps=60, rate=1e-2)
    for name in ("one", "two"):
        torch.manual_seed(hash(name) % 1000)  # the global generator must not matter
        networks.train(settings, tmp_path / name)
    one, two = (records.read(name, tmp_path) for name in ("one", "two"))
    for name, value in one.weights.items():
        assert torch.equal(value, two.weights[name])
    assert one.metrics["loss"].shape == (60,)
    assert one.metrics["loss"][-10:].mean() < one.metrics["loss"][:10].mean()
    assert torch.equal(one.metrics["kl"].nan_to_num(-1), two.metrics["kl"].nan_to_num(-1))
    assert abs(one.config["size"] - 3000) <= 150
    assert one.config["evaluated"] == networks.log_spaced(60, 5)
    other = networks.train(dataclasses.replace(settings, seed=1), tmp_path / "three")
    assert not torch.equal(records.read(other.name, tmp_path).metrics["loss"], one.metrics["loss"])


@pytest.mark.parametrize("task", networks.TASKS)
def test_every_task_trains_in_both_profiles(task, tmp_path):
    """One step at the size of each profile, on few sequences; what is recorded is finite where supervised."""
    for profile in networks.PROFILES:
        if profile == "paper" and task.startswith("recall") and task != "recall-4":
            continue  # long sequences: their shapes are those of recall-4
        settings = small(task, "lstm", profile=profile, steps=1, batch=2, sequences=2, parameters=20_000)
        out = networks.train(settings, tmp_path / f"{task}-{profile}")
        record = records.read(out.name, tmp_path)
        supervised = networks.draw(settings, None).supervised.any(0)
        assert torch.isfinite(record.metrics["kl"][-1][supervised]).all()
        assert record.metrics["kl"][-1][~supervised].isnan().all()
        assert "predictor/memoryless" in record.metrics


def test_the_evaluation_is_of_the_recorded_weights(tmp_path):
    settings = small(architecture="mamba")
    record = records.read(networks.train(settings, tmp_path / "run").name, tmp_path)
    model = networks.build(settings)
    model.load_state_dict({name: W for name, W in record.weights.items() if not name.startswith("probe@")})
    again = networks.evaluate(model, networks.draw(settings, None))
    for name, value in again.items():
        assert torch.allclose(value.float().nan_to_num(-1), record.metrics[name][-1].nan_to_num(-1), atol=1e-6)


def test_snapshots_of_a_probe_are_kept(tmp_path):
    settings = small(snapshots=3)
    record = records.read(networks.train(settings, tmp_path / "run").name, tmp_path)
    assert networks.log_spaced(12, 3) == [0, 1, 12]
    assert [networks.log_spaced(12, count) for count in (0, 1, 2)] == [[], [12], [0, 12]]
    model = networks.build(settings)
    first = networks.probe(model, networks.draw(settings, None))
    assert set(first) == {f"0/{name}" for name in ("attention", "keys", "values", "activations", "residual")}
    for name, value in first.items():
        assert torch.equal(record.weights[f"probe@0/{name}"], value)
        assert not torch.equal(record.weights[f"probe@12/{name}"], value)


@pytest.mark.parametrize(("held", "rows"), [("routing", slice(0, 2)), ("values", slice(2, 3))])
def test_what_is_held_stays_as_it_was_and_the_rest_moves(held, rows, tmp_path):
    """Until the step it is the free run, to the bit; from there on the held rows of every layer are those of that step."""
    free, whole = small(layers=2, rate=1e-2), small(layers=2, rate=1e-2, held=held, held_from=5)

    def weights_at(settings, step, monkeypatch):
        stop_after(monkeypatch, step)
        out = tmp_path / f"{settings.held}-{step}"
        with pytest.raises(Stopped):
            networks.train(settings, out, seconds_between=0.0)
        monkeypatch.undo()
        content = networks.load_tensors(networks.checkpoint_path(out).read_bytes())
        return {n.removeprefix("model/"): W for n, W in content.items() if n.startswith("model/")}

    with pytest.MonkeyPatch.context() as patch:
        at, same = weights_at(free, 5, patch), weights_at(whole, 5, patch)
    assert all(torch.equal(at[name], same[name]) for name in at)
    end = records.read(networks.train(whole, tmp_path / f"{held}-5", resume=True).name, tmp_path).weights
    for name, W in end.items():
        if ".qkv." not in name:
            assert not torch.equal(W, at[name])
            continue
        before, after = at[name].unflatten(0, (3, -1)), W.unflatten(0, (3, -1))
        assert torch.equal(after[rows], before[rows])
        others = [k for k in range(3) if k not in range(3)[rows]]
        assert all(not torch.equal(after[k], before[k]) for k in others)
    uninterrupted = records.read(networks.train(whole, tmp_path / "uninterrupted").name, tmp_path).weights
    assert all(torch.equal(end[name], W) for name, W in uninterrupted.items())


def test_other_matrices_make_another_task():
    usual, other = small("hmm-fixed-sticky"), small("hmm-fixed-sticky", matrices=5)
    assert other.tunnel == dataclasses.replace(usual.tunnel, seed=5)
    assert not torch.equal(networks.draw(usual, 0).inputs, networks.draw(other, 0).inputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held": "keys"}, "held must be one of routing, values, got 'keys'"),
        ({"held": "values", "architecture": "lstm"}, "held must be None but for a transformer with softmax"),
        ({"held": "values", "mixing": "fixed"}, "held must be None but for a transformer with softmax"),
        ({"held_from": -1}, "held_from must be"),
        ({"matrices": 3}, "matrices must be None but for hmm-fixed"),
        ({"task": "hmm-fixed", "matrices": -1}, "matrices must be"),
    ],
)
def test_what_cannot_be_held_or_drawn_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_soft_targets_train_on_the_posterior():
    batch = networks.draw(small(), 0)
    logits = torch.randn(*batch.posterior.shape, generator=torch.Generator().manual_seed(0))
    expected = -(batch.posterior * logits.log_softmax(-1)).sum(-1)[batch.supervised].mean()
    assert networks.mean_loss(logits, batch, soft=True).item() == pytest.approx(expected.item())
    sure = batch._replace(posterior=torch.nn.functional.one_hot(batch.targets, 8).float())
    assert networks.mean_loss(logits, sure).item() == pytest.approx(
        networks.mean_loss(logits, sure, True).item(), rel=1e-5
    )


def test_evaluation_sequences_are_drawn_apart_from_those_of_training():
    settings = small(steps=9_999_999, warmup=0)
    last = dataclasses.replace(settings, seed=999_999)
    assert networks.EVALUATION_SEED > 10_000_000 * (last.seed + 1)
    judged = networks.draw(settings, None).inputs
    for step in (0, 1, 9_999_999):
        assert not torch.equal(judged[:8], networks.draw(settings, step).inputs)
        assert not torch.equal(judged[:8], networks.draw(last, step).inputs)


def test_learning_rate_warms_up_and_falls_to_a_tenth():
    settings = small(steps=100, warmup=10, rate=1.0)
    rates = [networks.learning_rate(settings, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


class Stopped(Exception):
    pass


def stop_after(monkeypatch, steps):
    """Interrupt training when the batch of step `steps` is drawn."""
    honest = networks.draw

    def draw(settings, step, device="cpu"):
        if step == steps:
            raise Stopped
        return honest(settings, step, device)

    monkeypatch.setattr(networks, "draw", draw)
    return honest


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_interrupted_training_resumes_to_the_same_bits(architecture, tmp_path, monkeypatch):
    settings = small(architecture=architecture, snapshots=4)
    whole = records.read(networks.train(settings, tmp_path / "whole").name, tmp_path)
    for steps in (5, 9):
        honest = stop_after(monkeypatch, steps)
        with pytest.raises(Stopped):
            networks.train(settings, tmp_path / "parts", resume=True, seconds_between=0.0)
        monkeypatch.setattr(networks, "draw", honest)
        assert not (tmp_path / "parts").exists()
        assert networks.checkpoint_path(tmp_path / "parts").exists()
    parts = records.read(networks.train(settings, tmp_path / "parts", resume=True).name, tmp_path)
    assert not networks.checkpoint_path(tmp_path / "parts").exists()
    for part in ("metrics", "weights"):
        for name, value in getattr(whole, part).items():
            assert torch.equal(value.nan_to_num(-1), getattr(parts, part)[name].nan_to_num(-1)), name


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    settings, honest = small(), networks.mean_loss
    calls = iter(range(100))

    def broken(*given):
        loss = honest(*given)
        return loss * math.nan if next(calls) == 6 else loss

    monkeypatch.setattr(networks, "mean_loss", broken)
    with pytest.raises(training.Diverged, match="got nan at step 6: the last good checkpoint is"):
        networks.train(settings, tmp_path / "run", seconds_between=0.0)
    monkeypatch.setattr(networks, "mean_loss", honest)
    resumed = records.read(networks.train(settings, tmp_path / "run", resume=True).name, tmp_path)
    assert torch.isfinite(resumed.metrics["loss"]).all()


def test_a_rate_that_destroys_the_weights_is_named_as_diverging(tmp_path):
    with pytest.raises(training.Diverged, match=r"training must keep a finite loss, got .* at step \d+: no checkpoint"):
        networks.train(small(steps=60, rate=1e30, warmup=1), tmp_path / "run")
    broken = networks.build(small())
    torch.nn.init.constant_(next(iter(broken.parameters())), math.nan)
    with pytest.raises(training.Diverged, match="got NaN"):
        networks.evaluate(broken, networks.draw(small(), None))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: networks.settings(3, "lstm"), ValueError, "task must be one of bijection"),
        (lambda: networks.draw(small(), 10_000_000), ValueError, "step must be at most 9999999"),
        (lambda: networks.draw(small(), -1), ValueError, "step must be at least 0"),
        (lambda: networks.log_spaced(0, 2), ValueError, "steps must be at least 1"),
        (lambda: networks.settings("recall-4", "lstm", mixing="linear"), ValueError, "mixing must be softmax but for"),
        (lambda: networks.settings("recall-4", "mlp", positions="rotary"), ValueError, "rotary for the transformer only"),
        (lambda: networks.learning_rate(small(), -5), ValueError, "step must be at least 0, got -5"),
        (
            lambda: networks.mean_loss(torch.zeros(2, 3, 4), networks.draw(small(), None)),
            ValueError,
            r"logits must have shape .*, got \(2, 3, 4\)",
        ),
        (lambda: networks.held_rows(networks.build(small()), "keys"), ValueError, "held must be one of routing, values"),
        (lambda: networks.held_rows(torch.nn.Linear(2, 2), "values"), ValueError, "model must have maps to queries, keys and"),
        (lambda: networks.restored(small(), {}), ValueError, "weights must be those of the settings' network"),
        (lambda: networks.train(small(), ""), ValueError, "out must name a folder"),
        (lambda: networks.train(small(), "new", "tpu"), ValueError, "device must be cpu, cuda"),
        (lambda: networks.evaluate(networks.build(small()), networks.draw(small(), None), 0), ValueError, "chunk must be"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda tensors, about: about.pop("step"),
        lambda tensors, about: about.update(settings="3"),
        lambda tensors, about: about.update(step="999"),
        lambda tensors, about: about.update(step="soon"),
        lambda tensors, about: about.update(seconds="nan"),
        lambda tensors, about: tensors.update({"other/x": torch.ones(1)}),
        lambda tensors, about: tensors["model/head.bias"].add_(1e-3),
        lambda tensors, about: tensors.update({"model/head.weight": tensors["model/head.weight"].mT.contiguous()}),
        lambda tensors, about: tensors.pop("model/head.bias"),
    ],
)
def test_a_broken_checkpoint_is_refused_in_one_line(break_it, tmp_path):
    settings, path = small(steps=2), networks.checkpoint_path(tmp_path / "run")
    model = networks.build(settings)
    networks.save(path, settings, 1, 0.0, model, torch.optim.AdamW(model.parameters()), {})
    with safe_open(path, "pt") as stored:
        tensors, about = {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata()
    break_it(tensors, about)
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match=r"checkpoint must be readable, got .*remove it to start again"):
        networks.train(settings, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_refusals(tmp_path):
    settings = small(steps=2)
    networks.train(settings, tmp_path / "done")
    with pytest.raises(ValueError, match="out must not exist yet"):
        networks.train(settings, tmp_path / "done")
    path = networks.checkpoint_path(tmp_path / "other")
    path.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="resume must be asked for"):
        networks.train(settings, tmp_path / "other")
    with pytest.raises(ValueError, match="checkpoint must be readable"):
        networks.train(settings, tmp_path / "other", resume=True)
    model = networks.build(settings)
    networks.save(path, settings, 1, 0.0, model, torch.optim.AdamW(model.parameters()), {})
    with pytest.raises(ValueError, match=r"checkpoint must be of the same settings, got .*'rate': 0.003"):
        networks.train(dataclasses.replace(settings, rate=0.1), tmp_path / "other", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "chess"}, "task must be one of bijection"),
        ({"architecture": "cnn"}, "architecture must be one of transformer"),
        ({"profile": "big"}, "profile must be one of quick, paper"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"positions": "foo"}, "positions must be one of none"),
        ({"mixing": "foo"}, "mixing must be one of softmax"),
        ({"held_from": 10**6}, "held_from must be at most"),
        ({"held_from": 1}, "held_from must be 0 where nothing is held"),
        ({"rate": 0.0}, "rate must be finite and above 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"clip": math.inf}, "clip must be finite"),
        ({"evaluations": 1}, "evaluations must be at least 2"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(small(), **changes)


def test_the_command(tmp_path, capsys):
    words = f"train bijection mlp --steps 2 --out {tmp_path / 'run'}"
    assert commands.main(words.split()) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run")
    assert commands.main(words.split()) == 2
    assert "it is there already" in capsys.readouterr().err
    assert commands.main(f"train bijection cnn --out {tmp_path / 'x'}".split()) == 2
    assert "architecture must be one of" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert commands.main(f"train bijection mlp --device cuda --out {tmp_path / 'x'}".split()) == 2
        assert "device must be present" in capsys.readouterr().err


def test_killed_ten_times_training_still_ends_in_the_same_record(tmp_path):
    """kill -9 at random moments: every resumption goes on, and nothing unreadable is ever left."""
    code = (
        "import sys, pathlib; from bayesattn_core import networks; sys.path.insert(0, 'tests')\n"
        "s = networks.Settings('bijection', 'lstm', steps=400, batch=16, parameters=3000, layers=1, warmup=4, evaluations=5, sequences=20)\n"
        "networks.train(s, pathlib.Path(sys.argv[1]), resume=True, seconds_between=0.0)\n"
    )
    settings = networks.Settings(
        "bijection", "lstm", steps=400, batch=16, parameters=3000, layers=1, warmup=4, evaluations=5, sequences=20
    )
    whole = records.read(networks.train(settings, tmp_path / "whole").name, tmp_path)
    out, moment, kills = tmp_path / "killed", random.Random(0), 0
    path = networks.checkpoint_path(out)
    while kills < 10 and not out.exists():
        run = subprocess.Popen([sys.executable, "-c", code, str(out)])
        before = path.stat().st_mtime_ns if path.exists() else 0
        while run.poll() is None and not (path.exists() and path.stat().st_mtime_ns > before):
            time.sleep(0.01)  # until it has gone on by at least one checkpoint
        time.sleep(moment.uniform(0, 0.05))
        run.send_signal(signal.SIGKILL)
        run.wait()
        kills += 1
        model = networks.build(settings)
        if path.exists():
            networks.restore(path, settings, model, torch.optim.AdamW(model.parameters()))  # readable
    assert kills == 10
    end = records.read(networks.train(settings, out, resume=True).name, tmp_path)
    for name, value in whole.weights.items():
        assert torch.equal(value, end.weights[name])
    assert torch.equal(whole.metrics["loss"], end.metrics["loss"])


@pytest.mark.cuda
@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_training_on_cuda_agrees_with_the_cpu(architecture, tmp_path):
    settings = small(architecture=architecture)
    curves = []
    for device in ("cpu", "cuda"):
        out = networks.train(settings, tmp_path / device, device)
        curves.append(records.read(out.name, tmp_path).metrics["loss"])
    assert torch.allclose(*curves, rtol=1e-2)
