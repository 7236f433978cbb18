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
    "bijection-replacement": "bijection, returning",
    "hmm-fixed-sticky": "fixed HMM, sticky",
    "recall-8": "recall, eight pairs",
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

    step (frames,), shown (panels,): which frames the picture shows; values, contexts (frames, n, 2) on the principal plane
    of the last frame; entropy (n,): of the exact posterior, bits; attention (frames, T, T): one sequence, mean over heads;
    left_attention, left_values (frames,): how far from their last state, relative to the start.
    """
    shown = numbers["shown"].astype(int)
    figure, axes = figures.canvas(3, len(shown), height=4.6)
    for column, k in zip(axes.T, shown, strict=True):
        for axis, name in zip(column, ("values", "contexts"), strict=False):
            drawn = cloud(
                axis, numbers[name][k], numbers["entropy"], extent(numbers[name])
            )
        column[2].imshow(
            numbers["attention"][k], cmap=figures.SEQUENTIAL, vmin=0, vmax=0.5
        )
        column[2].set(xticks=[], yticks=[])
        column[0].set_title(f"step {numbers['step'][k]:.0f}", fontsize=9)
    for axis, label in zip(
        axes[:, 0], ("values", "contexts", "attention"), strict=True
    ):
        axis.set_ylabel(label)
    figure.colorbar(
        drawn, ax=axes[:2].ravel().tolist(), shrink=0.7, label="exact entropy, bits"
    )
    return figure


def fig_manifolds(numbers: dict) -> Figure:
    """The residual stream of networks before and after training, coloured by exact entropy and by the true state.

    networks: names; trained_K, start_K (n, 2): of the K-th network on its own principal plane; within_K, begun_K (n, 2): the
    same with the tokens' means taken away; entropy (n,) in bits; state (n,): the true hidden state; told (4, networks):
    absolute rank correlation of the first coordinate with entropy, at fixed position for trained and start, at fixed token
    too for within and begun (NaN where nothing varies); clusters (networks,): share of the trained stream's variance that the
    states' means explain.
    """
    names, told = numbers["networks"], numbers["told"]
    rows = (
        ("trained", 0, "after training"), ("trained", None, "the same,\ntrue state"), ("start", 1, "before\ntraining"),
        ("within", 2, "after, tokens'\nmeans removed"), ("begun", 3, "before, tokens'\nmeans removed"),
    )  # fmt: skip
    figure, axes = figures.canvas(len(rows), len(names), height=7.2)
    for k, name in enumerate(names):
        for axis, (kind, row, _) in zip(axes[:, k], rows, strict=True):
            points = numbers[f"{kind}_{k}"]
            reach = max(extent(points[None]), 1e-6)
            if row is None:
                colors = [figures.COLORS[int(s)] for s in numbers["state"]]
                cloud(axis, points, None, reach, color=colors, cmap=None)
                share = f"variance by state {numbers['clusters'][k]:.2f}"
            else:
                drawn = cloud(axis, points, numbers["entropy"], reach)
                share = f"|ρ| with entropy {told[row, k]:.2f}"
                if np.isnan(told[row, k]):
                    share = "nothing left to rank"
            axis.set_xlabel(share, fontsize=7)
        axes[0, k].set_title(name, fontsize=9)
    for axis, (_, _, label) in zip(axes[:, 0], rows, strict=True):
        axis.set_ylabel(label, fontsize=8)
    figure.colorbar(
        drawn, ax=axes.ravel().tolist(), shrink=0.4, label="exact entropy, bits"
    )
    return figure


def fig_returning_keys(numbers: dict) -> Figure:
    """A Transformer on the bijection with returning keys, before and after training, coloured by exact entropy.

    places: names; trained_K, start_K (n, 2): the points of the K-th place on their own principal plane; entropy (n,) in bits;
    told (2, places): absolute rank correlation of the first coordinate with entropy at fixed position, as a share of what
    ties allow, after training and before.
    """
    rows = (("trained", "after training"), ("start", "before training"))
    figure, axes = figures.canvas(2, len(numbers["places"]), height=4.0)
    for k, place in enumerate(numbers["places"]):
        for axis, (kind, _), told in zip(
            axes[:, k], rows, numbers["told"], strict=True
        ):
            points = numbers[f"{kind}_{k}"]
            drawn = cloud(axis, points, numbers["entropy"], extent(points[None]))
            axis.set_xlabel(f"|ρ| with entropy {told[k]:.2f}", fontsize=7)
        axes[0, k].set_title(place, fontsize=9)
    for axis, (_, label) in zip(axes[:, 0], rows, strict=True):
        axis.set_ylabel(label, fontsize=8)
    figure.colorbar(
        drawn, ax=axes.ravel().tolist(), shrink=0.7, label="exact entropy, bits"
    )
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
    """Values' displacement against the principal plane of the upstream gradients and of controls, along training.

    step (frames,); arms: names; planes: names; aligned_K_P (frames, seeds): mean squared cosine, in arm K, of the plane of
    displaced values and the P-th plane, of which the first is that of the errors; random: of random planes.
    """
    figure, axes = figures.canvas(1, len(numbers["arms"]), height=3.0, sharey=True)
    for k, (axis, arm) in enumerate(zip(axes[0], numbers["arms"], strict=True)):
        for p, plane in enumerate(numbers["planes"]):
            of = numbers[f"aligned_{k}_{p}"]
            if p == 0:
                figures.band(axis, numbers["step"], of, p, plane)
            else:
                style = figures.LINES[p % len(figures.LINES)]
                axis.plot(
                    numbers["step"],
                    of.mean(1),
                    color=figures.COLORS[p],
                    linestyle=style,
                    label=plane,
                )
        axis.axhline(
            numbers["random"], color="0.3", linestyle=":", label="random planes"
        )
        axis.set(xlabel="step", title=arm, ylim=(0, 1.03), xscale="log")
    axes[0, 0].set_ylabel("mean squared cosine")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)
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
    """How the first principal coordinate ranks the posterior's entropy, by network: absolute rank correlations at fixed
    position, as shares of what ties allow, (networks, seeds) each; NaN where there is none.

    networks: names. Of trained networks, and with _untrained or _shuffled of untrained ones and with entropies shuffled:
    values, contexts: of a Transformer's last values and contexts; stream: of the residual stream before the last
    normalisation; bare: normalised, without the learned gain; read: as the head reads it; length-read: of its length alone;
    within, stream-within: of the stream as read and before, at fixed token too, tokens' means taken away.
    """
    names = numbers["networks"]
    figure, axes = figures.canvas(
        2, 4, height=2.2 + 0.5 * len(names), sharex=True, sharey=True
    )
    places = np.arange(len(names))[::-1].astype(float)
    panels = {
        "values": "values", "contexts": "contexts", "stream": "stream, before the\nlast normalisation",
        "bare": "normalised,\nwithout the gain", "read": "as the head\nreads it",
        "length-read": "its length\nas the head reads it", "within": "as the head reads it,\ntoken fixed too",
        "stream-within": "before normalisation,\ntoken fixed too",
    }  # fmt: skip
    kinds = {"": ("o", 0, "trained"), "_untrained": ("s", 1, "untrained"), "_shuffled": ("^", 7, "entropies shuffled")}  # fmt: skip
    for axis, (name, title) in zip(axes.flat, panels.items(), strict=True):
        looks = {
            name + kind: look
            for kind, look in kinds.items()
            if name + kind in numbers
        }
        markers(axis, numbers, looks, places)
        axis.get_legend().remove()
        axis.set(xlim=(0, 1.02), ylim=(-0.6, len(names) - 0.4), xticks=(0, 0.5, 1))
        axis.set_title(title, fontsize=8)
        if name in ("values", "contexts"):  # of Transformers alone
            for place, of in zip(places, numbers[name], strict=True):
                if np.isnan(of).all():
                    axis.text(
                        0.03,
                        place,
                        "has none",
                        fontsize=7,
                        color="0.5",
                        va="center",
                    )
    for row in axes:
        row[0].set(yticks=places, yticklabels=names)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), fontsize=8, loc="outside upper center", ncols=3
    )  # fmt: skip
    label = "absolute rank correlation, as a share of what ties allow"
    figure.supxlabel(label, fontsize="medium")
    return figure


def fig_removal(numbers: dict) -> Figure:
    """What it costs to remove an axis from the residual stream of trained networks.

    networks: names; whole, without_entropy, without_line, without_first, without_random (networks, seeds): KL in bits.
    """
    figure, axes = figures.canvas(height=1.0 + 0.36 * len(numbers["networks"]))
    axis, places = (
        axes[0, 0],
        np.arange(len(numbers["networks"]))[::-1].astype(float),
    )
    looks = {
        "whole": ("o", 0, "as it is"), "without_random": ("^", 7, "without a random axis"),
        "without_line": ("v", 4, "a random line erased"),
        "without_entropy": ("s", 1, "entropy erased"),
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
    """Mean absolute cosine of the keys of different tokens of a sequence along training.

    tasks: names; step_K (frames,), cosine_K (frames, seeds, layers, heads) of the K-th task; random (tasks,): of random
    vectors of the keys' dimension.
    """
    figure, axes = figures.canvas(1, len(numbers["tasks"]), height=2.6, sharey=True)
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        step, cosine = numbers[f"step_{k}"], numbers[f"cosine_{k}"]
        for layer in range(cosine.shape[2]):
            of = cosine[:, :, layer]  # (frames, seeds, heads)
            figures.band(axis, step, of.mean(-1), layer, f"layer {layer + 1}")
            axis.plot(
                step,
                of.reshape(len(step), -1),
                color=figures.COLORS[layer],
                linewidth=0.5,
                alpha=0.4,
            )
        axis.axhline(
            numbers["random"][k], color="0.3", linestyle=":", label="random vectors"
        )
        axis.set(
            xscale="symlog",
            xlabel="step",
            title=TASKS[task],
            ylim=(0, 0.8),
            xlim=(0, step[-1]),
        )
    axes[0, 0].set_ylabel("mean |cosine| of keys")
    axes[0, 0].legend(fontsize=7)
    return figure


def fig_timescales(numbers: dict) -> Figure:
    """How far attention and values are from their last state along training, relative to the start, and the divergence.

    tasks: names; step_K (frames,), attention_K, values_K (frames, seeds): of the K-th task, means over layers; judged_K
    (evaluations,): steps, kl_K (evaluations, seeds): divergence relative to that before training.
    """
    figure, axes = figures.canvas(1, len(numbers["tasks"]), height=2.7, sharey=True)
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        step = numbers[f"step_{k}"]
        figures.band(
            axis, step, numbers[f"attention_{k}"], 0, "attention left to go"
        )
        figures.band(axis, step, numbers[f"values_{k}"], 1, "values left to go")
        figures.band(
            axis, numbers[f"judged_{k}"], numbers[f"kl_{k}"], 7, "divergence"
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


def fig_held(numbers: dict) -> Figure:
    """What it costs to hold queries and keys, or values, from a step on.

    tasks: names; held: names of what is held; since (moments,): the steps; kl_K_H (moments, seeds): divergence in bits at the
    end of training, task K, held H; free_K (seeds,): with nothing held; memoryless (tasks,): the memoryless predictor's.
    """
    figure, axes = figures.canvas(1, len(numbers["tasks"]), height=2.9)
    places = np.arange(len(numbers["since"]) + 1)
    marks = [f"{step:.0f}" for step in numbers["since"]] + ["never"]
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        for h, held in enumerate(numbers["held"]):
            kl, shift = numbers[f"kl_{k}_{h}"], 0.12 * (h - 0.5)
            style = {"color": figures.COLORS[h], "markersize": 6}
            for seed in kl.T:
                axis.plot(places[:-1] + shift, seed, "o", color="0.6", markersize=3)
            axis.plot(
                places[:-1] + shift, kl.mean(1), "os"[h] + "-", label=held, **style
            )
        free = numbers[f"free_{k}"]
        axis.plot(
            places[-1] + np.zeros_like(free), free, "o", color="0.6", markersize=3
        )
        axis.plot(places[-1:], [free.mean()], "D", color=figures.COLORS[2])
        axis.axhline(
            numbers["memoryless"][k], color="0.3", linestyle=":", label="memoryless"
        )
        axis.set(
            yscale="log",
            xticks=places,
            xticklabels=marks,
            xlabel="held from step",
            title=TASKS[task],
        )
    axes[0, 0].set_ylabel("KL(exact ‖ model), bits")
    axes[0, 0].legend(fontsize=7)
    return figure
