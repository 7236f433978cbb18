"""Drawings of the chapter "Routing and content feed each other", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures


def fig_threshold(numbers: dict) -> Figure:
    """Change of advantage with a value step, per unit of η|u_i|², against attention above the threshold; one head.

    above_threshold (pairs,): α_ij - Σ_k α_ik²; own_pull, fixed_errors, in_truth (pairs,): change of a_ij by position
    i's own pull, by everybody's pull at fixed errors, and in truth (to first order).
    """
    figure, axes = figures.canvas(1, 3, height=2.6, sharey=True, sharex=True)
    panels = [
        ("own_pull", "own pull alone"),
        ("fixed_errors", "all pulls, fixed errors"),
        ("in_truth", "in truth"),
    ]
    x = numbers["above_threshold"]
    edge = 1.5 * np.abs(numbers["own_pull"]).max()
    for axis, (name, label) in zip(axes[0], panels, strict=True):
        axis.axhline(0, color="0.7", linewidth=0.8)
        axis.axvline(0, color="0.7", linewidth=0.8, linestyle=":")
        y = np.clip(numbers[name], -edge, edge)
        axis.scatter(x, y, s=9, color=figures.COLORS[0], alpha=0.6, linewidth=0)
        axis.set(xlabel=f"α − Σα²\n{label}", ylim=(-1.04 * edge, 1.04 * edge))
    axes[0, 0].set_ylabel("change of advantage / η|u|²")
    return figure


def fig_sign_counts(numbers: dict) -> Figure:
    """Share of pairs whose advantage changes with the sign that the threshold rule predicts.

    states, worlds: names; right_K, commoner_K (worlds, heads) for state K: share of right signs, and of the commoner.
    """
    figure, axes = figures.canvas(1, 4, height=2.7, sharey=True, sharex=True)
    states = numbers["states"]
    places = np.arange(len(states))[::-1]
    for world, axis in enumerate(axes[0]):
        axis.axvline(0.5, color="0.5", linewidth=0.8)
        axis.axvline(0.6, color="0.5", linestyle=":", linewidth=1)
        for k, place in enumerate(places):
            right, commoner = (
                numbers[f"right_{k}"][world],
                numbers[f"commoner_{k}"][world],
            )
            axis.plot(
                right,
                np.full_like(right, place + 0.12),
                "o",
                color=figures.COLORS[0],
                ms=3,
                alpha=0.5,
            )
            axis.scatter(
                right.mean(),
                place + 0.12,
                s=45,
                color=figures.COLORS[0],
                edgecolor="0.1",
                zorder=4,
            )
            axis.scatter(
                commoner.mean(),
                place - 0.2,
                s=32,
                marker="s",
                color="white",
                edgecolor="0.1",
                zorder=4,
            )
        axis.set(
            xlabel=f"share of signs\n{numbers['worlds'][world]}", xlim=(0.4, 1)
        )
    axes[0, 0].set(yticks=places, yticklabels=states)
    return figure


def fig_saturation(numbers: dict) -> Figure:
    """Norms of gradients as attention is sharpened, relative to factor 1.

    factor (n,): what scores are multiplied by; scores, values (heads, n): norms of ∂L/∂S and ∂L/∂V.
    """
    figure, axes = figures.canvas(height=2.6)
    axis, factor = axes[0, 0], numbers["factor"]
    for k, (name, marker) in enumerate((("scores", "o"), ("values", "s"))):
        lines, color = numbers[name], figures.COLORS[k]
        axis.fill_between(
            factor, lines.min(0), lines.max(0), color=color, alpha=0.2, linewidth=0
        )
        style = {
            "color": color,
            "linestyle": figures.LINES[k],
            "marker": marker,
            "markersize": 4,
        }
        axis.plot(
            factor, np.median(lines, 0), label=f"gradient of the {name}", **style
        )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="factor on the scores",
        ylabel="norm, relative to factor 1",
    )
    axis.legend(loc="lower left", fontsize=8)
    return figure


def fig_rank_bound(numbers: dict) -> Figure:
    """Rank of the displacement of the values after training, by number of classes.

    classes (n,): C; held, held_shuffled, learned, learned_shuffled (n, seeds): rank, with W_O held or learned, true or
    shuffled labels.
    """
    figure, axes = figures.canvas(height=2.8)
    axis, classes = axes[0, 0], numbers["classes"]
    axis.plot(classes, classes - 1, color="0.5", label="C − 1")
    looks = {
        "held": ("o", 0, 0.0),
        "held_shuffled": ("x", 0, 0.12),
        "learned": ("s", 1, -0.12),
        "learned_shuffled": ("+", 1, 0.24),
    }
    for name, (marker, color, shift) in looks.items():
        rank = numbers[name]
        label = f"W_O {name.replace('_shuffled', ', shuffled labels')}"
        style = {
            "color": figures.COLORS[color],
            "linestyle": "none",
            "markersize": 6,
            "marker": marker,
        }
        axis.plot(
            np.repeat(classes + shift, rank.shape[1]),
            rank.ravel(),
            label=label,
            alpha=0.8,
            **style,
        )
    axis.set(xlabel="classes C", ylabel="rank of the displacement", xticks=classes)
    axis.legend(fontsize=8)
    return figure
