"""Drawings of the chapter "In what sense is attention EM?", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures


def fig_mixture(numbers: dict) -> Figure:
    """Exact EM on a Gaussian mixture of three clouds in the plane.

    points (n, 2); first, last (n,): responsibility of one cloud before the first M-step and at the end;
    path (steps + 1, 3, 2): the centres from one start; log_likelihood (starts, steps): nats per point.
    """
    figure, axes = figures.canvas(1, 3, height=2.5)
    x, path = numbers["points"], numbers["path"]
    for axis, (part, label) in zip(
        axes[0], (("first", "first E-step"), ("last", "last E-step")), strict=False
    ):
        dots = {
            "c": numbers[part],
            "cmap": figures.SEQUENTIAL,
            "vmin": 0,
            "vmax": 1,
        }
        axis.scatter(*x.T, s=14, edgecolor="0.4", linewidth=0.4, **dots)
        for j in range(path.shape[1]):
            line = path[: 1 if part == "first" else None, j]
            color = figures.COLORS[j]
            axis.plot(*line.T, color=color, linestyle=figures.LINES[j])
            axis.plot(
                *line[-1],
                marker="Xsv"[j],
                color=color,
                markersize=8,
                markeredgecolor="black",
            )
        axis.set(xlabel=f"{label}: first coordinate", aspect="equal")
    axes[0, 0].set_ylabel("second coordinate")
    likelihood = numbers["log_likelihood"]
    axes[0, 2].plot(likelihood.T, color="0.55", linewidth=0.8)
    axes[0, 2].plot(likelihood[0], color=figures.COLORS[0])
    axes[0, 2].set(xlabel="EM step", ylabel="log-likelihood, nats per point")
    return figure


def fig_first_order_em(numbers: dict) -> Figure:
    """Errors of the two laws against exact EM gradients, decimal logarithms, by the spread of the values.

    log10_spread (n,); absolute_scores, absolute_values, relative_scores, relative_values (heads, n).
    """
    figure, axes = figures.canvas(1, 2, height=2.9, sharex=True)
    spread = numbers["log10_spread"]
    for axis, what in zip(axes[0], ("absolute", "relative"), strict=True):
        for k, (name, marker) in enumerate((("scores", "o"), ("values", "s"))):
            lines, color = numbers[f"{what}_{name}"], figures.COLORS[k]
            axis.fill_between(
                spread,
                lines.min(0),
                lines.max(0),
                color=color,
                alpha=0.2,
                linewidth=0,
            )
            style = {
                "color": color,
                "linestyle": figures.LINES[k],
                "marker": marker,
                "markersize": 3,
            }
            axis.plot(spread, np.median(lines, 0), label=name, **style)
        axis.set(
            xlabel="log₁₀ of the spread ε", ylabel=f"log₁₀ of the {what} error"
        )
    for slope, (x, y) in {2: (-2.4, -7.2), 1: (-3.6, -2.9)}.items():
        axes[0, 0].plot(
            [x, x + 1.5], [y, y + 1.5 * slope], color="0.4", linewidth=1
        )
        axes[0, 0].text(
            x + 0.1,
            y + 0.5 * slope,
            f"slope {slope}",
            ha="right",
            fontsize=8,
            color="0.3",
        )
    axes[0, 1].axhline(0, color="0.6", linestyle=":", linewidth=1)
    axes[0, 1].text(
        spread[0], 0.1, "as large as the gradient", fontsize=8, color="0.3"
    )
    axes[0, 0].legend(loc="lower right", fontsize=8)
    return figure


def fig_gap_to_em(numbers: dict) -> Figure:
    """Relative distance between attention's gradients and exact EM's in recorded heads.

    states: names; scores, values (states, seeds): norm of the difference over the norm of the exact gradient.
    """
    figure, axes = figures.canvas(1, 2, height=2.1, sharey=True)
    names = {
        "start": "start",
        "sgd": "SGD, 1000 steps",
        "em": "EM-like, 1000 steps",
    }
    places = np.arange(len(numbers["states"]))[::-1]
    for axis, part in zip(axes[0], ("scores", "values"), strict=True):
        gaps = numbers[part]
        figures.seed_dots(axis, gaps, places)
        axis.set(xlabel=f"relative distance to exact EM, {part}", xlim=(0, None))
        axis.grid(axis="x", color="0.9")
    axes[0, 0].set(yticks=places, ylim=(-0.5, len(places) - 0.5))
    axes[0, 0].set_yticklabels([names[state] for state in numbers["states"]])
    return figure


def fig_m_step(numbers: dict) -> Figure:
    """Repeated M-steps on W_V with attention and W_O held.

    step (n,); kinds: names; losses (kinds, seeds, n): nats; cosine (seeds, n): of the majorised step with the
    gradient's step.
    """
    figure, axes = figures.canvas(1, 2, height=2.8, width_ratios=[1.5, 1])
    step, (left, right) = numbers["step"], axes[0]
    for k, (kind, losses) in enumerate(
        zip(numbers["kinds"], numbers["losses"], strict=True)
    ):
        color = figures.COLORS[k]
        left.fill_between(
            step, losses.min(0), losses.max(0), color=color, alpha=0.15, linewidth=0
        )
        left.plot(
            step,
            losses.mean(0),
            color=color,
            linestyle=figures.LINES[k],
            label=kind,
        )
    left.set(xlabel="M-step", ylabel="training loss, nats")
    left.legend(fontsize=8)
    cosine = numbers["cosine"]
    right.fill_between(step, cosine.min(0), cosine.max(0), color="0.8")
    right.plot(step, cosine.mean(0), color="0.1")
    right.set(
        xlabel="M-step", ylabel="cosine with the gradient's step", ylim=(0, 1.02)
    )
    return figure
