"""The experiments on the head: settings, arms and controls. Runs of them are recorded by recorded.py.

Losses are in nats. Seeds: the authors' five, ten fresh
ones that are reported, and three on which learning rates are tuned and nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from . import attention as head
from . import checks, geometry, records, tasks, training

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
LOOKUP_FAMILIES = FAMILIES | {"m-step": {}}
MATCHES = ("sum", "total")


def stack_rates(arms: Iterable[str]) -> dict[str, Tensor]:
    """The learning rates of several arms side by side: {weight: (number of arms,)}. ValueError for an unknown arm."""
    arms = [checks.choice("arm", arm, ARMS) for arm in arms]
    checks.filled("arms", arms)
    return {name: torch.tensor([ARMS[arm][name] for arm in arms], dtype=torch.float64) for name in head.WEIGHTS}


def several(seeds: Iterable[int]) -> list[int]:
    """The seeds in a list; ValueError if there is none."""
    seeds = [checks.integer("seed", seed) for seed in seeds]
    return checks.filled("seeds", seeds)


def setting(
    draws: Callable, seeds: Iterable[int], device: torch.device | str = "cpu"
) -> tuple[tasks.Chain, dict[str, Tensor]]:
    """Sticky-chain draws (tasks.author_draws or tasks.fresh_draws) of several seeds, stacked on `device`:
    inputs (seeds, T, d_x), weights (seeds, rows, columns)."""
    chains, weights = zip(*(draws(seed) for seed in several(seeds)), strict=True)
    stacked = {
        field: torch.stack([getattr(chain, field) for chain in chains]).to(device)
        for field in ("symbols", "inputs", "targets", "means")
    }
    chain = tasks.Chain(transition=chains[0].transition.to(device), **stacked)
    return chain, {name: torch.stack([w[name] for w in weights]).to(device) for name in head.WEIGHTS}


def shuffled_draws(seed: int) -> tuple[tasks.Chain, dict[str, Tensor]]:
    """The authors' draws with the targets at random positions: labels that say nothing of the inputs."""
    chain, weights = tasks.author_draws(seed)
    order = torch.randperm(len(chain.targets), generator=torch.Generator().manual_seed(seed))
    return chain._replace(targets=chain.targets[order]), weights


def descend_arms(
    task: tasks.Chain | tasks.Lookup, weights: dict[str, Tensor], rates: dict[str, Tensor], steps: int, **options
) -> training.Descent:
    """Every arm on every seed in one batch (seeds, arms): weights (seeds, rows, columns), rates (arms,) or (seeds, arms).

    Options as in `training.descend`.
    """
    per_arm = {name: W[:, None] for name, W in weights.items()}
    return training.descend(task.inputs[:, None], per_arm, task.targets[:, None], rates, steps, **options)


def descend_authors(
    seeds: Iterable[int], arms: Iterable[str], steps: int, device: torch.device | str = "cpu", **options
) -> training.Descent:
    """The named arms on the authors' draws, in one batch (seeds, arms)."""
    return descend_arms(*setting(tasks.author_draws, seeds, device), stack_rates(arms), steps, **options)


def matched_rates(task: tasks.Chain | tasks.Lookup, weights: dict[str, Tensor], how: str, arm: str = "em") -> Tensor:
    """The one learning rate (seeds,) for all weights whose first step is as large as that of `arm`.

    how "sum": the sum over the four weights of the Frobenius norms of their steps; "total": the norm of the whole step.
    """
    checks.choice("how", how, MATCHES)
    checks.choice("arm", arm, ARMS)
    if isinstance(task, tasks.Lookup):  # sequences share a head
        apart = {name: W[:, None] for name, W in weights.items()}
        _, _, gradients = head.blockwise(task.inputs, apart, task.targets, task.position_weights)
        gradients = {name: gradient.mean(1) for name, gradient in gradients.items()}
    else:
        _, _, gradients = head.blockwise(task.inputs, weights, task.targets, head.uniform_weights(task.inputs))
    norms = torch.stack([gradients[name].flatten(-2).norm(dim=-1) for name in head.WEIGHTS], -1)  # (seeds, 4)
    rates = torch.tensor([ARMS[arm][name] for name in head.WEIGHTS], dtype=norms.dtype, device=norms.device)
    if how == "sum":
        return (rates * norms).sum(-1) / norms.sum(-1)
    return (rates * norms).norm(dim=-1) / norms.norm(dim=-1)


def tuned_rates(family: str, tuning: str = "sticky-tuning") -> dict[str, float]:
    """The learning rates of a family at the base rate that the record `tuning` chose."""
    config = records.read(tuning).config
    checks.choice("family", family, config["families"])
    return per_weight(config["tuned"][family], **config["families"][family])


FAIR_ARMS = (*ARMS, *(f"{how}-matched" for how in MATCHES), *(f"tuned-{family}" for family in FAMILIES), "m-step")
SNAPSHOT_STEPS = (0, 5, 10, 20, 35, *range(50, 1001, 50))


def fair_rates(
    task: tasks.Chain | tasks.Lookup,
    weights: dict[str, Tensor],
    arms: Iterable[str],
    scale: float = 1.0,
    tuning: str = "sticky-tuning",
) -> dict[str, Tensor]:
    """Learning rates {weight: (seeds, arms)} of any of FAIR_ARMS; those of "m-step" are SGD's, unless they were tuned (its
    W_V rate is unused).

    scale: what the rates of ARMS are multiplied by; tuning: the record that chose the tuned rates, which are not scaled.
    """
    seeds, columns, families = task.inputs.shape[0], [], records.read(tuning).config["families"]
    checks.number("scale", scale, above=0)
    arms = list(arms)
    for arm in checks.filled("arms", arms):
        checks.choice("arm", arm, FAIR_ARMS)
        if arm.endswith("-matched"):
            rate = scale * matched_rates(task, weights, arm.removesuffix("-matched"))
            columns.append(dict.fromkeys(head.WEIGHTS, rate))
        elif arm.startswith("tuned-") or arm in set(families) - set(FAMILIES):
            rates = tuned_rates(arm.removeprefix("tuned-"), tuning)
            columns.append({name: torch.full((seeds,), rate) for name, rate in rates.items()})
        else:
            rates = ARMS.get(arm, ARMS["sgd"])
            columns.append({name: torch.full((seeds,), scale * rate) for name, rate in rates.items()})
    return {name: torch.stack([column[name].cpu().double() for column in columns], -1) for name in head.WEIGHTS}


def descend_fair(
    task: tasks.Chain | tasks.Lookup,
    weights: dict[str, Tensor],
    rates: dict[str, Tensor],
    arms: Iterable[str],
    steps: int,
    **options,
) -> training.Descent:
    """Any of FAIR_ARMS at `rates` (as from fair_rates) on every seed, in the order given, (seeds, arms).

    "m-step" takes the closed-form M-step on W_V. Options as in `training.descend`. Raises ValueError for an unknown arm,
    one that comes twice, and arms that are not as many as the columns of rates.
    """
    arms = [checks.choice("arm", arm, FAIR_ARMS) for arm in arms]
    columns = rates["W_V"].shape[-1]
    if not arms or len(set(arms)) < len(arms) or len(arms) != columns:
        raise ValueError(f"arms must be one name for each of the {columns} columns of rates, got {arms}")
    runs = []
    for value_step in training.VALUE_STEPS:
        group = [k for k, arm in enumerate(arms) if (arm == "m-step") == (value_step == "majorised")]
        if group:
            of_group = {name: rate[:, group] for name, rate in rates.items()}
            run = descend_arms(task, weights, of_group, steps, value_step=value_step, **options)
            runs.append(([arms[k] for k in group], run))
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


# The task that needs routing. The paper has no rates for it: SGD's is 1 here, and every other arm keeps its proportions.
LOOKUP_SCALE = 100.0  # times ARMS
LOOKUP_SEQUENCES = 64  # fresh ones at every step, the same for every arm
LOOKUP_STEPS = 1500
LOOKUP_SEEDS = tuple(range(300, 310))
LOOKUP_TUNING_SEEDS = (400, 401, 402)
LOOKUP_BASES = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0)


def lookup_stream(
    seeds: Iterable[int], step: int, device: torch.device | str = "cpu", sequences: int = LOOKUP_SEQUENCES
):
    """The lookup sequences (seeds, sequences, T + 1, ...) that step `step` of each seed stands on; step -1: for evaluation."""
    drawn = []
    for seed in several(seeds):
        draw = torch.Generator().manual_seed(
            100_000 * seed + 50_000 + checks.integer("step", step, least=-1, most=49_998)
        )
        drawn.append(tasks.lookup(draw, sequences))
    fields = {
        name: torch.stack([getattr(task, name) for task in drawn]).to(device) for name in ("inputs", "targets", "seen")
    }
    return tasks.Lookup(**fields, position_weights=drawn[0].position_weights.to(device))


def lookup_setting(
    seeds: Iterable[int], first: int = 0, device: torch.device | str = "cpu"
) -> tuple[tasks.Lookup, dict[str, Tensor], dict]:
    """The task at step `first`, initial weights (seeds, rows, columns) and the options with which `descend_arms` goes on
    from there on fresh sequences at every step."""
    seeds = list(seeds)
    task = lookup_stream(seeds, first, device)
    drawn = [tasks.initial_weights(torch.Generator().manual_seed(seed), task.inputs.shape[-1]) for seed in seeds]
    weights = {name: torch.stack([w[name] for w in drawn]).to(device) for name in head.WEIGHTS}

    def stream(step: int) -> tuple[Tensor, Tensor]:
        fresh = lookup_stream(seeds, first + step, device)
        return fresh.inputs[:, None], fresh.targets[:, None]

    return task, weights, {"position_weights": task.position_weights, "sequences": True, "stream": stream}


def evaluate_lookup(task: tasks.Lookup, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of heads (seeds, arms, rows, columns) on sequences of their seeds: KL(exact || model) in nats, mean over supervised
    positions (seeds, arms); attention (seeds, arms, sequences, T + 1, T + 1); values (seeds, arms, points, d_v).

    The points are the one-hot values on their own, rows of W_V: what is fetched, without the keys and queries beside it.
    """
    heads = {name: W[:, :, None] for name, W in weights.items()}
    found = head.unchecked_forward(task.inputs[:, None], heads, task.targets[:, None], task.position_weights)
    exact = tasks.lookup_predictive(task, weights["W_O"].shape[-1])[:, None]
    apart = torch.special.xlogy(exact, exact) - exact * found.logits.log_softmax(-1)
    C = exact.shape[-1]
    K = (task.inputs.shape[-1] - C - 1) // 2
    return (task.position_weights * apart.sum(-1)).sum(-1).mean(-1), found.attention, weights["W_V"][..., K : K + C, :]


def along_lookup(
    task: tasks.Lookup, snapshots: dict[int, dict[str, Tensor]], final: dict[str, Tensor]
) -> dict[str, Tensor]:
    """What is measured at every snapshot (snapshots, seeds, arms) on `task`: divergence, KL(exact || model) in nats, and
    what `geometry.settling` measures, over supervised rows."""
    divergences = []

    def state(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        divergence, attention, values = evaluate_lookup(task, weights)
        divergences.append(divergence)
        return attention[..., task.position_weights > 0, :].flatten(-3, -2), values

    last = state(final)
    divergences.clear()
    measured = geometry.settling((state(weights) for weights in snapshots.values()), last)
    return {"divergence": torch.stack(divergences)} | measured


# In how many directions do values move? The sticky chain with C symbols, in arms that break the account one part at a time
RANK_CLASSES = (2, 4, 8, 16, 32, 64)
RANK_WIDTH = 64  # d_x and d_v, at least as large as every C
RANK_SEEDS = tuple(range(500, 505))
RANK_ARMS = {
    "learned": {},
    "fixed-output": {"W_O": 0.0},
    "frozen-attention": {"W_Q": 0.0, "W_K": 0.0},
    "shuffled-labels": {},
}


def rank_stream(C: int, seeds: Iterable[int], step: int, T: int = 500) -> tuple[Tensor, Tensor]:
    """Inputs (seeds, T, RANK_WIDTH) and targets (seeds, arms, T) that step `step` stands on: fresh chains of C symbols, whose
    means belong to C and the seed. The targets of "shuffled-labels" stand at random positions of their sequence."""
    seeds = several(seeds)
    draws = (torch.Generator().manual_seed(1000 * seed + C) for seed in seeds)
    means = torch.stack([torch.randn(C, RANK_WIDTH, generator=draw) for draw in draws])
    generator = torch.Generator().manual_seed(1_000_000 * C + checks.integer("step", step, most=999_999))
    chain = tasks.sticky_chain(generator, tasks.ring_transition(C), means, T)
    shuffled = chain.targets[:, torch.randperm(T, generator=generator)]
    targets = [shuffled if arm == "shuffled-labels" else chain.targets for arm in RANK_ARMS]
    return chain.inputs, torch.stack(targets, 1)


def rank_weights(C: int, seeds: Iterable[int]) -> dict[str, Tensor]:
    """Initial weights (seeds, rows, columns), 0.1 N(0, 1), of heads for C classes."""
    shapes = {"W_Q": 10, "W_K": 10, "W_V": RANK_WIDTH, "W_O": C}
    drawn = []
    for seed in several(seeds):
        generator = torch.Generator().manual_seed(1000 * seed + C + 500)
        drawn.append(
            {name: 0.1 * torch.randn(RANK_WIDTH, width, generator=generator) for name, width in shapes.items()}
        )
    return {name: torch.stack([w[name] for w in drawn]) for name in head.WEIGHTS}
