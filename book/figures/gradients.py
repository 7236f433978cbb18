"""Drawings of the chapter "The gradients of attention", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from bayesattn_core import figures


def fig_head_map(numbers: dict) -> Figure:
    """The head as a chain of operations, and the gradient that each link sends back.

    forward, backward: one text per box and per link, in the order inputs to loss.
    """
    figure, axes = figures.canvas(height=1.6)
    axis = axes[0, 0]
    names, backward = numbers["forward"], numbers["backward"]
    across = np.linspace(0.06, 0.94, len(names))
    for x, name in zip(across, names, strict=True):
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": "white",
            "edgecolor": "0.2",
            "linewidth": 1.2,
        }
        axis.text(x, 0.62, name, ha="center", va="center", fontsize=10, bbox=box)
    for left, right, law in zip(across[:-1], across[1:], backward, strict=True):
        axis.add_patch(
            FancyArrowPatch(
                (left + 0.05, 0.68),
                (right - 0.05, 0.68),
                arrowstyle="->",
                mutation_scale=11,
                color="0.15",
            )
        )
        arrow = {
            "arrowstyle": "->",
            "mutation_scale": 11,
            "linestyle": "--",
            "color": figures.COLORS[3],
        }
        axis.add_patch(
            FancyArrowPatch((right - 0.05, 0.55), (left + 0.05, 0.55), **arrow)
        )
        axis.text(
            (left + right) / 2,
            0.25,
            law,
            ha="center",
            va="center",
            fontsize=8.5,
            color=figures.COLORS[3],
        )
    axis.text(0.02, 0.86, "solid: forward", fontsize=8.5)
    axis.text(
        0.2,
        0.86,
        "dashed: the gradient that each link sends back",
        fontsize=8.5,
        color=figures.COLORS[3],
    )
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.axis("off")
    return figure


def fig_compass(numbers: dict) -> Figure:
    """The compass of advantage for one row i of a head with d_v = 2.

    values (T, 2): v_j; context (2,): g_i; upstream (2,): u_i; attention (T,): α_ij; advantage (T,): a_ij;
    descent (T,): -∂L/∂s_ij; the last three in nats.
    """
    figure, axes = figures.canvas(1, 2, height=3.1, width_ratios=[1.25, 1])
    axis, bars = axes[0]
    values, context, advantage = (
        numbers["values"],
        numbers["context"],
        numbers["advantage"],
    )
    needle = -numbers["upstream"] / np.linalg.norm(numbers["upstream"])
    reach = 1.35 * np.abs(values - context).max()
    level = np.array([needle[1], -needle[0]])
    axis.plot(
        *(context[:, None] + level[:, None] * np.array([-reach, reach])),
        color="0.4",
        linestyle=":",
        zorder=1,
    )
    style = {
        "arrowstyle": "-|>",
        "mutation_scale": 14,
        "color": "0.15",
        "linewidth": 1.8,
    }
    axis.add_patch(
        FancyArrowPatch(context, context + 0.45 * reach * needle, **style)
    )
    side = "right" if needle[0] < 0 else "left"
    axis.annotate(
        "−u lowers\nthe loss",
        context + 0.5 * reach * needle,
        ha=side,
        va="center",
        fontsize=8,
    )
    most = np.abs(advantage).max()
    options = {
        "c": advantage,
        "cmap": figures.DIVERGING,
        "vmin": -most,
        "vmax": most,
        "edgecolors": "0.2",
        "zorder": 3,
    }
    axis.scatter(*values.T, s=40 + 500 * numbers["attention"], **options)
    axis.scatter(*context, marker="X", s=70, color="black", zorder=4)
    axis.annotate(
        "g", context, xytext=(7, 4), textcoords="offset points", fontsize=10
    )
    for j, value in enumerate(values):
        axis.annotate(
            f"v{chr(0x2081 + j)}",
            value,
            xytext=(9, 7),
            textcoords="offset points",
            fontsize=9,
            zorder=5,
        )
    axis.set(
        xlim=context[0] + np.array([-reach, reach]),
        ylim=context[1] + np.array([-reach, reach]),
        aspect="equal",
    )
    axis.set(
        xlabel="first coordinate of values", ylabel="second coordinate of values"
    )
    places = np.arange(1, len(advantage) + 1)
    bars.axhline(0, color="0.4", linewidth=0.8)
    bars.bar(
        places - 0.2,
        advantage,
        0.38,
        label="advantage a",
        color="white",
        edgecolor="0.2",
        hatch="///",
    )
    bars.bar(
        places + 0.2,
        numbers["descent"],
        0.38,
        label="−∂L/∂s = α a",
        color=figures.COLORS[0],
        edgecolor="0.2",
    )
    bars.set(xlabel="position j", ylabel="nats", xticks=places)
    bars.legend(loc="best", fontsize=8)
    return figure


def fig_advantage_law(numbers: dict) -> Figure:
    """One causal head, its rows i down and positions j across; gaps where i may not see j.

    attention (T, T): α_ij, a pure number; compatibility (T, T): b_ij, nats; advantage (T, T): a_ij, nats;
    descent (T, T): -∂L/∂s_ij = α_ij a_ij, nats.
    """
    import seaborn

    figure, axes = figures.canvas(1, 4, height=2.45, sharey=True)
    panels = [
        ("attention", "α"),
        ("compatibility", "b, nats"),
        ("advantage", "advantage a, nats"),
        ("descent", "α a = −∂L/∂s, nats"),
    ]
    for axis, (name, label) in zip(axes[0], panels, strict=True):
        array = numbers[name]
        most = np.nanmax(np.abs(array))
        signed = name != "attention"
        options = {
            "cmap": figures.DIVERGING if signed else figures.SEQUENTIAL,
            "vmin": -most if signed else 0,
        }
        bar = {
            "orientation": "horizontal",
            "shrink": 0.95,
            "pad": 0.02,
            "ticks": [-most, 0, most] if signed else [0, most],
        }
        bar["format"] = "%.2g"
        seaborn.heatmap(
            array,
            ax=axis,
            vmax=most,
            square=True,
            linewidths=0.4,
            linecolor="0.8",
            cbar_kws=bar,
            **options,
        )
        axis.collections[0].colorbar.ax.tick_params(labelsize=6.5)
        if signed:  # signs in the cells, so that colour is not the only channel
            for (i, j), value in np.ndenumerate(np.nan_to_num(array)):
                if abs(value) > 0.08 * most:
                    axis.text(
                        j + 0.5,
                        i + 0.5,
                        "+" if value > 0 else "−",
                        ha="center",
                        va="center",
                        fontsize=7,
                    )
        ticks = np.arange(len(array)) + 0.5
        axis.set(xticks=ticks, yticks=ticks, xlabel=label)
        axis.set_xticklabels(range(1, len(array) + 1), fontsize=6.5)
        axis.set_yticklabels(range(1, len(array) + 1), fontsize=6.5, rotation=0)
        axis.xaxis.set_label_position("top")
    axes[0, 0].set_ylabel("position i (row)")
    return figure


def fig_gradient_errors(numbers: dict) -> Figure:
    """Errors of the ten closed forms (eq-fd-error), decimal logarithms, worst case over random heads, float64.

    tensors: names; log10_difference, log10_autograd: one per tensor; log10_tolerance: finite difference, autograd.
    """
    figure, axes = figures.canvas(height=2.9)
    axis = axes[0, 0]
    places = np.arange(len(numbers["tensors"]))
    judges = [
        ("log10_difference", "finite differences", "o", 0),
        ("log10_autograd", "autograd", "s", 1),
    ]
    for (name, label, marker, color), limit in zip(
        judges, numbers["log10_tolerance"], strict=True
    ):
        axis.plot(
            places,
            numbers[name],
            marker,
            color=figures.COLORS[color],
            markeredgecolor="0.2",
            label=label,
        )
        axis.axhline(
            limit, color=figures.COLORS[color], linestyle=figures.LINES[color + 1]
        )
        axis.text(
            len(places) - 0.4,
            limit + 0.15,
            f"allowed against {label}",
            ha="right",
            fontsize=8,
        )
    axis.set(
        xticks=places,
        ylim=(-17, -5.5),
        ylabel="log₁₀ of the largest error",
        xlim=(-0.5, len(places) - 0.4),
    )
    axis.set_xticklabels(numbers["tensors"], rotation=25, ha="right")
    axis.legend(loc="upper left", bbox_to_anchor=(0, 0.57), ncols=2, fontsize=8)
    return figure


def fig_difference_step(numbers: dict) -> Figure:
    """Error of finite differences against the step h, decimal logarithms; worst of the ten tensors of one head.

    log10_step (n,); log10_float64 (n,), log10_float32 (n,): the errors in each precision.
    """
    figure, axes = figures.canvas(height=3.0)
    axis = axes[0, 0]
    h = numbers["log10_step"]
    for name, marker, color in (("float32", "s", 1), ("float64", "o", 0)):
        line = {
            "color": figures.COLORS[color],
            "linestyle": figures.LINES[color],
            "label": name,
        }
        axis.plot(h, numbers[f"log10_{name}"], marker=marker, markersize=4, **line)
    double = numbers["log10_float64"]
    right, left = h > -3.1, h < -5.9
    axis.plot(
        h[right],
        double[right][-1] + 2 * (h[right] - h[right][-1]) + 0.6,
        color="0.5",
        linewidth=1,
    )
    axis.plot(
        h[left],
        double[left][0] - (h[left] - h[left][0]) + 0.6,
        color="0.5",
        linewidth=1,
    )
    axis.text(
        h[right].mean() - 0.2,
        double[right].mean() + 1.2,
        "∝ h²",
        ha="right",
        color="0.3",
    )
    axis.text(h[left].mean(), double[left].mean() + 1.3, "∝ 1/h", color="0.3")
    axis.axhline(-7, color="0.6", linestyle=":", linewidth=1)
    axis.text(h.max(), -6.9, "allowed: 10⁻⁷", ha="right", fontsize=8, color="0.3")
    axis.set(xlabel="log₁₀ of the step h", ylabel="log₁₀ of the error")
    axis.legend(loc="lower left", fontsize=8)
    return figure


def fig_first_order(numbers: dict) -> Figure:
    """What a step of size η changes the loss by, and what first order leaves out; medians and ranges over heads.

    log10_eta (n,); for each of scores, values, weights (heads, n): change_NAME and remainder_NAME, decimal logarithms
    of |ΔL| and of |ΔL - prediction|, in nats; gaps where the remainder is below 1e-13 nats.
    """
    figure, axes = figures.canvas(1, 2, height=2.9, sharex=True)
    eta = numbers["log10_eta"]
    for axis, what in zip(axes[0], ("change", "remainder"), strict=True):
        for k, (name, marker) in enumerate(
            (("scores", "o"), ("values", "s"), ("weights", "^"))
        ):
            lines = numbers[f"{what}_{name}"]
            color = figures.COLORS[k]
            axis.fill_between(
                eta,
                np.nanmin(lines, 0),
                np.nanmax(lines, 0),
                color=color,
                alpha=0.15,
                linewidth=0,
            )
            style = {
                "color": color,
                "linestyle": figures.LINES[k],
                "marker": marker,
                "markersize": 4,
                "label": name,
            }
            axis.plot(eta, np.nanmedian(lines, 0), **style)
        axis.set_xlabel("log₁₀ of the step η")
    axes[0, 0].set_ylabel("log₁₀ |ΔL|, nats")
    axes[0, 1].set_ylabel("log₁₀ |ΔL − first order|, nats")
    axes[0, 0].legend(fontsize=8)
    for axis, slope in ((axes[0, 0], 1), (axes[0, 1], 2)):
        start = axis.get_ylim()[0] + 0.5
        axis.plot(
            [-5.5, -3.5], [start, start + 2 * slope], color="0.4", linewidth=1
        )
        axis.text(
            -3.4,
            start + 2 * slope,
            f"slope {slope}",
            va="top",
            fontsize=8,
            color="0.3",
        )
    return figure
