"""Verdicts on the paper's claims: code over recorded numbers, committed before the runs that it judges (the ledger names
the exceptions).

Every verdict is one of VERDICTS with a sentence that gives its numbers. *Clear of* means that the 95 % bootstrap
interval of the mean paired difference over seeds lies on one side of zero. Claims are numbered as in the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks

VERDICTS = ("holds", "holds in part", "does not hold here")
RESAMPLES = 10_000


class Verdict(NamedTuple):
    """A claim's number, the verdict (one of VERDICTS) and what it rests on."""

    claim: str
    verdict: str
    because: str


def interval(differences: Tensor, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile-bootstrap interval of the mean of differences (seeds,), resampling seeds 10,000 times.

    Raises ValueError for fewer than five seeds.
    """
    n = checks.tensor("differences", differences, dims=1, exact=True).shape[0]
    if n < 5:
        raise ValueError(f"differences must come from at least 5 seeds, got {n}")
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(n, (RESAMPLES, n), generator=generator)
    means = differences.double().cpu()[picks].mean(-1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def clear_above(differences: Tensor) -> bool:
    """Whether the interval of differences (seeds,) lies above zero."""
    return interval(differences)[0] > 0


def paired(**given: Tensor) -> None:
    """ValueError, which names them, unless all have the same shape, (..., seeds): only then can seeds be compared in pairs."""
    shapes = {name: tuple(checks.tensor(name, values, dims=1).shape) for name, values in given.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"{', '.join(shapes)} must have the same seeds, got shapes {shapes}")


def sign_flip_p(differences: Tensor) -> float:
    """The exact two-sided paired test of differences (seeds,): the share of all sign patterns whose mean difference is at
    least as far from zero. It assumes that under the null a difference is as likely to be negative as positive, and that
    seeds are independent; its least value is 2 / 2^seeds. Raises ValueError for more than 20 seeds."""
    n = checks.tensor("differences", differences, dims=1, exact=True).shape[0]
    if n > 20:
        raise ValueError(f"differences must come from at most 20 seeds, got {n}")
    signs = 1 - 2 * ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).double()
    means = (signs @ differences.double().cpu()).abs()
    return (means >= means[0] * (1 - 1e-12)).double().mean().item()


def c1(differences: float, autograd: float) -> Verdict:
    """C1, the closed-form gradients: worst relative errors against finite differences (falsified above 1e-7) and autograd
    (above 1e-12), in float64."""
    checks.number("differences", differences, least=0)
    checks.number("autograd", autograd, least=0)
    right = differences <= 1e-7 and autograd <= 1e-12
    because = f"worst relative errors {differences:.0e} (finite differences) and {autograd:.0e} (autograd)"
    return Verdict("C1", VERDICTS[0 if right else 2], because)


def c2(slopes: dict[str, float]) -> Verdict:
    """C2, first-order prediction: {what is moved: log-log slope of the remainder against the rate}. O(η²) is a slope of 2;
    falsified below 1.9. ValueError for none."""
    checks.filled("slopes", slopes)
    for what, slope in slopes.items():
        checks.number(f"slopes[{what!r}]", slope)
    right = min(slopes.values()) >= 1.9
    because = "slopes of the remainder: " + ", ".join(f"{what} {slope:.2f}" for what, slope in slopes.items())
    return Verdict("C2", VERDICTS[0 if right else 2], because)


C4_RIVALS = ("o-x10", "qk-x10", "sum-matched", "total-matched", "tuned-sgd")


def c4(steps: dict[str, Tensor]) -> Verdict:
    """C4, the EM-like schedule is faster than SGD: steps {arm: (seeds,)} to SGD's final training loss on the same seed.

    A run that never gets there counts with the number of steps it was given (it is censored, which favours it).
    Falsified if another allocation of the same or of matched rates, or tuned SGD, is as fast: if the interval of
    (rival - em) is not clear above zero for any of C4_RIVALS.
    """
    for arm in ("sgd", "em", *C4_RIVALS):
        checks.choice("arm", arm, steps)
    faster = clear_above(steps["sgd"] - steps["em"])
    as_fast = [arm for arm in C4_RIVALS if not clear_above(steps[arm] - steps["em"])]
    means = {arm: steps[arm].double().mean().item() for arm in ("sgd", "em", *C4_RIVALS)}
    numbers = ", ".join(f"{arm} {mean:.0f}" for arm, mean in means.items())
    verdict = "holds" if faster and not as_fast else "does not hold here"
    rivals = f"not clearly slower: {', '.join(as_fast)}" if as_fast else "every rival is clearly slower"
    compared = "clearly fewer" if faster else "not clearly fewer"
    return Verdict("C4", verdict, f"EM-like takes {compared} steps than SGD; {rivals} (mean steps: {numbers})")


def c5(divergence: dict[str, Tensor], still_falling: dict[str, float], tolerance: float = 1e-3) -> Verdict:
    """C5, the EM-like schedule finds a better solution: divergence {arm: (seeds,)} KL(exact || model) in nats on fresh
    sequences at convergence; still_falling {arm: nats}: the mean fall of the training loss over the last tenth of steps.

    Falsified if SGD's or tuned SGD's is as low. If an arm is still falling by more than `tolerance`, it has not converged and
    no more than "holds in part" can be said. (Before the runs it said: if the divergences of SGD and EM-like are equal, or tuned
    SGD's is as low; and the code asked for both. Words and code were made stricter after them.)
    """
    for arm in ("sgd", "em", "tuned-sgd"):
        checks.number(f"still_falling[{arm!r}]", still_falling[arm])
    against = {arm: clear_above(divergence[arm] - divergence["em"]) for arm in ("sgd", "tuned-sgd")}
    unconverged = [arm for arm in ("sgd", "em", "tuned-sgd") if still_falling[arm] > tolerance]
    numbers = ", ".join(f"{arm} {divergence[arm].double().mean().item():.4f}" for arm in ("sgd", "em", "tuned-sgd"))
    verdict = VERDICTS[2 if not all(against.values()) else 1 if unconverged else 0]
    better = " and ".join(arm for arm, clear in against.items() if clear)
    because = f"EM-like is clearly nearer to the exact answer than {better or 'neither sgd nor tuned-sgd'}; "
    because += f"still falling: {', '.join(unconverged) or 'none'} (KL, nats: {numbers})"
    return Verdict("C5", verdict, because)


def freeze_step(losses: Tensor, freeze_steps: list[int]) -> int:
    """At which of the freeze steps C6 is judged: the first by which the mean loss (steps,) has come half of the way from
    its start to its lowest value; the last freeze step if there is none. Losses in nats. ValueError for freeze steps that
    are none or do not rise."""
    checks.tensor("losses", losses, dims=1, exact=True)
    if not freeze_steps or sorted(set(freeze_steps)) != list(freeze_steps):
        raise ValueError(f"freeze_steps must be rising steps, got {freeze_steps}")
    half = int((losses <= (losses[0] + losses.min()) / 2).nonzero()[0])
    return next((step for step in freeze_steps if step >= half), freeze_steps[-1])


def c6(attention_90: Tensor, values_90: Tensor, frozen_routing: Tensor, frozen_values: Tensor) -> Verdict:
    """C6, attention stabilises before values, in one arm: steps (seeds,) by which attention and values have come 90 %
    of the way to their final state, and final losses (seeds,) in nats with routing or values frozen at `freeze_step`.
    Where the exact answer is known, the loss is KL(exact || model).

    Falsified if values reach 90 % first, or freezing values costs no more than freezing routing; one of the two alone
    leaves "holds in part".
    """
    first = clear_above(values_90 - attention_90)
    costs = clear_above(frozen_values - frozen_routing)
    verdict = VERDICTS[2 - first - costs]
    means = [t.double().mean().item() for t in (attention_90, values_90, frozen_routing, frozen_values)]
    because = (
        f"attention is {'clearly' if first else 'not clearly'} first (90 % at {means[0]:.0f} against {means[1]:.0f}); "
    )
    because += f"freezing values {'clearly costs' if costs else 'does not clearly cost'} more"
    return Verdict("C6", verdict, f"{because} (final loss {means[3]:.4f} against {means[2]:.4f} nats)")


def c11(path: dict[str, Tensor], straightness: dict[str, Tensor]) -> Verdict:
    """C11, longer and straighter value trajectories under the EM-like schedule, at matched loss: path length and
    straightness (net / path) of the values {arm: (seeds,)} from the start to the same training loss.

    Falsified if neither differs clearly from SGD's; one of the two alone leaves "holds in part".
    """
    paired(**{f"path[{arm!r}]": path[arm] for arm in ("em", "sgd")})
    paired(**{f"straightness[{arm!r}]": straightness[arm] for arm in ("em", "sgd")})
    longer = clear_above(path["em"] - path["sgd"])
    straighter = clear_above(straightness["em"] - straightness["sgd"])
    because = f"at matched loss the path is {'clearly' if longer else 'not clearly'} longer "
    because += f"({path['em'].mean().item():.3f} against {path['sgd'].mean().item():.3f}) and "
    because += f"{'clearly' if straighter else 'not clearly'} straighter "
    because += f"({straightness['em'].mean().item():.3f} against {straightness['sgd'].mean().item():.3f})"
    return Verdict("C11", VERDICTS[2 - longer - straighter], because)


def c12(slope_scores: Tensor, slope_values: Tensor, largest_rise: float) -> Verdict:
    """C12, the head behaves like EM: slopes (heads,) of the errors of the two laws against the spread of the values, and
    the largest rise of the loss in nats over all majorised M-steps.

    Falsified if the error is not O(ε²) for scores or O(ε) for values (slopes within 0.05), or a majorised step rises by
    more than 1e-12.
    """
    first_order = bool(((slope_scores - 2).abs() <= 0.05).all() and ((slope_values - 1).abs() <= 0.05).all())
    monotone = largest_rise <= 1e-12
    because = f"errors fall with slopes {slope_scores.mean().item():.2f} (scores) and {slope_values.mean().item():.2f} (values); "
    because += f"the majorised M-step {'never raises' if monotone else 'raised'} the loss"
    return Verdict("C12", VERDICTS[0] if first_order and monotone else VERDICTS[2], because)


def c3(right: Tensor, majority: Tensor) -> Verdict:
    """C3, routing and content feed each other: share (heads,) of pairs whose advantage changes, after a value step under
    a shared W_V, with the sign that the threshold rule predicts; and the share that always guessing the commoner sign
    would get.

    Falsified if the sign is predicted in no more than 60 % of cases. Above 60 % but not clearly better than the commoner
    sign leaves "holds in part".
    """
    enough = clear_above(right - 0.6)
    informative = clear_above(right - majority)
    verdict = VERDICTS[2] if not enough else VERDICTS[0] if informative else VERDICTS[1]
    because = f"under a shared W_V the threshold rule predicts {100 * right.mean().item():.0f} % of signs, "
    because += f"the commoner sign {100 * majority.mean().item():.0f} %"
    return Verdict("C3", verdict, because)


# Wind tunnels. Divergences are KL(exact || model) in bits on fresh sequences, means over positions, (seeds,); accuracies
# (seeds,) are fractions; a sweep of three seeds is judged by its means, since three are too few for an interval.

NEAR, WELL_BELOW = 0.10, 0.25  # shares of the memoryless predictor's divergence
BOUND = 0.95  # accuracy at which binding counts as done


def window_equal(kl: Tensor, windows: dict[int, Tensor]) -> int:
    """The longest window that the network (seeds,) is clearly better than; 0 if there is none. windows {n: (seeds,)}."""
    return max((n for n, divergence in windows.items() if clear_above(divergence - kl)), default=0)


def _near(kl: Tensor, memoryless: Tensor) -> bool:
    return kl.double().mean().item() <= NEAR * memoryless.double().mean().item()


def c13(
    bijection: dict[str, Tensor], memoryless: Tensor,
    transport: dict[str, dict[str, Tensor]], windows: dict[str, dict[int, Tensor]],
) -> Verdict:  # fmt: skip
    """C13, Transformers and Mamba accumulate and transport beliefs: divergences {architecture: (seeds,)} on bijection
    beside the memoryless predictor's (seeds,); {sticky task: {architecture: (seeds,)}} beside {task: {n: (seeds,)}}.

    It accumulates if it is near the exact posterior on bijection, and transports on a task if clearly better than the
    two-observation window. All of it holds; no transport by either on any sticky task falsifies.
    """
    checks.filled("transport", transport)
    names = ("transformer", "mamba")
    accumulates = {name: _near(bijection[name], memoryless) for name in names}
    equal = {(task, name): window_equal(kl[name], windows[task]) for task, kl in transport.items() for name in names}
    moved = [n >= 2 for n in equal.values()]
    whole = all(accumulates.values()) and all(moved)
    numbers = "; ".join(
        f"{name}: bijection {bijection[name].mean().item():.4f} bits, clearly better than a window of "
        + ", ".join(
            f"{equal[task, name] or 'none'} ({task}, {transport[task][name].mean().item():.3f})" for task in transport
        )
        for name in names
    )
    return Verdict("C13", VERDICTS[0 if whole else 1 if any(moved) else 2], numbers)


def c14(
    bijection: Tensor, memoryless: Tensor, transport: dict[str, Tensor], windows: dict[str, dict[int, Tensor]]
) -> Verdict:
    """C14, LSTMs accumulate but cannot transport: the LSTM's divergences (seeds,) on bijection, and {sticky task: (seeds,)}.

    Falsified if it is clearly better than the four-observation window on any sticky task; if not, and it is near the exact
    posterior on bijection, it holds; without that, in part.
    """
    checks.filled("transport", transport)
    equal = {task: window_equal(kl, windows[task]) for task, kl in transport.items()}
    carries, accumulates = any(n >= 4 for n in equal.values()), _near(bijection, memoryless)
    because = f"bijection {bijection.mean().item():.4f} bits; clearly better than a window of "
    because += ", ".join(
        f"{n or 'none'} ({task}, {transport[task].mean().item():.3f} bits)" for task, n in equal.items()
    )
    return Verdict("C14", VERDICTS[2 if carries else 0 if accumulates else 1], because)


def c15(accuracy: dict[str, dict[int, Tensor]]) -> Verdict:
    """C15, LSTMs cannot bind, Mamba binds with difficulty: recall accuracies {architecture: {N: (seeds,)}}.

    Holds if the LSTM binds (mean 0.95) at no N and Mamba at some, but not at the largest, where the Transformer does.
    Falsified if neither's accuracy depends on N: at the largest N within 0.05 of that at the smallest. Else in part.
    """
    means = {name: {N: a.double().mean().item() for N, a in of.items()} for name, of in accuracy.items()}
    least, most = min(means["lstm"]), max(means["lstm"])
    binds = {name: [N for N, a in of.items() if a >= BOUND] for name, of in means.items()}
    holds = not binds["lstm"] and binds["mamba"] and most not in binds["mamba"] and most in binds["transformer"]
    flat = all(means[name][least] - means[name][most] <= 0.05 for name in ("lstm", "mamba"))
    numbers = "; ".join(
        f"{name} " + ", ".join(f"{100 * a:.0f} % at N = {N}" for N, a in of.items()) for name, of in means.items()
    )
    return Verdict("C15", VERDICTS[0 if holds else 2 if flat else 1], numbers)


def c16(kl: dict[str, Tensor], memoryless: dict[str, Tensor]) -> Verdict:
    """C16, MLPs do none of it: the MLP's and the memoryless predictor's divergences {task: (seeds,)}.

    Falsified if it is better than the memoryless predictor by more than 0.01 bits on any task.
    """
    checks.filled("kl", kl)
    gain = {task: (memoryless[task] - kl[task]).double().mean().item() for task in kl}
    for task, value in gain.items():
        checks.number(f"the gain on {task}", value)
    because = "memoryless predictor's divergence minus the MLP's, bits: " + ", ".join(
        f"{t} {g:z.4f}" for t, g in gain.items()
    )
    return Verdict("C16", VERDICTS[2 if max(gain.values()) > 0.01 else 0], because)


def c17(kl: dict[str, Tensor], memoryless: Tensor, horizon: int, after: int = 5) -> Verdict:
    """C17, inference extrapolates in length: {network: (T, seeds)} by position on sequences longer than the `horizon`
    positions of training, and the memoryless predictor's (T, seeds).

    A network jumps if over the first `after` positions beyond the horizon it is no better than the memoryless predictor;
    it extrapolates if from the horizon to the end it stays well below it (25 %). All extrapolate: holds; none: it does
    not; else in part.
    """

    checks.filled("kl", kl)
    checks.integer("horizon", horizon, least=1, most=len(memoryless) - after)

    def share(divergence: Tensor, part: slice) -> float:
        return (divergence[part].double().mean() / memoryless[part].double().mean()).item()

    far = {name: share(divergence, slice(horizon, None)) for name, divergence in kl.items()}
    first = {name: share(divergence, slice(horizon, horizon + after)) for name, divergence in kl.items()}
    for name, value in far.items():
        checks.number(f"the divergence of {name}", value)
    good = [name for name in kl if far[name] <= WELL_BELOW]
    jumps = [name for name in kl if first[name] >= 1]
    because = "beyond the horizon the divergence as a share of the memoryless predictor's is "
    because += "; ".join(f"{name} {100 * value:.0f} %" for name, value in far.items())
    because += f"; no better than that predictor right after the horizon: {'; '.join(jumps) or 'no network'}"
    return Verdict("C17", VERDICTS[0 if len(good) == len(kl) else 1 if good else 2], because)


def c18(mixing: dict[str, Tensor], dependence: dict[str, float], recall: dict[str, dict[int, Tensor]]) -> Verdict:
    """C18, content-based routing is what separates them: recall accuracies {mixing: (seeds,)} of one value path mixed in
    three ways; the median {architecture: query dependence} of the ratio test; and recall accuracies {architecture: {N: (seeds,)}}.

    Falsified if fixed mixing binds (mean 0.95), or softmax mixing does not. If an architecture whose ratio does not
    depend on the query (below 1e-3) binds at any N, success on binding without content routing was seen: in part.
    """
    means = {name: a.double().mean().item() for name, a in mixing.items()}
    blind = [name for name, value in dependence.items() if value < 1e-3]
    despite = {
        name: [N for N, a in recall.get(name, {}).items() if a.double().mean().item() >= BOUND] for name in blind
    }
    falsified = means["fixed"] >= BOUND or means["softmax"] < BOUND
    because = "recall by mixing: " + ", ".join(f"{name} {100 * a:.0f} %" for name, a in means.items())
    because += "; the query cannot re-weight what is stored in: " + ", ".join(
        name + (f" (which binds at N = {', '.join(map(str, Ns))})" if Ns else "") for name, Ns in despite.items()
    )
    return Verdict("C18", VERDICTS[2 if falsified else 1 if any(despite.values()) else 0], because)


IS = 0.9  # rank correlation from which on a coordinate counts as being what it is correlated with

# Manifolds. Ranks are effective ranks of displaced values; alignments and correlations are without unit, (seeds,).


def c7(learned: Tensor, shuffled: Tensor, classes: list[int]) -> Verdict:
    """C7, value dynamics sculpt a low-dimensional manifold: effective ranks (classes, seeds) of what values have moved by,
    with true and with shuffled labels.

    At every C of 8 or more: low is at most half of the bound C - 1, and sculpted clearly below shuffled labels. Both
    everywhere: holds. Falsified if it is clearly below shuffled labels at no more of these C than it is clearly above: then C
    and the control explain it. (What counts against the claim, clearly above, was added after the first verdict.)
    ValueError if there is no such C, or the ranks are not of these classes.
    """
    paired(learned=learned, shuffled=shuffled)
    places = [k for k, C in enumerate(classes) if C >= 8]
    if not places or len(classes) != len(learned) or min(classes) < 2:
        raise ValueError(
            f"classes must be the {len(learned)} of the ranks, none below 2 and one of them 8 or more, got {classes}"
        )
    low = [learned[k].double().mean().item() <= (classes[k] - 1) / 2 for k in places]
    below = [clear_above(shuffled[k] - learned[k]) for k in places]
    above = [clear_above(learned[k] - shuffled[k]) for k in places]
    verdict = VERDICTS[0 if all(low) and all(below) else 1 if sum(below) > sum(above) else 2]
    ranks = ", ".join(
        f"C = {C}: {learned[k].mean().item():.1f} (shuffled labels {shuffled[k].mean().item():.1f}, bound {C - 1})"
        for k, C in enumerate(classes)
    )
    return Verdict("C7", verdict, f"effective rank of displaced values, {ranks}")


def c8(aligned: Tensor, random: Tensor, controls: dict[str, Tensor]) -> Verdict:
    """C8, values align with the principal directions of the residual error: mean squared cosine (seeds,) of displaced
    values' principal plane with that of the upstream gradients; with random planes; and {control: (seeds,)} with planes
    that know W_O, but not the errors.

    Falsified if not clearly above random planes; not clearly above every control leaves "in part". (Errors to shuffled
    labels, W_O's strongest directions and random errors were added to the controls after the first verdict.) ValueError for
    no controls.
    """
    checks.filled("controls", controls)
    paired(**{"aligned": aligned, "random": random} | {f"controls[{name!r}]": of for name, of in controls.items()})
    beyond = clear_above(aligned - random)
    level = [name for name, control in controls.items() if not clear_above(aligned - control)]
    numbers = ", ".join(
        f"{name} {value.double().mean().item():.2f}"
        for name, value in {"errors": aligned, "random planes": random, **controls}.items()
    )
    verdict = VERDICTS[2 if not beyond else 1 if level else 0]
    because = f"mean squared cosine of the values' plane with that of {numbers}; not clearly more than: "
    return Verdict("C8", verdict, because + (", ".join(level) or "none"))


def c9(trained: Tensor, untrained: Tensor, shuffled: Tensor) -> Verdict:
    """C9, the manifold's coordinate is posterior entropy: absolute rank correlations (seeds,) of the first principal
    coordinate with the exact entropy at fixed position, in trained and untrained networks and with entropies shuffled, each
    as a share of what ties allow (manifolds.ranked_alike).

    Falsified if not clearly above both controls. Clearly above them, it holds if the mean is at least IS, for then the
    coordinate ranks as entropy does; else in part: a coordinate that tells of entropy is not yet entropy. (Before a reading
    of the first results one control was enough for "in part", and none was needed of the size.)
    """
    paired(trained=trained, untrained=untrained, shuffled=shuffled)
    over = all(clear_above(trained - control) for control in (untrained, shuffled))
    verdict = VERDICTS[2 if not over else 0 if trained.double().mean().item() >= IS else 1]
    numbers = f"trained {trained.mean().item():.2f}, untrained {untrained.mean().item():.2f}, shuffled {shuffled.mean().item():.2f}"
    return Verdict("C9", verdict, f"absolute rank correlation at fixed position: {numbers}")


def c10(trained: Tensor, initial: Tensor, random: Tensor) -> Verdict:
    """C10, keys become orthogonal: mean absolute cosines (seeds,) of different keys at the end, at the start, and of random
    vectors of the same dimension.

    Clearly below both: holds; below one: in part; below neither falsifies.
    """
    paired(trained=trained, initial=initial, random=random)
    below = [clear_above(control - trained) for control in (initial, random)]
    numbers = f"end {trained.mean().item():.3f}, start {initial.mean().item():.3f}, random {random.mean().item():.3f}"
    return Verdict("C10", VERDICTS[2 - sum(below)], f"mean absolute cosine of keys: {numbers}")
