"""The ledger of claims: what the paper says, what the chapters measured, the verdict, and where to see it.

Nothing is computed here: verdicts and numbers are read from the results that the chapters recorded, seeds and steps from
the records that they rest on. Source of the claims: arXiv:2512.22473 and 2512.22471, in this book's words.
"""

from __future__ import annotations

from typing import NamedTuple

from . import checks, claims, records, results


class Claim(NamedTuple):
    """A claim of the paper, in `says`, and what the chapters recorded about it.

    verdicts: {setting: recorded verdict}; evidence: {what it is: recorded number}, both as CHAPTER:NAME; recorded: names of the
    records behind them, or CHAPTER:NAME of a number of random heads; figures: CHAPTER:FIGURE.
    """

    says: str
    verdicts: dict[str, str]
    evidence: dict[str, str]
    recorded: tuple[str, ...]
    figures: tuple[str, ...]


TASKS = {"bijection-replacement": "bijection with returning keys", "hmm-fixed-sticky": "fixed HMM"}
POINTS = {
    "values": "values", "contexts": "contexts", "bare": "stream without its gain", "read": "stream as the head reads it",
}  # fmt: skip
FIXED, HEADER = "hmm-fixed-sticky", "hmm-header-sticky"
LEDGER = {
    "C1": Claim(
        "The gradients of a head: scores by the advantage, values by attention-weighted errors",
        {"": "ledger:C1"},
        {"worst relative error, differences": "gradients:worst_difference", "autograd": "gradients:worst_autograd"},
        ("gradients:heads",),
        ("gradients:fig-gradient-errors",),
    ),
    "C2": Claim(
        "A step changes the loss as first order predicts",
        {"": "ledger:C2"},
        {f"{lead}{what}": f"gradients:remainder_slope_{what}" for lead, what in (("slope of the remainder, ", "scores"), ("", "values"), ("", "weights"))},
        ("gradients:first_order_heads",),
        ("gradients:fig-first-order",),
    ),
    "C3": Claim(
        "Positive feedback: attention and values strengthen each other",
        {"random heads": "feedback:C3", "recorded heads": "feedback:C3_recorded"},
        {
            "signs predicted, random heads": "feedback:right_random_heads",
            "commoner sign": "feedback:commoner_random_heads",
            "signs predicted, after SGD": "feedback:right_sgd",
            "commoner sign, after SGD": "feedback:commoner_sgd",
        },
        ("feedback:sign_heads", "sticky-fair-authors"),
        ("feedback:fig-sign-counts",),
    ),
    "C4": Claim(
        "The EM-like schedule converges 2.3 times faster than SGD",
        {
            "authors' seeds": "em-against-sgd:C4_authors",
            "fresh seeds": "em-against-sgd:C4_fresh",
            "lookup": "em-against-sgd:C4_lookup",
        },
        {
            label: f"em-against-sgd:steps_{arm}_fresh"
            for label, arm in (
                ("steps to SGD's final loss, EM-like", "em"), ("W_Q and W_K fast instead", "qk-x10"),
                ("tuned SGD", "tuned-sgd"),
            )
        }
        | {
            label: f"em-against-sgd:lookup_steps_{arm}"
            for label, arm in (
                ("on lookup, EM-like", "em"), ("on lookup, W_Q and W_K fast", "qk-x10"), ("on lookup, tuned SGD", "tuned-sgd"),
            )
        },
        ("sticky-authors", "sticky-fair-authors", "sticky-fair-fresh", "lookup-fair"),
        ("em-against-sgd:fig-authors-curves", "em-against-sgd:fig-controls", "em-against-sgd:fig-lookup-controls"),
    ),
    "C5": Claim(
        "It also finds a better solution",
        {"at the end": "em-against-sgd:C5_end", "at each arm's best": "em-against-sgd:C5_best"},
        {
            f"{lead}{label}{tail}": f"em-against-sgd:long_{kind}_{arm}"
            for start, tail, kind in (("KL to the exact answer at the end, ", "", "kl"), ("", " at its best", "best_kl"))
            for lead, label, arm in ((start, "EM-like", "em"), ("", "SGD", "sgd"), ("", "tuned SGD", "tuned-sgd"))
        },
        ("sticky-converged",),
        ("em-against-sgd:fig-convergence", "em-against-sgd:fig-training-against-truth"),
    ),
    "C6": Claim(
        "Attention stabilises early, values keep refining",
        {
            f"{task} ({label})": f"em-against-sgd:C6_{prefix}{arm}"
            for task, prefix in (("sticky chain", ""), ("lookup", "lookup_"))
            for label, arm in (("SGD", "sgd"), ("EM-like", "em"), ("tuned SGD", "tuned-sgd"))
        },
        {
            "attention settled, sticky chain, SGD": "em-against-sgd:settled_attention_sgd",
            "values": "em-against-sgd:settled_values_sgd",
            "attention settled, lookup, SGD": "em-against-sgd:lookup_settled_attention_sgd",
            "values, lookup": "em-against-sgd:lookup_settled_values_sgd",
        },
        ("sticky-fair-authors", "sticky-frozen", "lookup-fair", "lookup-frozen"),
        ("em-against-sgd:fig-settling", "em-against-sgd:fig-lookup-settling", "em-against-sgd:fig-lookup-freezing"),
    ),
    "C7": Claim(
        "Value dynamics sculpt a low-dimensional manifold",
        {"by effective rank": "manifolds:C7"},
        {
            f"{lead}{label}{C} classes": f"manifolds:rank_{C}_{arm}"
            for C, start in ((16, "effective rank of displaced values, "), (64, ""))
            for lead, label, arm in ((start, "true labels, ", "learned"), ("", "shuffled labels, ", "shuffled-labels"))
        },
        ("manifold-rank",),
        ("manifolds:fig-ranks",),
    ),
    "C8": Claim(
        "Values align with the principal directions of the residual error",
        {"": "manifolds:C8"},
        {
            "mean squared cosine of the values' plane with that of the errors": "manifolds:aligned_errors_sgd",
            "of errors to shuffled labels": "manifolds:aligned_shuffled_sgd",
            "of the strongest directions of W_O": "manifolds:aligned_strongest_sgd",
            "a head taught shuffled labels, its own errors": "manifolds:aligned_untaught_sgd",
            "random planes in the space that W_O reads": "manifolds:aligned_readable_sgd",
            "random planes": "manifolds:random_planes",
        },
        ("sticky-fair-authors", "sticky-shuffled"),
        ("manifolds:fig-alignment",),
    ),
    "C9": Claim(
        "The manifold's coordinate is the posterior's entropy",
        {f"{points} on the {label}": f"manifolds:C9_{name}_{task}" for task, label in TASKS.items() for name, points in POINTS.items()},
        {
            f"{label}, rank correlation at fixed position, {points}{when}": f"manifolds:{name}{end}_{task}-transformer"
            for task, label in TASKS.items()
            for name, points in POINTS.items()
            for end, when in (("", ""), ("_untrained", ", untrained"))
        },
        tuple(f"{task}-transformer" for task in TASKS),
        ("manifolds:fig-entropy-coordinate", "manifolds:fig-returning-keys", "manifolds:fig-manifolds"),
    ),
    "C10": Claim(
        "Keys become orthogonal",
        {label: f"manifolds:C10_{task}" for task, label in TASKS.items()},
        {
            f"{label}, {what}": f"manifolds:keys_{name}_{task}"
            for task, label in TASKS.items()
            for name, what in (("end", "mean absolute cosine at the end"), ("start", "at the start"), ("random", "random vectors"))
        },
        tuple(f"{task}-transformer" for task in TASKS),
        ("manifolds:fig-keys",),
    ),
    "C11": Claim(
        "Value trajectories are longer and more coherent under the EM-like schedule",
        {"": "em-against-sgd:C11"},
        {
            f"{what} at matched loss, {label}": f"em-against-sgd:{name}_equal_loss_{arm}"
            for what, name in (("length", "length"), ("straightness", "straight"))
            for label, arm in (("EM-like", "em"), ("SGD", "sgd"))
        },
        ("sticky-fair-authors",),
        ("em-against-sgd:fig-value-paths", "em-against-sgd:fig-value-trajectories"),
    ),
    "C12": Claim(
        "The head behaves like EM",
        {"to first order in the spread of the values": "em-analogy:C12"},
        {
            "slope of the error, scores": "em-analogy:slope_scores",
            "values": "em-analogy:slope_values",
            "relative gap of the scores' gradients in trained heads, at the start": "em-analogy:gap_start_scores",
            "after the EM-like schedule": "em-analogy:gap_em_scores",
            "cosine of the gradient's value step with the majorised M-step, at first": "em-analogy:m_cosine_first",
            "at the end": "em-analogy:m_cosine_last",
        },
        ("em-analogy:theorem_heads",),
        ("em-analogy:fig-first-order-em", "em-analogy:fig-gap-to-em", "em-analogy:fig-m-step"),
    ),
    "C13": Claim(
        "Transformers and Mamba accumulate and transport beliefs",
        {"": "architectures:C13"},
        {
            f"{task}, {label}": f"architectures:kl_{cell}-{a}"
            for task, cell in (("bijection", "bijection"), ("fixed HMM", FIXED), ("header HMM", HEADER))
            for label, a in (("Transformer", "transformer"), ("Mamba", "mamba"))
        },
        tuple(f"{cell}-{a}" for cell in ("bijection", FIXED, HEADER) for a in ("transformer", "mamba")),
        ("architectures:fig-architectures",),
    ),
    "C14": Claim(
        "LSTMs accumulate but cannot transport",
        {"": "architectures:C14"},
        {
            "bijection": "architectures:kl_bijection-lstm",
            "fixed HMM": f"architectures:kl_{FIXED}-lstm",
            "a window of eight observations": f"architectures:window_8_{FIXED}",
            "header HMM": f"architectures:kl_{HEADER}-lstm",
            "a window of four": f"architectures:window_4_{HEADER}",
        },
        ("bijection-lstm", f"{FIXED}-lstm", f"{HEADER}-lstm"),
        ("architectures:fig-architectures",),
    ),
    "C15": Claim(
        "LSTMs cannot bind; Mamba binds with difficulty",
        {"": "architectures:C15"},
        {
            f"recall of {N} pairs, {label}": f"architectures:accuracy_recall-{N}-{a}"
            for N in (4, 16)
            for label, a in (("LSTM", "lstm"), ("Mamba", "mamba"), ("Transformer", "transformer"))
        },
        tuple(f"recall-{N}-{a}" for N in (4, 16) for a in ("lstm", "mamba", "transformer")),
        ("architectures:fig-recall-sweep",),
    ),
    "C16": Claim(
        "MLPs do none of it",
        {"": "architectures:C16"},
        {
            "bijection, MLP": "architectures:kl_bijection-mlp",
            "memoryless": "architectures:memoryless_bijection",
            "fixed HMM, MLP": f"architectures:kl_{FIXED}-mlp",
            "memoryless, fixed HMM": f"architectures:memoryless_{FIXED}",
            "recall of eight pairs, memoryless less MLP": "architectures:mlp_gain_recall-8",
        },
        ("bijection-mlp", f"{FIXED}-mlp", "recall-8-mlp"),
        ("architectures:fig-architectures",),
    ),
    "C17": Claim(
        "Inference is algorithmic: it extrapolates in length",
        {"": "architectures:C17"},
        {
            label: f"architectures:longer_end_{FIXED}-{a}"
            for label, a in (
                ("KL at the end of longer sequences, rotary Transformer", "transformer"),
                ("without positions", "transformer-none"),
                ("Mamba", "mamba"),
                ("LSTM", "lstm"),
            )
        },
        tuple(f"{FIXED}-{a}" for a in ("transformer", "transformer-none", "transformer-sinusoidal", "mamba", "lstm")),
        ("architectures:fig-longer",),
    ),
    "C18": Claim(
        "Content-based routing is what separates the architectures",
        {"for binding": "architectures:C18"},
        {f"{lead}{mixing}": f"architectures:mixing_{mixing}" for lead, mixing in (("recall of eight pairs, ", "softmax"), ("", "linear"), ("", "fixed"))}
        | {"counting the values shown": "architectures:counting_8", "LSTM": "architectures:accuracy_recall-8-lstm"},
        (*(f"recall-8-transformer-{mixing}" for mixing in ("softmax", "linear", "fixed")), "recall-8-lstm"),
        ("architectures:fig-mixing", "routing:fig-ratio-test"),
    ),
}  # fmt: skip


def quoted(reference: str, own: dict[str, dict] | None = None) -> dict:
    """The result that CHAPTER:NAME refers to, as it is committed; `own`: the results of the chapter "ledger" so far.

    Raises ValueError for one that is not recorded.
    """
    chapter, _, name = reference.rpartition(":")
    found = own if chapter == "ledger" and own is not None else results.read(chapter)
    return found[checks.choice("reference", name, found)]


def together(verdicts: dict[str, str]) -> str:
    """The verdict of a claim from those in its settings: theirs if all are the same, else "holds in part"."""
    for verdict in checks.filled("verdicts", verdicts).values():
        checks.choice("verdict", verdict, claims.VERDICTS)
    return next(iter(verdicts.values())) if len(set(verdicts.values())) == 1 else claims.VERDICTS[1]


def budget(name: str) -> tuple[int, int | None]:
    """The number of seeds of a record, and its steps (None for one that trains nothing)."""
    config = records.read(name).config
    return len(config["seed"] if "seed" in config else config["seeds"]), config.get("steps")


def scope(claim: Claim) -> str:
    """Seeds and steps of the records behind a claim, or the number of random heads, in words."""
    shown = [f"{quoted(name)['value']:.0f} random heads" for name in claim.recorded if ":" in name]
    budgets = {budget(name) for name in claim.recorded if ":" not in name}
    shown += [
        f"{seeds} seeds" + (f", {steps:,} steps" if steps else "")
        for seeds, steps in sorted(budgets, key=lambda pair: (pair[0], pair[1] or 0))
    ]
    return "; ".join(shown)


def verdicts(number: str, own: dict[str, dict] | None = None) -> dict[str, str]:
    """The recorded verdict of a claim in each of its settings. `own`: see `quoted`."""
    claim = LEDGER[checks.choice("number", number, LEDGER)]
    return {setting: quoted(reference, own)["value"] for setting, reference in claim.verdicts.items()}


def row(number: str, own: dict[str, dict] | None = None) -> dict[str, str]:
    """One row of the table, in Markdown, by column. Raises ValueError for a result or a record that is not there."""
    given = verdicts(number, own)
    claim, verdict = LEDGER[number], f"**{together(given)}**"
    if len(given) == 1 and "" not in given:
        verdict += f" ({next(iter(given))})"
    if len(set(given.values())) > 1:
        by = {kind: [setting for setting, found in given.items() if found == kind] for kind in claims.VERDICTS}
        verdict += " (" + "; ".join(f"{kind}: {', '.join(of)}" for kind, of in by.items() if of) + ")"
    measured = []
    for label, reference in claim.evidence.items():
        result = quoted(reference, own)
        unit = "" if result["unit"] == "1" else f" {result['unit']}"
        measured.append(f"{label} {results.text(result)}{unit}")
    shown = {}
    for chapter, name in (reference.split(":") for reference in claim.figures):
        shown[chapter] = ", ".join(filter(None, (shown.get(chapter), f"{{numref}}`{name}`")))
    return {
        "claim": number,
        "the paper says": claim.says,
        "verdict here": verdict,
        "measured": "; ".join(measured),
        "budget": scope(claim),
        "see": "; ".join(f"[{chapter}]({chapter}.ipynb): {figures}" for chapter, figures in shown.items()),
    }


def drift(number: str, own: dict[str, dict]) -> list[str]:
    """How the committed results behind a claim differ from the copies that the ledger holds, beyond their tolerance.

    `own`: the ledger's results, where the copy of CHAPTER:NAME is called "CLAIM CHAPTER:NAME".
    """
    claim, found = LEDGER[checks.choice("number", number, LEDGER)], []
    for reference in (*claim.verdicts.values(), *claim.evidence.values()):
        now = quoted(reference, own)
        copy = own[checks.choice("copy", f"{number} {reference}", own)]
        for key in ("value", "spread"):
            if not results.agree(now[key], copy[key], copy["tolerance"]):
                found.append(f"{number}: {reference} has {key} {now[key]}, the ledger {copy[key]}")
    return found


def table(own: dict[str, dict] | None = None) -> str:
    """The whole ledger as a Markdown table."""
    rows = [row(number, own) for number in LEDGER]
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(cells.values()) + " |" for cells in rows])
