"""Verdicts on the paper's claims: code over recorded numbers, committed before the runs that it judges.

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
    n = checks.tensor("differences", differences, dims=1).shape[0]
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


def sign_flip_p(differences: Tensor) -> float:
    """The exact two-sided paired test of differences (seeds,): the share of all sign patterns whose mean difference is at
    least as far from zero. It assumes that under the null a difference is as likely to be negative as positive, and that
    seeds are independent; its least value is 2 / 2^seeds. Raises ValueError for more than 20 seeds."""
    n = checks.tensor("differences", differences, dims=1).shape[0]
    if n > 20:
        raise ValueError(f"differences must come from at most 20 seeds, got {n}")
    signs = 1 - 2 * ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).double()
    means = (signs @ differences.double().cpu()).abs()
    return (means >= means[0] * (1 - 1e-12)).double().mean().item()


C4_RIVALS = ("o-x10", "qk-x10", "sum-matched", "total-matched", "tuned-sgd")


def c4(steps: dict[str, Tensor]) -> Verdict:
    """C4, the EM-like schedule is faster than SGD: steps {arm: (seeds,)} to SGD's final training loss on the same seed.

    A run that never gets there counts with the number of steps it was given (it is censored, which favours it).
    Falsified if another allocation of the same or of matched rates, or tuned SGD, is as fast: if the interval of
    (rival - em) is not clear above zero for any of C4_RIVALS.
    """
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

    Falsified if the divergences of sgd and em are equal, or tuned SGD's is as low. If an arm is still falling by more
    than `tolerance`, it has not converged and no more than "holds in part" can be said.
    """
    against = {arm: clear_above(divergence[arm] - divergence["em"]) for arm in ("sgd", "tuned-sgd")}
    unconverged = [arm for arm in ("sgd", "em", "tuned-sgd") if still_falling[arm] > tolerance]
    numbers = ", ".join(f"{arm} {divergence[arm].double().mean().item():.4f}" for arm in ("sgd", "em", "tuned-sgd"))
    if not any(against.values()):
        verdict = "does not hold here"
    else:
        verdict = "holds" if all(against.values()) and not unconverged else "holds in part"
    better = [arm for arm, clear in against.items() if clear]
    because = f"EM-like is clearly nearer to the exact answer than: {', '.join(better) or 'neither'}; "
    because += f"not converged: {', '.join(unconverged) or 'none'} (KL, nats: {numbers})"
    return Verdict("C5", verdict, because)


def freeze_step(losses: Tensor, freeze_steps: list[int]) -> int:
    """At which of the freeze steps C6 is judged: the first by which the mean loss (steps,) has come half of the way from
    its start to its lowest value; the last freeze step if there is none. Losses in nats. ValueError for freeze steps that
    are none or do not rise."""
    checks.tensor("losses", losses, dims=1)
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
