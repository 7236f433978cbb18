"""Drawings of the chapter "How training sculpts a manifold", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures

NAMES = {
    "transformer": "Transformer",
    "mamba": "Mamba",
    "lstm": "LSTM",
    "mlp": "MLP",
}
TASKS = {
    "bijection": "bijection",
    "bijection-replacement": "bijection with replacement",
    "hmm-fixed-sticky": "fixed HMM, sticky",
}
ENTROPY = (
    "viridis"  # of scatter plots coloured by posterior entropy, everywhere the same
)


def cloud(axis, points: np.ndarray, shade: np.ndarray, reach: float, **options):
    """A scatter of points (n, 2) without ticks, from -reach to reach around their own centre."""
    x, y = (points - points.mean(0)).T
    drawn = axis.scatter(
        x, y, c=shade, s=7, linewidth=0, **({"cmap": ENTROPY} | options)
    )
    axis.set(xticks=[], yticks=[], xlim=(-reach, reach), ylim=(-reach, reach))
    axis.spines[:].set(visible=True, color="0.8")
    axis.set_aspect("equal")
    return drawn


def extent(points: np.ndarray) -> float:
    """How far the last frame of points (frames, n, 2) reaches from its centre."""
    return 1.1 * np.abs(points[-1] - points[-1].mean(0)).max()


def fig_head_values(numbers: dict) -> Figure:
    """Values of one head along training on the sticky chain.

    arms: names; step (frames,); points_K (frames, n, 2): values X W_V of the arm K on the principal plane of its last
    frame; entropy (n,): of the exact predictive distribution at the position, bits.
    """
    steps = numbers["step"]
    figure, axes = figures.canvas(len(numbers["arms"]), len(steps), height=3.3)
    for k, arm in enumerate(numbers["arms"]):
        points = numbers[f"points_{k}"]
        for axis, frame, step in zip(axes[k], points, steps, strict=True):
            drawn = cloud(axis, frame, numbers["entropy"], extent(points))
            if k == 0:
                axis.set_title(f"step {step:.0f}", fontsize=9)
        axes[k, 0].set_ylabel(arm)
    figure.colorbar(
        drawn, ax=axes.ravel().tolist(), shrink=0.7, label="exact entropy, bits"
    )
    return figure


def fig_sculpting(numbers: dict) -> Figure:
    """A Transformer's last layer along training, on the fixed sticky hidden Markov model.

    step (frames,), shown (panels,): which frames the picture shows; values, residual (frames, n, 2) on the principal plane
    of the last frame; entropy (n,): of the exact posterior, bits; attention (frames, T, T): one sequence, mean over heads;
    left_attention, left_values (frames,): how far from their last state, relative to the start.
    """
    shown = numbers["shown"].astype(int)
    figure, axes = figures.canvas(3, len(shown), height=4.6)
    for column, k in zip(axes.T, shown, strict=True):
        for axis, name in zip(column, ("values", "residual"), strict=False):
            drawn = cloud(
                axis, numbers[name][k], numbers["entropy"], extent(numbers[name])
            )
        column[2].imshow(
            numbers["attention"][k], cmap=figures.SEQUENTIAL, vmin=0, vmax=0.5
        )
        column[2].set(xticks=[], yticks=[])
        column[0].set_title(f"step {numbers['step'][k]:.0f}", fontsize=9)
    for axis, label in zip(
        axes[:, 0], ("values", "residual stream", "attention"), strict=True
    ):
        axis.set_ylabel(label)
    figure.colorbar(
        drawn, ax=axes[:2].ravel().tolist(), shrink=0.7, label="exact entropy, bits"
    )
    return figure


def fig_manifolds(numbers: dict) -> Figure:
    """The residual stream of trained networks and of controls, coloured by exact entropy and by the true state.

    networks: names; points_K (n, 2): of the K-th network on its own principal plane; entropy (n,) in bits; state (n,): the
    true hidden state; told (networks,): absolute rank correlation of the first coordinate with entropy at fixed position;
    clusters (networks,): share of the residual stream's variance that the states' means explain.
    """
    names = numbers["networks"]
    figure, axes = figures.canvas(2, len(names), height=3.2)
    for k, name in enumerate(names):
        points = numbers[f"points_{k}"]
        drawn = cloud(axes[0, k], points, numbers["entropy"], extent(points[None]))
        colors = [figures.COLORS[(0, 1, 2)[int(s)]] for s in numbers["state"]]
        cloud(
            axes[1, k], points, None, extent(points[None]), color=colors, cmap=None
        )
        axes[0, k].set_title(name, fontsize=8)
        axes[0, k].set_xlabel(f"entropy: {numbers['told'][k]:.2f}", fontsize=8)
        axes[1, k].set_xlabel(f"states: {numbers['clusters'][k]:.2f}", fontsize=8)
    figure.colorbar(drawn, ax=axes[0].tolist(), shrink=0.8, label="bits")
    return figure


def fig_ranks(numbers: dict) -> Figure:
    """Effective rank of what values have moved by, against the number of classes.

    classes (C,); arms: names; moved_K (C, seeds): of the K-th arm; before (C, seeds): of values at the start.
    """
    figure, axes = figures.canvas(1, 1, height=3.0)
    axis, C = axes[0, 0], numbers["classes"]
    axis.plot(C, C - 1, ":", color="0.2", label="bound of one step, C − 1")
    figures.band(axis, C, numbers["before"], 7, "values at the start")
    for k, arm in enumerate(numbers["arms"]):
        figures.band(
            axis, C, numbers[f"moved_{k}"], k, arm, marker="o", markersize=3
        )
    axis.set(
        xscale="log",
        yscale="log",
        xticks=C,
        xticklabels=C.astype(int),
        xlabel="classes C",
        ylabel="effective rank",
    )
    axis.minorticks_off()
    axis.set_yticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    axis.legend(fontsize=7)
    return figure


def fig_alignment(numbers: dict) -> Figure:
    """Values' displacement against the principal plane of the upstream gradients, along training.

    step (frames,); arms: names; aligned_K (frames, seeds): mean squared cosine of the two planes in arm K; within_K: of random
    planes in the space that W_O reads; random: of random planes, by dimension.
    """
    figure, axes = figures.canvas(1, len(numbers["arms"]), height=2.6, sharey=True)
    for k, (axis, arm) in enumerate(zip(axes[0], numbers["arms"], strict=True)):
        figures.band(
            axis,
            numbers["step"],
            numbers[f"aligned_{k}"],
            0,
            "values and gradients",
        )
        figures.band(
            axis,
            numbers["step"],
            numbers[f"within_{k}"],
            1,
            "random, in the space W_O reads",
        )
        axis.axhline(numbers["random"], color="0.3", linestyle=":", label="random")
        axis.set(xlabel="step", title=arm, ylim=(0, 1.03), xscale="log")
    axes[0, 0].set_ylabel("mean squared cosine")
    axes[0, -1].legend(fontsize=7)
    return figure


def markers(axis, numbers: dict, looks: dict, places: np.ndarray) -> None:
    """For every kind of {kind: (marker, color, label)} the seeds (small) and mean (large) of its (networks, seeds), by row."""
    shifts = np.linspace(0.24, -0.24, len(looks))
    for shift, (kind, (marker, color, label)) in zip(
        shifts, looks.items(), strict=True
    ):
        values, rows = numbers[kind], places + shift
        axis.plot(
            values,
            rows[:, None] + np.zeros_like(values),
            marker,
            color="0.6",
            markersize=3,
        )
        style = {
            "color": figures.COLORS[color],
            "markeredgecolor": "0.2",
            "markersize": 6,
        }
        axis.plot(values.mean(1), rows, marker, label=label, **style)
    axis.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.12), ncols=2)


def fig_entropy_coordinate(numbers: dict) -> Figure:
    """Is the first principal coordinate the posterior's entropy? Absolute rank correlations by network.

    networks: names; trained, untrained, shuffled (networks, seeds): at fixed position, of trained and untrained networks and
    with entropies shuffled; overall (networks, seeds): of trained networks over all points; within, start (networks, seeds):
    at fixed position and token, tokens' means taken away, of trained and untrained networks.
    """
    figure, axes = figures.canvas(
        1, 2, height=1.0 + 0.36 * len(numbers["networks"]), sharey=True
    )
    places = np.arange(len(numbers["networks"]))[::-1].astype(float)
    panels = (
        {"overall": ("D", 4, "all points"), "trained": ("o", 0, "trained"), "untrained": ("s", 1, "untrained"),
         "shuffled": ("^", 7, "shuffled")},
        {"within": ("o", 0, "trained"), "start": ("s", 1, "untrained")},
    )  # fmt: skip
    for axis, looks, title in zip(
        axes[0],
        panels,
        ("at fixed position", "at fixed position and token"),
        strict=True,
    ):
        markers(axis, numbers, looks, places)
        axis.set(xlim=(0, 1.02), xlabel="absolute rank correlation", title=title)
    axes[0, 0].set(yticks=places, yticklabels=numbers["networks"])
    return figure


def fig_removal(numbers: dict) -> Figure:
    """What it costs to remove an axis from the residual stream of trained networks.

    networks: names; whole, without_entropy, without_first, without_random (networks, seeds): KL in bits.
    """
    figure, axes = figures.canvas(height=1.0 + 0.36 * len(numbers["networks"]))
    axis, places = (
        axes[0, 0],
        np.arange(len(numbers["networks"]))[::-1].astype(float),
    )
    looks = {
        "whole": ("o", 0, "as it is"), "without_random": ("^", 7, "without a random axis"),
        "without_entropy": ("s", 1, "without the entropy axis"),
        "without_first": ("D", 3, "without the first principal axis"),
    }  # fmt: skip
    markers(axis, numbers, looks, places)
    axis.set(
        yticks=places,
        yticklabels=numbers["networks"],
        xscale="log",
        xlabel="KL(exact ‖ model), bits",
    )
    return figure


def fig_keys(numbers: dict) -> Figure:
    """Mean absolute cosine of different keys of a sequence along training, one seed.

    tasks: names; step_K (frames,), cosine_K (frames, layers, heads) of the K-th task; random (tasks,): of random vectors of
    the keys' dimension.
    """
    figure, axes = figures.canvas(1, len(numbers["tasks"]), height=2.6, sharey=True)
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        step, cosine = numbers[f"step_{k}"], numbers[f"cosine_{k}"]
        for layer in range(cosine.shape[1]):
            figures.band(axis, step, cosine[:, layer], layer, f"layer {layer + 1}")
        axis.axhline(
            numbers["random"][k], color="0.3", linestyle=":", label="random vectors"
        )
        axis.set(
            xscale="symlog",
            xlabel="step",
            title=TASKS[task],
            ylim=(0, 1),
            xlim=(0, step[-1]),
        )
    axes[0, 0].set_ylabel("mean |cosine| of keys")
    axes[0, 0].legend(fontsize=7)
    return figure


def fig_timescales(numbers: dict) -> Figure:
    """How far attention and values are from their last state along training, relative to the start, and the divergence.

    tasks: names; step_K (frames,), attention_K, values_K (frames, layers): of the K-th task, one seed; judged_K
    (evaluations,): steps, kl_K (evaluations,): divergence relative to that before training.
    """
    figure, axes = figures.canvas(1, len(numbers["tasks"]), height=2.7, sharey=True)
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        step = numbers[f"step_{k}"]
        figures.band(
            axis, step, numbers[f"attention_{k}"], 0, "attention left to go"
        )
        figures.band(axis, step, numbers[f"values_{k}"], 1, "values left to go")
        axis.plot(
            numbers[f"judged_{k}"],
            numbers[f"kl_{k}"],
            color="0.3",
            linestyle=":",
            label="divergence",
        )
        axis.set(
            xscale="symlog",
            xlabel="step",
            title=TASKS[task],
            ylim=(0, 1.1),
            xlim=(0, step[-1]),
        )
    axes[0, 0].set_ylabel("relative to the start")
    axes[0, -1].legend(fontsize=7)
    return figure
