"""Drawings of the chapter "EM against SGD", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures

ARM_STYLE = {
    "sgd": ("SGD", figures.COLORS[0], "-"),
    "em": ("EM-like", figures.COLORS[1], "--"),
}


def fig_sticky_chain(numbers: dict) -> Figure:
    """The sticky chain: its transition matrix and a stretch of one sequence.

    transition (C, C): probability of the next symbol (column) given the present one (row); symbols (n,): y_t;
    posterior (n, C): exact probability of each symbol having been the present one, given the inputs so far.
    """
    import seaborn

    figure, axes = figures.canvas(1, 2, height=2.5, width_ratios=[1, 2.3])
    left, right = axes[0]
    bar = {"label": "probability", "shrink": 0.9}
    seaborn.heatmap(
        numbers["transition"],
        ax=left,
        cmap=figures.SEQUENTIAL,
        vmin=0,
        square=True,
        cbar_kws=bar,
    )
    left.set(xlabel="next symbol", ylabel="present symbol")
    posterior, symbols = numbers["posterior"], numbers["symbols"]
    shade = {
        "aspect": "auto",
        "cmap": figures.SEQUENTIAL,
        "vmin": 0,
        "vmax": 1,
        "origin": "lower",
    }
    image = right.imshow(posterior.T, interpolation="nearest", **shade)
    right.plot(
        symbols,
        drawstyle="steps-mid",
        color=figures.COLORS[1],
        linewidth=1.3,
        marker="o",
        markersize=3.5,
    )
    right.set(
        xlabel="position, from the 101st on",
        ylabel="symbol behind x",
        yticks=range(posterior.shape[1]),
    )
    figure.colorbar(image, ax=right, label="exact belief", shrink=0.9)
    return figure


def curves(axis, numbers: dict) -> None:
    """Loss curves of both arms: each seed thin, their mean thick."""
    for arm, (label, color, line) in ARM_STYLE.items():
        lines = numbers[f"loss_{arm}"]
        axis.plot(
            numbers["step"],
            lines.T,
            color=color,
            linestyle=line,
            linewidth=0.7,
            alpha=0.6,
        )
        axis.plot(
            numbers["step"],
            lines.mean(0),
            color=color,
            linestyle=line,
            linewidth=2.2,
            label=label,
        )


def fig_authors_curves(numbers: dict) -> Figure:
    """The paper's comparison, on its own draws: training loss by step.

    step (n,); loss_sgd, loss_em (seeds, n): nats, before the step's update; threshold: mean final loss of SGD, nats;
    threshold_step: mean over seeds of the first step at which EM-like is below it.
    """
    figure, axes = figures.canvas(height=2.9)
    axis = axes[0, 0]
    curves(axis, numbers)
    threshold, step = numbers["threshold"], numbers["threshold_step"]
    axis.axhline(threshold, color="0.4", linestyle=":", linewidth=1)
    axis.axvline(step, color="0.4", linestyle=":", linewidth=1)
    axis.annotate(
        f"mean step {step:.0f}",
        (step, axis.get_ylim()[0] + 0.01),
        xytext=(5, 0),
        textcoords="offset points",
    )
    axis.text(
        5,
        threshold - 0.003,
        "SGD's mean final loss",
        va="top",
        fontsize=8,
        color="0.3",
    )
    axis.set(
        xlabel="gradient step",
        ylabel="training loss, nats",
        xlim=(0, numbers["step"][-1]),
    )
    axis.legend(loc="upper right")
    return figure


def fig_what_the_picture_hides(numbers: dict) -> Figure:
    """The same curves on an axis that reaches the floor.

    step, loss_sgd, loss_em: as in fig-authors-curves; uniform, linear, positionwise, floor: training losses, nats, of
    the uniform guess, of a linear softmax on the present input (mean over seeds), of the exact answer to the present
    input, and of the exact answer to all inputs (mean over seeds).
    """
    figure, axes = figures.canvas(height=3.0)
    axis = axes[0, 0]
    curves(axis, numbers)
    last = numbers["step"][-1]
    marks = {
        "uniform": "uniform guess",
        "linear": "linear softmax on x alone: no attention",
        "floor": "exact answer (the floor)",
    }
    for name, label in marks.items():
        axis.axhline(
            numbers[name],
            color="0.35",
            linestyle=":" if name == "uniform" else "-",
            linewidth=1,
        )
        axis.text(
            last * 0.01,
            numbers[name] + 0.004,
            label,
            fontsize=8,
            color="0.25",
            va="bottom",
        )
    axis.set(
        xlabel="gradient step",
        ylabel="training loss, nats",
        xlim=(0, last),
        ylim=(numbers["floor"] - 0.03, 2.115),
    )
    axis.legend(loc="lower left", bbox_to_anchor=(0, 0.36))
    return figure


def fig_train_and_fresh(numbers: dict) -> Figure:
    """Every predictor on the sequence it was trained on and on fresh ones.

    predictors: names; train (predictors, seeds), fresh (predictors, seeds): mean loss, nats; fresh is the mean over
    fresh sequences of the same chain and means.
    """
    figure, axes = figures.canvas(height=2.9)
    axis = axes[0, 0]
    names = numbers["predictors"]
    places = np.arange(len(names))[::-1]
    for k, (part, marker) in enumerate((("train", "o"), ("fresh", "D"))):
        losses = numbers[part]
        height = places[:, None] + (0.17 if part == "train" else -0.17)
        color = figures.COLORS[(0, 3)[k]]
        axis.plot(
            losses,
            height + np.zeros_like(losses),
            marker,
            color=color,
            markersize=4,
            alpha=0.6,
        )
        face = color if part == "train" else "white"
        axis.scatter(
            losses.mean(1),
            height[:, 0],
            marker=marker,
            s=70,
            color=face,
            edgecolor="0.1",
            zorder=4,
            label=part,
        )
    axis.set(
        yticks=places,
        yticklabels=names,
        xlabel="loss, nats (small: one per seed; large: their mean)",
    )
    axis.grid(axis="x", color="0.9")
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.9), title="sequence")
    return figure


def fig_distance_to_exact(numbers: dict) -> Figure:
    """How far each predictor is from the exact predictive distribution on fresh sequences, and how sharp it is.

    predictors: names; divergence (predictors, seeds): KL(exact || model), nats; entropy (predictors, seeds): mean
    predictive entropy, nats; exact_entropy: that of the exact answer, mean over seeds, nats.
    """
    figure, axes = figures.canvas(1, 2, height=2.6, sharey=True)
    names = numbers["predictors"]
    places = np.arange(len(names))[::-1]
    for axis, (part, label) in zip(
        axes[0],
        (("divergence", "KL(exact ‖ model)"), ("entropy", "entropy")),
        strict=True,
    ):
        values = numbers[part]
        figures.seed_dots(axis, values, places)
        axis.set(xlabel=f"{label}, nats")
        axis.grid(axis="x", color="0.9")
    axes[0, 0].set(yticks=places, yticklabels=names, xlim=(0, None))
    axes[0, 1].axvline(numbers["exact_entropy"], color="0.3", linestyle=":")
    axes[0, 1].text(
        numbers["exact_entropy"],
        places[0] + 0.35,
        " exact answer",
        fontsize=8,
        color="0.3",
    )
    return figure


def fig_controls(numbers: dict) -> Figure:
    """Every arm of the fair comparison on the authors' and on fresh seeds.

    arms: names; for each group authors, fresh: steps_GROUP (arms, seeds): first step below SGD's final training loss
    on the same seed; divergence_GROUP (arms, seeds): KL(exact || model) on a fresh sequence after all steps, nats;
    linear: the KL of the linear baseline, mean over the authors' seeds, nats.
    """
    figure, axes = figures.canvas(1, 2, height=4.3, sharey=True)
    names = numbers["arms"]
    places = np.arange(len(names))[::-1]
    for axis, part in zip(axes[0], ("steps", "divergence"), strict=True):
        for group, marker, shift, color in (
            ("authors", "o", 0.16, 0),
            ("fresh", "D", -0.16, 3),
        ):
            values = numbers[f"{part}_{group}"]
            paint = figures.COLORS[color]
            axis.plot(
                values,
                (places + shift)[:, None] + np.zeros_like(values),
                marker,
                color=paint,
                alpha=0.45,
                ms=3.5,
            )
            face = paint if group == "authors" else "white"
            style = {
                "marker": marker,
                "s": 48,
                "color": face,
                "edgecolor": "0.1",
                "zorder": 4,
                "label": f"{group} seeds",
            }
            axis.scatter(values.mean(1), places + shift, **style)
        axis.grid(axis="both", color="0.92")
        for k, name in enumerate(names):
            if name in ("sgd", "em"):
                axis.axhspan(
                    places[k] - 0.45, places[k] + 0.45, color="0.95", zorder=0
                )
    steps, divergence = axes[0]
    steps.set(
        yticks=places,
        yticklabels=names,
        xscale="log",
        xlabel="steps to SGD's final loss (log)",
    )
    divergence.axvline(numbers["linear"], color="0.35", linestyle="--", linewidth=1)
    divergence.text(
        numbers["linear"],
        places[0] + 0.62,
        "linear, no attention",
        fontsize=8,
        ha="center",
        color="0.3",
    )
    divergence.set(xlabel="KL(exact ‖ model) after 1000 steps, nats", xscale="log")
    steps.legend(loc="upper left", fontsize=8)
    return figure


def fig_training_against_truth(numbers: dict) -> Figure:
    """Training loss against distance to the exact answer, along training.

    arms: names; loss (arms, seeds, n): training loss, nats; divergence (arms, seeds, n): KL(exact || model) on a fresh
    sequence at the same steps, nats; floor: training loss of the exact answer, mean over seeds, nats.
    """
    figure, axes = figures.canvas(height=3.2)
    axis = axes[0, 0]
    markers = "os^vDP"
    for k, arm in enumerate(numbers["arms"]):
        loss, divergence = numbers["loss"][k], numbers["divergence"][k]
        color = figures.COLORS[k]
        axis.plot(loss.T, divergence.T, color=color, linewidth=0.6, alpha=0.5)
        style = {
            "color": color,
            "linestyle": figures.LINES[k % 4],
            "marker": markers[k],
            "markevery": 4,
        }
        axis.plot(
            loss.mean(0),
            divergence.mean(0),
            linewidth=2,
            markersize=5,
            label=arm,
            **style,
        )
    axis.axvline(numbers["floor"], color="0.4", linestyle=":")
    axis.text(
        numbers["floor"],
        axis.get_ylim()[1],
        " exact answer's loss",
        fontsize=8,
        va="top",
        color="0.3",
    )
    axis.set(
        xlabel="training loss, nats (training runs to the right)",
        ylabel="KL(exact ‖ model), nats",
    )
    axis.invert_xaxis()
    axis.legend(fontsize=8)
    return figure
