"""Wind tunnels: tasks in which the exact posterior of every answer is known, behind one interface.

A tunnel is a frozen dataclass with C classes, T positions, tokens from a `vocabulary` or vectors of size d_x, and

    draw(generator, sequences)   a Batch: what a network reads, the sampled labels it learns from, the exact posterior
    predictors(batch)            trivial predictors (B, T, C): uniform; constant (the best distribution that reads
                                 nothing); memoryless (the exact posterior given the present input and its position);
                                 for hidden Markov models also window-n (the parameters and the last n observations),
                                 for recall counting (the values shown, without their keys)

Networks learn from `targets`; `posterior` only judges them, by `kl`, `entropy_error` and `accuracy`. Every draw comes
from an explicit CPU generator. Shapes: B sequences, T positions, C classes; of a hidden Markov model, S states,
O symbols, K observations. Entropies and divergences are in bits here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from . import attention as head
from . import checks, tasks

WINDOWS = (1, 2, 4, 8)


def check_generator(generator: object) -> None:
    """TypeError for what is not a generator on the CPU."""
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        raise TypeError(f"generator must be a torch.Generator on the CPU, got {generator!r}")


class Batch(NamedTuple):
    """Sequences with their labels and exact answers.

    inputs: tokens (B, T) int64 or vectors (B, T, d_x); supervised (B, T) bool; targets (B, T) int64: labels drawn from
    the posterior, 0 where unsupervised; posterior (B, T, C): the exact predictive given the inputs up to and with the
    position, uniform where unsupervised; extra: tensors that the tunnel's own predictors read.
    """

    inputs: Tensor
    supervised: Tensor
    targets: Tensor
    posterior: Tensor
    extra: dict[str, Tensor]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved = {name: value.to(device) for name, value in self.extra.items()}
        return Batch(*(part.to(device) for part in self[:4]), moved)


class Tunnel(ABC):
    """What every wind tunnel has: C, T, `vocabulary` (None if it reads vectors) or d_x (None if it reads tokens)."""

    vocabulary = None
    d_x = None

    def draw(self, generator: torch.Generator, sequences: int, *, dtype: torch.dtype = torch.float64) -> Batch:
        """Draw `sequences` sequences; posterior and vectors have `dtype`, and are computed in float64.

        Raises TypeError for what is not a CPU generator or a floating dtype, ValueError for sequences < 1.
        """
        check_generator(generator)
        checks.integer("sequences", sequences, least=1)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating-point dtype, got {dtype!r}")
        batch = self._draw(generator, sequences)
        inputs = batch.inputs.to(dtype) if batch.inputs.is_floating_point() else batch.inputs
        return batch._replace(inputs=inputs, posterior=batch.posterior.to(dtype))

    def predictors(self, batch: Batch) -> dict[str, Tensor]:
        """The trivial predictors (B, T, C) by name, uniform where unsupervised; TypeError or ValueError for another's batch."""
        if not isinstance(batch, Batch):
            raise TypeError(f"batch must be a Batch, got {type(batch).__name__}")
        checks.tensor("batch.posterior", batch.posterior, dims=3, last=(self.T, self.C))
        uniform = torch.full_like(batch.posterior, 1 / self.C)
        own = {name: torch.where(batch.supervised[..., None], p.to(uniform), uniform) for name, p in self._own(batch)}
        return {"uniform": uniform, "constant": uniform, "memoryless": uniform, **own}

    @abstractmethod
    def _draw(self, generator: torch.Generator, B: int) -> Batch:
        """B sequences; what `draw` checks and casts."""

    def _own(self, batch: Batch) -> list[tuple[str, Tensor]]:
        """Predictors that differ from the uniform one; entries broadcast to (B, T, C)."""
        return []


# Accumulation and binding


@dataclass(frozen=True)
class Bijection(Tunnel):
    """A random bijection of V keys and V values, shown as k_1 v_1 k_2 v_2 ...; asked, at each key, for its value.

    Key a is token a, value a is token V + a and class a. Only key positions are supervised: at a value's own position
    the answer would be the input. Without replacement the keys are distinct, and the value is uniform over the V - t
    that t pairs have left unseen: H = log2(V - t). With replacement a seen key has a certain value. Seen alone, a key
    says nothing: the memoryless answer is uniform.

    >>> batch = Bijection(V=3, L=3).draw(torch.Generator().manual_seed(0), 1)
    >>> batch.inputs[0].tolist(), batch.targets[0].tolist()  # key 2 has value 0, key 1 value 2, key 0 value 1
    ([2, 3, 1, 5, 0, 4], [0, 0, 2, 0, 1, 0])
    >>> batch.posterior[0, ::2].tolist()[1:]  # value 0 is gone, then values 0 and 2
    [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]

    Raises ValueError for V < 2, L < 1, or more keys than there are.
    """

    V: int = 20  # symbols
    L: int = 19  # pairs shown
    replacement: bool = False

    def __post_init__(self):
        checks.integer("V", self.V, least=2)
        if not isinstance(self.replacement, bool):
            raise TypeError(f"replacement must be True or False, got {self.replacement!r}")
        checks.integer("L", self.L, least=1, **({} if self.replacement else {"most": self.V}))

    C = property(lambda self: self.V)
    vocabulary = property(lambda self: 2 * self.V)
    T = property(lambda self: 2 * self.L)

    def _draw(self, generator, B):
        if self.replacement:
            keys = torch.randint(self.V, (B, self.L), generator=generator)
        else:
            keys = _permutations(generator, B, self.V)[:, : self.L]
        values = _permutations(generator, B, self.V).gather(1, keys)  # (B, L)
        answer = head.one_hot(values, self.V, torch.float64)
        unseen = (answer.cumsum(1) - answer).eq(0).double()  # (B, L, V): values not shown at an earlier pair
        for_new = unseen / unseen.sum(-1, keepdim=True)
        known = ((keys[:, :, None] == keys[:, None, :]) & head.visible(self.L, True).tril(-1)).any(-1)
        posterior = torch.where(known[..., None], answer, for_new).repeat_interleave(2, 1)
        supervised = (torch.arange(self.T) % 2 == 0).expand(B, -1)
        tokens = torch.stack([keys, self.V + values], -1).flatten(1)
        targets = values.repeat_interleave(2, 1).masked_fill(~supervised, 0)
        return Batch(tokens, supervised, targets, posterior.masked_fill(~supervised[..., None], 1 / self.V), {})


@dataclass(frozen=True)
class Recall(Tunnel):
    """N pairs of a key and its value, then queries: at each query, return the value bound to that key.

    The N keys of a sequence are distinct, their values independent and uniform; each query is one of the N keys,
    uniformly. Key a is token a, value a is token `keys` + a and class a. The exact answer is certain; without the pairs
    nothing is better than uniform.

    >>> batch = Recall(N=2, keys=4, values=3, queries=3).draw(torch.Generator().manual_seed(0), 1)
    >>> batch.inputs[0].tolist()  # key 2 has value 1, key 1 has value 0; then three queries
    [2, 5, 1, 4, 1, 2, 2]
    >>> batch.targets[0, 4:].tolist(), batch.supervised[0].sum().item()
    ([0, 1, 1], 3)

    Raises ValueError for N < 1, keys < N, values < 2 or queries < 1.
    """

    N: int = 16  # pairs
    keys: int = 256  # size of the key vocabulary
    values: int = 256  # size of the value vocabulary
    queries: int = 16

    def __post_init__(self):
        checks.integer("N", self.N, least=1)
        checks.integer("keys", self.keys, least=self.N)
        checks.integer("values", self.values, least=2)
        checks.integer("queries", self.queries, least=1)

    C = property(lambda self: self.values)
    vocabulary = property(lambda self: self.keys + self.values)
    T = property(lambda self: 2 * self.N + self.queries)

    def _draw(self, generator, B):
        keys = _permutations(generator, B, self.keys)[:, : self.N]
        bound = torch.randint(self.values, (B, self.N), generator=generator)
        asked = torch.randint(self.N, (B, self.queries), generator=generator)
        pairs = torch.stack([keys, self.keys + bound], -1).flatten(1)
        tokens = torch.cat([pairs, keys.gather(1, asked)], 1)
        targets = torch.cat([torch.zeros_like(pairs), bound.gather(1, asked)], 1)
        supervised = (torch.arange(self.T) >= 2 * self.N).expand(B, -1)
        posterior = torch.full((B, self.T, self.C), 1 / self.C, dtype=torch.float64)
        posterior[:, 2 * self.N :] = head.one_hot(targets[:, 2 * self.N :], self.C, torch.float64)
        return Batch(tokens, supervised, targets, posterior, {})

    def _own(self, batch):
        shown = batch.inputs[:, 1 : 2 * self.N : 2] - self.keys
        counts = torch.nn.functional.one_hot(shown, self.C).sum(1, keepdim=True)  # (B, 1, C)
        return [("counting", counts.to(batch.posterior) / self.N)]


def _permutations(generator: torch.Generator, B: int, n: int) -> Tensor:
    """B uniform permutations of n, (B, n)."""
    return torch.rand(B, n, generator=generator, dtype=torch.float64).argsort(-1)


# Transport: hidden Markov models


def quantise(rows: Tensor, total: Tensor | int, floor: int = 1) -> Tensor:
    """Whole numbers (..., n) int64, each at least `floor`, that sum exactly to `total` and share it out as `rows` do.

    rows (..., n): not negative, in any scale; total: one whole number or (...) of them. Every entry gets its floor, the
    rest is shared in proportion to what an entry has above it, by largest remainder; ties go to the lower index.

    >>> quantise(torch.tensor([[1.0, 1.0, 1.0], [0.7, 0.3, 0.0]]), 100).tolist()
    [[34, 33, 33], [69, 30, 1]]

    Raises ValueError where `total` is too small for the floors, or a row has a negative entry or no positive one.
    """
    n = checks.tensor("rows", rows, dims=1).shape[-1]
    checks.integer("floor", floor)
    total = torch.as_tensor(total)
    checks.tensor("total", total, floating=False)
    if total.min() < n * floor:
        raise ValueError(f"total must be at least {n} x {floor} for floors of {floor}, got {total.min().item()}")
    if rows.min() < 0 or rows.sum(-1).min() <= 0:
        raise ValueError(f"rows must not be negative nor all zero, got a least entry of {rows.min().item()}")
    return _quantise(rows, total, floor)


def _quantise(rows: Tensor, total: Tensor, floor: int) -> Tensor:
    """`quantise` without its checks."""
    n, rows, total = rows.shape[-1], rows.double(), total.unsqueeze(-1)
    spare = (total - n * floor).double()
    above = (rows / rows.sum(-1, keepdim=True) * total - floor).clamp_min(0)
    share = above / above.sum(-1, keepdim=True).clamp_min(1e-300) * spare
    whole = share.floor()
    order = (share - whole).argsort(dim=-1, descending=True, stable=True)
    served = (torch.arange(n) < spare - whole.sum(-1, keepdim=True)).double()  # one more each, largest remainder first
    return whole.scatter_add(-1, order, served).long() + floor


def _likelihoods(emission: Tensor, observations: Tensor) -> Tensor:
    """p(o_t | s_t), (B, K, S)."""
    return _rows(emission.mT, observations)


def _rows(matrices: Tensor, which: Tensor) -> Tensor:
    """Rows matrices[b, which[b, k]] of matrices (B, n, m), (B, K, m): as `gather`, but a row is copied whole."""
    B, n, _ = matrices.shape
    first = torch.arange(0, B * n, n, device=which.device)[:, None]
    return matrices.flatten(0, 1).index_select(0, (first + which).flatten()).unflatten(0, which.shape)


def check_hmm(transition: Tensor, emission: Tensor, observations: Tensor) -> None:
    """TypeError or ValueError, which name the argument, for matrices and observations that are not those of `hmm_filter`."""
    B, _, S = checks.tensor("transition", transition, dims=3, exact=True).shape
    checks.probabilities("transition", transition, 1e-5, last=(B, S, S))
    checks.probabilities("emission", emission, 1e-5, last=(B, S, None), exact=True)
    checks.indices("observations", observations, emission.shape[-1], "symbols", last=(B, None), exact=True)


def check_possible(beliefs: Tensor) -> Tensor:
    """Return beliefs (B, K, S); ValueError where they are none, since what was observed has probability 0."""
    if not bool(beliefs.isfinite().all()):
        b, t, _ = (~beliefs.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"observations must be possible, got one of probability 0 at [{b}, {t}]")
    return beliefs


def hmm_filter(transition: Tensor, emission: Tensor, observations: Tensor) -> Tensor:
    """Exact p(s_t | o_1 ... o_t), (B, K, S), by the forward algorithm from a uniform start.

    transition (B, S, S), emission (B, S, O): rows sum to 1; observations (B, K) int64, from 0 to O - 1. Raises TypeError or
    ValueError that names the argument, also for an observation that cannot be (or nearly cannot: that takes several moves in
    a row of a probability below about 1e-9 in float32, 1e-75 in float64).
    """
    check_hmm(transition, emission, observations)
    return check_possible(_filter(transition, emission, observations))


def _filter(transition: Tensor, emission: Tensor, observations: Tensor) -> Tensor:
    """`hmm_filter` without its checks, for drawing."""
    likelihood = _likelihoods(emission, observations).permute(1, 2, 0).contiguous()  # (K, S, B): a step is one pass
    likelihood /= likelihood.amax(1, keepdim=True)  # what is improbable in every state says nothing of the state
    moves = transition.permute(1, 2, 0).contiguous()  # (S, S, B)
    filtered = torch.empty_like(likelihood)
    belief = torch.full_like(likelihood[0], 1 / likelihood.shape[1])
    for t, (seen, out) in enumerate(zip(likelihood, filtered, strict=True)):  # sequential; all sequences step together
        belief = torch.mul((belief[:, None] * moves).sum(0) if t else belief, seen, out=out)
        if t % 4 == 3:  # four moves of a probability of 1e-9 are within float32; all is normalised at the end
            belief = belief / belief.sum(0)
    filtered /= filtered.sum(1, keepdim=True)
    return filtered.permute(2, 0, 1).contiguous()


def hmm_window(transition: Tensor, emission: Tensor, observations: Tensor, n: int) -> Tensor:
    """Exact p(s_t | o_{t-n+1} ... o_t) in the stationary chain, (B, K, S); where t < n, from the t observations there are.

    Arguments and errors as for `hmm_filter`; the chain must be irreducible. Raises ValueError for n < 1.
    """
    checks.integer("n", n, least=1)
    check_hmm(transition, emission, observations)
    likelihood = _likelihoods(emission, observations)
    B, K, S = likelihood.shape
    # π (1 - P + E) = (1 ... 1) with E all ones; a stationary belief stays what it is until the first observation
    equations = torch.eye(S, dtype=transition.dtype, device=transition.device) - transition + 1
    belief = torch.linalg.solve(equations.mT, likelihood.new_ones(B, S))[:, None]
    padded = torch.cat([likelihood.new_ones(B, n - 1, S), likelihood], 1)
    for j in range(n):  # every window advances by one observation
        belief = (belief @ transition) * padded[:, j : j + K]
        belief = belief / belief.sum(-1, keepdim=True)
    return check_possible(belief)


@dataclass(frozen=True)
class _HMM(Tunnel):
    """What the two hidden Markov tunnels share: how parameters and sequences are drawn.

    Rows of both matrices ~ Dirichlet(1), at least `floor`, in whole multiples of 1 / quantum. With sticky = (low, high)
    every self-transition is uniform in that range and the rest of its row shared out by Dirichlet(1), at least one
    quantum each; every state then has a favourite symbol (different ones where O allows), whose emission row is
    `sharpness` on the favourite plus 1 - sharpness times Dirichlet(1).
    """

    S: int = 5  # hidden states, the classes
    O: int = 5  # observed symbols # noqa: E741
    K: int = 20  # observations
    sticky: tuple[float, float] | None = None
    quantum: int = field(default=100, kw_only=True)  # probabilities are multiples of 1 / quantum
    floor: float = field(default=0.05, kw_only=True)  # least probability, but for a sticky transition
    sharpness: float = field(default=0.5, kw_only=True)  # read in the sticky regime alone

    def __post_init__(self):
        checks.integer("S", self.S, least=2)
        checks.integer("O", self.O, least=2)
        checks.integer("K", self.K, least=1)
        checks.integer("quantum", self.quantum, least=2)
        checks.number("floor", self.floor, least=0, most=1)
        checks.number("sharpness", self.sharpness, least=0, most=1)
        least = self._floor_units * max(self.S, self.O)
        if least >= self.quantum:
            raise ValueError(
                f"floor must leave something to share out, got {self.floor}: {max(self.S, self.O)} entries of at least"
                f" {self._floor_units} / {self.quantum} (use a smaller floor or a larger quantum)"
            )
        if self.sticky is None:
            return
        if not isinstance(self.sticky, tuple) or len(self.sticky) != 2:
            raise TypeError(f"sticky must be None or a pair (low, high), got {self.sticky!r}")
        low = checks.number("sticky[0]", self.sticky[0], above=0, most=1)
        checks.number("sticky[1]", self.sticky[1], least=low, most=1)
        first, last = self._sticky_units
        if not 1 <= first <= last <= self.quantum - self.S + 1:
            raise ValueError(
                f"sticky must hold a multiple of 1 / {self.quantum} and end by {self.quantum - self.S + 1} / {self.quantum},"
                f" so that {self.S - 1} other states get one quantum each, got {self.sticky}"
            )

    C = property(lambda self: self.S)
    _floor_units = property(lambda self: max(1, round(self.floor * self.quantum)))

    @property
    def _sticky_units(self) -> tuple[int, int]:
        low, high = (bound * self.quantum for bound in self.sticky)
        return math.ceil(low - 1e-9), math.floor(high + 1e-9)

    def parameters(self, generator: torch.Generator, sets: int) -> tuple[Tensor, Tensor]:
        """Draw transition (sets, S, S) and emission (sets, S, O) in quanta, int64: rows sum to `quantum`, entries >= 1.

        Raises TypeError for what is not a CPU generator, ValueError for sets < 1."""
        check_generator(generator)
        checks.integer("sets", sets, least=1)
        S, O, Q = self.S, self.O, self.quantum  # noqa: E741
        rows = _dirichlet(generator, sets, S, O)
        if self.sticky is None:
            transition = _quantise(_dirichlet(generator, sets, S, S), torch.tensor(Q), self._floor_units)
        else:
            first, last = self._sticky_units
            stay = torch.randint(first, last + 1, (sets, S), generator=generator)
            leave = _quantise(_dirichlet(generator, sets, S, S - 1), Q - stay, 1)
            transition = torch.diag_embed(stay)
            transition[:, ~torch.eye(S, dtype=torch.bool)] = leave.flatten(1)
            favourite = _permutations(generator, sets, O)[:, torch.arange(S) % O]
            rows = (1 - self.sharpness) * rows + self.sharpness * head.one_hot(favourite, O, rows.dtype)
        return transition, _quantise(rows, torch.tensor(Q), self._floor_units)

    def _sample(self, generator: torch.Generator, transition: Tensor, emission: Tensor) -> tuple[Tensor, Batch]:
        """Observations (B, K) and the filter's batch over them, from parameters in quanta (B, S, S) and (B, S, O)."""
        B, S, K, Q = len(transition), self.S, self.K, self.quantum
        moves, sights = torch.randint(Q, (2, K, B, 1), generator=generator)  # exact: probabilities are whole quanta
        upto = transition.cumsum(-1).permute(2, 1, 0)[:-1, None].contiguous()  # (S - 1, 1, S, B); the last would be Q
        following = (moves.mT >= upto).sum(0)  # (K, S, B): where a chain goes from each state
        path = [torch.randint(S, (1, B), generator=generator)]
        for step in following[1:]:  # a chain is sequential; all chains step together
            path.append(step.gather(0, path[-1]))
        states = torch.cat(path).T.contiguous()
        seen_upto = _rows(emission.cumsum(-1)[..., :-1], states)  # (B, K, O - 1)
        observations = (sights.movedim(0, 1) >= seen_upto).sum(-1)
        extra = {"transition": transition.double() / Q, "emission": emission.double() / Q, "observations": observations}
        filtered = _filter(**extra)
        return Batch(observations, torch.ones(B, K, dtype=torch.bool), states, filtered, extra)

    def _own(self, batch):
        if set(batch.extra) != {"transition", "emission", "observations"}:
            raise ValueError(
                f"batch must be a hidden Markov model's, with its matrices, got {sorted(batch.extra) or 'none'}"
            )
        spare = self.T - self.K
        return [
            (f"window-{n}", torch.nn.functional.pad(hmm_window(**batch.extra, n=n), (0, 0, spare, 0))) for n in WINDOWS
        ]


def _dirichlet(generator: torch.Generator, *shape: int) -> Tensor:
    """Draws from Dirichlet(1) over the last dimension, float64."""
    drawn = -torch.log1p(-torch.rand(*shape, generator=generator, dtype=torch.float64))  # exponential
    return drawn / drawn.sum(-1, keepdim=True)


@dataclass(frozen=True)
class HeaderHMM(_HMM):
    """A hidden Markov model of its own for each sequence, stated in a header; asked for the hidden state at every observation.

    Tokens: a mark, the S x S transition entries row by row, a mark, the S x O emission entries, a mark, K observations
    (53 tokens of header at S = O = 5). Symbol o is token o, an entry of k quanta is token O - 1 + k, the three marks
    come last. Names of states and symbols are exchangeable, so that without the header (constant, memoryless) nothing
    is better than uniform. The start is uniform.

    >>> tunnel = HeaderHMM(S=2, O=3, K=4)
    >>> batch = tunnel.draw(torch.Generator().manual_seed(0), 1)
    >>> batch.inputs[0].tolist()
    [103, 33, 71, 74, 30, 104, 68, 25, 13, 51, 22, 33, 105, 0, 0, 2, 1]
    >>> [matrix[0].tolist() for matrix in tunnel.decode_header(batch.inputs)]  # in hundredths
    [[[31, 69], [72, 28]], [[66, 23, 11], [49, 20, 31]]]

    Raises ValueError for S < 2, O < 2, K < 1, and a floor or a sticky range that rows of `quantum` cannot hold.
    """

    vocabulary = property(lambda self: self.O + self.quantum + 3)
    header = property(lambda self: self.S * (self.S + self.O) + 3)  # its length in tokens
    T = property(lambda self: self.header + self.K)

    def decode_header(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The transition (B, S, S) and emission (B, S, O) matrices, in quanta, that tokens (B, T) state.

        Raises TypeError or ValueError for tokens that state none."""
        S = self.S
        checks.indices("tokens", tokens, self.vocabulary, "tokens", last=(None, self.T), exact=True)
        first, second = tokens[:, 1 : S * S + 1], tokens[:, S * S + 2 : self.header - 1]
        stated = [part.unflatten(1, (S, -1)) - (self.O - 1) for part in (first, second)]
        if any(rows.min() < 1 or (rows.sum(-1) != self.quantum).any() for rows in stated):
            raise ValueError(
                f"tokens must state rows of positive entries that sum to {self.quantum} quanta, got others"
            )
        return stated[0], stated[1]

    def _draw(self, generator, B):
        transition, emission = self.parameters(generator, B)
        seen = self._sample(generator, transition, emission)
        offset, mark = self.O - 1, torch.arange(3).expand(B, 3) + self.O + self.quantum
        stated = [mark[:, :1], transition.flatten(1) + offset, mark[:, 1:2], emission.flatten(1) + offset, mark[:, 2:]]
        pad = torch.nn.functional.pad
        return Batch(
            torch.cat([*stated, seen.inputs], 1),
            pad(seen.supervised, (self.header, 0)),
            pad(seen.targets, (self.header, 0)),
            pad(seen.posterior, (0, 0, self.header, 0), value=1 / self.S),
            seen.extra,
        )


@dataclass(frozen=True)
class FixedHMM(_HMM):
    """One hidden Markov model, drawn from `seed` and the same in every sequence: transport alone, without retrieval.

    Tokens are the K observations; the hidden state is asked for at each. The start is uniform, so the memoryless answer
    depends on the position until the chain has forgotten it. How far windows stay from the filter differs from seed to
    seed, most at S = 3: look before a verdict is drawn from one.

    >>> batch = FixedHMM(S=2, O=3, K=4, sticky=(0.7, 0.95), seed=1).draw(torch.Generator().manual_seed(0), 1)
    >>> batch.inputs[0].tolist(), batch.targets[0].tolist()
    ([1, 1, 0, 0], [1, 1, 1, 1])

    Raises ValueError for S < 2, O < 2, K < 1, and a floor or a sticky range that rows of `quantum` cannot hold.
    """

    seed: int = 2  # of the parameters

    def __post_init__(self):
        super().__post_init__()
        checks.integer("seed", self.seed)

    vocabulary = property(lambda self: self.O)
    T = property(lambda self: self.K)

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """The transition (S, S) and emission (S, O) matrices in quanta, int64."""
        transition, emission = self.parameters(torch.Generator().manual_seed(self.seed), 1)
        return transition[0], emission[0]

    def _draw(self, generator, B):
        return self._sample(generator, *(matrix.expand(B, -1, -1) for matrix in self.matrices))

    def _own(self, batch):
        windows = super()._own(batch)
        transition, emission = (matrix.to(batch.posterior.device).double() / self.quantum for matrix in self.matrices)
        if not (
            torch.equal(batch.extra["transition"][0], transition) and torch.equal(batch.extra["emission"][0], emission)
        ):
            raise ValueError(f"batch must be of this model's matrices, seed {self.seed}, got one of others")
        marginals = [torch.full_like(transition[0], 1 / self.S)]
        for _ in range(1, self.K):
            marginals.append(marginals[-1] @ transition)
        prior = torch.stack(marginals)  # (K, S): p(s_t) with nothing read
        joint = prior * emission.mT[batch.inputs]
        own = [("constant", prior.mean(0)), ("memoryless", joint / joint.sum(-1, keepdim=True))]
        return own + windows


# The tasks of the chapter "EM against SGD"


@dataclass(frozen=True)
class StickyTunnel(Tunnel):
    """Noisy sightings of a sticky chain on a ring, `tasks.sticky_chain`, with means drawn once from `seed`.

    >>> batch = StickyTunnel(T=5).draw(torch.Generator().manual_seed(0), 2)
    >>> tuple(batch.inputs.shape), tuple(batch.posterior.shape)
    ((2, 5, 20), (2, 5, 8))

    Raises ValueError for C < 2, d_x < 1, T < 1, a self_prob outside [0, 1] or a noise that is not positive.
    """

    C: int = 8  # symbols on the ring
    d_x: int = 20  # dimensions of the sightings
    T: int = 100
    self_prob: float = 0.3
    authors: bool = False  # the matrix of the paper's public code: see tasks.ring_transition
    noise: float = 1.0
    seed: int = 0  # of the means

    def __post_init__(self):
        checks.integer("d_x", self.d_x, least=1)
        checks.integer("T", self.T, least=1)
        checks.number("noise", self.noise, above=0)
        checks.integer("seed", self.seed)
        tasks.ring_transition(self.C, self.self_prob, authors=self.authors)

    @cached_property
    def means(self) -> Tensor:
        """The mean of each symbol's sightings, (C, d_x) float64."""
        return torch.randn(self.C, self.d_x, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)

    @cached_property
    def transition(self) -> Tensor:
        """The chain's transition matrix, (C, C) float64."""
        return tasks.ring_transition(self.C, self.self_prob, authors=self.authors)

    def _draw(self, generator, B):
        means = self.means.expand(B, -1, -1)
        chain = tasks.sticky_chain(generator, self.transition, means, self.T, noise=self.noise)
        supervised = torch.ones(B, self.T, dtype=torch.bool)
        exact = tasks.filter_predictive(chain, self.noise)
        return Batch(chain.inputs, supervised, chain.targets, exact, {})

    def _own(self, batch):
        x = batch.inputs.cpu().double()
        chain = tasks.Chain(batch.targets.cpu(), x, batch.targets.cpu(), self.transition, self.means)
        return [
            ("constant", tasks.stationary(self.transition)),
            ("memoryless", tasks.positionwise_predictive(chain, self.noise)),
        ]


@dataclass(frozen=True)
class LookupTunnel(Tunnel):
    """Keys with their values, and a question about another key, at every position: `tasks.lookup` (start token first).

    >>> batch = LookupTunnel(shown=3, K=3, C=2).draw(torch.Generator().manual_seed(0), 1)
    >>> batch.posterior[0].tolist()  # the queried key has been shown at position 2 alone; position 0 is the start token
    [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]

    Raises ValueError for shown < 1, K < 2 or C < 2.
    """

    shown: int = 24  # positions after the start token
    K: int = 8  # keys
    C: int = 8  # values, the classes

    def __post_init__(self):
        checks.integer("shown", self.shown, least=1)
        checks.integer("K", self.K, least=2)
        checks.integer("C", self.C, least=2)

    d_x = property(lambda self: 2 * self.K + self.C + 1)
    T = property(lambda self: self.shown + 1)

    def _draw(self, generator, B):
        task = tasks.lookup(generator, B, self.shown, K=self.K, C=self.C, dtype=torch.float64)
        supervised = (task.position_weights > 0).expand(B, -1)
        return Batch(task.inputs, supervised, task.targets, tasks.lookup_predictive(task, self.C), {})


# Scores


class Score(NamedTuple):
    """mean: over all supervised positions of all sequences; per_position (T,): over sequences, NaN where unsupervised."""

    mean: float
    per_position: Tensor


def kl(posterior: Tensor, log_p: Tensor, supervised: Tensor) -> Score:
    """KL(exact ‖ model) in bits; log_p (B, T, C): the model's log-probabilities in nats, as log_softmax gives them.

    >>> exact, model = torch.tensor([[[1.0, 0.0]], [[0.25, 0.75]]], dtype=torch.float64)[:, None]
    >>> kl(exact, model.log(), torch.tensor([[True]])).mean
    2.0

    Raises TypeError or ValueError for shapes or dtypes that do not fit, and a posterior or log_p whose rows are not
    normalised.
    """
    posterior, log_p = _pair(posterior, log_p, supervised)
    terms = torch.where(posterior > 0, posterior * (posterior.log() - log_p), 0)
    return _score(terms.sum(-1) / math.log(2), supervised)


def entropy_error(posterior: Tensor, log_p: Tensor, supervised: Tensor) -> Score:
    """Mean absolute difference of the entropies of exact posterior and model, in bits; absolute before any averaging.

    Arguments and errors as for `kl`. Several wrong predictors score well on it: read it beside `kl`.
    """
    posterior, log_p = _pair(posterior, log_p, supervised)
    return _score((tasks.entropy(posterior) - tasks.entropy(log_p.exp())).abs() / math.log(2), supervised)


def accuracy(targets: Tensor, log_p: Tensor, supervised: Tensor) -> Score:
    """Fraction of sampled targets (B, T) that are the model's most probable class; the first of several equal ones.

    Raises TypeError or ValueError for shapes or dtypes that do not fit, targets that are no classes, and a log_p whose rows
    are not normalised."""
    _check_supervised(supervised)
    _check_log_p(log_p, (*supervised.shape, None), supervised)
    checks.indices("targets", targets, log_p.shape[-1], "class indices", last=tuple(supervised.shape))
    return _score((log_p.argmax(-1) == targets).double(), supervised)


def best_constant_entropy(posterior: Tensor, supervised: Tensor) -> tuple[float, float]:
    """The one entropy, said everywhere, with the least `entropy_error` (the median), and that error; both in bits."""
    _check_supervised(supervised)
    checks.probabilities("posterior", posterior, 1e-3, last=(*supervised.shape, None))
    entropies = tasks.entropy(posterior.double())[supervised] / math.log(2)
    median = entropies.median()
    return median.item(), (entropies - median).abs().mean().item()


def _check_supervised(supervised: Tensor) -> None:
    checks.tensor("supervised", supervised, dims=2, floating=False)
    if supervised.dtype != torch.bool or supervised.dim() != 2 or not supervised.any():
        raise ValueError(
            f"supervised must be a bool mask (B, T) with a True in it, got {supervised.dtype} of shape"
            f" {tuple(supervised.shape)} with {int(supervised.sum())} entries that are not 0"
        )


def _check_log_p(log_p: Tensor, shape: tuple[int | None, ...], supervised: Tensor) -> None:
    checks.tensor("log_p", log_p, last=shape, floating=False)  # minus infinity is allowed
    off = (log_p.double().logsumexp(-1)[supervised]).abs().max().item()
    if not off < 1e-3 or not log_p.is_floating_point():
        raise ValueError(
            f"log_p must hold log-probabilities (see log_softmax), got {log_p.dtype} with a row's logsumexp off 0 by {off:g}"
        )


def _pair(posterior: Tensor, log_p: Tensor, supervised: Tensor) -> tuple[Tensor, Tensor]:
    _check_supervised(supervised)
    checks.probabilities("posterior", posterior, 1e-3, last=(*supervised.shape, None))
    _check_log_p(log_p, tuple(posterior.shape), supervised)
    return posterior.double(), log_p.double()


def _score(values: Tensor, supervised: Tensor) -> Score:
    """Averages of values (B, T) over supervised entries."""
    values, counts = torch.where(supervised, values, 0), supervised.sum(0)
    return Score((values.sum() / counts.sum()).item(), values.sum(0) / counts)
