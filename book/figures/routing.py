"""Drawings of the chapter "Content-based routing", each a function of its committed numbers."""

import numpy as np
from matplotlib.figure import Figure

from bayesattn_core import figures

NAMES = {"transformer": "Transformer", "mamba": "Mamba", "lstm": "LSTM"}
TASKS = {
    "bijection": "bijection",
    "hmm-fixed-sticky": "sticky HMM",
    "recall-8": "recall, N = 8",
}


def fig_routing_weights(numbers: dict) -> Figure:
    """Where the last layer of trained networks reads from, on one sequence of each task.

    TASK_ARCHITECTURE (T, T), for the tasks bijection, hmm-fixed-sticky and recall-8: mean over channels or heads of |w_ts|, each row divided by its sum; answer (queries,): the
    position of the value that each of the last rows of recall asks for.
    """
    shown = [task for task in TASKS if f"{task}_lstm" in numbers]
    figure, axes = figures.canvas(len(shown), 3, height=2.2 * len(shown))
    for row, task in enumerate(shown):
        for column, (name, label) in enumerate(NAMES.items()):
            axis, w = axes[row, column], numbers[f"{task}_{name}"]
            w = np.ma.masked_where(~np.tri(len(w), dtype=bool), w)
            image = axis.imshow(
                w, cmap=figures.SEQUENTIAL, vmin=0, vmax=0.5, interpolation="none"
            )
            axis.set(
                ylabel=f"{TASKS[task]}\nposition t" if column == 0 else "",
                title=label if row == 0 else "",
                xlabel="position s" if task == shown[-1] else "",
            )
            if task == "recall-8":
                rows = (
                    len(w)
                    - len(numbers["answer"])
                    + np.arange(len(numbers["answer"]))
                )
                axis.plot(
                    numbers["answer"], rows, "o", markersize=6, fillstyle="none",
                    color=figures.COLORS[1], markeredgewidth=1.3,
                )  # fmt: skip
                axis.axhline(rows[0] - 0.5, color="0.6", linewidth=0.6)
    figure.colorbar(
        image, ax=axes, label="share of the row's weight", shrink=0.5, extend="max"
    )
    return figure


def fig_ratio_test(numbers: dict) -> Figure:
    """How much a query re-weights what is stored.

    tasks, architectures: names; trained, untrained (tasks, architectures): median sine of the angle between two rows of
    weights whose sequences differ in the query alone, 1e-15 where it is below that.
    """
    figure, axes = figures.canvas(
        1, len(numbers["tasks"]), height=2.2, sharex=True, sharey=True
    )
    places = np.arange(len(numbers["architectures"]))[::-1]
    for k, (axis, task) in enumerate(zip(axes[0], numbers["tasks"], strict=True)):
        axis.axvspan(1e-16, 1e-9, color="0.92")
        axis.scatter(
            np.maximum(numbers["untrained"][k], 2e-15), places, s=45, facecolor="white",
            edgecolor="0.2", label="untrained", zorder=3,
        )  # fmt: skip
        axis.scatter(
            np.maximum(numbers["trained"][k], 1e-15), places, s=45, color=figures.COLORS[0],
            edgecolor="0.2", label="trained", zorder=4,
        )  # fmt: skip
        axis.set(
            xscale="log", xlim=(3e-16, 3), title=TASKS[task], xticks=[1e-12, 1e-6, 1],
            yticks=places, yticklabels=[NAMES[n] for n in numbers["architectures"]],
            ylim=(-0.6, 2.6),
        )  # fmt: skip
        axis.text(1e-15, 2.25, "rounding", fontsize=7, color="0.35")
        axis.set_xlabel("sine of the angle")
    axes[0, 0].legend(loc="center left", bbox_to_anchor=(0.0, 0.62), fontsize=7)
    return figure
