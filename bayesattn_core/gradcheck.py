"""Finite-difference gradient checks of any scalar function of named tensors, and of every closed form of the head.

Central differences divide by the realised step (x + h) - (x - h). The error of a gradient `a` against a judge `n` is
max|a - n| / max(max|a|, max|n|, 0.01 max(1, |L|)) per tensor, where L is the function's value (book: eq-fd-error).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import attention as head
from . import checks

FD_TOLERANCE = 1e-7
AUTOGRAD_TOLERANCE = 1e-12

Scalar = Callable[[dict[str, Tensor]], Tensor]


class GradientMismatch(AssertionError):
    """A gradient disagrees with its judge; the message gives the worst entry's index and both values."""


class Row(NamedTuple):
    """One line of a report: a tensor, its judge, the error, the tolerance, and the worst entry with both values."""

    name: str
    shape: tuple[int, ...]
    judge: str
    error: float
    tolerance: float
    index: tuple[int, ...]
    given: float
    expected: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


class Report(NamedTuple):
    """The rows of a gradient check; prints as a table (name, shape, judge, error, verdict)."""

    rows: list[Row]

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{'tensor':<12} {'shape':<14} {'judge':<26} {'error':>9}  verdict"]
        for row in self.rows:
            verdict = f"ok (<= {row.tolerance:.0e})" if row.passed else f"FAILED (> {row.tolerance:.0e})"
            lines.append(f"{row.name:<12} {row.shape!s:<14} {row.judge:<26} {row.error:9.1e}  {verdict}")
        return "\n".join(lines)

    def verdicts(self) -> str:
        """The table without the errors, whose digits vary from machine to machine: what a chapter prints."""
        rows = [f"{r.name:<12} {r.shape!s:<14} {r.judge:<26} <= {r.tolerance:.0e}: {r.passed}" for r in self.rows]
        return "\n".join(rows)

    def require(self) -> Report:
        """Return the report if every row passed; raise GradientMismatch about the worst row if not."""
        failed = [row for row in self.rows if not row.passed]
        if failed:
            worst = max(failed, key=lambda row: row.error / (row.tolerance or AUTOGRAD_TOLERANCE))
            raise GradientMismatch(
                f"the gradient of {worst.name} (shape {worst.shape}) disagrees with {worst.judge}: error {worst.error:.2e} > {worst.tolerance:.0e}; "
                f"worst at index {worst.index}: given {worst.given!r}, expected {worst.expected!r}; {len(failed)} of {len(self.rows)} checks failed"
            )
        return self


def compare(name: str, given: Tensor, expected: Tensor, loss: float, judge: str, tolerance: float) -> Row:
    """A report row for a gradient `given` against its judge's `expected`, of the same shape, at function value `loss`."""
    if given.shape != expected.shape:
        raise ValueError(f"gradient of {name} must have shape {tuple(expected.shape)}, got {tuple(given.shape)}")
    difference = (given - expected).abs()
    scale = max(given.abs().max().item(), expected.abs().max().item(), 0.01 * max(1.0, abs(loss)))
    flat = int(difference.nan_to_num(nan=torch.inf).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), given.shape))
    error = difference.max().item() / scale
    return Row(
        name,
        tuple(given.shape),
        judge,
        error if error == error else float("inf"),
        tolerance,
        index,
        given[index].item(),
        expected[index].item(),
    )


def evaluate(function: Scalar, tensors: dict[str, Tensor]) -> Tensor:
    """function(tensors), checked to be one finite number."""
    value = function(tensors)
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"function must return a tensor with one entry, got {given}")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"function must return a finite number, got {value.item()}")
    return value.reshape(())


def finite_difference(function: Scalar, tensors: dict[str, Tensor], name: str, step: float = 1e-5) -> Tensor:
    """Central-difference gradient of the scalar `function` with respect to tensors[name], of its shape and dtype.

    Raises ValueError for an unknown name, a step that is not positive or too small to change an entry, and for
    function values that are not one finite number.
    """
    checks.number("step", step, above=0)
    checks.choice("name", name, tensors)
    x = checks.tensor(name, tensors[name]).detach()
    gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    with torch.no_grad():
        for flat in range(x.numel()):
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), x.shape))
            above, below = x.clone(), x.clone()
            above[index] += step
            below[index] -= step
            realised = above[index] - below[index]
            if realised == 0:
                raise ValueError(
                    f"step must change every entry of {name} in {x.dtype}, got {step:g} at value {x[index].item():g}"
                )
            change = evaluate(function, {**tensors, name: above}) - evaluate(function, {**tensors, name: below})
            gradient[index] = change / realised
    return gradient


def autograd(function: Scalar, tensors: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """PyTorch's own gradients of the scalar `function` with respect to the named tensors: the second judge."""
    leaves = {name: tensors[name].detach().clone().requires_grad_() for name in names}
    value = evaluate(function, {**tensors, **leaves})
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def gradcheck(
    function: Scalar,
    tensors: dict[str, Tensor],
    gradients: dict[str, Tensor],
    *,
    step: float = 1e-5,
    tolerance: float = FD_TOLERANCE,
) -> Report:
    """Check `gradients` (a subset of the names in `tensors`) of a scalar function against central differences.

    Returns the report; raises GradientMismatch, with the worst entry's index and both values, if any error exceeds
    the tolerance. Usable on any function: the head, and every architecture.
    """
    with torch.no_grad():
        loss = evaluate(function, tensors).item()
    rows = [
        compare(name, g, finite_difference(function, tensors, name, step), loss, "finite difference", tolerance)
        for name, g in gradients.items()
    ]
    return Report(rows).require()


def step_sweep(
    function: Scalar, tensors: dict[str, Tensor], gradients: dict[str, Tensor], steps: Iterable[float]
) -> dict[str, list[float]]:
    """The finite-difference error of each gradient at each step: the V of truncation O(h^2) and rounding O(1/h)."""
    with torch.no_grad():
        loss = evaluate(function, tensors).item()
    return {
        name: [compare(name, g, finite_difference(function, tensors, name, h), loss, "", 0).error for h in steps]
        for name, g in gradients.items()
    }


class Case(NamedTuple):
    """The inputs of one head, as `attention.gradients` takes them."""

    X: Tensor
    weights: dict[str, Tensor]
    targets: Tensor
    position_weights: Tensor
    causal: bool


def head_losses(case: Case) -> tuple[dict[str, Tensor], dict[str, Scalar]]:
    """The tensors of a head and, for each, the loss as a function of it alone (the rest of the head follows from it).

    Attention is taken as a free variable at the visible pairs. Losses are summed over batch entries.
    """
    X, weights, targets, w, causal = case
    f = head.forward(*case)
    A_visible = head.visible(X.shape[-2], causal, X.device)
    S = head.scores(f.queries, f.keys)
    batch = f.loss.shape
    tensors = {
        "scores": S,
        "attention": f.attention,
        "contexts": f.contexts,
        "queries": f.queries,
        "keys": f.keys,
        "values": f.values,
    }
    tensors |= {name: weight.expand(*batch, *weight.shape[-2:]) for name, weight in weights.items()}
    tensors = {name: t.expand(*batch, *t.shape[len(t.shape) - 2 :]).clone() for name, t in tensors.items()}

    def of_contexts(t):
        return head.cross_entropy(t["contexts"] @ t["W_O"], targets, w).sum()

    def of_attention(t):
        return of_contexts({**t, "contexts": (t["attention"] * A_visible) @ t["values"]})

    def of_scores(t):
        return of_attention({**t, "attention": head.attend(t["scores"], causal)})

    def of_projections(t):
        return of_scores({**t, "scores": head.scores(t["queries"], t["keys"])})

    def of_weights(t):
        return of_projections({**t, "queries": X @ t["W_Q"], "keys": X @ t["W_K"], "values": X @ t["W_V"]})

    functions = {"scores": of_scores, "attention": of_attention, "contexts": of_contexts}
    functions |= dict.fromkeys(("queries", "keys", "values"), of_projections) | dict.fromkeys(head.WEIGHTS, of_weights)
    return tensors, functions


def check_head(case: Case, gradients=head.gradients, *, differences: bool = True) -> Report:
    """Every closed form of one case against autograd and, if `differences`, central differences. Does not raise.

    Exact zeros are rows of their own: score and attention gradients at pairs that may not be seen, and every
    gradient that an unsupervised position alone would receive.
    """
    _, given = gradients(*case)
    tensors, functions = head_losses(case)
    rows = []
    for name, function in functions.items():
        g, loss = getattr(given, name), evaluate(function, tensors).item()
        rows.append(compare(name, g, autograd(function, tensors, [name])[name], loss, "autograd", AUTOGRAD_TOLERANCE))
        if differences:
            rows.append(
                compare(name, g, finite_difference(function, tensors, name), loss, "finite difference", FD_TOLERANCE)
            )
    hidden = ~head.visible(case.X.shape[-2], case.causal, case.X.device)
    unsupervised = (case.position_weights == 0)[..., None].expand(given.contexts.shape[:-1] + (1,))
    for name, zero in {
        "scores": hidden | unsupervised,
        "attention": hidden | unsupervised,
        "contexts": unsupervised,
    }.items():
        g = getattr(given, name)
        g = g.where(zero, 0.0)
        rows.append(compare(name, g, torch.zeros_like(g), 1.0, "exact zeros", 0.0))
    return Report(rows)


def random_cases(seed: int = 0, device: torch.device | str = "cpu", scale: float = 1.0) -> Iterator[Case]:
    """Random float64 heads for `check_head`: T = 1 included, d_x, d_k, d_v and C all different, both masks, hard and
    soft targets, uniform and uneven position weights with zeros, batch dimensions that broadcast.

    `scale` multiplies the queries' weights: large values push scores towards saturation.
    """
    generator = torch.Generator().manual_seed(checks.integer("seed", seed))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = [
        ((), 1, 3, 2, 4, 5),
        ((), 2, 4, 3, 2, 3),
        ((), 5, 3, 4, 2, 6),
        ((), 6, 5, 2, 7, 4),
        ((2,), 4, 2, 5, 3, 2),
        ((2, 3), 3, 4, 2, 3, 5),
    ]
    for number, (batch, T, d_x, d_k, d_v, C) in enumerate(shapes):
        for causal in (True, False):
            for hard in (True, False):
                X = normal(
                    *batch[:1], *[1] * (len(batch) - 1), T, d_x
                )  # inputs are shared over the last batch dimension
                shapes_of = {"W_Q": (d_x, d_k), "W_K": (d_x, d_k), "W_V": (d_x, d_v), "W_O": (d_v, C)}
                weights = {name: normal(*batch, *shape) / shape[0] ** 0.5 for name, shape in shapes_of.items()}
                weights["W_Q"] = weights["W_Q"] * scale
                if hard:
                    targets = torch.randint(C, X.shape[:-1], generator=generator)
                else:
                    targets = normal(*X.shape[:-1], C).softmax(-1)
                w = head.uniform_weights(X)
                if number % 2:
                    w = torch.rand(T, generator=generator, dtype=torch.float64)
                    w[0] = 0.0
                yield Case(
                    *(t.to(device) for t in (X,)),
                    {k: v.to(device) for k, v in weights.items()},
                    targets.to(device),
                    w.to(device),
                    causal,
                )


def check_closed_forms(gradients=head.gradients, seed: int = 0, device: torch.device | str = "cpu") -> Report:
    """`check_head` over `random_cases`, and against autograd alone at scores of ±1e4; the worst row per tensor and judge."""
    worst: dict[tuple[str, str], Row] = {}
    for scale, label in ((1.0, ""), (1e4, " at ±1e4")):
        for case in random_cases(seed, device, scale):
            for row in check_head(case, gradients, differences=scale == 1.0).rows:
                row = row._replace(judge=row.judge + label)
                key = (row.judge, row.name)
                if key not in worst or row.error > worst[key].error:
                    worst[key] = row
    return Report(list(worst.values()))
