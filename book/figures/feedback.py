"""Drawings of the chapter "Routing and content feed each other", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures

MARKERS = "os^"  # of answers


def fig_free_values(numbers: dict) -> Figure:
    """A head whose scores and values are free, in frames: the plane of values above, attention below.

    step (frames,): step of each frame; shown: the frames drawn here; loss (frames,): nats; answers (n,): class of each
    position; directions (C, 2): columns of W_O; values, contexts, pulls (frames, n, 2): v_j, g_i and -u_i;
    attention (frames, n, n): α_ij.
    """
    frames = [int(k) for k in numbers["shown"]]
    figure, axes = figures.canvas(
        2, len(frames), height=3.5, height_ratios=[1.35, 1]
    )
    answers, n = numbers["answers"].astype(int), len(numbers["answers"])
    reach = 1.08 * np.abs(numbers["values"][frames]).max()
    for column, frame in enumerate(frames):
        plane, rows = axes[:, column]
        values, contexts = numbers["values"][frame], numbers["contexts"][frame]
        attention = numbers["attention"][frame]
        for k, direction in enumerate(numbers["directions"]):
            along = direction / np.linalg.norm(direction) * reach
            ray = np.stack([0 * along, along], -1)
            plane.plot(*ray, color=figures.COLORS[k], alpha=0.35)
        for i in range(n):
            color = figures.COLORS[answers[i]]
            for j in range(n):
                line = np.stack([contexts[i], values[j]], -1)
                width = 2.2 * attention[i, j]
                plane.plot(*line, color=color, linewidth=width, alpha=0.55)
            pull = numbers["pulls"][frame][i] * 0.9
            plane.annotate(
                "",
                contexts[i] + pull,
                contexts[i],
                arrowprops={"arrowstyle": "->", "color": "0.2", "lw": 0.9},
            )
            plane.plot(
                *contexts[i],
                MARKERS[answers[i]],
                color=color,
                markeredgecolor="0.1",
                markersize=5.5,
                zorder=4,
            )
        plane.plot(*values.T, "o", color="white", markeredgecolor="0.2", ms=9)
        for j in range(n):
            place = {"ha": "center", "va": "center", "fontsize": 7, "zorder": 6}
            plane.text(*values[j], str(j + 1), **place)
        plane.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[])
        plane.set_aspect("equal")
        plane.set_xlabel(
            f"step {numbers['step'][frame]:.0f}\nloss {numbers['loss'][frame]:.2f} nats"
        )
        for side in ("top", "right"):
            plane.spines[side].set_visible(True)
        rows.imshow(attention, cmap=figures.SEQUENTIAL, vmin=0, vmax=1)
        for i in range(n):
            rows.plot(
                -0.85,
                i,
                MARKERS[answers[i]],
                color=figures.COLORS[answers[i]],
                markeredgecolor="0.1",
                clip_on=False,
                markersize=5,
            )
        rows.set(xticks=range(n), xticklabels=range(1, n + 1), yticks=[])
        rows.set_xlabel("value")
    axes[1, 0].set_ylabel("position\n")
    return figure


def fig_toy_signs(numbers: dict) -> Figure:
    """How often the threshold rule is right along the training of free-value toys.

    step (steps,); own, fixed, truth, commoner (steps, groups): share of right signs by the own pull alone, at fixed
    errors, and in truth, and of the commoner sign in truth; each group is a set of toys.
    """
    figure, axes = figures.canvas(height=2.6)
    axis, step = axes[0, 0], numbers["step"]
    rows = {
        "fixed": "all pulls, fixed errors",
        "truth": "in truth",
        "commoner": "commoner sign, in truth",
    }
    axis.axhline(0.5, color="0.6", linewidth=0.8)
    for k, (name, label) in enumerate(rows.items()):
        figures.band(axis, step, numbers[name], k, label=label)
    axis.set(xlabel="step", ylabel="share of right signs", ylim=(0, 1))
    axis.legend(fontsize=8)
    return figure


def fig_saturation_training(numbers: dict) -> Figure:
    """Gradients along training: of the lookup head, and of the sticky chain's.

    For each of lookup, sticky: step_GROUP (n,); scores_GROUP, values_GROUP (n, seeds): norms of ∂L/∂S and ∂L/∂V relative
    to their largest along training; open_GROUP (n, seeds): mean over positions of Σ_j α_ij (1 - α_ij); gap_GROUP
    (n, seeds): mean over positions of the range of b_ij over j, relative to its largest. On lookup only the questions
    that can be answered are counted.
    """
    figure, axes = figures.canvas(1, 2, height=2.8, sharey=True)
    labels = {
        "scores": "gradient of the scores",
        "values": "gradient of the values",
        "open": "openness Σα(1 − α)",
        "gap": "range of compatibilities",
    }
    groups = {"lookup": "task that needs routing", "sticky": "sticky chain"}
    for axis, (group, title) in zip(axes[0], groups.items(), strict=True):
        for k, (name, label) in enumerate(labels.items()):
            step, lines = numbers[f"step_{group}"], numbers[f"{name}_{group}"]
            figures.band(axis, step, lines, k, label=label)
        axis.set(xlabel=f"step ({title})", yscale="log")
    axes[0, 0].set_ylabel("relative to the largest; openness")
    axes[0, 1].legend(fontsize=8, loc="lower left")
    return figure


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
