"""The recorded experiments on the head: settings, arms and controls, each made again by one command.

`python -m bayesattn_core record NAME` runs one of RECORDED. Losses are in nats. Seeds: the authors' five, ten fresh
ones that are reported, and three on which learning rates are tuned and nothing is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from . import attention as head
from . import checks, records, tasks, training

FRESH_SEEDS = tuple(range(100, 110))
TUNING_SEEDS = (200, 201, 202)
BASE_RATES = (0.03, 0.1, 0.3, 1.0, 3.0)  # what is tried when a rate is tuned


def per_weight(base: float, **factors: float) -> dict[str, float]:
    """Learning rates by weight: base times a factor, 1 where none is named."""
    return {name: base * factors.get(name, 1.0) for name in head.WEIGHTS}


# Learning rates by arm and weight. `sgd` and `em` (the "EM-like" schedule) are the paper's; the others are controls.
ARMS = {
    "sgd": per_weight(0.01),
    "em": per_weight(0.01, W_V=10),
    "all-x10": per_weight(0.1),
    "o-x10": per_weight(0.01, W_O=10),
    "qk-x10": per_weight(0.01, W_Q=10, W_K=10),
    "vo-x10": per_weight(0.01, W_V=10, W_O=10),
    "em-frozen-qk": per_weight(0.01, W_Q=0, W_K=0, W_V=10),
}
# Families whose base rate is tuned, and the two ways to match the EM-like schedule's first step with one rate
FAMILIES = {"sgd": {}, "em": {"W_V": 10.0}}
MATCHES = ("sum", "total")


def stack_rates(arms: Iterable[str]) -> dict[str, Tensor]:
    """The learning rates of several arms side by side: {weight: (number of arms,)}. ValueError for an unknown arm."""
    arms = [checks.choice("arm", arm, ARMS) for arm in arms]
    if not arms:
        raise ValueError("arms must not be empty, got none")
    return {name: torch.tensor([ARMS[arm][name] for arm in arms], dtype=torch.float64) for name in head.WEIGHTS}


def setting(
    draws: Callable, seeds: Iterable[int], device: torch.device | str = "cpu"
) -> tuple[tasks.Chain, dict[str, Tensor]]:
    """Sticky-chain draws (tasks.author_draws or tasks.fresh_draws) of several seeds, stacked on `device`:
    inputs (seeds, T, d_x), weights (seeds, rows, columns)."""
    seeds = list(seeds)
    if not seeds:
        raise ValueError("seeds must not be empty, got none")
    chains, weights = zip(*(draws(seed) for seed in seeds), strict=True)
    stacked = {
        field: torch.stack([getattr(chain, field) for chain in chains]).to(device)
        for field in ("symbols", "inputs", "targets", "means")
    }
    chain = tasks.Chain(transition=chains[0].transition.to(device), **stacked)
    return chain, {name: torch.stack([w[name] for w in weights]).to(device) for name in head.WEIGHTS}


def descend_arms(
    chain: tasks.Chain, weights: dict[str, Tensor], rates: dict[str, Tensor], steps: int, **options
) -> training.Descent:
    """Every arm on every seed in one batch (seeds, arms): weights (seeds, rows, columns), rates (arms,) or (seeds, arms).

    Options as in `training.descend`.
    """
    per_arm = {name: W[:, None] for name, W in weights.items()}
    return training.descend(chain.inputs[:, None], per_arm, chain.targets[:, None], rates, steps, **options)


def descend_authors(
    seeds: Iterable[int], arms: Iterable[str], steps: int, device: torch.device | str = "cpu", **options
) -> training.Descent:
    """The named arms on the authors' draws, in one batch (seeds, arms)."""
    return descend_arms(*setting(tasks.author_draws, seeds, device), stack_rates(arms), steps, **options)


def matched_rates(chain: tasks.Chain, weights: dict[str, Tensor], how: str, arm: str = "em") -> Tensor:
    """The one learning rate (seeds,) for all weights whose first step is as large as that of `arm`.

    how "sum": the sum over the four weights of the Frobenius norms of their steps; "total": the norm of the whole step.
    """
    checks.choice("how", how, MATCHES)
    _, _, gradients = head.blockwise(chain.inputs, weights, chain.targets, head.uniform_weights(chain.inputs))
    norms = torch.stack([gradients[name].flatten(-2).norm(dim=-1) for name in head.WEIGHTS], -1)  # (seeds, 4)
    rates = torch.tensor([ARMS[arm][name] for name in head.WEIGHTS], dtype=norms.dtype, device=norms.device)
    if how == "sum":
        return (rates * norms).sum(-1) / norms.sum(-1)
    return (rates * norms).norm(dim=-1) / norms.norm(dim=-1)


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
    run = descend_authors(seeds, arms, 1000, device, label="sticky-authors")
    config = {"task": "sticky chain, authors' draws", "seeds": seeds, "arms": {arm: ARMS[arm] for arm in arms}}
    return as_record(config, run, device, time.perf_counter() - start)


def record_tuning(device: torch.device) -> records.Record:
    """sticky-tuning: both families at every base rate on the tuning seeds, 1000 steps; the rate with the lowest mean
    final training loss is `config["tuned"]`. A rate at which any seed diverges has NaN for a curve and is out."""
    start, steps = time.perf_counter(), 1000
    chain, weights = setting(tasks.fresh_draws, TUNING_SEEDS, device)
    loss = torch.full((steps + 1, len(FAMILIES), len(BASE_RATES), len(TUNING_SEEDS)), torch.nan)
    for f, (family, factors) in enumerate(FAMILIES.items()):
        for b, base in enumerate(BASE_RATES):
            rates = {name: torch.tensor([rate]) for name, rate in per_weight(base, **factors).items()}
            try:
                run = descend_arms(chain, weights, rates, steps, label=f"sticky-tuning {family} {base:g}")
            except training.Diverged:
                continue
            loss[:, f, b] = run.loss[:, :, 0].cpu()
    final = loss[-1].mean(-1).nan_to_num(torch.inf)  # (families, bases)
    tuned = {family: BASE_RATES[int(final[f].argmin())] for f, family in enumerate(FAMILIES)}
    config = {
        "task": "sticky chain, fresh draws", "seeds": list(TUNING_SEEDS), "families": FAMILIES, "bases": list(BASE_RATES),
        "steps": steps, "dtype": "float32", "tuned": tuned,
    }  # fmt: skip
    return records.Record(config, {"loss": loss}, {}, records.provenance(device, time.perf_counter() - start))


def tuned_rates(family: str) -> dict[str, float]:
    """The learning rates of a family at the base rate that the record sticky-tuning chose."""
    base = records.read("sticky-tuning").config["tuned"][checks.choice("family", family, FAMILIES)]
    return per_weight(base, **FAMILIES[family])


FAIR_ARMS = (*ARMS, *(f"{how}-matched" for how in MATCHES), *(f"tuned-{family}" for family in FAMILIES), "m-step")
SNAPSHOT_STEPS = (0, 5, 10, 20, 35, *range(50, 1001, 50))


def fair_rates(chain: tasks.Chain, weights: dict[str, Tensor], arms: Iterable[str]) -> dict[str, Tensor]:
    """Learning rates {weight: (seeds, arms)} of any of FAIR_ARMS; those of "m-step" are SGD's (its W_V rate is unused)."""
    seeds, columns = chain.inputs.shape[0], []
    for arm in arms:
        checks.choice("arm", arm, FAIR_ARMS)
        if arm.endswith("-matched"):
            columns.append(dict.fromkeys(head.WEIGHTS, matched_rates(chain, weights, arm.removesuffix("-matched"))))
        else:
            rates = tuned_rates(arm.removeprefix("tuned-")) if arm.startswith("tuned-") else ARMS.get(arm, ARMS["sgd"])
            columns.append({name: torch.full((seeds,), rate) for name, rate in rates.items()})
    return {name: torch.stack([column[name].cpu().double() for column in columns], -1) for name in head.WEIGHTS}


def descend_fair(
    chain: tasks.Chain, weights: dict[str, Tensor], arms: Iterable[str], steps: int, **options
) -> training.Descent:
    """Any of FAIR_ARMS on every seed, in the order given, (seeds, arms); "m-step" takes the closed-form M-step on W_V."""
    arms = list(arms)
    runs = []
    for group, value_step in (
        ([a for a in arms if a != "m-step"], "gradient"),
        ([a for a in arms if a == "m-step"], "majorised"),
    ):
        if group:
            rates = fair_rates(chain, weights, group)
            runs.append((group, descend_arms(chain, weights, rates, steps, value_step=value_step, **options)))
    order = [[a for group, _ in runs for a in group].index(arm) for arm in arms]

    def side_by_side(parts: list[Tensor], axis: int) -> Tensor:
        return torch.cat(parts, axis).index_select(axis, torch.tensor(order, device=parts[0].device))

    curves = [side_by_side([getattr(run, name) for _, run in runs], 2) for name in ("loss", "accuracy", "entropy")]
    final = {name: side_by_side([run.weights[name] for _, run in runs], 1) for name in head.WEIGHTS}
    snapshots = {
        step: {name: side_by_side([run.snapshots[step][name] for _, run in runs], 1) for name in head.WEIGHTS}
        for step in runs[0][1].snapshots
    }
    return training.Descent(*curves, final, snapshots)


def record_fair(
    draws: Callable, seeds: tuple[int, ...], device: torch.device, arms=FAIR_ARMS, steps=1000, every=1, snapshots=()
) -> records.Record:
    """Any of FAIR_ARMS on the given seeds."""
    start = time.perf_counter()
    chain, weights = setting(draws, seeds, device)
    run = descend_fair(
        chain, weights, arms, steps, snapshots=snapshots, label=f"sticky, {len(seeds)} seeds, {steps} steps"
    )
    rates = {name: rate.tolist() for name, rate in fair_rates(chain, weights, arms).items()}
    task = f"sticky chain, {'authors' if draws is tasks.author_draws else 'fresh'} draws"
    config = {"task": task, "seeds": list(seeds), "arms": list(arms), "rates": rates}
    return as_record(config, run, device, time.perf_counter() - start, every)


FREEZE_STEPS = (0, 100, 300, 600)
FREEZES = {"routing": ("W_Q", "W_K"), "values": ("W_V",)}


def record_frozen(device: torch.device) -> records.Record:
    """sticky-frozen: SGD, EM-like and tuned SGD on the authors' seeds with W_Q and W_K, or W_V, held from a step on;
    losses (steps + 1, seeds, arms, freezes, freeze steps), 1000 steps."""
    start, seeds, arms, steps = time.perf_counter(), list(tasks.AUTHOR_SEEDS), ["sgd", "em", "tuned-sgd"], 1000
    chain, weights = setting(tasks.author_draws, seeds, device)
    rates = fair_rates(chain, weights, arms)
    before = descend_arms(chain, weights, rates, max(FREEZE_STEPS), snapshots=FREEZE_STEPS, label="sticky-frozen")
    loss = torch.empty(steps + 1, len(seeds), len(arms), len(FREEZES), len(FREEZE_STEPS))
    for f, (what, names) in enumerate(FREEZES.items()):
        held = {name: rate * (name not in names) for name, rate in rates.items()}
        for s, step in enumerate(FREEZE_STEPS):
            from_there = before.snapshots[step]
            X, targets = chain.inputs[:, None], chain.targets[:, None]
            rest = training.descend(X, from_there, targets, held, steps - step, label=f"{what} held from {step}")
            loss[: step + 1, :, :, f, s] = before.loss[: step + 1].cpu()
            loss[step:, :, :, f, s] = rest.loss.cpu()
    config = {
        "task": "sticky chain, authors' draws", "seeds": seeds, "arms": arms, "freezes": list(FREEZES),
        "freeze_steps": list(FREEZE_STEPS), "steps": steps, "dtype": "float32",
    }  # fmt: skip
    return records.Record(config, {"loss": loss}, {}, records.provenance(device, time.perf_counter() - start))


CONVERGED_ARMS = ("sgd", "em", "tuned-sgd", "m-step")
CONVERGED_SNAPSHOTS = (0, 1000, 2000, 5000, 9000, 10000)

# The recorded runs that chapters read, by name; a record that needs another comes after it.
RECORDED = {
    "sticky-authors": record_authors,
    "sticky-tuning": record_tuning,
    "sticky-fair-authors": lambda device: record_fair(
        tasks.author_draws, tasks.AUTHOR_SEEDS, device, snapshots=SNAPSHOT_STEPS
    ),
    "sticky-fair-fresh": lambda device: record_fair(tasks.fresh_draws, FRESH_SEEDS, device),
    "sticky-frozen": record_frozen,
    "sticky-converged": lambda device: record_fair(
        tasks.author_draws, tasks.AUTHOR_SEEDS, device, CONVERGED_ARMS, 10_000, 10, CONVERGED_SNAPSHOTS
    ),
}
