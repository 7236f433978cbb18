"""What trained networks hold inside, against the exact posterior: geometry.py's measures on what a model records.

Points are the residual stream after the last block and the last normalisation, at supervised positions: what the head reads,
in every architecture. (The normalisation's learned gain is part of it.) Entropies are of the exact posterior, in bits. A
correlation is an absolute rank correlation, since the sign of a principal axis means nothing, and a share of what ties
allow. The book uses this in the chapter "How training sculpts a manifold".
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from . import checks, geometry, models, networks, tasks, tunnels

LEAST_GROUP = 20  # sequences that must share a token at a position for a rank correlation among them


def varying(name: str, values: Tensor) -> Tensor:
    """Return values if they are not all the same; ValueError, which names them, if they are."""
    if values.max() == values.min():
        raise ValueError(f"{name} must vary, got {values.flatten()[0].item():g} everywhere")
    return values


def sequences(points: Tensor, entropy: Tensor | None = None, tokens: Tensor | None = None) -> tuple[int, int, int]:
    """The sizes B, T, d of points (B, T, d), if entropies (B, T) and tokens (B, T) fit them; ValueError, which names what does
    not, and for more dimensions."""
    B, T, d = checks.tensor("points", points, dims=3, exact=True).shape
    if entropy is not None:
        checks.tensor("entropy", entropy, last=(B, T), exact=True)
    if tokens is not None:
        checks.tensor("tokens", tokens, last=(B, T), floating=False, exact=True)
    return B, T, d


def ranked_alike(coordinate: Tensor, entropy: Tensor) -> Tensor:
    """|rank correlation| of a coordinate with entropies (..., n), (...), as a share of the largest that a coordinate without
    ties could have (geometry.rank_ceiling): 1 if it ranks entropies without fault, whatever their ties, and at most 1, if it
    ties where they do. Entropies are equal up to 1e-6."""
    entropy = entropy.round(decimals=6)
    return (geometry.spearman(coordinate, entropy).abs() / geometry.rank_ceiling(entropy)).clamp(max=1)


def entropy_correlation(points: Tensor, entropy: Tensor) -> tuple[float, float]:
    """How the first principal coordinate of points (B, T, d) ranks entropies (B, T), see `ranked_alike`: over all points, and
    at fixed position (the mean over positions at which both differ between sequences; NaN if there is none).

    The axis is that of all points in both. Raises ValueError for shapes that do not fit and for entropies that do not vary.
    """
    sequences(points, entropy)
    varying("entropy", entropy)
    axes, _ = geometry.principal_axes(points.flatten(0, 1), 1)
    coordinate = (points @ axes)[..., 0]
    overall = ranked_alike(coordinate.flatten(), entropy.flatten()).item()
    varied = (entropy.amax(0) - entropy.amin(0) > 1e-5) & (coordinate.amax(0) > coordinate.amin(0))
    if not bool(varied.any()):
        return overall, math.nan
    return overall, ranked_alike(coordinate[:, varied].mT, entropy[:, varied].mT).mean().item()


def without_tokens(points: Tensor, tokens: Tensor) -> Tensor:
    """points (B, T, d) less the mean of all points with the same token; tokens (B, T) int64."""
    B, T, d = sequences(points, tokens=tokens)
    members = checks.members("tokens", tokens, T).to(points.dtype).flatten(0, 1)  # (B T, tokens)
    flat = points.reshape(-1, d)
    means = members.mT @ flat / members.sum(0).clamp(min=1)[:, None]
    return (flat - members @ means).view(B, T, d)


def entropy_correlation_within(points: Tensor, entropy: Tensor, tokens: Tensor) -> float:
    """As at fixed position in `entropy_correlation`, and at fixed token too, once the mean of every token's points is taken
    away: what is told beyond what was just shown. tokens (B, T) int64. The mean over groups of at least LEAST_GROUP
    sequences with the same token at the same position; NaN if in none of them both differ.

    Raises ValueError for shapes that do not fit and for negative tokens.
    """
    B, T, d = sequences(points, entropy, tokens)
    apart = without_tokens(points, tokens)
    flat = apart.view(-1, d)
    if flat.norm() <= 1e-9 * points.norm():
        return math.nan  # nothing but tokens
    coordinate = (flat @ geometry.principal_axes(flat, 1)[0]).view(B, T)
    found = []
    for t in range(T):
        for token in tokens[:, t].unique():
            same = tokens[:, t] == token
            x, H = coordinate[same, t], entropy[same, t]
            if len(x) >= LEAST_GROUP and H.max() - H.min() > 1e-5 and x.max() > x.min():
                found.append(ranked_alike(x, H))
    return torch.stack(found).mean().item() if found else math.nan


def reader(points: Tensor, told: Tensor) -> Tensor:
    """The direction (d, 1) along which points (n, d) best tell the numbers told (n,), by least squares after centring.

    Raises ValueError for shapes that do not fit, and for numbers, or points, that are all the same."""
    n, d = checks.tensor("points", points, dims=2, exact=True).shape
    varying("told", checks.tensor("told", told, last=(n,), exact=True))
    if points.dtype != told.dtype:
        raise TypeError(f"told must have the dtype of the points, {points.dtype}, got {told.dtype}")
    x, y = geometry.centred("points", points), told - told.mean()
    ridge = 1e-6 * x.square().sum() / d * torch.eye(d, dtype=points.dtype, device=points.device)
    return torch.linalg.solve(x.mT @ x + ridge, x.mT @ y)[:, None]


def erased(points: Tensor, fitted: Tensor, told: Tensor) -> Tensor:
    """points (n, d) with all that a linear reader could tell of some numbers taken away, at the least change: what the reader
    w reads is subtracted along the direction c in which points move with them, x - c (w . (x - mean)) / (w . c).

    w and c come from the points `fitted` (m, d) with the numbers told (m,). Source: Belrose et al., arXiv:2306.03819, for one
    number. Raises what `reader` raises.
    """
    d = checks.tensor("points", points, dims=2).shape[-1]
    checks.tensor("fitted", fitted, dims=2, last=(None, d))
    w, mean = reader(fitted, told), fitted.mean(0)  # (d, 1), (d,)
    c = (fitted - mean).mT @ (told - told.mean())[:, None]
    return points - (points - mean) @ w @ c.mT / (w.mT @ c)


@torch.no_grad()
def measure(
    model: models.Model, fit: tunnels.Batch, judge: tunnels.Batch, generator: torch.Generator
) -> dict[str, float]:
    """Diagnostics of one network; axes of removal are fitted on the batch `fit`, everything is measured on `judge`.

    Rank correlations of the first principal coordinate with entropy; _fixed: at fixed position, _within: at fixed position
    and token (see entropy_correlation, entropy_correlation_within), _shuffled: the same with entropies shuffled between
    sequences:
        correlation, correlation_fixed, correlation_shuffled, correlation_within, correlation_within_shuffled: of the points
        stream_fixed, stream_within: before the last normalisation
        bare_fixed, bare_shuffled: normalised, without the learned gain and bias
        length_fixed, length_read_fixed: of the points' length alone, before the normalisation and after it
        values_fixed, values_shuffled, contexts_fixed, contexts_shuffled: of the last layer's values and contexts, heads side
            by side; Transformers only
        ceiling: what ties leave of a plain rank correlation at fixed position (geometry.rank_ceiling, mean over positions)
    Of the points:
        readable: share of the entropy's variance that its linear reader tells
        clusters, clusters_shuffled: share of variance that the means of the targets' classes explain; targets shuffled
        participation_ratio, effective_rank
    KL(exact || model) in bits, and how far each removal moves the points (mean square, as a share of their variance):
        kl: as it is
        kl_without_entropy, moved_entropy: with the entropy erased (see erased)
        kl_without_line, moved_line: with a random linear function of the points erased (mean of ten)
        kl_without_random, moved_random: with the variation along a random axis removed (mean of ten)
        kl_without_first, moved_first: with the variation along the first principal axis removed
    Mean absolute cosines of the keys of different tokens of a sequence, over layers and heads; Transformers only:
        keys: turned by their positions, as the scores use them
        keys_random: of random vectors, one for each token, turned likewise
        keys_centred, keys_centred_random: the same once the mean key of the sequence is taken away from each
    """
    supervised = judge.supervised[0]

    def read(batch: tunnels.Batch) -> tuple[list[dict[str, Tensor]], Tensor, Tensor]:
        """What goes on inside, the stream after the last block, and the same as the head reads it."""
        inside = model.record(batch.inputs)
        stream = inside[-1]["residual"]
        return inside, stream[:, supervised].double(), model.norm(stream)[:, supervised].double()

    inside, stream, points = read(judge)
    bare = torch.nn.functional.layer_norm(stream, stream.shape[-1:])
    entropy = tasks.entropy(judge.posterior[:, supervised].double()) / math.log(2)
    order = torch.rand(entropy.shape, generator=generator).argsort(0).to(entropy.device)
    targets = judge.targets[:, supervised]
    overall, fixed = entropy_correlation(points, entropy)
    flat = points.flatten(0, 1)
    found = {
        "correlation": overall,
        "correlation_fixed": fixed,
        "correlation_shuffled": entropy_correlation(points, entropy.gather(0, order))[1],
        "correlation_within": entropy_correlation_within(points, entropy, judge.inputs[:, supervised]),
        "correlation_within_shuffled": entropy_correlation_within(
            points, entropy.gather(0, order), judge.inputs[:, supervised]
        ),
        "stream_fixed": entropy_correlation(stream, entropy)[1],
        "stream_within": entropy_correlation_within(stream, entropy, judge.inputs[:, supervised]),
        "length_fixed": entropy_correlation(stream.norm(dim=-1, keepdim=True), entropy)[1],
        "bare_fixed": entropy_correlation(bare, entropy)[1],
        "bare_shuffled": entropy_correlation(bare, entropy.gather(0, order))[1],
        "length_read_fixed": entropy_correlation(points.norm(dim=-1, keepdim=True), entropy)[1],
        "clusters": geometry.explained(flat, targets.flatten()).item(),
        "clusters_shuffled": geometry.explained(flat, targets.gather(0, order).flatten()).item(),
        "participation_ratio": geometry.participation_ratio(flat).item(),
        "effective_rank": geometry.effective_rank(flat).item(),
    }
    fitted = read(fit)[2].flatten(0, 1)
    told = tasks.entropy(fit.posterior[:, supervised].double()).flatten() / math.log(2)

    axis = reader(fitted, told)
    missed = entropy.flatten() - told.mean() - (flat - fitted.mean(0)) @ axis[:, 0]
    found["readable"] = 1 - (missed.square().mean() / entropy.var(correction=0)).item()
    ties = entropy.round(decimals=6)[:, entropy.amax(0) - entropy.amin(0) > 1e-5]
    found["ceiling"] = geometry.rank_ceiling(ties.mT).mean().item()

    def scored(changed: Tensor) -> tuple[float, float]:
        """The divergence, and how far the points were moved."""
        whole = model.norm(inside[-1]["residual"]).clone()
        whole[:, supervised] = changed.view_as(points).to(whole.dtype)
        log_p = model.head(whole).log_softmax(-1)
        moved = (changed - flat).square().sum() / geometry.centred("points", flat).square().sum()
        return tunnels.kl(judge.posterior, log_p, judge.supervised).mean, moved.item()

    found["kl"], _ = scored(flat)
    random = torch.randn(10, flat.shape[-1], 1, generator=generator, dtype=flat.dtype).to(flat.device)
    for name, changed in {
        "entropy": [erased(flat, fitted, told)],
        "line": [erased(flat, fitted, fitted @ other[:, 0]) for other in random],
        "first": [geometry.without(flat, geometry.principal_axes(fitted, 1)[0])],
        "random": [geometry.without(flat, other) for other in random],
    }.items():
        scores = torch.tensor([scored(points) for points in changed], dtype=torch.float64).mean(0)
        found[f"kl_without_{name}"], found[f"moved_{name}"] = scores.tolist()
    if "keys" in inside[0]:
        keys = torch.stack([block["keys"] for block in inside])  # (layers, B, heads, T, d / heads)
        tokens = judge.inputs[:, None]  # the same for all heads
        layers, _, heads, _, d = keys.shape
        drawn = torch.randn(layers, heads, int(tokens.max()) + 1, d, generator=generator).to(keys.device)
        random = drawn[:, :, judge.inputs].movedim(2, 1)  # one for each token, and turned as the keys are
        random = models.rotate(random) if model.config.positions == "rotary" else random
        for end, of in (("", keys), ("_random", random)):
            found[f"keys{end}"] = geometry.key_cosine(of, tokens).mean().item()
            found[f"keys_centred{end}"] = geometry.key_cosine(of - of.mean(-2, keepdim=True), tokens).mean().item()
        for name in ("values", "contexts"):
            apart = models.merge_heads(inside[-1][name])[:, supervised].double()  # (B, T, heads d)
            found[f"{name}_fixed"] = entropy_correlation(apart, entropy)[1]
            found[f"{name}_shuffled"] = entropy_correlation(apart, entropy.gather(0, order))[1]
    return found


def probes(weights: dict[str, Tensor]) -> tuple[list[int], list[dict[str, Tensor]]]:
    """What a record holds of a probe batch along training (see networks.probe): the steps, and for every layer
    {name: (frames, B, ...)} in float64. ValueError for weights without probes, or with others than probe@STEP/LAYER/WHAT."""
    names = [name for name in weights if name.startswith("probe@")]
    if not names:
        raise ValueError(f"weights must hold probes, got none among {len(weights)} tensors")
    for name in names:
        if not re.fullmatch(r"probe@\d+/\d+/\w+", name):
            raise ValueError(f"weights must name probes probe@STEP/LAYER/WHAT, got {name!r}")
    keys = [name.removeprefix("probe@").split("/") for name in names]
    kinds = {(k, kind) for _, k, kind in keys}
    layers, moments = 1 + max(int(k) for k, _ in kinds), {step for step, *_ in keys}
    if len(names) != len(moments) * len(kinds) or {int(k) for k, _ in kinds} != set(range(layers)):
        raise ValueError(f"weights must name the same probes at every step, of layers from 0, got {len(names)} probes")
    steps = sorted({int(step) for step, *_ in keys})
    return steps, [
        {
            name: torch.stack([weights[f"probe@{step}/{layer}/{name}"] for step in steps]).double()
            for name in sorted({kind for _, k, kind in keys if int(k) == layer})
        }
        for layer in range(layers)
    ]


def side_by_side(values: Tensor) -> Tensor:
    """Values (frames, B, heads, T, d / heads) of all heads side by side, as points (frames, B T, d)."""
    return checks.tensor("values", values, dims=5).transpose(2, 3).flatten(3).flatten(1, 2)


def along_training(layers: list[dict[str, Tensor]], labels: Tensor, shown: slice = slice(None)) -> dict[str, Tensor]:
    """Of the layers of `probes`: attention, values (frames, layers), how far they are from their last state (mean
    Jensen-Shannon distance of rows; relative distance of the points); keys (frames, layers, heads): mean absolute cosine of
    keys at the positions `shown` whose labels (B, positions) int64 differ, mean over sequences.

    Raises ValueError for no layers, and for labels that do not fit the keys.
    """
    for layer in checks.filled("layers", layers):
        for name in ("attention", "keys", "values"):
            checks.choice("name", name, layer)
    keys = [layer["keys"][..., shown, :] for layer in layers]  # (frames, B, heads, positions, d / heads)
    B, _, positions, _ = keys[0].shape[-4:]
    if checks.tensor("labels", labels, floating=False).shape != (B, positions):
        raise ValueError(f"labels must have shape {(B, positions)}, got {tuple(labels.shape)}")
    found: dict[str, list[Tensor]] = {"attention": [], "values": [], "keys": []}
    for layer, of in zip(layers, keys, strict=True):
        points = side_by_side(layer["values"])
        found["attention"].append(geometry.jensen_shannon(layer["attention"], layer["attention"][-1]).mean((1, 2, 3)))
        found["values"].append(geometry.relative_distance(points, points[-1]))
        found["keys"].append(geometry.key_cosine(of, labels[:, None]).mean(1))
    return {name: torch.stack(of, 1) for name, of in found.items()}


def fresh_batch(settings: networks.Settings, which: int, sequences: int = 500) -> tunnels.Batch:
    """Sequences of a run's task for diagnostics, apart from those of training and of evaluation."""
    if not isinstance(settings, networks.Settings):
        raise TypeError(f"settings must be networks.Settings, got {type(settings).__name__}")
    checks.integer("sequences", sequences, least=1)
    seed = 2 * networks.EVALUATION_SEED + 2 * settings.seed + checks.integer("which", which, most=1)
    return settings.tunnel.draw(torch.Generator().manual_seed(seed), sequences, dtype=torch.float32)
