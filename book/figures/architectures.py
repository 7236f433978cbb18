"""Drawings of the chapter "Architectures compared", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bayesattn_core import figures

NAMES = {
    "transformer": "Transformer",
    "mamba": "Mamba",
    "lstm": "LSTM",
    "mlp": "MLP",
}
LOOKS = {name: k for k, name in enumerate(NAMES)}
TASKS = {
    "bijection": "bijection",
    "bijection-replacement": "bijection, returning keys",
    "hmm-fixed": "fixed HMM",
    "hmm-fixed-sticky": "fixed HMM, sticky",
    "hmm-header": "header HMM",
    "hmm-header-sticky": "header HMM, sticky",
}
WINDOWS = (1, 2, 4, 8)


def grid(count: int, height: float, **options):
    """A canvas of two columns for `count` panels; the panels in a row."""
    rows = -(-count // 2)
    figure, axes = figures.canvas(rows, 2, height=height * rows, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, axes.flat[:count]


def fig_architectures(numbers: dict) -> Figure:
    """Divergence from the exact posterior of every architecture on every task.

    tasks, architectures: names; kl (tasks, architectures, seeds) in bits, NaN where not recorded; memoryless (tasks,);
    windows (tasks, 4): of 1, 2, 4 and 8 observations, NaN where a task has none.
    """
    figure, axes = grid(len(numbers["tasks"]), 1.55)
    places = np.arange(len(numbers["architectures"]))[::-1]
    for k, (axis, task) in enumerate(zip(axes, numbers["tasks"], strict=True)):
        axis.axvline(numbers["memoryless"][k], color="0.2", linestyle=":")
        axis.text(
            numbers["memoryless"][k], 3.45, "memoryless ", fontsize=6.5, ha="right",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2},
        )  # fmt: skip
        for n, value in zip(WINDOWS, numbers["windows"][k], strict=True):
            if np.isfinite(value):
                axis.axvline(value, color=figures.COLORS[7], linewidth=1)
                axis.text(
                    value, 4.1, f"{n}", fontsize=7, ha="center", color="0.2",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
                )  # fmt: skip
        figures.seed_dots(axis, numbers["kl"][k], places)
        for place, values in zip(places, numbers["kl"][k], strict=True):
            if not np.isfinite(values).any():
                axis.text(
                    0.02, place, "not recorded", fontsize=7, color="0.4", va="center",
                    transform=axis.get_yaxis_transform(),
                )  # fmt: skip
        kl, windows = numbers["kl"][k], numbers["windows"][k]
        known = [
            *kl[np.isfinite(kl)],
            *windows[np.isfinite(windows)],
            numbers["memoryless"][k],
        ]
        axis.set(
            xscale="log", yticks=places, ylim=(-0.6, 4.6), title=TASKS[task],
            yticklabels=[NAMES[n] for n in numbers["architectures"]],
            xlim=(min(known) / 1.6, max(known) * 1.6),
        )  # fmt: skip
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in axes[-2:]:
        axis.set_xlabel("KL(exact ‖ model), bits")
    return figure


def fig_architecture_curves(numbers: dict) -> Figure:
    """Divergence along training, by task.

    tasks: names (of bijection, bijection-replacement, hmm-fixed, hmm-fixed-sticky, hmm-header, hmm-header-sticky);
    TASK_ARCHITECTURE_steps (evaluations,), TASK_ARCHITECTURE_kl (evaluations, seeds) in bits; windows (tasks, 4): of 1, 2, 4
    and 8 observations, NaN where a task has none.
    """
    figure, axes = grid(len(numbers["tasks"]), 1.9)
    for k, (axis, task) in enumerate(zip(axes, numbers["tasks"], strict=True)):
        kls = [
            of for name, of in numbers.items() if name.startswith(f"{task}_") and name.endswith("_kl") and name.count("_") == 2
        ]  # fmt: skip
        low, high = min(of.min() for of in kls), max(of.max() for of in kls)
        for n, value in zip(WINDOWS, numbers["windows"][k], strict=True):
            if np.isfinite(value) and value > low / 1.4:
                axis.axhline(value, color="0.8", linewidth=0.8)
                axis.text(
                    1.005, value, f"{n}", fontsize=6.5, color="0.3", va="center",
                    transform=axis.get_yaxis_transform(),
                )  # fmt: skip
        for name, look in LOOKS.items():
            if f"{task}_{name}_kl" in numbers:
                lines = numbers[f"{task}_{name}_kl"]
                figures.band(axis, numbers[f"{task}_{name}_steps"], lines, look, NAMES[name])  # fmt: skip
        axis.set(
            xscale="log",
            yscale="log",
            title=TASKS[task],
            ylim=(low / 1.5, high * 1.5),
        )
    for axis in axes[::2]:
        axis.set_ylabel("KL, bits")
    for axis in axes[-2:]:
        axis.set_xlabel("step")
    axes[0].legend(fontsize=7)
    return figure


def fig_recall_sweep(numbers: dict) -> Figure:
    """Recall against the number of pairs, and against the numbers carried for each.

    For each NAME of transformer, mamba, lstm: NAME_N (points,), NAME_accuracy (points, seeds), NAME_state (points,): numbers carried when
    the pairs have been read; counted_N, counted (points,): of one who counts the values shown and binds nothing.
    """
    figure, axes = figures.canvas(1, 2, height=3.1, sharey=True)
    markers = {"transformer": "o", "mamba": "s", "lstm": "^"}
    for name, marker in markers.items():
        if f"{name}_N" not in numbers:
            continue
        N, accuracy = numbers[f"{name}_N"], numbers[f"{name}_accuracy"]
        look = {
            "color": figures.COLORS[LOOKS[name]],
            "marker": marker,
            "markeredgecolor": "0.2",
        }
        aside = N * 1.08 ** (LOOKS[name] - 1)  # side by side, where they are equal
        for axis, x in zip(
            axes[0], (aside, numbers[f"{name}_state"] / N), strict=True
        ):
            axis.vlines(x, accuracy.min(1), accuracy.max(1), color=look["color"])
            line = figures.LINES[LOOKS[name]] if axis is axes[0, 0] else "none"
            axis.plot(
                x, accuracy.mean(1), linestyle=line, label=NAMES[name], **look
            )
        aside_of = {"transformer": (0, 6), "mamba": (0, -13), "lstm": (9, -2)}[name]
        for pairs, x, y, bar in zip(
            N,
            numbers[f"{name}_state"] / N,
            accuracy.mean(1),
            np.ptp(accuracy, 1),
            strict=True,
        ):
            if name == "transformer" and y > 0.9 and pairs > N[0]:
                continue  # all at the same place: labelled once
            several = name == "transformer" and y > 0.9
            text = ", ".join(f"{n:.0f}" for n in N[accuracy.mean(1) > 0.9])
            axes[0, 1].annotate(
                text if several else f"{pairs:.0f}", (x, y), xytext=(9, -2) if bar > 0.05 else aside_of,
                textcoords="offset points", ha="center", fontsize=6.5,
            )  # fmt: skip
    axes[0, 0].plot(
        numbers["counted_N"],
        numbers["counted"],
        ":",
        color="0.3",
        label="values counted",
    )
    for axis in axes[0]:
        axis.set(xscale="log", ylim=(0, 1.1))
        axis.minorticks_off()
    axes[0, 0].set(
        xticks=[4, 8, 16, 32], xticklabels=[4, 8, 16, 32], xlabel="pairs N", ylabel="accuracy at the queries"
    )  # fmt: skip
    axes[0, 1].set(xlabel="numbers carried per pair")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
    return figure


def fig_recall_curves(numbers: dict) -> Figure:
    """Recall along training, a panel for each number of pairs.

    N (panels,): numbers of pairs; counted (panels,): accuracy of one who counts the values shown and binds nothing; for each
    NAME of transformer, mamba, lstm and each N: NAME_N_steps (evaluations,), NAME_N_accuracy (evaluations, seeds).
    """
    figure, axes = figures.canvas(
        1, len(numbers["N"]), height=2.6, sharex=True, sharey=True
    )
    for axis, N, counted in zip(
        axes[0], numbers["N"], numbers["counted"], strict=True
    ):
        for name in ("transformer", "mamba", "lstm"):
            figures.band(
                axis, numbers[f"{name}_{N:.0f}_steps"], numbers[f"{name}_{N:.0f}_accuracy"], LOOKS[name], NAMES[name],
            )  # fmt: skip
        axis.axhline(counted, color="0.3", linestyle=":", label="values counted")
        axis.set(
            xscale="log",
            xlabel="step",
            title=f"{N:.0f} pairs",
            ylim=(0, 1.05),
            xticks=[1, 10, 100, 1000],
        )
    axes[0, 0].set_ylabel("accuracy at the queries")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def fig_longer(numbers: dict) -> Figure:
    """Divergence by position on sequences longer than in training.

    labels: networks; horizons: the number of observations in training; kl_k (K, seeds) in bits by observation, of the
    k-th network; memoryless_k (K,).
    """
    kinds = {
        "parameters fixed": [k for k, n in enumerate(numbers["labels"]) if "header" not in n],
        "parameters in a header": [k for k, n in enumerate(numbers["labels"]) if "header" in n],
    }  # fmt: skip
    kinds = {title: which for title, which in kinds.items() if which}
    figure, axes = figures.canvas(1, len(kinds), height=3.4, sharey=True)
    looks = {
        "Transformer, rotary": 0, "Mamba": 1, "LSTM": 2, "Transformer, none": 4, "Transformer, sinusoidal": 5,
    }  # fmt: skip
    for axis, (title, which) in zip(axes[0], kinds.items(), strict=True):
        for k in which:
            label, lines = numbers["labels"][k], numbers[f"kl_{k}"]
            look = looks[label.replace(", header", "")]
            x = np.arange(1, len(lines) + 1)
            figures.band(axis, x, lines, look, label.replace(", header", ""))
            axis.axvline(numbers["horizons"][k], color="0.3", linewidth=0.8)
        axis.plot(
            x, numbers[f"memoryless_{k}"], ":", color="0.3", label="memoryless"
        )
        axis.set(yscale="log", title=title, xlabel="observation", ylim=(3e-4, 1.5))
    axes[0, 0].set_ylabel("KL(exact ‖ model), bits")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)
    return figure


def fig_mixing(numbers: dict) -> Figure:
    """Recall of eight pairs, and the bijection, by one layer mixed in three ways.

    mixings: names; recall (mixings, seeds): accuracy; counted: of one who counts the values shown; bijection (mixings, seeds): KL in
    bits; memoryless: of its memoryless predictor.
    """
    figure, axes = figures.canvas(1, 2, height=1.8, sharey=True)
    places = np.arange(len(numbers["mixings"]))[::-1]
    recall, bijection = axes[0]
    figures.seed_dots(recall, numbers["recall"], places)
    recall.axvline(numbers["counted"], color="0.3", linestyle=":")
    recall.set(
        yticks=places, yticklabels=numbers["mixings"], ylim=(-0.6, 2.6), xlim=(0, 1.05),
        xlabel="accuracy", title="recall of eight pairs",
    )  # fmt: skip
    figures.seed_dots(bijection, numbers["bijection"], places)
    bijection.axvline(numbers["memoryless"], color="0.3", linestyle=":")
    bijection.set(xscale="log", xlabel="KL(exact ‖ model), bits", title="bijection")
    return figure


def fig_shapes(numbers: dict) -> Figure:
    """Other depths at the same number of parameters: divergence on the sticky header task, recall of sixteen pairs.

    architectures: names; layers_K (shapes,), score_K (architectures, shapes, seeds) of the K-th task, NaN where a seed was
    not run; reference (2,): the memoryless predictor's divergence in bits, and the accuracy of a guess.
    """
    figure, axes = figures.canvas(1, 2, height=2.8)
    for k, axis in enumerate(axes[0]):
        layers = numbers[f"layers_{k}"]
        for a, name in enumerate(numbers["architectures"]):
            score, shift = numbers[f"score_{k}"][a], 0.06 * (a - 1)
            axis.plot(layers + shift, score, "o", color="0.6", markersize=3)
            run = np.isfinite(score)
            means = np.where(run, score, 0).sum(1) / np.maximum(run.sum(1), 1)
            axis.plot(
                layers + shift,
                np.where(run.any(1), means, np.nan),
                "osD"[a] + figures.LINES[a],
                color=figures.COLORS[a],
                label=NAMES[name],
            )
        axis.axhline(numbers["reference"][k], color="0.3", linestyle=":")
        axis.set(xticks=layers, xlabel="layers")
    axes[0, 0].set(
        yscale="log", ylabel="KL(exact ‖ model), bits", title="header HMM, sticky"
    )
    axes[0, 1].set(
        ylim=(0, 1.05), ylabel="accuracy", title="recall of sixteen pairs"
    )
    axes[0, 0].legend(fontsize=7)
    return figure
