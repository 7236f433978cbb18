"""Full-batch gradient descent on the head, with one learning rate per weight; the arms of the book's comparison.

SGD, the EM-like schedule and every control are the same code with other rates. Losses and entropies are in nats.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from . import attention as head
from . import checks, records, tasks

# Learning rates by arm and weight. Source: the paper's public script; `em` is its "EM-like" schedule.
ARMS = {
    "sgd": {"W_Q": 0.01, "W_K": 0.01, "W_V": 0.01, "W_O": 0.01},
    "em": {"W_Q": 0.01, "W_K": 0.01, "W_V": 0.1, "W_O": 0.01},
}
SNAPSHOTS = ("weights", "attention", "values")
CHECK_EVERY = 50  # steps between looks for NaN: each look waits for the device


class Descent(NamedTuple):
    """A finished descent of `steps` updates; step k stands before update k, step `steps` after the last.

    loss, accuracy, entropy (steps + 1, ...): mean cross-entropy and predictive entropy in nats, over supervised positions;
    weights: final weights, each (..., rows, columns); snapshots: {step: {"W_Q": ..., "attention": ..., "values": ...}}.
    """

    loss: Tensor
    accuracy: Tensor
    entropy: Tensor
    weights: dict[str, Tensor]
    snapshots: dict[int, dict[str, Tensor]]


class Diverged(ValueError):
    """A loss that is not finite; the message says at which step."""


def watched() -> bool:
    """Whether a person is watching, in a terminal or a notebook: only then are progress bars drawn.

    TQDM_DISABLE, which tests and `make execute` set, says that nobody is.
    """
    return not os.environ.get("TQDM_DISABLE") and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def step_rates(rates: dict[str, float | Tensor], like: Tensor) -> dict[str, Tensor]:
    """Check rates, one number or one tensor (...) of numbers per weight, and shape them to scale (..., rows, columns)."""
    if not isinstance(rates, dict) or set(rates) != set(head.WEIGHTS):
        raise ValueError(
            f"rates must be a dict with the keys {', '.join(head.WEIGHTS)}, got {sorted(rates) if isinstance(rates, dict) else type(rates).__name__}"
        )
    shaped = {}
    for name, rate in rates.items():
        rate = torch.as_tensor(rate, dtype=like.dtype, device=like.device)
        if not bool(torch.isfinite(rate).all()) or rate.min() < 0:
            raise ValueError(f"rates[{name!r}] must be finite and not negative, got {rate.tolist()}")
        shaped[name] = rate[..., None, None]
    return shaped


def stack_rates(arms: Iterable[str]) -> dict[str, Tensor]:
    """The learning rates of several arms side by side: {weight: (number of arms,)}. ValueError for an unknown arm."""
    arms = [checks.choice("arm", arm, ARMS) for arm in arms]
    return {name: torch.tensor([ARMS[arm][name] for arm in arms], dtype=torch.float64) for name in head.WEIGHTS}


def descend(
    X: Tensor, weights: dict[str, Tensor], targets: Tensor, rates: dict[str, float | Tensor], steps: int, *,
    position_weights: Tensor | None = None, causal: bool = True, snapshots: Iterable[int] = (), keep: Iterable[str] = ("weights",), label: str = "descent",
) -> Descent:  # fmt: skip
    """Train heads by full-batch gradient descent on the closed-form gradients: W ← W - rate_W ∂L/∂W, all weights at once.

    Shapes as in `attention.forward`; every batch entry is a run of its own, and rates broadcast over the batch.
    `snapshots` are the steps at which to keep what `keep` names: "weights", "attention" (..., T, T), "values" (..., T, d_v).
    A progress bar is drawn if a person is watching. Raises what `attention.check` raises, ValueError for negative
    steps or rates, and Diverged, which names the step, if a loss is not finite.
    """
    position_weights = head.check(X, weights, targets, position_weights)
    checks.integer("steps", steps)
    keep = [checks.choice("keep", kind, SNAPSHOTS) for kind in keep]
    wanted = {checks.integer("snapshots", step) for step in snapshots}
    if wanted and max(wanted) > steps:
        raise ValueError(f"snapshots must be steps from 0 to {steps}, got {max(wanted)}")
    rates = step_rates(rates, X)
    batch = torch.broadcast_shapes(
        X.shape[:-2], *(w.shape[:-2] for w in weights.values()), *(r.shape[:-2] for r in rates.values())
    )
    weights = {name: w.expand(*batch, *w.shape[-2:]).clone() for name, w in weights.items()}
    shares = position_weights / position_weights.sum(-1, keepdim=True)  # of the mean over supervised positions
    best = head.one_hot(targets, weights["W_O"].shape[-1], X.dtype).argmax(-1)
    curves = torch.empty(3, steps + 1, *batch, dtype=X.dtype, device=X.device)
    kept = {}
    for step in tqdm(range(steps + 1), desc=label, unit="step", disable=not watched()):
        if step in wanted:
            kept[step] = snapshot(X, weights, keep, causal)
        loss, log_p, gradients = head.blockwise(X, weights, targets, position_weights, causal)
        curves[0, step] = loss
        curves[1, step] = (shares * (log_p.argmax(-1) == best)).sum(-1)
        curves[2, step] = -(shares * (log_p.exp() * log_p).sum(-1)).sum(-1)
        if step % CHECK_EVERY == 0 or step == steps:
            refuse_nan(curves[0, : step + 1])
        if step < steps:
            weights = {name: w - rates[name] * gradients[name] for name, w in weights.items()}
    return Descent(*curves, weights, kept)


def refuse_nan(losses: Tensor) -> None:
    """Raise Diverged, naming the first step, if any loss (steps, ...) is not finite."""
    finite = torch.isfinite(losses).reshape(len(losses), -1).all(-1)
    if not bool(finite.all()):
        step = int((~finite).nonzero()[0])
        raise Diverged(
            f"training must keep a finite loss, got {losses[step].tolist()} at step {step}: lower the rates or look at the inputs"
        )


def snapshot(X: Tensor, weights: dict[str, Tensor], keep: Iterable[str], causal: bool) -> dict[str, Tensor]:
    """What `descend` keeps of one step: the weights under their names, and attention and values under theirs."""
    kept = {}
    if "weights" in keep:
        kept |= weights
    if "values" in keep:
        kept["values"] = X @ weights["W_V"]
    if "attention" in keep:
        kept["attention"] = head.attend(head.scores(X @ weights["W_Q"], X @ weights["W_K"]), causal)
    return kept


def threshold_step(losses: Tensor, threshold: float) -> int | None:
    """The first step whose loss, before its update, is below `threshold`; None if there is none.

    losses (steps + 1,): as in Descent; the last, after the last update, does not count.
    """
    checks.tensor("losses", losses, dims=1)
    below = (losses[:-1] < checks.number("threshold", threshold)).nonzero()
    return int(below[0]) if len(below) else None


def author_setting(seeds: Iterable[int], device: torch.device | str = "cpu") -> tuple[tasks.Chain, dict[str, Tensor]]:
    """The paper's sticky-chain draws for several seeds, stacked: inputs (seeds, T, d_x), weights (seeds, rows, columns)."""
    chains, weights = zip(*(tasks.author_draws(seed) for seed in seeds), strict=True)
    stacked = {
        field: torch.stack([getattr(chain, field) for chain in chains]).to(device)
        for field in ("symbols", "inputs", "targets", "means")
    }
    return tasks.Chain(transition=chains[0].transition.to(device), **stacked), {
        name: torch.stack([w[name] for w in weights]).to(device) for name in head.WEIGHTS
    }


def descend_author_setting(
    seeds: Iterable[int], arms: Iterable[str], steps: int, device: torch.device | str = "cpu", **options
) -> Descent:
    """Every arm on every seed of the paper's sticky chain, in one batch of shape (seeds, arms). Options as in `descend`."""
    chain, weights = author_setting(seeds, device)
    per_arm = {name: w[:, None] for name, w in weights.items()}
    return descend(chain.inputs[:, None], per_arm, chain.targets[:, None], stack_rates(arms), steps, **options)


def record_sticky_authors(device: torch.device) -> records.Record:
    """The recorded run `sticky-authors`: both arms, the authors' five seeds, 1000 steps, float32."""
    config = {
        "task": "sticky chain, authors' draws",
        "seeds": list(tasks.AUTHOR_SEEDS),
        "arms": {arm: ARMS[arm] for arm in ("sgd", "em")},
        "steps": 1000,
        "dtype": "float32",
    }
    start = time.perf_counter()
    run = descend_author_setting(config["seeds"], config["arms"], config["steps"], device, label="sticky-authors")
    metrics = {"loss": run.loss, "accuracy": run.accuracy, "entropy": run.entropy}
    return records.Record(config, metrics, run.weights, records.provenance(device, time.perf_counter() - start))


# The recorded runs that chapters read, by name: `python -m bayesattn_core record NAME` makes one.
RECORDED = {"sticky-authors": record_sticky_authors}
