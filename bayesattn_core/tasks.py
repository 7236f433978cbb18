"""Tasks with exact posteriors: the sticky Markov chain, and looking up a bound value, of the chapter "EM against SGD".

Every draw comes from an explicit CPU generator; what was drawn can then be moved to any device. Entropies are in nats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import attention as head
from . import checks

AUTHOR_SEEDS = (42, 2024, 1337, 7777, 9999)


class Chain(NamedTuple):
    """Noisy sightings of a Markov chain: x_t = means[y_{t-1}] + N(0, I), to be answered with the next symbol y_t.

    symbols (..., T + 1) int64: the chain y_0 ... y_T; inputs (..., T, d_x); targets (..., T) = symbols[..., 1:];
    transition (C, C): rows sum to 1; means (..., C, d_x).
    """

    symbols: Tensor
    inputs: Tensor
    targets: Tensor
    transition: Tensor
    means: Tensor


def ring_transition(
    C: int = 8, self_prob: float = 0.3, *, authors: bool = False, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Transition matrix (C, C) of a sticky chain on a ring: P_ii = self_prob, the rest of a row ∝ 1 / circular distance.

    With authors=True, the matrix of the paper's public code instead: there the self term enters the row before the row
    is scaled to 1 - self_prob, and is added again, so that P_ii = 0.3498 for the nominal 0.3 at C = 8.

    >>> ring_transition(4, 0.5)[0].tolist()  # distances 1, 2, 1: weights 1, 1/2, 1, scaled to the other half
    [0.5, 0.2, 0.1, 0.2]

    Raises ValueError for C < 2 or a self_prob outside [0, 1].
    """
    checks.integer("C", C, least=2)
    checks.number("self_prob", self_prob, least=0, most=1)
    apart = (torch.arange(C)[:, None] - torch.arange(C)).abs()
    weight = 1 / torch.minimum(apart, C - apart).to(dtype)  # infinite on the diagonal, which is set next
    weight.fill_diagonal_(self_prob if authors else 0.0)
    transition = (1 - self_prob) * weight / weight.sum(-1, keepdim=True)
    return transition + self_prob * torch.eye(C, dtype=dtype)


def check_transition(transition: Tensor) -> Tensor:
    """Return `transition` if it is a square matrix of probabilities with rows that sum to 1; ValueError if not."""
    C = checks.tensor("transition", transition, dims=2, exact=True).shape[-1]
    return checks.probabilities("transition", transition, 1e-5, last=(C, C))


def stationary(transition: Tensor) -> Tensor:
    """The stationary distribution (C,) of an irreducible chain: π P = π, Σ π = 1."""
    C = check_transition(transition).shape[0]
    equations = torch.cat(
        [transition.mT - torch.eye(C, dtype=transition.dtype), torch.ones(1, C, dtype=transition.dtype)]
    )
    right = torch.zeros(C + 1, dtype=transition.dtype)
    right[-1] = 1
    return torch.linalg.lstsq(equations, right[:, None]).solution[:, 0]


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats over the last dimension of probabilities (..., C); 0 log 0 counts as 0."""
    return torch.special.entr(probabilities).sum(-1)


def entropy_rate(transition: Tensor) -> float:
    """Entropy of the next symbol given the present one, -Σ_i π_i Σ_j P_ij log P_ij, in nats."""
    return (stationary(transition) * entropy(transition)).sum().item()


def sticky_chain(
    generator: torch.Generator, transition: Tensor, means: Tensor, T: int = 1999, *, noise: float = 1.0
) -> Chain:
    """Draw chains of T + 1 symbols and their T noisy inputs; one chain per batch entry of means (..., C, d_x).

    The first symbol is uniform, each next one from its row of `transition`; all from `generator` (on the CPU).

    >>> chain = sticky_chain(torch.Generator().manual_seed(0), ring_transition(), torch.randn(8, 20), T=5)
    >>> tuple(chain.symbols.shape), tuple(chain.inputs.shape), bool((chain.targets == chain.symbols[1:]).all())
    ((6,), (5, 20), True)

    Raises ValueError for T < 1, a negative noise, and what is not a transition matrix.
    """
    checks.integer("T", T, least=1)
    checks.number("noise", noise, least=0)
    C = check_transition(transition).shape[0]
    checks.tensor("means", means, last=(C, None))
    batch = means.shape[:-2]
    uniform = torch.rand(T, *batch, generator=generator, dtype=torch.float64)
    cumulative = transition.to(torch.float64).cumsum(-1)
    cumulative[:, -1] = 1.0
    symbols = torch.empty(T + 1, *batch, dtype=torch.int64)
    symbols[0] = torch.randint(C, batch, generator=generator)
    for t in range(T):  # a chain is sequential; all chains of the batch step together
        symbols[t + 1] = (uniform[t, ..., None] >= cumulative[symbols[t]]).sum(-1)
    symbols = symbols.movedim(0, -1).contiguous()
    epsilon = torch.randn(*batch, T, means.shape[-1], generator=generator, dtype=means.dtype)
    return Chain(symbols, emit(symbols, means) + noise * epsilon, symbols[..., 1:].contiguous(), transition, means)


def emit(symbols: Tensor, means: Tensor) -> Tensor:
    """The noiseless inputs means[y_{t-1}], (..., T, d_x), of symbols (..., T + 1)."""
    return means.gather(-2, symbols[..., :-1, None].expand(*symbols.shape[:-1], symbols.shape[-1] - 1, means.shape[-1]))


def author_draws(seed: int) -> tuple[Chain, dict[str, Tensor]]:
    """The chain (T = 1999 inputs) and initial weights that the paper's public script draws for `seed`, in float32.

    Source: github.com/vishalmisra/bayesian-wind-tunnel (MIT), whose order of draws is kept: the means under seed 0;
    the chain and the noise under `seed`; the weights, 0.1 N(0, 1), under `seed` again.
    """
    generator = torch.Generator().manual_seed(checks.integer("seed", seed))
    transition = ring_transition(authors=True, dtype=torch.float32)
    means = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    symbols = [torch.randint(8, (1,), generator=generator).item()]
    for _ in range(1999):
        symbols.append(torch.multinomial(transition[symbols[-1]], 1, generator=generator).item())
    symbols = torch.tensor(symbols)
    inputs = emit(symbols, means) + torch.randn(1999, 20, generator=generator)
    weights = initial_weights(torch.Generator().manual_seed(seed))
    return Chain(symbols, inputs, symbols[1:].clone(), transition, means), weights


def initial_weights(generator: torch.Generator, d_x: int = 20) -> dict[str, Tensor]:
    """The weights that the paper's head starts from, 0.1 N(0, 1): d_k = 10, d_v = 15, C = 8, float32."""
    shapes = {"W_Q": (d_x, 10), "W_K": (d_x, 10), "W_V": (d_x, 15), "W_O": (15, 8)}
    return {name: torch.randn(*shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def fresh_draws(seed: int) -> tuple[Chain, dict[str, Tensor]]:
    """The authors' setting on draws of our own: fresh means, chain, noise and weights for every seed, in float32."""
    generator = torch.Generator().manual_seed(checks.integer("seed", seed))
    means = torch.randn(8, 20, generator=generator)
    chain = sticky_chain(generator, ring_transition(authors=True), means)
    return chain._replace(transition=chain.transition.to(means.dtype)), initial_weights(generator)


def check_chain(chain: Chain) -> Chain:
    """Return `chain` if its inputs, means and transition fit together; ValueError or TypeError that names what does not."""
    C = check_transition(chain.transition).shape[0]
    d_x = checks.tensor("means", chain.means, last=(C, None)).shape[-1]
    checks.tensor("inputs", chain.inputs, last=(None, d_x))
    if chain.inputs.dtype != chain.means.dtype:
        raise TypeError(f"means must have the inputs' dtype {chain.inputs.dtype}, got {chain.means.dtype}")
    return chain


def log_likelihoods(chain: Chain, noise: float = 1.0) -> Tensor:
    """log N(x_t; means[c], noise² I) up to a constant, (..., T, C), in nats. Raises what `check_chain` raises."""
    check_chain(chain)
    checks.number("noise", noise, above=0)
    x, m = chain.inputs, chain.means
    return (x @ m.mT - 0.5 * (m**2).sum(-1)[..., None, :]) / noise**2


def filter_predictive(chain: Chain, noise: float = 1.0) -> Tensor:
    """Exact p(y_t | x_1 ... x_t), (..., T, C): the forward filter on y_{t-1} (uniform start), one step ahead."""
    evidence = log_likelihoods(chain, noise)
    evidence = (evidence - evidence.amax(-1, keepdim=True)).exp()
    transition = chain.transition.to(evidence.dtype)
    belief = torch.full_like(evidence[..., 0, :], 1 / transition.shape[0])  # p(y_{t-1} | x_1 ... x_{t-1})
    predictive = torch.empty_like(evidence)
    for t in range(evidence.shape[-2]):
        belief = belief * evidence[..., t, :]
        belief = (belief / belief.sum(-1, keepdim=True)) @ transition
        predictive[..., t, :] = belief
    return predictive


def positionwise_predictive(chain: Chain, noise: float = 1.0) -> Tensor:
    """Exact p(y_t | x_t) with the past unread, (..., T, C): the best that any position-wise map can do."""
    transition = chain.transition.to(chain.inputs.dtype)
    prior = stationary(transition).log()
    return (log_likelihoods(chain, noise) + prior).softmax(-1) @ transition


class Lookup(NamedTuple):
    """Sequences in which the answer is the value bound to a queried key, to be fetched from earlier positions.

    inputs (..., T + 1, 2K + C + 1): key, value and query, one-hot side by side, and a last entry that marks position 0,
    the start token; targets (..., T + 1) int64: the value bound to the query; seen (..., T + 1): whether the queried key
    has been shown so far; position_weights (T + 1,): 0 at the start token, 1/T elsewhere.
    """

    inputs: Tensor
    targets: Tensor
    seen: Tensor
    position_weights: Tensor


def lookup(
    generator: torch.Generator,
    sequences: int,
    T: int = 24,
    *,
    K: int = 8,
    C: int = 8,
    dtype: torch.dtype = torch.float32,
) -> Lookup:
    """Draw `sequences` lookup sequences of a start token and T positions, all from `generator` (on the CPU).

    For each sequence every one of K keys is bound to one of C values, uniformly and afresh; every position shows a
    uniform key with its value, and asks for the value of a uniform *other* key. What a position shows by itself says
    nothing about its answer.

    >>> task = lookup(torch.Generator().manual_seed(0), 1, T=3, K=3, C=2)
    >>> task.inputs[0].int().tolist()  # key, value, query, start
    [[0, 0, 0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0, 1, 0]]
    >>> task.targets[0].tolist(), task.seen[0].tolist()  # position 2 asks for the first key, shown at position 1
    ([0, 1, 0, 1], [False, False, True, False])

    Raises ValueError for sequences < 1, T < 1, K < 2 or C < 2.
    """
    checks.integer("sequences", sequences, least=1)
    checks.integer("T", T, least=1)
    checks.integer("K", K, least=2)
    checks.integer("C", C, least=2)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point dtype, got {dtype!r}")
    bound = torch.randint(C, (sequences, K), generator=generator)
    keys = torch.randint(K, (sequences, T), generator=generator)
    queries = (keys + torch.randint(1, K, (sequences, T), generator=generator)) % K
    shown = (keys, K), (bound.gather(1, keys), C), (queries, K)
    body = torch.cat([torch.nn.functional.one_hot(symbols, size) for symbols, size in shown], -1)
    inputs = torch.zeros(sequences, T + 1, 2 * K + C + 1, dtype=dtype)
    inputs[:, 0, -1] = 1
    inputs[:, 1:, :-1] = body
    shown_before = (queries[:, :, None] == keys[:, None, :]) & head.visible(T, True)
    seen, targets = torch.zeros(sequences, T + 1, dtype=torch.bool), torch.zeros(sequences, T + 1, dtype=torch.int64)
    seen[:, 1:], targets[:, 1:] = shown_before.any(-1), bound.gather(1, queries)
    position_weights = torch.full((T + 1,), 1 / T, dtype=dtype)
    position_weights[0] = 0
    return Lookup(inputs, targets, seen, position_weights)


def lookup_predictive(task: Lookup, C: int = 8) -> Tensor:
    """Exact p(target | inputs so far), (..., T + 1, C): certain once the queried key has been shown, uniform before.

    C: the number of values of the task. ValueError if it cannot be the one that the inputs were made with.
    """
    checks.integer("C", C, least=2)
    if int(task.targets.max()) >= C or (task.inputs.shape[-1] - C) % 2 == 0:
        raise ValueError(f"C must be the task's number of values, got {C} for inputs of size {task.inputs.shape[-1]}")
    answer = head.one_hot(task.targets, checks.integer("C", C, least=2), task.inputs.dtype)
    return torch.where(task.seen[..., None], answer, torch.full_like(answer, 1 / C))


def fit_linear(inputs: Tensor, targets: Tensor, C: int, *, steps: int = 200) -> Tensor:
    """The no-attention baseline: W (..., d_x, C) that minimises the mean cross-entropy of softmax(x_t W), no bias.

    inputs (..., T, d_x) and targets (..., T) int64. The problem is convex; it is solved by L-BFGS from zero, every
    batch entry at once, to a largest gradient entry of 1e-7 or less in float64. Raises ValueError if it does not get there.
    """
    checks.integer("C", C, least=2)
    T = checks.tensor("inputs", inputs, dims=2).shape[-2]
    checks.tensor("targets", targets, last=(T,), floating=False)
    if targets.dtype != torch.int64 or targets.min() < 0 or targets.max() >= C:
        given = f"{targets.dtype} from {targets.min().item()} to {targets.max().item()}"
        raise ValueError(f"targets must be class indices (int64) from 0 to {C - 1}, got {given}")
    w = head.uniform_weights(inputs)
    W = torch.zeros(
        *inputs.shape[:-2], inputs.shape[-1], C, dtype=inputs.dtype, device=inputs.device, requires_grad=True
    )
    optimizer = torch.optim.LBFGS(
        [W], max_iter=steps, tolerance_grad=1e-8, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = head.cross_entropy(inputs @ W, targets, w).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    closure()
    left = W.grad.abs().max().item()
    if left > math.sqrt(torch.finfo(W.dtype).eps) * 10:
        raise ValueError(
            f"steps must suffice for the linear baseline to converge, got {steps} with a largest gradient entry of {left:.1e}"
        )
    return W.detach()
