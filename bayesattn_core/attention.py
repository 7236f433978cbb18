"""One causal attention head under cross-entropy, and every gradient of its loss in closed form.

The book derives all of this in the chapter "The gradients of attention" (book/gradients.ipynb).
Row vectors: positions are rows. T positions, C classes; any leading batch dimensions `...`, each entry of which
is a head of its own with a loss of its own. Losses are in nats.

    code            maths    shape            meaning
    X               X        (..., T, d_x)    inputs
    queries         Q        (..., T, d_k)    X W_Q
    keys            K        (..., T, d_k)    X W_K
    values          V        (..., T, d_v)    X W_V
    scores          S        (..., T, T)      q_i . k_j / sqrt(d_k); minus infinity where i may not see j
    attention       A (α)    (..., T, T)      softmax of each row of S
    contexts        G        (..., T, d_v)    g_i = sum_j α_ij v_j
    logits                   (..., T, C)      G W_O
    probabilities   P        (..., T, C)      softmax of each row of the logits
    targets         Y        (..., T) or (..., T, C)    class indices (hard), or rows that sum to 1 (soft)
    position_weights w       (..., T)         weight of each position in the loss; 0 where it is unsupervised
    loss            L        (...)            sum_i w_i CE_i
    upstream        U        (..., T, d_v)    u_i = ∂L/∂g_i
    compatibility   B        (..., T, T)      b_ij = u_i . v_j = ∂L/∂α_ij; 0 where i may not see j

Here j may be seen from i if j <= i (causal) or always (not causal). No autograd is used in this module:
autograd and finite differences are its judges (gradcheck.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import checks

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


class Forward(NamedTuple):
    """Everything the forward pass computes; shapes in the module's glossary."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    attention: Tensor
    contexts: Tensor
    logits: Tensor
    probabilities: Tensor
    loss: Tensor


class Gradients(NamedTuple):
    """The gradient of the loss with respect to each tensor of the head, of that tensor's shape.

    `contexts` is the upstream gradient U and `attention` the compatibility B.
    """

    scores: Tensor
    attention: Tensor
    contexts: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor


def visible(T: int, causal: bool, device: torch.device | None = None) -> Tensor:
    """(T, T) boolean: True where position i (row) may see position j (column)."""
    ones = torch.ones(T, T, dtype=torch.bool, device=device)
    return ones.tril() if causal else ones


def scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled dot products s_ij = q_i . k_j / sqrt(d_k), (..., T, T), not masked (book: eq-scores)."""
    return queries @ keys.mT / math.sqrt(queries.shape[-1])


def attend(scores: Tensor, causal: bool = True) -> Tensor:
    """Attention (..., T, T): the softmax of each row of scores over the positions it may see (book: eq-attention)."""
    return scores.masked_fill(~visible(scores.shape[-1], causal, scores.device), -math.inf).softmax(-1)


def one_hot(targets: Tensor, C: int, dtype: torch.dtype) -> Tensor:
    """Targets as rows of probabilities (..., T, C): soft targets as they are, class indices one-hot."""
    return targets if targets.is_floating_point() else torch.nn.functional.one_hot(targets, C).to(dtype)


def cross_entropy(logits: Tensor, targets: Tensor, position_weights: Tensor) -> Tensor:
    """Weighted cross-entropy sum_i w_i CE_i of logits (..., T, C), in nats, (...) (book: eq-loss)."""
    log_p = logits.log_softmax(-1)
    return -(position_weights * (one_hot(targets, logits.shape[-1], logits.dtype) * log_p).sum(-1)).sum(-1)


def uniform_weights(X: Tensor) -> Tensor:
    """The position weights of the mean, w_i = 1/T: (T,), dtype and device of X."""
    return torch.full(X.shape[-2:-1], 1 / X.shape[-2], dtype=X.dtype, device=X.device)


def check(X: Tensor, weights: dict[str, Tensor], targets: Tensor, position_weights: Tensor | None = None) -> Tensor:
    """Check the inputs of a head and return its position weights (the mean's, if None was given).

    Raises TypeError or ValueError that names the argument: wrong keys, shapes, dtypes or devices, batch dimensions
    that do not broadcast, empty or non-finite tensors, class indices outside 0..C-1, soft targets that are negative
    or do not sum to 1, negative position weights.
    """
    checks.tensor("X", X, dims=2)
    T, d_x = X.shape[-2:]
    if not isinstance(weights, dict) or set(weights) != set(WEIGHTS):
        given = sorted(weights) if isinstance(weights, dict) else type(weights).__name__
        raise ValueError(f"weights must be a dict with the keys {', '.join(WEIGHTS)}, got {given}")
    for name in WEIGHTS:
        checks.tensor(name, weights[name], dims=2)
    checks.tensor("W_Q", weights["W_Q"], last=(d_x, None))
    checks.tensor("W_K", weights["W_K"], last=(d_x, weights["W_Q"].shape[-1]))
    checks.tensor("W_V", weights["W_V"], last=(d_x, None))
    checks.tensor("W_O", weights["W_O"], last=(weights["W_V"].shape[-1], None))
    named = weights | {"targets": targets, "position_weights": position_weights}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.device != X.device:
            raise ValueError(f"{name} must be on X's device {X.device}, got {value.device}")
    C = weights["W_O"].shape[-1]
    if isinstance(targets, Tensor) and targets.is_floating_point():
        checks.probabilities("targets", targets, 100 * torch.finfo(targets.dtype).eps * C, last=(T, C))
        batch = [targets.shape[:-2]]
    else:
        checks.indices("targets", targets, C, "class indices", last=(T,))
        batch = [targets.shape[:-1]]
    if position_weights is None:
        position_weights = uniform_weights(X)
    checks.tensor("position_weights", position_weights, last=(T,))
    if position_weights.min() < 0:
        raise ValueError(f"position_weights must not be negative, got {position_weights.min().item():g}")
    named = {**weights, "targets": targets, "position_weights": position_weights}
    for name, value in named.items():
        if value.is_floating_point() and value.dtype != X.dtype:
            raise TypeError(f"{name} must have X's dtype {X.dtype}, got {value.dtype}")
    batch += [X.shape[:-2], position_weights.shape[:-1], *(w.shape[:-2] for w in weights.values())]
    try:
        torch.broadcast_shapes(*batch)
    except RuntimeError:
        raise ValueError(
            f"the batch dimensions of X, weights, targets and position_weights must broadcast, got {[tuple(b) for b in batch]}"
        ) from None
    return position_weights


def forward(
    X: Tensor, weights: dict[str, Tensor], targets: Tensor, position_weights: Tensor | None = None, causal: bool = True
) -> Forward:
    """The head's forward pass: X (..., T, d_x), weights {W_Q, W_K, W_V, W_O}, targets hard (..., T) or soft (..., T, C).

    position_weights (..., T) default to 1/T (the mean over positions). Raises what `check` raises.
    Source: book, section "The head"; paper arXiv:2512.22473.
    """
    position_weights = check(X, weights, targets, position_weights)
    return unchecked_forward(X, weights, targets, position_weights, causal)


def unchecked_forward(
    X: Tensor, weights: dict[str, Tensor], targets: Tensor, position_weights: Tensor, causal: bool = True
) -> Forward:
    """`forward` without its checks, for training, which checks its inputs once."""
    Q, K, V = X @ weights["W_Q"], X @ weights["W_K"], X @ weights["W_V"]
    S = scores(Q, K)
    S = S.masked_fill(~visible(X.shape[-2], causal, X.device), -math.inf)  # (..., T, T)
    A = S.softmax(-1)
    G = A @ V  # (..., T, d_v)
    logits = G @ weights["W_O"]
    return Forward(Q, K, V, S, A, G, logits, logits.softmax(-1), cross_entropy(logits, targets, position_weights))


def advantage(attention: Tensor, compatibility: Tensor) -> Tensor:
    """a_ij = -(b_ij - E_{α_i}[b]), (..., T, T): positive where descent raises the score (book: eq-advantage)."""
    return (attention * compatibility).sum(-1, keepdim=True) - compatibility


def gradients(
    X: Tensor, weights: dict[str, Tensor], targets: Tensor, position_weights: Tensor | None = None, causal: bool = True
) -> tuple[Forward, Gradients]:
    """The forward pass and every closed-form gradient. Arguments and errors as in `forward`.

    Each batch entry is a head of its own: a weight shared by broadcasting gets one gradient per entry.
    Source: book, eq-upstream to eq-weight-gradients; the routing and value laws are the paper's (arXiv:2512.22473).
    """
    position_weights = check(X, weights, targets, position_weights)
    head = unchecked_forward(X, weights, targets, position_weights, causal)
    return head, unchecked_gradients(head, X, weights["W_O"], targets, position_weights, causal)


def unchecked_gradients(
    head: Forward, X: Tensor, W_O: Tensor, targets: Tensor, position_weights: Tensor, causal: bool = True
) -> Gradients:
    """`gradients` of a forward pass, without checks."""
    A = head.attention
    scale = 1 / math.sqrt(head.queries.shape[-1])
    residual = position_weights[..., None] * (
        head.probabilities - one_hot(targets, W_O.shape[-1], X.dtype)
    )  # (..., T, C)
    U = residual @ W_O.mT  # upstream, (..., T, d_v)
    B = (U @ head.values.mT).masked_fill(~visible(X.shape[-2], causal, X.device), 0.0)  # compatibility, (..., T, T)
    baseline = (A * B).sum(
        -1, keepdim=True
    )  # E_{α_i}[b], (..., T, 1); not u_i . g_i, which leaves rounding where the gradient is exactly 0
    dS = A * (B - baseline)  # the advantage law
    dQ = dS @ head.keys * scale
    dK = dS.mT @ head.queries * scale
    dV = A.mT @ U  # the value law
    return Gradients(
        scores=dS, attention=B, contexts=U, queries=dQ, keys=dK, values=dV,
        W_Q=X.mT @ dQ, W_K=X.mT @ dK, W_V=X.mT @ dV, W_O=head.contexts.mT @ residual,
    )  # fmt: skip


def route(X: Tensor, weights: dict[str, Tensor], causal: bool = True, block: int = 80) -> Tensor:
    """Z = A X (..., T, d_x), the inputs as attention mixes them, `block` rows at a time; contexts are Z W_V.

    Only W_Q and W_K are used. Inputs are not checked.
    """
    T, d_x = X.shape[-2:]
    W_Q, W_K = weights["W_Q"], weights["W_K"]
    batch = torch.broadcast_shapes(X.shape[:-2], W_Q.shape[:-2], W_K.shape[:-2])
    X, Q, K = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (X, X @ W_Q, X @ W_K))
    Z = torch.empty_like(X)
    for x, q, k, z in zip(X, Q, K, Z, strict=True):
        for first in range(0, T, block):
            last = min(first + block, T)
            seen = slice(0, last if causal else T)
            S = scores(q[first:last], k[seen])
            if causal:
                S[:, first:].masked_fill_(~visible(last - first, True, X.device), -math.inf)
            torch.mm(S.softmax(-1), x[seen], out=z[first:last])
    return Z.reshape(*batch, T, d_x)


def blockwise(
    X: Tensor,
    weights: dict[str, Tensor],
    targets: Tensor,
    position_weights: Tensor,
    causal: bool = True,
    block: int = 80,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(loss (...), log-probabilities (..., T, C), gradients of the four weights): as `gradients`, with less work.

    Attention is computed `block` rows at a time, for causal rows only over the columns that they may see, and never
    stored whole: memory grows with block x T, not T x T. The baseline comes as u_i . g_i, folded into one product.
    Sequences no longer than a block go through the plain closed forms, all runs at once.
    Inputs are not checked (training checks them once); position_weights are required.
    """
    W_Q, W_K, W_V, W_O = (weights[name] for name in WEIGHTS)
    if X.shape[-2] <= block:
        whole = unchecked_forward(X, weights, targets, position_weights, causal)
        found = unchecked_gradients(whole, X, W_O, targets, position_weights, causal)
        return whole.loss, whole.logits.log_softmax(-1), {name: getattr(found, name) for name in WEIGHTS}
    hard = not targets.is_floating_point()
    shapes = [X.shape[:-2], targets.shape[: -1 if hard else -2], position_weights.shape[:-1]]
    batch = torch.broadcast_shapes(*shapes, *(w.shape[:-2] for w in weights.values()))
    T, C, d_k, d_v = X.shape[-2], W_O.shape[-1], W_Q.shape[-1], W_V.shape[-1]
    scale = 1 / math.sqrt(d_k)

    def runs(value: Tensor, tail: int) -> Tensor:  # one leading dimension of runs, R
        return value.expand(*batch, *value.shape[-tail:]).reshape(-1, *value.shape[-tail:])

    def pad(value: Tensor) -> Tensor:  # zero columns up to a multiple of 16: narrow products take 3 times as long
        return torch.nn.functional.pad(value, (0, -value.shape[-1] % 16))

    X, Y, w = runs(X, 2), runs(one_hot(targets, C, X.dtype), 2), runs(position_weights[..., None], 2)
    Q, K, V = pad(X @ runs(W_Q, 2) * scale), pad(X @ runs(W_K, 2)), X @ runs(W_V, 2)
    V = pad(torch.cat([V, torch.ones_like(V[..., :1])], -1))  # rows [v_j, 1, 0 ...]
    W_O = torch.nn.functional.pad(runs(W_O, 2), (0, 0, 0, V.shape[-1] - d_v))  # rows for the columns added to V
    hidden = ~visible(min(block, T), True, X.device)
    dQ, dK, dV, G = torch.empty_like(Q), torch.zeros_like(K), torch.zeros_like(V), torch.empty_like(V)
    log_p, residual = (X.new_empty(*X.shape[:-1], C) for _ in range(2))
    for q, k, v, w_o, y, w_r, dq, dk, dv, g, lp, r in zip(
        Q, K, V, W_O, Y, w, dQ, dK, dV, G, log_p, residual, strict=True
    ):
        # run by run, so that a block of attention stays in the processor's cache
        for first in range(0, T, block):
            last = min(first + block, T)
            rows, seen = slice(first, last), slice(0, last if causal else T)
            A = q[rows] @ k[seen].mT  # (rows, seen)
            if causal:
                A[:, first:].masked_fill_(hidden[: last - first, : last - first], -math.inf)
            A = A.softmax(-1)
            torch.mm(A, v[seen], out=g[rows])  # [g_i, 1, 0 ...]
            lp[rows] = (g[rows] @ w_o).log_softmax(-1)
            r[rows] = (lp[rows].exp() - y[rows]) * w_r[rows]
            U = r[rows] @ w_o.mT  # [u_i, 0 ...]
            U[:, d_v] = -(U * g[rows]).sum(-1)  # [u_i, -u_i . g_i, 0 ...]: times [v_j, 1, 0 ...], b_ij minus its mean
            dS = (U @ v[seen].mT).mul_(A)
            torch.mm(dS, k[seen], out=dq[rows])
            dk[seen].addmm_(dS.mT, q[rows])
            dv[seen].addmm_(A.mT, U)
    loss = -(w[..., 0] * (Y * log_p).sum(-1)).sum(-1)
    products = (X, dQ[..., :d_k] * scale), (X, dK[..., :d_k]), (X, dV[..., :d_v]), (G[..., :d_v], residual)
    gradients = {
        name: (a.mT @ b).reshape(*batch, a.shape[-1], -1) for name, (a, b) in zip(WEIGHTS, products, strict=True)
    }
    return loss.reshape(batch), log_p.reshape(*batch, T, C), gradients
