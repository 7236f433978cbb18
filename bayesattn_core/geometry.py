"""Diagnostics on tensors: how far attention and values have travelled, how straight, how near they are to the end, and
what shape they have there.

No function knows an architecture: attention is any tensor of rows that sum to 1, values any tensor of points. The book
uses them in the chapters "EM against SGD" (book/em-against-sgd.ipynb) and "How training sculpts a manifold". Along
training, snapshots are the first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from . import checks


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon distance between distributions (..., n), (...): the square root of their divergence in nats.

    It is a metric, from 0 (equal) to sqrt(log 2) (disjoint); p and q broadcast. Zero entries are allowed.
    Raises ValueError if p and q do not have the same number of entries, or a row is negative or does not sum to 1.
    """
    checks.probabilities("p", p, 1e-3)
    checks.probabilities("q", q, 1e-3, last=p.shape[-1:])
    mixed = torch.special.entr((p + q) / 2).sum(-1)
    apart = mixed - (torch.special.entr(p).sum(-1) + torch.special.entr(q).sum(-1)) / 2
    return apart.clamp(min=0).sqrt()


def relative_distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| / |b| over the points (..., n, d), Frobenius norms, (...). ValueError for a b that is all zero."""
    n, d = checks.tensor("b", b, dims=2).shape[-2:]
    checks.tensor("a", a, last=(n, d))
    if bool((b == 0).flatten(-2).all(-1).any()):
        raise ValueError("b must not be all zero, got a reference of norm 0")
    return (a - b).flatten(-2).norm(dim=-1) / b.flatten(-2).norm(dim=-1)


def centred(name: str, points: Tensor) -> Tensor:
    """points (..., n, d) less their mean. ValueError, which names them, for points that are all the same."""
    if bool((points == points[..., :1, :]).flatten(-2).all(-1).any()):
        raise ValueError(f"{name} must not all be the same, got a variance of 0")
    return points - points.mean(-2, keepdim=True)


def cka(a: Tensor, b: Tensor) -> Tensor:
    """Linear centred kernel alignment of points a (..., n, d) and b (..., n, d'), (...), from 0 to 1.

    1 if they are equal up to rotation, scale and shift. Source: Kornblith et al., arXiv:1905.00414.
    Raises ValueError for points that are all the same.
    """
    n = checks.tensor("a", a, dims=2).shape[-2]
    checks.tensor("b", b, last=(n, None))
    a, b = centred("a", a), centred("b", b)

    def overlap(x: Tensor, y: Tensor) -> Tensor:
        return (x.mT @ y).square().sum((-2, -1))

    return overlap(a, b) / (overlap(a, a) * overlap(b, b)).sqrt()


def principal_axes(points: Tensor, count: int = 2) -> tuple[Tensor, Tensor]:
    """The first principal axes (..., d, count) of points (..., n, d), and the share of variance along each (..., count).

    The sign of each axis makes its largest entry positive. Raises ValueError for more axes than there are dimensions, and
    for points that are all the same.
    """
    n, d = checks.tensor("points", points, dims=2).shape[-2:]
    checks.integer("count", count, least=1, most=min(n, d))
    _, sizes, axes = torch.linalg.svd(centred("points", points), full_matrices=False)
    axes = axes.mT[..., :count]
    largest = axes.gather(-2, axes.abs().argmax(-2, keepdim=True))
    return axes * largest.sign(), (sizes.square() / sizes.square().sum(-1, keepdim=True))[..., :count]


def spectrum(points: Tensor) -> Tensor:
    """Shares of variance along all principal axes of points (..., n, d), largest first, (..., min(n, d)); they sum to 1.

    Raises ValueError for points that are all the same.
    """
    checks.tensor("points", points, dims=2)
    power = torch.linalg.svdvals(centred("points", points)).square()
    return power / power.sum(-1, keepdim=True)


def participation_ratio(points: Tensor) -> Tensor:
    """1 / Σ_k λ_k² of the shares of variance λ of points (..., n, d), (...): n equal axes give n. See `spectrum`."""
    return 1 / spectrum(points).square().sum(-1)


def effective_rank(points: Tensor) -> Tensor:
    """exp of the entropy (nats) of the shares of variance of points (..., n, d), (...): n equal axes give n.

    It counts small axes more than `participation_ratio` does, and is never smaller. See `spectrum`.
    """
    return torch.special.entr(spectrum(points)).sum(-1).exp()


def explained(points: Tensor, labels: Tensor) -> Tensor:
    """Share of the variance of points (..., n, d) that the means of their classes explain, (...), from 0 to 1; labels
    (..., n) int64. Of labels that say nothing, about (classes - 1) / (n - 1).

    Raises ValueError for points that are all the same, and for negative labels.
    """
    n = checks.tensor("points", points, dims=2).shape[-2]
    members = checks.members("labels", labels, n).to(points.dtype)  # (..., n, classes)
    apart = centred("points", points)
    sums, counts = members.mT @ apart, members.sum(-2).clamp(min=1)
    return (sums.square().sum(-1) / counts).sum(-1) / apart.square().sum((-2, -1))


def independent(name: str, columns: Tensor) -> None:
    """ValueError, which names them, for columns (..., d, k) that depend on each other."""
    if bool((torch.linalg.matrix_rank(columns) < columns.shape[-1]).any()):
        raise ValueError(f"{name} must have independent columns, got columns that depend on each other")


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Angles in radians, smallest first, between the spans of the columns of a (..., d, k) and b (..., d, m).

    (..., min(k, m)). Columns must be independent, but need not be orthonormal. By cosines, so angles below about 1e-8
    (float64) read as 0. Raises ValueError for more columns than dimensions and for columns that depend on each other,
    TypeError for a and b of different dtypes.
    """
    d, k = checks.tensor("a", a, dims=2).shape[-2:]
    m = checks.tensor("b", b, dims=2, last=(d, None)).shape[-1]
    if max(k, m) > d:
        raise ValueError(f"a and b must have at most {d} columns, got {k} and {m}")
    if a.dtype != b.dtype:
        raise TypeError(f"b must have the dtype of a, {a.dtype}, got {b.dtype}")
    for name, columns in (("a", a), ("b", b)):
        independent(name, columns)
    cosines = torch.linalg.svdvals(torch.linalg.qr(a)[0].mT @ torch.linalg.qr(b)[0])
    return cosines.clamp(max=1).acos()


def key_cosine(keys: Tensor, labels: Tensor | None = None) -> Tensor:
    """Mean absolute cosine of pairs of different keys (..., n, d), (...): 0 if all are orthogonal, about sqrt(2 / (π d)) at
    random. With labels (..., n) int64, which broadcast, only of pairs whose labels differ.

    Raises ValueError for fewer than two keys, a key that is 0, or labels of which no two differ.
    """
    n = checks.tensor("keys", keys, dims=2).shape[-2]
    if n < 2:
        raise ValueError(f"keys must be at least 2, got {n}")
    norms = keys.norm(dim=-1, keepdim=True)
    if bool((norms == 0).any()):
        raise ValueError("keys must not be 0, got a key of norm 0")
    cosines = (keys / norms @ (keys / norms).mT).abs()
    labels = torch.arange(n, device=keys.device) if labels is None else labels
    if checks.tensor("labels", labels, last=(n,), floating=False).dtype != torch.int64:
        raise TypeError(f"labels must be int64, got {labels.dtype}")
    differ = (labels[..., :, None] != labels[..., None, :]).to(keys.dtype)
    if bool((differ.sum((-2, -1)) == 0).any()):
        raise ValueError("labels must differ somewhere, got labels that are all the same")
    return (cosines * differ).sum((-2, -1)) / differ.sum((-2, -1))


def centred_ranks(name: str, x: Tensor) -> Tensor:
    """Ranks of x (..., n) less their mean; equal entries share their mean rank. ValueError, which names them, for fewer than
    two entries and for entries that are all equal."""
    x = checks.tensor(name, x, dims=1).contiguous()
    ordered = x.sort(-1).values
    twice = torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True)
    if bool((ordered[..., 0] == ordered[..., -1]).any()):
        raise ValueError(f"{name} must have entries that differ, got entries that are all equal")
    return (twice.to(x.dtype) - twice.to(x.dtype).mean(-1, keepdim=True)) / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation of a and b (..., n), (...), from -1 to 1; equal entries share their mean rank.

    Raises ValueError for fewer than two entries or entries that are all equal.
    """
    n = checks.tensor("a", a, dims=1).shape[-1]
    checks.tensor("b", b, last=(n,))
    ranks = centred_ranks("a", a), centred_ranks("b", b)
    return (ranks[0] * ranks[1]).sum(-1) / (ranks[0].norm(dim=-1) * ranks[1].norm(dim=-1))


def rank_ceiling(x: Tensor) -> Tensor:
    """The largest rank correlation with x (..., n) that numbers without ties can have, (...): 1 if x has none, less if it has,
    for no such numbers can rank alike what is equal. ValueError for fewer than two entries and entries that are all equal."""
    ranks, n = centred_ranks("x", x), x.shape[-1]
    return ranks.norm(dim=-1) / math.sqrt(n * (n**2 - 1) / 12)


def without(points: Tensor, axes: Tensor) -> Tensor:
    """Points (..., n, d) with their variation along the columns of axes (..., d, k) removed; their mean stays.

    Columns need not be orthonormal, but must be independent: ValueError if they are not.
    """
    d = checks.tensor("points", points, dims=2).shape[-1]
    independent("axes", checks.tensor("axes", axes, dims=2, last=(d, None)))
    basis, mean = torch.linalg.qr(axes)[0], points.mean(-2, keepdim=True)
    return points - (points - mean) @ basis @ basis.mT


def path_length(points: Tensor) -> Tensor:
    """Length travelled until each snapshot: points (snapshots, ..., d) give (snapshots, ...), 0 at the first."""
    checks.tensor("points", points, dims=2)
    legs = points.diff(dim=0).norm(dim=-1)
    return torch.cat([torch.zeros_like(points[:1, ..., 0]), legs.cumsum(0)])


def straightness(points: Tensor) -> Tensor:
    """Net displacement over path length (...), 1 for a straight path, of points (snapshots, ..., d). ValueError if nothing moves."""
    length = path_length(points)[-1]
    if bool((length == 0).any()):
        raise ValueError("points must move, got a path of length 0")
    return (points[-1] - points[0]).norm(dim=-1) / length


def settled(distance: Tensor, steps: Tensor, share: float = 0.9) -> Tensor:
    """The step (...) from which a distance to the end (snapshots, ...) stays below 1 - share of what it was at first.

    Linear between snapshots at `steps` (snapshots,), which rise. Raises ValueError for fewer than two snapshots, and for a
    distance that does not start above 0 or does not end at 0.
    """
    checks.number("share", share, above=0, most=1)
    checks.tensor("distance", distance, dims=1)
    checks.tensor("steps", steps, last=(distance.shape[0],))
    if steps.dim() != 1 or len(steps) < 2 or bool((steps.diff() <= 0).any()):
        raise ValueError(f"steps must be at least two rising steps, got {steps.tolist()}")
    if bool((distance[0] <= 0).any()):
        raise ValueError(f"distance must start above 0, got {distance[0].min().item():g}: nothing moves")
    if bool((distance[-1].abs() > 1e-6 * distance[0]).any()):
        raise ValueError(f"distance must end at 0, got {distance[-1].abs().max().item():g} at the last snapshot")
    goal = (1 - share) * distance[0]
    after = len(steps) - 1 - (distance > goal).flip(0).int().argmax(0)  # the last snapshot above
    last = after.clamp(max=len(steps) - 2)
    high, low = distance.gather(0, last[None])[0], distance.gather(0, last[None] + 1)[0]
    part = ((high - goal) / (high - low)).clamp(0, 1)
    return steps[last] + part * (steps[last + 1] - steps[last])


def settling(states: Iterable[tuple[Tensor, Tensor]], final: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """How attention and values travel to their end. `states` gives, at each snapshot, attention (..., rows, n) and
    values (..., points, d); `final` is the last of them. Returns tensors (snapshots, ...):

    attention_path, attention_left: Jensen-Shannon distance, mean over rows, travelled so far and left to the end;
    values_path, values_left: the same for values, relative to the norm of the final ones; values_cka: with the final ones.
    """
    measured, before = [], None
    for attention, values in states:
        before = before or (attention, values)
        measured.append(
            {
                "attention_path": jensen_shannon(attention, before[0]).mean(-1),
                "attention_left": jensen_shannon(attention, final[0]).mean(-1),
                "values_path": (values - before[1]).flatten(-2).norm(dim=-1) / final[1].flatten(-2).norm(dim=-1),
                "values_left": relative_distance(values, final[1]),
                "values_cka": cka(values, final[1]),
            }
        )
        before = attention, values
    stacked = {name: torch.stack([row[name] for row in measured]) for name in measured[0]}
    return stacked | {name: stacked[name].cumsum(0) for name in ("attention_path", "values_path")}
