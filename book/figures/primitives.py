"""Drawings of the chapter "Three primitives", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHADE = {"cmap": figures.SEQUENTIAL, "vmin": 0, "vmax": 1, "origin": "lower"}


def fig_bijection(numbers: dict) -> Figure:
    """Two bijection sequences with their exact posteriors.

    For each of distinct, returning: NAME_keys, NAME_values (L,): the pairs shown; NAME_posterior (L, V): of the value,
    when its key has been shown.
    """
    figure, axes = figures.canvas(1, 2, height=2.7, width_ratios=[8, 12])
    titles = {"distinct": "without replacement", "returning": "with replacement"}
    for axis, (name, title) in zip(axes[0], titles.items(), strict=True):
        posterior, values = numbers[f"{name}_posterior"], numbers[f"{name}_values"]
        image = axis.imshow(posterior.T, aspect="auto", **SHADE)
        axis.plot(values, "o", color=figures.COLORS[1], markeredgecolor="0.1")
        keys = [LETTERS[int(k)] for k in numbers[f"{name}_keys"]]
        axis.set(xticks=range(len(keys)), xticklabels=keys, xlabel=f"key ({title})")
        axis.set(
            yticks=range(posterior.shape[1]),
            yticklabels=range(1, posterior.shape[1] + 1),
        )
    axes[0, 0].set_ylabel("value")
    figure.colorbar(image, ax=axes[0, 1], label="exact posterior")
    return figure


def fig_hmm(numbers: dict) -> Figure:
    """One hidden Markov sequence in each regime, with the exact belief and that of a memory of two observations.

    For each of authors, sticky: NAME_states, NAME_observations (K,); NAME_filter, NAME_window (K, S): beliefs.
    """
    figure, axes = figures.canvas(2, 2, height=3.3, sharex=True, sharey=True)
    titles = {"authors": "authors' regime", "sticky": "sticky regime"}
    for column, (name, title) in enumerate(titles.items()):
        states, seen = numbers[f"{name}_states"], numbers[f"{name}_observations"]
        for row, (belief, label) in enumerate(
            (("filter", "exact: all of the past"), ("window", "last two only"))
        ):
            axis = axes[row, column]
            image = axis.imshow(
                numbers[f"{name}_{belief}"].T, aspect="auto", **SHADE
            )
            axis.plot(
                states,
                drawstyle="steps-mid",
                color=figures.COLORS[1],
                linewidth=1.4,
            )
            axis.set(yticks=range(3), yticklabels=[1, 2, 3], ylim=(-0.5, 2.5))
            axis.set_ylabel(label if column == 0 else "", fontsize=8)
        for t, symbol in enumerate(seen):
            axes[0, column].text(
                t, 2.62, LETTERS[int(symbol)], ha="center", fontsize=7
            )
        axes[1, column].set_xlabel(f"step ({title})")
    figure.colorbar(image, ax=axes[:, 1], label="belief", shrink=0.8)
    return figure


def fig_recall(numbers: dict) -> Figure:
    """A recall sequence, with arcs from each query to the pair that answers it.

    keys, values (N,): the pairs; queries (Q,): keys asked for; source (Q,): the pair that answers each.
    """
    figure, axes = figures.canvas(height=1.9)
    axis = axes[0, 0]
    N, queries = len(numbers["keys"]), numbers["queries"]
    for n in range(N):
        key, value = numbers["keys"][n], numbers["values"][n]
        axis.text(2 * n, 0, LETTERS[int(key)], ha="center", weight="bold")
        axis.text(2 * n + 1, 0, f"{value + 1:.0f}", ha="center", color="0.3")
    for q, asked in enumerate(queries):
        at, source = 2 * N + 1 + q, 2 * numbers["source"][q]
        axis.text(
            at, 0, f"{LETTERS[int(asked)]}?", ha="center", color=figures.COLORS[0]
        )
        turn = np.linspace(0, np.pi, 40)
        axis.plot(
            (at + source) / 2 + (at - source) / 2 * np.cos(turn),
            0.9 + (at - source) / 9 * np.sin(turn),
            color=figures.COLORS[0],
            linewidth=0.9,
            linestyle=figures.LINES[q % 4],
        )
    axis.set(xlim=(-1, 2 * N + len(queries) + 1), ylim=(-0.4, 3.1))
    axis.axis("off")
    return figure


def fig_windows(numbers: dict) -> Figure:
    """Divergence of window predictors from the exact filter.

    regimes: names; windows (n,): observations remembered; divergence (regimes, seeds, n), uniform (regimes, seeds):
    KL(filter || predictor), bits.
    """
    figure, axes = figures.canvas(height=3.0)
    axis, windows = axes[0, 0], numbers["windows"]
    for k, name in enumerate(numbers["regimes"]):
        style = {"marker": "os^D"[k], "markersize": 5}
        figures.band(
            axis, windows, numbers["divergence"][k].T, k, label=name, **style
        )
        axis.axhline(
            numbers["uniform"][k].mean(),
            color=figures.COLORS[k],
            linestyle=":",
            linewidth=1,
        )
    axis.set(xscale="log", yscale="log", xlabel="observations remembered")
    axis.set(xticks=windows, xticklabels=[f"{n:.0f}" for n in windows])
    axis.minorticks_off()
    axis.set_ylabel("KL(filter ‖ window), bits")
    axis.legend(fontsize=8)
    return figure


def fig_fooled(numbers: dict) -> Figure:
    """Entropy error and divergence of predictors that infer nothing.

    labels: task and predictor; error, divergence (labels, seeds): bits.
    """
    figure, axes = figures.canvas(1, 2, height=3.4, sharey=True)
    places = np.arange(len(numbers["labels"]))[::-1]
    labels = {"error": "entropy error, bits", "divergence": "KL, bits"}
    for axis, (name, label) in zip(axes[0], labels.items(), strict=True):
        figures.seed_dots(axis, numbers[name], places)
        axis.set(xlabel=label, xlim=(0, None))
        axis.grid(axis="both", color="0.92")
    axes[0, 0].set(yticks=places)
    axes[0, 0].set_yticklabels(numbers["labels"], fontsize=8)
    return figure
