"""Every sequence layer as y_t = Σ_s w_ts z_s: the routing weights w of each architecture, and what they may depend on.

    architecture    w_ts                                                    z_s, what is routed
    transformer     α_ts, one for each head                                 values
    mamba           Σ_n C_t[n] exp(A_n Σ_{r=s+1..t} Δ_r) Δ_s B_s[n] (+ D)   z, after convolution and SiLU
    lstm            (Π_{r=s+1..t} f_r) i_s, of the cell, given its gates     candidates
    mlp             1 at s = t, 0 elsewhere                                 itself

The book uses this in the chapter "Content-based routing" (book/routing.ipynb).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import attention as head
from . import checks, models, scan


def lstm_gates(lstm: torch.nn.LSTM, inputs: Tensor) -> dict[str, Tensor]:
    """Gates input, forget and output, candidates and cells of a one-layer LSTM from a zero state, each (B, T, hidden).

    inputs (B, T, width). Computed from the weights, one position after another: c_t = f_t c_{t-1} + i_t z_t.
    Raises TypeError for what is not a torch LSTM, ValueError for one of another kind or a wrong width.
    """
    if not isinstance(lstm, torch.nn.LSTM):
        raise TypeError(f"lstm must be a torch.nn.LSTM, got {type(lstm).__name__}")
    if lstm.num_layers != 1 or lstm.bidirectional or not lstm.batch_first or not lstm.bias or lstm.proj_size:
        raise ValueError(
            f"lstm must have one layer and one direction, batch first, biases and no projection, got {lstm}"
        )
    checks.tensor("inputs", inputs, last=(None, None, lstm.input_size), exact=True)
    driven = inputs @ lstm.weight_ih_l0.mT + lstm.bias_ih_l0 + lstm.bias_hh_l0  # (B, T, 4 hidden)
    h = cell = inputs.new_zeros(len(inputs), lstm.hidden_size)
    rows = []
    for x in driven.unbind(1):
        i, f, z, o = (x + h @ lstm.weight_hh_l0.mT).chunk(4, -1)
        i, f, z, o = i.sigmoid(), f.sigmoid(), z.tanh(), o.sigmoid()
        cell = f * cell + i * z
        h = o * cell.tanh()
        rows.append((i, f, o, z, cell))
    names = ("input", "forget", "output", "candidates", "cells")
    return {name: torch.stack(parts, 1) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}


def lstm_routing(gates: dict[str, Tensor]) -> Tensor:
    """w_ts = (Π_{r=s+1..t} f_r) i_s of the LSTM's cell, given its gates (see lstm_gates): (B, T, T, hidden), 0 at s > t.

    Raises ValueError for gates without "input" or "forget", of shapes that differ, or a forget gate that is not above 0."""
    for name in ("input", "forget"):
        checks.choice("name", name, gates)
    i, f = checks.tensor("gates['input']", gates["input"], dims=3, exact=True), gates["forget"]
    checks.tensor("gates['forget']", f, last=tuple(i.shape), exact=True)
    if f.min() <= 0:
        raise ValueError(f"gates['forget'] must be above 0, got {f.min().item():g}")
    T = i.shape[1]
    kept = f.log().cumsum(1)  # Σ_{r ≤ t} log f_r
    unseen = ~head.visible(T, True, i.device)[..., None]  # (T, T, 1)
    elapsed = (kept[:, :, None] - kept[:, None]).masked_fill(unseen, 0.0)  # (B, T, T, hidden)
    return (elapsed.exp() * i[:, None]).masked_fill(unseen, 0.0)


def mamba_gradients(
    z: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, u: Tensor
) -> dict[str, Tensor]:
    """Closed-form gradients of a scan from h_0 = 0, given u = ∂L/∂y (B, T, d_inner): sums over routed pairs, no recursion.

    Shapes as in scan.py. With E_ts[n] = exp(A_n Σ_{r=s+1..t} Δ_r), the state h_t[n] = Σ_{s≤t} E_ts[n] Δ_s B_s[n] z_s and the
    upstream that comes back to it, g_s[n] = Σ_{t≥s} E_ts[n] C_t[n] u_t (per channel; Σ_d sums over channels):

        routing (B, T, T, d_inner)   ∂L/∂w_ts = u_t z_s, 0 at s > t: no competition
        z                            Σ_t w_ts u_t
        C                            Σ_d u_t h_t[n]
        B                            Σ_d Δ_s z_s g_s[n]
        delta                        z_r Σ_n B_r[n] g_r[n] + Σ_n A_n exp(Δ_r A_n) h_{r-1}[n] g_r[n]
        A                            Σ over sequences and r of Δ_r exp(Δ_r A_n) h_{r-1}[n] g_r[n]
        D                            Σ over sequences and t of u_t z_t

    It holds E whole, (B, T, T, d_inner, N): for small sizes. Equation (eq-mamba-gradients) in the book. Raises TypeError
    or ValueError that names the argument.
    """
    scan.check(z, delta, A, B, C, D, None)
    checks.tensor("u", u, last=tuple(z.shape))
    T = z.shape[1]
    past = head.visible(T, True, z.device)[..., None]  # (T, T, 1)
    total = delta.cumsum(1)
    elapsed = (total[:, :, None] - total[:, None]).masked_fill(~past, 0.0)
    E = torch.exp(elapsed[..., None] * A) * past[..., None]  # (B, T, T, d_inner, N)
    h = torch.einsum("btsdn,bsd,bsn->btdn", E, delta * z, B)
    g = torch.einsum("btsdn,btn,btd->bsdn", E, C, u)
    routing = torch.einsum("btsdn,btn,bsd,bsn->btsd", E, C, delta, B)
    routing = routing + torch.eye(T, dtype=D.dtype, device=D.device)[..., None] * D
    before = torch.nn.functional.pad(h, (0, 0, 0, 0, 1, 0))[:, :T]  # h_{r-1}
    through = torch.exp(delta[..., None] * A) * before * g  # (B, T, d_inner, N)
    return {
        "routing": u[:, :, None] * z[:, None] * past,
        "z": (routing * u[:, :, None]).sum(1),
        "delta": z * (g @ B[..., None])[..., 0] + (through * A).sum(-1),
        "A": (through * delta[..., None]).sum((0, 1)),
        "B": torch.einsum("bsd,bsdn->bsn", delta * z, g),
        "C": torch.einsum("btd,btdn->btn", u, h),
        "D": (u * z).sum((0, 1)),
    }


@torch.no_grad()
def routing_weights(model: models.Model, inputs: Tensor) -> list[Tensor]:
    """The routing weights of every block, (B, T, T, channels); channels are heads of a Transformer, else inner channels.

    inputs as the model takes them. Raises TypeError for what is not one of our models, and what the model raises.
    """
    if not isinstance(model, models.Model):
        raise TypeError(f"model must be a models.Model, got {type(model).__name__}")
    recorded = model.record(inputs)
    architecture = model.config.architecture
    if architecture == "transformer":
        return [block["attention"].movedim(1, -1) for block in recorded]
    if architecture == "mamba":
        return [scan.mamba_routing(*(block[name] for name in ("delta", "A", "B", "C", "D"))) for block in recorded]
    if architecture == "lstm":
        before = [model.embedded(inputs), *(block["residual"] for block in recorded[:-1])]
        parts = [(block.norms[0], block.parts[0].lstm) for block in model.blocks]
        return [lstm_routing(lstm_gates(lstm, norm(x))) for (norm, lstm), x in zip(parts, before, strict=True)]
    T = inputs.shape[1]
    alone = torch.eye(T, dtype=recorded[0]["residual"].dtype, device=inputs.device)
    return [alone[None, ..., None].expand(len(inputs), -1, -1, 1)] * len(recorded)


def query_dependence(one: Tensor, other: Tensor) -> Tensor:
    """How much the query x_t re-weights what is stored, by channel, (B, channels), from 0 to 1: the sine of the angle between
    the two rows of weights w_ts, s < t = T, of sequences that differ in their last input alone.

    one, other (B, T, T, channels): routing weights. If no ratio w_ts / w_ts' depends on the query the rows are proportional,
    and the sine is 0 up to rounding. A row that is all zero has the sine 0. Raises ValueError for shapes that differ or T < 3.
    """
    T = checks.tensor("one", one, dims=4, exact=True).shape[1]
    checks.tensor("one", one, last=(T, T, None))
    checks.tensor("other", other, last=tuple(one.shape), exact=True)
    if one.shape[1] < 3:
        raise ValueError(f"one must have at least 3 positions, got {one.shape[1]}")
    first, second = (torch.nn.functional.normalize(weights[:, -1, :-1], dim=1, eps=0.0).nan_to_num(0.0) for weights in (one, other))  # fmt: skip
    along = (first * second).sum(1, keepdim=True)
    return (second - along * first).norm(dim=1)
