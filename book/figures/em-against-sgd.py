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


ARM_LOOKS = {  # one look per arm wherever several arms are drawn: label, colour, line, marker
    "sgd": ("SGD", 0, "-", "o"),
    "em": ("EM-like", 1, "--", "s"),
    "qk-x10": ("qk-x10", 2, "-.", "^"),
    "tuned-sgd": ("tuned SGD", 3, ":", "v"),
    "m-step": ("M-step", 4, (0, (5, 1, 1, 1, 1, 1)), "D"),
    "o-x10": ("o-x10", 5, (0, (1, 1)), "P"),
    "total-matched": ("total-matched", 7, (0, (8, 2)), "X"),
    "em-frozen-qk": ("EM-like, Q and K frozen", 8, (0, (3, 3)), "*"),
}


def arm_line(axis, arm: str, x, lines, markevery=None) -> None:
    """One arm's mean over seeds with a band from lowest to highest: lines (seeds, n) over x (n,)."""
    label, color, dashes, marker = ARM_LOOKS[arm]
    paint = figures.COLORS[color]
    axis.fill_between(
        x, lines.min(0), lines.max(0), color=paint, alpha=0.15, linewidth=0
    )
    look = {"color": paint, "linestyle": dashes, "marker": marker, "markersize": 4}
    axis.plot(x, lines.mean(0), markevery=markevery, label=label, **look)


def fig_convergence(numbers: dict) -> Figure:
    """Four arms to 10,000 steps: training loss, and distance to the exact answer, along training.

    arms: names; step (n,), loss (arms, n, seeds): log10 of the training loss in nats; kept (m,), divergence
    (arms, m, seeds): log10 of KL(exact || model) in nats on an unseen sequence at steps with kept weights; floor:
    training loss of the exact answer, nats.
    """
    figure, axes = figures.canvas(1, 2, height=3.0)
    left, right = axes[0]
    for k, arm in enumerate(numbers["arms"]):
        arm_line(
            left,
            arm,
            numbers["step"] + 1,
            10 ** np.swapaxes(numbers["loss"][k], 0, 1),
            markevery=14,
        )
        arm_line(
            right,
            arm,
            numbers["kept"] + 1,
            10 ** np.swapaxes(numbers["divergence"][k], 0, 1),
        )
    left.axhline(numbers["floor"], color="0.4", linestyle=":")
    left.text(1.2, numbers["floor"], "exact answer", fontsize=8, va="bottom")
    left.set(
        xscale="log",
        xlabel="step + 1",
        ylabel="training loss, nats",
        ylim=(1.35, 2.15),
    )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="step + 1",
        ylabel="KL(exact ‖ model), nats",
    )
    left.legend(fontsize=8, loc="lower left")
    return figure


def settling_panels(numbers: dict, xscale: str) -> Figure:
    """One panel per arm: what is left of the way, for attention (solid) and values (dashed)."""
    arms = numbers["arms"]
    figure, axes = figures.canvas(1, len(arms), height=2.5, sharey=True)
    for k, (axis, arm) in enumerate(zip(axes[0], arms, strict=True)):
        for look, what in enumerate(("attention", "values")):
            left = numbers[f"{what}_left"][k]
            left = left / left[:1]
            shift = 1 if xscale == "log" else 0
            figures.band(axis, numbers["step"] + shift, left, look, label=what)
        axis.axhline(0.1, color="0.6", linewidth=0.8)
        name = "step + 1" if xscale == "log" else "step"
        axis.set(xlabel=f"{name}\n{ARM_LOOKS[arm][0]}", ylim=(0, 1.05))
        axis.set_xscale(xscale)
    axes[0, 0].set_ylabel("distance left")
    axes[0, 0].legend(fontsize=8)
    return figure


def fig_settling(numbers: dict) -> Figure:
    """What is left of the way to the final state, along training, on the sticky chain.

    arms: names; step (n,); attention_left, values_left (arms, n, seeds): Jensen-Shannon distance of attention and
    relative distance of values to the state at the last step.
    """
    return settling_panels(numbers, "linear")


def freezing_panels(numbers: dict, label: str) -> Figure:
    """One panel per arm: what freezing routing (circles), values (squares) or content (triangles) leaves at the end."""
    arms = numbers["arms"]
    figure, axes = figures.canvas(1, len(arms), height=2.6)
    steps = numbers["freeze_step"]
    places = np.arange(len(steps))
    for k, (axis, arm) in enumerate(zip(axes[0], arms, strict=True)):
        whole = numbers["whole"][k]
        axis.axhspan(whole.min(), whole.max(), color="0.88", label="nothing frozen")
        for look, (what, marker) in enumerate(
            (("routing", "o"), ("values", "s"), ("content", "^"))
        ):
            figures.band(
                axis,
                places,
                numbers[what][k].T,
                look,
                label=f"{what} frozen",
                marker=marker,
                markersize=4,
            )
        axis.set(
            xticks=places,
            xticklabels=[f"{s:.0f}" for s in steps],
            xlabel=f"frozen from step\n{ARM_LOOKS[arm][0]}",
        )
        axis.tick_params(axis="x", labelsize=7)
    axes[0, 0].set_ylabel(label)
    axes[0, -1].legend(fontsize=8)
    return figure


def fig_freezing(numbers: dict) -> Figure:
    """Final training loss on the sticky chain with routing or values frozen from a step on.

    arms: names; freeze_step (m,); routing, values, content (arms, seeds, m): training loss after 1000 steps, nats, with
    W_Q and W_K, W_V, or W_V and W_O held from that step on; whole (arms, seeds): with nothing frozen.
    """
    return freezing_panels(numbers, "final training loss, nats")


def fig_value_trajectories(numbers: dict) -> Figure:
    """Where the values of the eight symbols' means travel, in the plane of their principal components; one seed.

    arms: names; share (2,): variance along each axis; steps_ARM (snapshots, C, 2): after equal steps; loss_ARM
    (snapshots, C, 2): until SGD's final training loss; cut (arms,): the step at which that is.
    """
    figure, axes = figures.canvas(1, 2, height=3.2, sharex=True, sharey=True)
    panels = {
        "steps": "equal steps (1000)",
        "loss": "equal loss (SGD's final loss)",
    }
    for axis, (part, title) in zip(axes[0], panels.items(), strict=True):
        for k, arm in enumerate(numbers["arms"]):
            label, color, dashes, marker = ARM_LOOKS[arm]
            tracks = numbers[f"{part}_{arm}"]
            look = {"color": figures.COLORS[color], "linestyle": dashes}
            axis.plot(tracks[..., 0], tracks[..., 1], linewidth=1.3, **look)
            if part == "loss":
                label = f"{label}, step {numbers['cut'][k]:.0f}"
            axis.plot(
                *tracks[-1].T,
                marker,
                color=look["color"],
                ms=5,
                markeredgecolor="0.1",
                label=label,
            )
        axis.plot(*tracks[0].T, ".", color="0.2", ms=4)
        axis.set(xlabel=f"first axis\n{title}")
        axis.legend(fontsize=7.5)
    axes[0, 0].set_ylabel("second axis")
    return figure


def fig_value_paths(numbers: dict) -> Figure:
    """Path length and straightness of the values, at equal steps and at equal loss.

    arms: names; length_steps, straight_steps, length_loss, straight_loss (arms, seeds): root mean square over positions
    of the values' path; net displacement over path length.
    """
    figure, axes = figures.canvas(1, 2, height=3.0, sharey=True)
    names = numbers["arms"]
    places = np.arange(len(names))[::-1]
    labels = {"length": "path length (log)", "straight": "straightness"}
    for axis, (what, label) in zip(axes[0], labels.items(), strict=True):
        for part, marker, shift, color in (
            ("steps", "o", 0.17, 0),
            ("loss", "D", -0.17, 3),
        ):
            values, paint = numbers[f"{what}_{part}"], figures.COLORS[color]
            height = (places + shift)[:, None] + np.zeros_like(values)
            axis.plot(values, height, marker, color=paint, alpha=0.45, ms=3.5)
            face = paint if part == "steps" else "white"
            axis.scatter(
                values.mean(1),
                places + shift,
                marker=marker,
                s=48,
                color=face,
                edgecolor="0.1",
                zorder=4,
                label=f"at equal {part}",
            )
        axis.grid(axis="both", color="0.92")
        axis.set_xlabel(label)
    axes[0, 0].set(yticks=places, yticklabels=names, xscale="log")
    axes[0, 0].legend(fontsize=8, loc="upper right")
    return figure


def fig_lookup_task(numbers: dict) -> Figure:
    """One lookup sequence and the attention of a trained head on it.

    keys, values, queries (T,): symbols of each position after the start token; seen (T,): whether the queried key has
    been shown; attention (T, T + 1): of one trained head, columns from the start token on; probability (T,): that the
    head gives to the right answer.
    """
    figure, axes = figures.canvas(1, 2, height=3.6, width_ratios=[1, 1.5])
    table, image = axes[0]
    T = len(numbers["keys"])
    table.set(xlim=(-0.5, 3.5), ylim=(T - 0.5, -0.9))
    table.axis("off")
    for column, name in enumerate(("key", "value", "query", "p(answer)")):
        table.text(column, -0.9, name, ha="center", fontsize=8, weight="bold")
    for t in range(T):
        seen = numbers["seen"][t] > 0
        row = [
            f"{'abcdefgh'[int(numbers['keys'][t])]}",
            f"{numbers['values'][t] + 1:.0f}",
            f"{'abcdefgh'[int(numbers['queries'][t])]}?",
            f"{numbers['probability'][t]:.2f}",
        ]
        for column, text in enumerate(row):
            color = "0.1" if seen or column < 2 else "0.55"
            table.text(
                column, t, text, ha="center", va="center", fontsize=8, color=color
            )
    shown = image.imshow(
        numbers["attention"], cmap=figures.SEQUENTIAL, vmin=0, vmax=1, aspect="auto"
    )
    for t in range(T):
        for s in range(t + 1):
            if numbers["keys"][s] == numbers["queries"][t]:
                image.plot(s + 1, t, "s", mfc="none", mec=figures.COLORS[1], ms=7)
    labels = ["start", *("abcdefgh"[int(k)] for k in numbers["keys"])]
    image.set(
        xticks=range(T + 1),
        yticks=range(T),
        yticklabels=[f"{'abcdefgh'[int(q)]}?" for q in numbers["queries"]],
        xlabel="attended position, by its key",
        ylabel="query",
    )
    image.set_xticklabels(labels, fontsize=7)
    image.tick_params(axis="y", labelsize=7)
    figure.colorbar(shown, ax=image, label="attention", shrink=0.8)
    return figure


def fig_lookup(numbers: dict) -> Figure:
    """Distance to the exact answer along training, on the task that needs routing.

    arms: names; step (n,); divergence (arms, seeds, n): log10 of KL(exact || model) in nats on unseen sequences;
    memoryless: of the uniform guess, the best answer to a position alone; near: a tenth of it, which counts as near the exact answer.
    """
    figure, axes = figures.canvas(height=3.3)
    axis = axes[0, 0]
    for k, arm in enumerate(numbers["arms"]):
        divergence = 10 ** numbers["divergence"][k]
        arm_line(axis, arm, numbers["step"] + 1, divergence, markevery=(4 * k, 18))
    axis.axhline(numbers["memoryless"], color="0.4", linestyle=":")
    axis.text(1.1, numbers["memoryless"] * 1.03, "no attention", fontsize=8)
    axis.axhline(numbers["near"], color="0.7", linewidth=0.8)
    axis.text(1.1, numbers["near"] * 1.05, "near the exact answer", fontsize=8)
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="step + 1 (log)",
        ylabel="KL(exact ‖ model), nats (log)",
    )
    axis.legend(fontsize=8)
    return figure


def fig_lookup_controls(numbers: dict) -> Figure:
    """Every arm on the task that needs routing.

    arms: names; steps (arms, seeds): first evaluation near the exact answer (all steps if never); divergence
    (arms, seeds): log10 of KL(exact || model) in nats after all steps; memoryless: of the uniform guess, nats.
    """
    figure, axes = figures.canvas(1, 2, height=3.8, sharey=True)
    names = numbers["arms"]
    places = np.arange(len(names))[::-1]
    labels = {
        "steps": "steps to near the exact answer (log)",
        "divergence": "KL(exact ‖ model) at the end, nats (log)",
    }
    for axis, (part, label) in zip(axes[0], labels.items(), strict=True):
        values = numbers[part]
        figures.seed_dots(
            axis, 10**values if part == "divergence" else values, places
        )
        axis.grid(axis="both", color="0.92")
        axis.set(xscale="log", xlabel=label)
    axes[0, 1].axvline(numbers["memoryless"], color="0.4", linestyle=":")
    axes[0, 0].set(yticks=places, yticklabels=names)
    return figure


def fig_lookup_settling(numbers: dict) -> Figure:
    """What is left of the way to the final state, along training, on the task that needs routing.

    arms: names; step (n,); attention_left, values_left (arms, n, seeds): Jensen-Shannon distance of attention and
    relative distance of values to the state at the last step.
    """
    return settling_panels(numbers, "log")


def fig_lookup_freezing(numbers: dict) -> Figure:
    """Final distance to the exact answer on the lookup task with routing or values frozen from a step on.

    arms: names; freeze_step (m,); routing, values, content (arms, seeds, m): log10 of KL(exact || model) in nats after all
    steps, with W_Q and W_K, W_V, or W_V and W_O held from that step on; whole (arms, seeds): with nothing frozen.
    """
    powers = {
        name: 10 ** numbers[name]
        for name in ("routing", "values", "content", "whole")
    }
    figure = freezing_panels(numbers | powers, "final KL, nats (log)")
    for axis in figure.axes:
        axis.set_yscale("log")
    return figure
