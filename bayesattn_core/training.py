"""Full-batch gradient descent on the head, with one learning rate per weight.

SGD, the EM-like schedule and every control are the same code with other rates (experiments.py). Losses and entropies
are in nats.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from . import attention as head
from . import checks, em

SNAPSHOTS = ("weights", "attention", "values")
VALUE_STEPS = ("gradient", "majorised")
MOST_STEPS = 10_000_000
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
        try:
            rate = torch.as_tensor(rate, dtype=like.dtype, device=like.device)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"rates[{name!r}] must be a number or a tensor of numbers, got {rate!r}") from None
        if rate.numel() == 0 or not bool(torch.isfinite(rate).all()) or rate.min() < 0:
            raise ValueError(f"rates[{name!r}] must be finite and not negative, got {rate.tolist()}")
        shaped[name] = rate[..., None, None]
    return shaped


def descend(
    X: Tensor, weights: dict[str, Tensor], targets: Tensor, rates: dict[str, float | Tensor], steps: int, *,
    position_weights: Tensor | None = None, causal: bool = True, snapshots: Iterable[int] = (), keep: Iterable[str] = ("weights",), value_step: str = "gradient", sequences: bool = False, stream: Callable[[int], tuple[Tensor, Tensor]] | None = None, label: str = "descent",
) -> Descent:  # fmt: skip
    """Train heads by full-batch gradient descent on the closed-form gradients: W ← W - rate_W ∂L/∂W, all weights at once.

    Shapes as in `attention.forward`; every batch entry is a run of its own, and rates broadcast over the batch.
    `snapshots` are the steps at which to keep what `keep` names: "weights", "attention" (..., T, T), "values" (..., T, d_v).
    With value_step "majorised", W_V takes the closed-form M-step of `em.majorised_step` instead of a gradient step, and
    its rate is not used. With sequences=True the last batch dimension of X (..., N, T, d_x), targets and position_weights
    holds N sequences that share one head, which weights and rates lack: the loss is its mean over them.
    With `stream`, step k > 0 stands on the fresh inputs and targets stream(k), shaped as X and targets are, instead of X.
    A progress bar is drawn if a person is watching. Raises what `attention.check` raises, ValueError for negative
    steps or rates, and Diverged, which names the step, if a loss is not finite.
    """
    if not isinstance(sequences, bool):
        raise TypeError(f"sequences must be True or False, got {sequences!r}")
    if stream is not None and not callable(stream):
        raise TypeError(f"stream must be a function of the step, got {type(stream).__name__}")
    if sequences:
        checks.tensor("X", X, dims=3)
        if not isinstance(weights, dict):
            raise ValueError(
                f"weights must be a dict with the keys {', '.join(head.WEIGHTS)}, got {type(weights).__name__}"
            )
        weights = {name: checks.tensor(name, W, dims=2)[..., None, :, :] for name, W in weights.items()}
    position_weights = head.check(X, weights, targets, position_weights)
    checks.integer("steps", steps, most=MOST_STEPS)
    keep = [checks.choice("keep", kind, SNAPSHOTS) for kind in keep]
    checks.choice("value_step", value_step, VALUE_STEPS)
    wanted = {checks.integer("snapshots", step) for step in snapshots}
    if wanted and max(wanted) > steps:
        raise ValueError(f"snapshots must be steps from 0 to {steps}, got {max(wanted)}")
    rates = step_rates(rates, X)
    if sequences:
        rates = {name: rate[..., None, :, :] for name, rate in rates.items()}
    if bool((position_weights.sum(-1) == 0).any()):
        raise ValueError("position_weights must supervise at least one position of every run, got only zeros")
    hard = not targets.is_floating_point()
    shapes = [X.shape[:-2], targets.shape[: -1 if hard else -2], position_weights.shape[:-1]]
    shapes += [w.shape[:-2] for w in weights.values()]
    try:
        batch = torch.broadcast_shapes(*shapes, *(r.shape[:-2] for r in rates.values()))
    except RuntimeError:
        given = {name: tuple(r.shape[:-2]) for name, r in rates.items()}
        raise ValueError(
            f"rates must broadcast with the batch {tuple(torch.broadcast_shapes(*shapes))}, got shapes {given}"
        ) from None
    runs = (*batch[:-1], 1) if sequences else batch
    weights = {name: w.detach().expand(*runs, *w.shape[-2:]).clone() for name, w in weights.items()}
    start = weights
    shares = position_weights / position_weights.sum(-1, keepdim=True)  # of the mean over supervised positions
    shapes, C = (X.shape, targets.shape), weights["W_O"].shape[-1]
    curves = torch.empty(3, steps + 1, *(batch[:-1] if sequences else batch), dtype=X.dtype, device=X.device)

    def mean(values: Tensor) -> Tensor:  # over the sequences that share a head
        return values.mean(-1) if sequences else values

    def pooled(values: Tensor) -> Tensor:  # positions of all sequences side by side
        return values.flatten(-3, -2)[..., None, :, :] if sequences else values

    kept = {}
    for step in tqdm(range(steps + 1), desc=label, unit="step", disable=not watched()):
        if stream is not None and step > 0:
            X, targets = stream(step)
            if (X.shape, targets.shape) != shapes:
                given = f"{tuple(X.shape)} and {tuple(targets.shape)} at step {step}"
                raise ValueError(f"stream must keep the shapes {tuple(shapes[0])} and {tuple(shapes[1])}, got {given}")
            head.check(X, start, targets, position_weights)
        best = head.one_hot(targets, C, X.dtype).argmax(-1)
        if step in wanted:
            kept[step] = snapshot(X, weights, keep, causal)
            if sequences:
                kept[step] |= {name: W.squeeze(-3) for name, W in kept[step].items() if name in head.WEIGHTS}
        loss, log_p, gradients = head.blockwise(X, weights, targets, position_weights, causal)
        curves[0, step] = mean(loss)
        curves[1, step] = mean((shares * (log_p.argmax(-1) == best)).sum(-1))
        curves[2, step] = mean(-(shares * (log_p.exp() * log_p).sum(-1)).sum(-1))
        if step % CHECK_EVERY == 0 or step == steps or value_step == "majorised":  # no pseudo-inverse of NaN
            refuse_nan(curves[0, : step + 1])
        if step < steps:
            if sequences:
                gradients = {name: gradient.mean(-3, keepdim=True) for name, gradient in gradients.items()}
            steps_taken = {name: -rates[name] * gradients[name] for name in weights}
            if value_step == "majorised":
                Z, Y = head.route(X, weights, causal), head.one_hot(targets, weights["W_O"].shape[-1], X.dtype)
                each = (position_weights / (X.shape[-3] if sequences else 1)).expand(*batch, X.shape[-2])[..., None]
                Y = Y.expand(*batch, *Y.shape[-2:])
                try:
                    steps_taken["W_V"] = em.majorised_step(
                        pooled(Z), weights["W_O"], pooled(log_p.exp()), pooled(Y), pooled(each)[..., 0]
                    )
                except torch.linalg.LinAlgError as error:
                    raise Diverged(
                        f"training must keep well-scaled weights, got none at step {step}: {error}"
                    ) from None
            weights = {name: w + steps_taken[name] for name, w in weights.items()}
    if sequences:
        weights = {name: w.squeeze(-3) for name, w in weights.items()}
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
