"""The recorded runs that chapters read: `python -m bayesattn_core record NAME` makes one of RECORDED. Losses in nats."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import attention, checks, experiments, geometry, manifolds, models, networks, records, tasks, training


def as_record(
    config: dict, run: training.Descent, device: torch.device, seconds: float, every: int = 1
) -> records.Record:
    """A record of a descent: metrics at every `every`-th step, final weights, and snapshots of weights as W@step."""
    metrics = {name: getattr(run, name)[::every] for name in ("loss", "accuracy", "entropy")}
    weights = run.weights | {f"{name}@{step}": W for step, kept in run.snapshots.items() for name, W in kept.items()}
    config = config | {"steps": len(run.loss) - 1, "every": every, "dtype": "float32"}
    return records.Record(config, metrics, weights, records.provenance(device, seconds))


def record_authors(device: torch.device) -> records.Record:
    """sticky-authors: the paper's two arms on the authors' five seeds, 1000 steps."""
    start, seeds, arms = time.perf_counter(), list(tasks.AUTHOR_SEEDS), ["sgd", "em"]
    run = experiments.descend_authors(seeds, arms, 1000, device, label="sticky-authors")
    config = {
        "task": "sticky chain, authors' draws",
        "seeds": seeds,
        "arms": {arm: experiments.ARMS[arm] for arm in arms},
    }
    return as_record(config, run, device, time.perf_counter() - start)


def tune(
    what: str,
    task,
    weights: dict[str, Tensor],
    seeds: tuple[int, ...],
    families: dict,
    bases,
    steps: int,
    tail: int,
    **options,
):
    """A record of every family at every base rate: the rate with the lowest mean training loss over the last `tail`
    evaluations is `config["tuned"]`. A rate at which any seed diverges has NaN for a curve and is out."""
    start, device = time.perf_counter(), task.inputs.device
    loss = torch.full((steps + 1, len(families), len(bases), len(seeds)), torch.nan)
    for f, (family, factors) in enumerate(families.items()):
        for b, base in enumerate(bases):
            rates = {name: torch.tensor([rate]) for name, rate in experiments.per_weight(base, **factors).items()}
            kind = {
                "value_step": "majorised" if family == "m-step" else "gradient",
                "label": f"tuning {family} {base:g}",
            }
            try:
                run = experiments.descend_arms(task, weights, rates, steps, **kind, **options)
            except training.Diverged:
                continue
            loss[:, f, b] = run.loss[:, :, 0].cpu()
    final = loss[-tail:].mean((0, -1)).nan_to_num(torch.inf)  # (families, bases)
    tuned = {family: bases[int(final[f].argmin())] for f, family in enumerate(families)}
    config = {
        "task": what, "seeds": list(seeds), "families": families, "bases": list(bases),
        "steps": steps, "dtype": "float32", "tuned": tuned,
    }  # fmt: skip
    return records.Record(config, {"loss": loss}, {}, records.provenance(device, time.perf_counter() - start))


def record_tuning(device: torch.device) -> records.Record:
    """sticky-tuning: both families at BASE_RATES on the tuning seeds, 1000 steps, judged by the final training loss."""
    chain, weights = experiments.setting(tasks.fresh_draws, experiments.TUNING_SEEDS, device)
    seeds, families, bases = experiments.TUNING_SEEDS, experiments.FAMILIES, experiments.BASE_RATES
    return tune("sticky chain, fresh draws", chain, weights, seeds, families, bases, 1000, 1)


def record_fair(
    draws: Callable,
    seeds: tuple[int, ...],
    device: torch.device,
    arms=experiments.FAIR_ARMS,
    steps=1000,
    every=1,
    snapshots=(),
) -> records.Record:
    """Any of FAIR_ARMS on the given seeds of the sticky chain."""
    start = time.perf_counter()
    chain, weights = experiments.setting(draws, seeds, device)
    rates = experiments.fair_rates(chain, weights, arms)
    label = f"sticky, {len(seeds)} seeds, {steps} steps"
    run = experiments.descend_fair(chain, weights, rates, arms, steps, snapshots=snapshots, label=label)
    whose = {tasks.author_draws: "authors' draws", experiments.shuffled_draws: "authors' draws, labels shuffled"}
    task = f"sticky chain, {whose.get(draws, 'fresh draws')}"
    listed = {name: rate.tolist() for name, rate in rates.items()}
    config = {"task": task, "seeds": list(seeds), "arms": list(arms), "rates": listed}
    return as_record(config, run, device, time.perf_counter() - start, every)


FREEZE_STEPS = (0, 100, 300, 600)
FROZEN_ARMS = ("sgd", "em", "tuned-sgd")
FREEZES = {"routing": ("W_Q", "W_K"), "values": ("W_V",), "content": ("W_V", "W_O")}


def record_frozen(
    device: torch.device,
    freezes: tuple[str, ...] = ("routing", "values"),
    seeds=tasks.AUTHOR_SEEDS,
    steps: int = 1000,
    freeze_steps=FREEZE_STEPS,
) -> records.Record:
    """sticky-frozen, sticky-frozen-content: SGD, EM-like and tuned SGD on the authors' seeds with some of FREEZES held
    from a step on; losses (steps + 1, seeds, arms, freezes, freeze steps)."""
    start, seeds, arms = time.perf_counter(), list(seeds), list(FROZEN_ARMS)
    freezes = [checks.choice("freezes", what, FREEZES) for what in freezes]
    chain, weights = experiments.setting(tasks.author_draws, seeds, device)
    rates = experiments.fair_rates(chain, weights, arms)
    before = experiments.descend_arms(
        chain, weights, rates, max(freeze_steps), snapshots=freeze_steps, label="sticky-frozen"
    )
    loss = torch.empty(steps + 1, len(seeds), len(arms), len(freezes), len(freeze_steps))
    for f, what in enumerate(freezes):
        held = {name: rate * (name not in FREEZES[what]) for name, rate in rates.items()}
        for s, step in enumerate(freeze_steps):
            from_there = before.snapshots[step]
            X, targets = chain.inputs[:, None], chain.targets[:, None]
            rest = training.descend(X, from_there, targets, held, steps - step, label=f"{what} held from {step}")
            loss[: step + 1, :, :, f, s] = before.loss[: step + 1].cpu()
            loss[step:, :, :, f, s] = rest.loss.cpu()
    config = {
        "task": "sticky chain, authors' draws", "seeds": seeds, "arms": arms, "freezes": list(freezes),
        "freeze_steps": list(freeze_steps), "steps": steps, "dtype": "float32", "rates": {name: rate.tolist() for name, rate in rates.items()},
    }  # fmt: skip
    return records.Record(config, {"loss": loss}, {}, records.provenance(device, time.perf_counter() - start))


CONVERGED_ARMS = ("sgd", "em", "tuned-sgd", "m-step")
CONVERGED_SNAPSHOTS = (0, 1000, 2000, 5000, 9000, 10000)

LOOKUP_EVERY = 10  # steps between evaluations


def record_lookup_tuning(device: torch.device) -> records.Record:
    """lookup-tuning: every family at LOOKUP_BASES on tuning seeds, judged by the mean training loss over all steps: at the
    end nearly every rate stands at the floor, so a rate is good here if it gets there soon."""
    seeds, families, bases = experiments.LOOKUP_TUNING_SEEDS, experiments.LOOKUP_FAMILIES, experiments.LOOKUP_BASES
    task, weights, options = experiments.lookup_setting(seeds, device=device)
    steps = experiments.LOOKUP_STEPS
    return tune("lookup", task, weights, seeds, families, bases, steps, steps + 1, **options)


def record_lookup(
    device: torch.device, seeds=experiments.LOOKUP_SEEDS, steps: int = experiments.LOOKUP_STEPS
) -> records.Record:
    """lookup-fair: every one of FAIR_ARMS on LOOKUP_SEEDS, evaluated every LOOKUP_EVERY steps on sequences of its own."""
    start = time.perf_counter()
    task, weights, options = experiments.lookup_setting(seeds, device=device)
    rates = experiments.fair_rates(task, weights, experiments.FAIR_ARMS, experiments.LOOKUP_SCALE, "lookup-tuning")
    snapshots = range(0, steps + 1, LOOKUP_EVERY)
    run = experiments.descend_fair(
        task,
        weights,
        rates,
        experiments.FAIR_ARMS,
        steps,
        snapshots=snapshots,
        label="lookup-fair",
        **options,
    )
    listed = {name: rate.tolist() for name, rate in rates.items()}
    config = {
        "task": "lookup",
        "seeds": list(seeds),
        "arms": list(experiments.FAIR_ARMS),
        "rates": listed,
    }
    record = as_record(config, run._replace(snapshots={}), device, time.perf_counter() - start, LOOKUP_EVERY)
    unseen = experiments.lookup_stream(seeds, -1, device)
    record.metrics.update(experiments.along_lookup(unseen, run.snapshots, run.weights))
    return record


LOOKUP_FREEZE_STEPS = (0, 20, 50, 100, 200, 300, 400, 600)


def record_lookup_frozen(
    device: torch.device,
    freezes: tuple[str, ...] = ("routing", "values"),
    seeds=experiments.LOOKUP_SEEDS,
    steps: int = experiments.LOOKUP_STEPS,
    freeze_steps=LOOKUP_FREEZE_STEPS,
) -> records.Record:
    """lookup-frozen, lookup-frozen-content: FROZEN_ARMS with some of FREEZES held from a step on; after all steps,
    KL(exact || model) in nats on sequences for evaluation, (1, seeds, arms, freezes, freeze steps)."""
    start, seeds = time.perf_counter(), list(seeds)
    freezes = [checks.choice("freezes", what, FREEZES) for what in freezes]
    task, weights, options = experiments.lookup_setting(seeds, device=device)
    rates = experiments.fair_rates(task, weights, FROZEN_ARMS, experiments.LOOKUP_SCALE, "lookup-tuning")
    options |= {"snapshots": freeze_steps, "label": "lookup-frozen"}
    before = experiments.descend_arms(task, weights, rates, max(freeze_steps), **options)
    unseen = experiments.lookup_stream(seeds, -1, device)
    divergence = torch.empty(1, len(seeds), len(FROZEN_ARMS), len(freezes), len(freeze_steps))
    for s, step in enumerate(freeze_steps):
        task, _, options = experiments.lookup_setting(seeds, step, device)
        for f, what in enumerate(freezes):
            held = {name: rate * (name not in FREEZES[what]) for name, rate in rates.items()}
            X, targets = task.inputs[:, None], task.targets[:, None]
            label = f"{what} held from {step}"
            rest = training.descend(X, before.snapshots[step], targets, held, steps - step, label=label, **options)
            divergence[0, :, :, f, s] = experiments.evaluate_lookup(unseen, rest.weights)[0].cpu()
    config = {
        "task": "lookup", "seeds": list(seeds), "arms": list(FROZEN_ARMS), "freezes": list(freezes),
        "freeze_steps": list(freeze_steps), "steps": steps, "dtype": "float32", "rates": {name: rate.tolist() for name, rate in rates.items()},
    }  # fmt: skip
    return records.Record(
        config, {"divergence": divergence}, {}, records.provenance(device, time.perf_counter() - start)
    )


def record_ranks(
    device: torch.device, classes=experiments.RANK_CLASSES, seeds=experiments.RANK_SEEDS, steps: int = 1500, base: float = 0.1
) -> records.Record:  # fmt: skip
    """manifold-rank: effective rank and participation ratio of values X W_V before and after training on fresh sequences at
    every step, and of their displacement, for every number of classes C and every arm of experiments.RANK_ARMS.

    Metrics {measure_of_what: (classes, seeds, arms)}, the displacement's size relative to the values at the start,
    distance_moved (classes, seeds, arms), and the loss (classes, seeds, arms, 2) before and after, in nats. `base`
    is the learning rate of every weight that an arm does not hold: of 0.03, 0.1, 0.3 and 1 the largest at which no C
    diverged in 100 steps on two seeds that are not reported."""
    start, arms = time.perf_counter(), list(experiments.RANK_ARMS)
    measures = {"effective_rank": geometry.effective_rank, "participation_ratio": geometry.participation_ratio}
    rates = {
        name: torch.tensor([experiments.per_weight(base, **held)[name] for held in experiments.RANK_ARMS.values()])
        for name in attention.WEIGHTS
    }
    found: dict[str, list[Tensor]] = {}
    for C in classes:

        def stream(step: int, C: int = C) -> tuple[Tensor, Tensor]:
            inputs, targets = experiments.rank_stream(C, seeds, step)
            return inputs[:, None].to(device), targets.to(device)

        apart = {name: W[:, None].to(device) for name, W in experiments.rank_weights(C, seeds).items()}
        (X, targets), (unseen, _) = stream(0), stream(steps + 1)
        run = training.descend(X, apart, targets, rates, steps, stream=stream, label=f"C = {C}")
        before, after = apart["W_V"].expand_as(run.weights["W_V"]), run.weights["W_V"]
        points = {"before": unseen @ before, "after": unseen @ after, "moved": unseen @ (after - before)}
        for name, measure in measures.items():
            for what, values in points.items():
                found.setdefault(f"{name}_{what}", []).append(measure(values.double()).float().cpu())
        distance = geometry.relative_distance(points["after"], points["before"])
        found.setdefault("distance_moved", []).append(distance.float().cpu())
        found.setdefault("loss", []).append(torch.stack([run.loss[0], run.loss[-1]], -1).cpu())
    config = {
        "task": "sticky chain, fresh draws", "classes": list(classes), "seeds": list(seeds), "arms": arms, "steps": steps,
        "dtype": "float32", "rates": {name: rate.tolist() for name, rate in rates.items()}, "width": experiments.RANK_WIDTH,
    }  # fmt: skip
    metrics = {name: torch.stack(parts) for name, parts in found.items()}
    return records.Record(config, metrics, {}, records.provenance(device, time.perf_counter() - start))


# Networks on wind tunnels. A cell is a task, an architecture and changes of its settings; its rate is tuned on a seed
# that is not reported. Where the lowest loss is at the end of the rates, they are widened. Tuning has a warm-up of its
# own: the paper profile's is as long as the whole tuning, which would then never reach the rate that it judges.
CELL_RATES = (1e-3, 3e-3, 1e-2)
WIDER = (3e-4, 3e-2)
CELL_TUNING = {"seed": 900, "steps": 1000, "warmup": 200, "evaluations": 2}
# Changes of these take the rate of the cell without them; of some of them only curves are kept, no weights
UNTUNED = ("steps", "layers", "soft", "matrices", "held", "held_from")
CURVES_ALONE = {"layers", "matrices", "held"}
# The tasks whose transformers' probe snapshots are kept
PROBED_TASKS = ("bijection", "bijection-replacement", "hmm-fixed-sticky")
PROBED = ("attention", "keys", "values")  # and what of them
RUNS = records.BOOK.parent / "_runs"  # single runs, which a cell's record gathers; not kept


def run_once(settings: networks.Settings, out: Path, device: torch.device, until: float) -> records.Record:
    """The record of a single run: read if it is there, else trained, going on from its checkpoint if it has one.

    Raises ValueError for a run that is there with other settings.
    """
    if not out.exists():
        networks.train(settings, out, device, resume=True, until=until)
    run, asked = records.read(out.name, out.parent), dataclasses.asdict(settings)
    other = {name: run.config[name] for name, value in asked.items() if run.config.get(name, value) != value}
    if other:
        raise ValueError(f"run must be of the settings that are asked for, got {out} with {other}: remove it")
    return run


def cell_folder(task: str, architecture: str, profile: str, changes: dict) -> Path:
    """Where the single runs of a cell lie."""
    return RUNS / profile / "-".join([task, architecture, *(f"{name}={value}" for name, value in changes.items())])


def refuse(changes: dict, own: set[str]) -> None:
    """ValueError for changes of settings that a function chooses itself."""
    if own & set(changes):
        raise ValueError(f"changes must leave {', '.join(sorted(own))} alone, got {', '.join(changes)}")


def tune_cell(
    task: str, architecture: str, device: torch.device, profile: str = "quick", until: float = math.inf, **changes
) -> dict[float, float]:
    """The training loss in nats over the last 100 of 1000 steps at each of CELL_RATES, and at the next of WIDER if the
    lowest is at an end."""
    refuse(changes, {"rate", "seed", "steps"})
    folder, losses = cell_folder(task, architecture, profile, changes), {}

    def measure(rate: float) -> None:
        chosen = networks.settings(task, architecture, profile, **(changes | CELL_TUNING | {"rate": rate}))
        try:
            run = run_once(chosen, folder / f"rate-{rate:g}", device, until)
            losses[rate] = run.metrics["loss"][-100:].mean().item()
        except training.Diverged:
            losses[rate] = math.inf

    for rate in CELL_RATES:
        measure(rate)
    best = min(losses, key=losses.get)
    if best in (CELL_RATES[0], CELL_RATES[-1]):
        measure(WIDER[best == CELL_RATES[-1]])
    return losses


def record_cell(
    task: str, architecture: str, device: torch.device, seeds: int = 5, profile: str = "quick",
    until: float = math.inf, **changes,
) -> records.Record:  # fmt: skip
    """A cell: the rate with the lowest training loss of `tune_cell`, then that rate on `seeds` seeds. Metrics stacked
    over seeds, in the last dimension, with those on longer sequences as longer/...; in profile quick also the weights of
    seed 0 (but see CURVES_ALONE), and its probe snapshots where PROBED_TASKS says so (at the papers' size both are too
    large to keep). Raises
    networks.Unfinished, which says how much of the cell is done, at the moment `until` of time.perf_counter."""
    checks.integer("seeds", seeds, least=1)
    refuse(changes, {"rate", "seed", "snapshots"})
    networks.settings(task, architecture, profile, **changes)  # what cannot be is refused before anything is trained
    shared = {name: value for name, value in changes.items() if name not in UNTUNED}
    folder, small = cell_folder(task, architecture, profile, changes), profile == "quick"
    weighty = small and not CURVES_ALONE & set(changes)

    def chosen(seed: int, **own) -> networks.Settings:
        own |= {"snapshots": 12 if weighty and seed == 0 and not task.startswith("recall") else 0}
        return networks.settings(task, architecture, profile, **(changes | own | {"seed": seed}))

    usual = f"{'' if small else profile + '-'}{task}-{architecture}"
    tuning = {}
    try:
        if changes and not shared and usual in recorded_names():
            tuning = {float(rate): loss for rate, loss in records.read(usual).config["tuning"].items()}
        else:
            tuning = tune_cell(task, architecture, device, profile, until, **shared)
        best = min(tuning, key=tuning.get)
        of = [chosen(seed, rate=best) for seed in range(seeds)]
        runs = [run_once(settings, folder / f"seed-{settings.seed}", device, until) for settings in of]
    except networks.Unfinished as unfinished:
        rates, tune, run = cell_folder(task, architecture, profile, shared), CELL_TUNING["steps"], chosen(0).steps
        tuned = len(tuning) or len(list(rates.glob("rate-*")))
        done = tune * tuned + run * len(list(folder.glob("seed-*"))) + unfinished.step
        every = tune * (len(tuning) or len(CELL_RATES) + 1) + run * seeds  # it may have to widen the rates
        message = f"{unfinished}; {100 * done / every:.1f} % of all steps are done"
        raise networks.Unfinished(message, unfinished.step) from None
    stretched = [judge_longer(settings, run, device) for settings, run in zip(of, runs, strict=True)]
    asked = dataclasses.asdict(networks.settings(task, architecture, profile, **(changes | {"rate": best})))
    config = (
        asked
        | runs[0].config
        | {"seed": list(range(seeds)), "tuning": {str(rate): loss for rate, loss in tuning.items()}}
    )
    metrics = {name: torch.stack([run.metrics[name] for run in runs], -1) for name in runs[0].metrics}
    metrics |= {name: torch.stack([scores[name] for scores in stretched], -1) for name in stretched[0]}
    metrics["loss"] = metrics["loss"].unfold(0, 10, 10).mean(-1)  # means of ten steps
    probed = PROBED if task in PROBED_TASKS and architecture == "transformer" and not shared else ()
    kept = runs[0].weights if weighty else {}
    weights = {
        name: W for name, W in kept.items() if not name.startswith("probe@") or name.rpartition("/")[2] in probed
    }
    spent = sum(run.provenance["wall_seconds"] for run in runs)
    provenance = runs[0].provenance | {
        "wall_seconds": round(spent, 1),
        "commits": sorted({str(run.provenance["commit"]) for run in runs}),
    }
    return records.Record(config, metrics, weights, provenance)


def judge_longer(settings: networks.Settings, run: records.Record, device: torch.device) -> dict[str, Tensor]:
    """The divergence in bits by position, (T,), on the longer form of a run's task, of its network and of the trivial
    predictors; empty where there is no longer form or the network's positions end."""
    tunnel, model = networks.longer(settings.tunnel), networks.restored(settings, run.weights).to(device)
    if tunnel is None or model.config.positions == "learned" or model.config.mixing == "fixed":
        return {}
    batch = networks.draw(settings, None, device, tunnel)
    scores = {"longer/kl": networks.evaluate(model, batch)["kl"].float().cpu()}
    for name, p in tunnel.predictors(batch).items():
        scores[f"longer/predictor/{name}"] = networks.judge(batch, p.log())["kl"].float().cpu()
    return scores


GEOMETRY_CELLS = tuple(
    f"{task}-{architecture}"
    for task in ("bijection-replacement", "hmm-fixed-sticky")
    for architecture in ("transformer", "mamba", "lstm")
)


def record_geometry(device: torch.device, names: tuple[str, ...] = GEOMETRY_CELLS) -> records.Record:
    """manifold-networks: `manifolds.measure` of every seed of some cells, trained (from their single runs, which are trained
    if they are not there) and untrained: metrics {measure: (cells, seeds, 2)}, trained first; NaN where there is none."""
    start, found, seeds = time.perf_counter(), {}, None
    for name in checks.filled("names", names):
        if CELLS[checks.choice("names", name, CELLS)]["seeds"] != CELLS[names[0]]["seeds"]:
            raise ValueError(f"names must be of cells with the same number of seeds, got {', '.join(names)}")
    for c, name in enumerate(names):
        cell = dict(CELLS[name])
        seeds = range(cell.pop("seeds"))
        changes = {what: value for what, value in cell.items() if what not in ("task", "architecture")}
        record, folder = records.read(name), cell_folder(cell["task"], cell["architecture"], "quick", changes)
        for seed in seeds:
            snapshots = 12 if seed == 0 else 0
            settings = networks.settings(**cell, rate=record.config["rate"], seed=seed, snapshots=snapshots)
            run = run_once(settings, folder / f"seed-{seed}", device, math.inf)
            fit, judge = (manifolds.fresh_batch(settings, which).to(device) for which in (0, 1))
            for k, model in enumerate((networks.restored(settings, run.weights), networks.build(settings))):
                generator = torch.Generator().manual_seed(seed)
                for measure, value in manifolds.measure(model.to(device), fit, judge, generator).items():
                    found.setdefault(measure, torch.full((len(names), len(seeds), 2), torch.nan))[c, seed, k] = value
    config = {"cells": list(names), "seeds": list(seeds), "sequences": 500}
    return records.Record(config, found, {}, records.provenance(device, time.perf_counter() - start))


SCULPTED = ("bijection", "bijection-replacement", "hmm-fixed-sticky", "recall-8")


def record_sculpting(
    device: torch.device, sculpted: tuple[str, ...] = SCULPTED, count: int = 12, **changes
) -> records.Record:
    """manifold-training: `manifolds.along_training` of every seed of some tasks' Transformers, trained again with `count` probe
    snapshots each: metrics {task/measure: (snapshots, seeds, ...)}; in recall, the keys at the values' positions, each
    with the token that its value is bound to for a label."""
    start, found, when, of = time.perf_counter(), {}, {}, {}
    for task in checks.filled("sculpted", sculpted):
        checks.choice("sculpted", task, networks.TASKS)
    for task in sculpted:
        name = f"{task}-transformer"
        cell, folder = CELLS[name] | changes, cell_folder(task, "transformer", "quick", {"snapshots": count} | changes)
        of[task], rate = list(range(cell.pop("seeds"))), records.read(name).config["rate"]
        for seed in of[task]:
            settings = networks.settings(**cell, rate=rate, seed=seed, snapshots=count)
            run, N = run_once(settings, folder / f"seed-{seed}", device, math.inf), getattr(settings.tunnel, "N", None)
            when[task], layers = manifolds.probes(run.weights)
            # recall shows tokens and the values bound to them by turns
            shown, told = (slice(None),) * 2 if N is None else (slice(1, 2 * N, 2), slice(0, 2 * N, 2))
            labels = networks.draw(settings, None).inputs[: networks.PROBES, told]
            for measure, values in manifolds.along_training(layers, labels, shown).items():
                found.setdefault(f"{task}/{measure}", []).append(values.float())
    metrics = {name: torch.stack(parts, 1) for name, parts in found.items()}
    config = {
        "cells": [f"{task}-transformer" for task in sculpted],
        "seeds": of[sculpted[0]],
        "seeds_of": of,
        "steps_of": when,
    }
    return records.Record(config, metrics, {}, records.provenance(device, time.perf_counter() - start))


def cells() -> dict[str, dict]:
    """What record_cell is given, by the name of the record."""

    def cell(task: str, architecture: str, **changes) -> dict:
        return {"task": task, "architecture": architecture, "seeds": 3 if task.startswith("recall") else 5} | changes

    hardest = ("hmm-header-sticky", "recall-16")
    return {
        **{
            f"{task}-{architecture}": cell(task, architecture)
            for task in networks.TASKS
            for architecture in models.ARCHITECTURES
            if not (task.startswith("recall") and architecture == "mlp" and task != "recall-8")
        },
        # the best of the header's cells, trained on the exact posterior instead of sampled labels; and four times longer
        "hmm-header-sticky-mamba-soft": cell("hmm-header-sticky", "mamba", soft=True),
        "hmm-header-sticky-mamba-long": cell("hmm-header-sticky", "mamba", steps=16_000, seeds=1),
        # the same value path with three ways of mixing it
        **{
            f"{task}-transformer-{mixing}": cell(
                task, "transformer", mixing=mixing, positions="sinusoidal", seeds=3, steps=2000
            )
            for task in ("bijection", "recall-8")
            for mixing in models.MIXINGS
        },
        # what positions a transformer is told
        **{
            f"hmm-fixed-sticky-transformer-{positions}": cell("hmm-fixed-sticky", "transformer", positions=positions)
            for positions in ("none", "sinusoidal")
        },
        # other draws of the fixed matrices
        **{
            f"hmm-fixed-sticky-lstm-matrices-{k}": cell("hmm-fixed-sticky", "lstm", matrices=k, seeds=3)
            for k in (3, 4, 5, 6)
        },
        # with queries and keys, or values, held from a step on
        **{
            f"{task}-transformer-{held}-held-{step}": cell(task, "transformer", held=held, held_from=step, seeds=3)
            for task in ("bijection", "hmm-fixed-sticky", "recall-8")
            for held in networks.HELD
            for step in ((0,) if task == "recall-8" else (0, 100, 400))
        },
        # other shapes of the same size, one seed, at the rate of the usual shape
        **{
            f"{task}-{architecture}-{layers}-layers": cell(task, architecture, layers=layers, seeds=1)
            for task, shapes in zip(hardest, ((2, 5), (1, 4)), strict=True)
            for architecture in ("transformer", "mamba", "lstm")
            for layers in shapes
        },
    }


CELLS = cells()


def recorded_names() -> set[str]:
    """The names of the records that are there."""
    return {path.parent.name for path in (records.BOOK / "records").glob("*/record.json")}


def recorded_cells() -> list[str]:
    """The names of the cells whose records are there, in the order of CELLS."""
    return [name for name in CELLS if name in recorded_names()]


def trained(name: str) -> tuple[networks.Settings, models.Model, records.Record]:
    """Settings, network and record of seed 0 of a recorded cell; ValueError that says how to make a record that is missing,
    and for a cell of which only curves are kept."""
    changes = dict(CELLS[checks.choice("name", name, CELLS)])
    del changes["seeds"]
    record = records.read(name)
    if not record.weights:
        raise ValueError(f"name must be of a cell whose weights are kept, got {name}: its record holds curves alone")
    settings = networks.settings(**changes, rate=record.config["rate"])
    return settings, networks.restored(settings, record.weights), record


# The recorded runs that chapters read, by name; a record that needs another comes after it.
RECORDED = {
    "sticky-authors": record_authors,
    "sticky-tuning": record_tuning,
    "sticky-fair-authors": lambda device: record_fair(
        tasks.author_draws, tasks.AUTHOR_SEEDS, device, snapshots=experiments.SNAPSHOT_STEPS
    ),
    "sticky-fair-fresh": lambda device: record_fair(tasks.fresh_draws, experiments.FRESH_SEEDS, device),
    "sticky-shuffled": lambda device: record_fair(
        experiments.shuffled_draws, tasks.AUTHOR_SEEDS, device, ("sgd", "em"), snapshots=experiments.SNAPSHOT_STEPS
    ),
    "sticky-frozen": record_frozen,
    "sticky-converged": lambda device: record_fair(
        tasks.author_draws, tasks.AUTHOR_SEEDS, device, CONVERGED_ARMS, 10_000, 10, CONVERGED_SNAPSHOTS
    ),
    "lookup-tuning": record_lookup_tuning,
    "lookup-fair": record_lookup,
    "lookup-frozen": record_lookup_frozen,
    "sticky-frozen-content": lambda device: record_frozen(device, ("content",)),
    "lookup-frozen-content": lambda device: record_lookup_frozen(device, ("content",)),
    "manifold-rank": record_ranks,
    "manifold-networks": record_geometry,
    "manifold-training": record_sculpting,
    **{
        name: lambda device, cell=cell, **options: record_cell(device=device, **cell, **options)
        for name, cell in CELLS.items()
    },
}
