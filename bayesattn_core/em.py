"""Expectation-maximisation beside attention: a Gaussian mixture, the head as a mixture of experts, and a majorised M-step.

The book derives all of this in the chapter "In what sense is attention EM?" (book/em-analogy.ipynb). Symbols as in
attention.py; besides:

    code               maths   shape          meaning
    experts            π_j     (..., T, C)    softmax(v_j W_O): each position's value makes a prediction of its own
    expert_losses      ℓ_ij    (..., T, T)    -log π_j(y_i), nats
    responsibilities   r_ij    (..., T, T)    posterior of expert j for target i, ∝ α_ij exp(-ℓ_ij)
    routed             Z       (..., T, d_x)  A X, the inputs as attention mixes them: contexts are Z W_V
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import attention as head
from . import checks


class Mixture(NamedTuple):
    """A mixture-of-experts head: the loss (...), and the tensors of the glossary."""

    loss: Tensor
    attention: Tensor
    experts: Tensor
    expert_losses: Tensor
    responsibilities: Tensor


def mixture(
    scores: Tensor, values: Tensor, W_O: Tensor, targets: Tensor, position_weights: Tensor, causal: bool = True
) -> Mixture:
    """The head that mixes probabilities instead of logits: p(y|i) = Σ_j α_ij π_j(y), L = -Σ_i w_i log p(y_i|i), nats.

    scores (..., T, T), values (..., T, d_v), W_O (..., d_v, C), targets (..., T) int64, position_weights (..., T).
    Source: book, eq-mixture; [ours]. Raises TypeError or ValueError that names the argument.
    """
    T = checks.tensor("values", values, dims=2).shape[-2]
    checks.tensor("scores", scores, last=(T, T))
    C = checks.tensor("W_O", W_O, last=(values.shape[-1], None)).shape[-1]
    checks.tensor("position_weights", position_weights, last=(T,))
    checks.tensor("targets", targets, last=(T,), floating=False)
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be class indices (int64), got {targets.dtype}")
    if targets.min() < 0 or targets.max() >= C:
        given = f"{targets.min().item()} to {targets.max().item()}"
        raise ValueError(f"targets must be class indices from 0 to {C - 1}, got {given}")
    S = scores.masked_fill(~head.visible(T, causal, scores.device), -math.inf)
    log_experts = (values @ W_O).log_softmax(-1)  # (..., T, C)
    losses = -head.one_hot(targets, C, values.dtype) @ log_experts.mT  # ℓ_ij, (..., T, T)
    evidence = (S.log_softmax(-1) - losses).logsumexp(-1)  # log p(y_i|i), (..., T)
    loss = -(position_weights * evidence).sum(-1)
    return Mixture(loss, S.softmax(-1), log_experts.exp(), losses, (S - losses).softmax(-1))


def mixture_gradients(mixed: Mixture, W_O: Tensor, targets: Tensor, position_weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂s_ij = w_i (α_ij - r_ij) and ∂L/∂v_j = Σ_i w_i r_ij (π_j - y_i) W_Oᵀ of `mixture`, exactly (book: eq-mixture-gradients)."""
    weighted = position_weights[..., None] * mixed.responsibilities  # w_i r_ij
    Y = head.one_hot(targets, W_O.shape[-1], W_O.dtype)
    residual = weighted.sum(-2)[..., None] * mixed.experts - weighted.mT @ Y  # (..., T, C)
    return position_weights[..., None] * mixed.attention - weighted, residual @ W_O.mT


def majorised_step(
    routed: Tensor, W_O: Tensor, probabilities: Tensor, targets: Tensor, position_weights: Tensor
) -> Tensor:
    """ΔW_V (..., d_x, d_v): one majorise-minimise step on W_V with attention and W_O held. The loss cannot rise.

    routed Z (..., T, d_x), W_O (..., d_v, C), probabilities (..., T, C) at the present W_V, targets as in
    `attention.forward`, position_weights (..., T). Böhning's bound ½(I - 11ᵀ/C) on the softmax Hessian gives a
    quadratic majoriser whose minimum-norm minimiser is -2 (ZᵀDZ)⁺ ZᵀD(P - Y) W_O⁺ with the rows of W_O centred over
    classes, D = diag(w). Source: book, eq-majorised-step; [ours].
    """
    residual = probabilities - head.one_hot(targets, W_O.shape[-1], W_O.dtype)
    weighted = position_weights[..., None] * routed  # D Z
    centred = W_O - W_O.mean(-1, keepdim=True)
    gram = torch.linalg.pinv(routed.mT @ weighted, hermitian=True)
    # pinv's own cut-off counts only the centred matrix's lost direction as zero, in either precision
    return -2 * gram @ (weighted.mT @ residual) @ torch.linalg.pinv(centred)


def gaussian_scores(x: Tensor, means: Tensor, shares: Tensor, variance: float) -> Tensor:
    """Scores (..., n, K) whose softmax rows are the responsibilities of a spherical Gaussian mixture.

    s_ij = x_i . μ_j / σ² + log(share_j) - |μ_j|² / 2σ²: a query, a key and a key bias, so that responsibilities are
    attention rows. x (..., n, d), means (..., K, d), shares (..., K) that sum to 1, variance σ² > 0 (book: eq-gaussian-scores).
    """
    checks.number("variance", variance, above=0)
    d = checks.tensor("x", x, dims=2).shape[-1]
    K = checks.tensor("means", means, last=(None, d)).shape[-2]
    checks.tensor("shares", shares, last=(K,))
    if shares.min() <= 0:
        raise ValueError(f"shares must be positive, got {shares.min().item():g}")
    return (x @ means.mT - 0.5 * means.square().sum(-1)[..., None, :]) / variance + shares.log()[..., None, :]


def gaussian_log_likelihood(x: Tensor, means: Tensor, shares: Tensor, variance: float) -> Tensor:
    """Mean log-likelihood (...) in nats per point of a spherical Gaussian mixture; arguments as in `gaussian_scores`."""
    scores = gaussian_scores(x, means, shares, variance)
    d = x.shape[-1]
    constant = -0.5 * x.square().sum(-1) / variance - 0.5 * d * math.log(2 * math.pi * variance)
    return (scores.logsumexp(-1) + constant).mean(-1)


def gaussian_em_step(x: Tensor, means: Tensor, shares: Tensor, variance: float) -> tuple[Tensor, Tensor, Tensor]:
    """One exact EM step with fixed variance: responsibilities (..., n, K), then new means and shares (book: eq-gaussian-em)."""
    responsibilities = gaussian_scores(x, means, shares, variance).softmax(-1)
    weight = responsibilities.sum(-2)  # (..., K)
    return responsibilities, responsibilities.mT @ x / weight[..., None], weight / weight.sum(-1, keepdim=True)
