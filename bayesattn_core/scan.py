"""The selective scan of Mamba, y_t = sum_s w_ts z_s: by definition, fast, and as routing weights.

    code          maths   shape                   meaning
    z             z       (B, T, d_inner)         what is mixed: Mamba's input after its convolution and SiLU
    delta         Δ       (B, T, d_inner)         step sizes, positive
    A             A       (d_inner, N)            rates of forgetting, negative; N states for each channel
    B, C          B, C    (B, T, N)               what is written to the state, and what is read from it
    D             D       (d_inner)               skip
    h             h       (B, d_inner, N)         state: h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t z_t
    drive         Δ z     (B, T, d_inner)         what B writes
    y             y       (B, T, d_inner)         y_t = C_t . h_t + D z_t
    u             u       (B, T, d_inner)         upstream, ∂L/∂y
    routing       w_ts    (B, T, T, d_inner)      y_t = sum_s w_ts z_s, if h_0 = 0

Where this differs from the paper (Gu and Dao 2023): B is discretised by the Euler step Δ B, as in its public code; the
paper states zero-order hold, (exp(ΔA) - 1)/A . B. Nothing is clamped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import attention as head
from . import checks

ENTRIES = {"cpu": 2**19}  # states in a block of the scan: on a CPU, what its cache can hold
ENTRIES_ELSEWHERE = 2**27


def check(z: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor | None) -> Tensor:
    """Check the inputs of a scan (shapes in the module's glossary) and return its initial state (zeros for None)."""
    checks.tensor("z", z, dims=3)
    checks.tensor("A", A, dims=2)
    (batch, T, d), N = z.shape[-3:], A.shape[-1]
    h = z.new_zeros(batch, d, N) if h is None else h
    shapes = {"z": (batch, T, d), "delta": (batch, T, d), "A": (d, N), "B": (batch, T, N), "C": (batch, T, N)}
    shapes |= {"D": (d,), "h": (batch, d, N)}
    for (name, shape), value in zip(shapes.items(), (z, delta, A, B, C, D, h), strict=True):
        checks.tensor(name, value)
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
        if value.dtype != z.dtype or value.device != z.device:
            raise TypeError(f"{name} must be {z.dtype} on {z.device} as z is, got {value.dtype} on {value.device}")
    return h


def selective_scan_loop(
    z: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(y, last state) by the definition, one position after another, in autograd: the judge of `selective_scan`."""
    h = check(z, delta, A, B, C, D, h)
    outputs = []
    for t in range(z.shape[1]):
        h = torch.exp(delta[:, t, :, None] * A) * h + delta[:, t, :, None] * B[:, t, None] * z[:, t, :, None]
        outputs.append((h * C[:, t, None]).sum(-1) + D * z[:, t])
    return torch.stack(outputs, 1), h


def selective_scan(
    z: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y (B, T, d_inner) and the last state (B, d_inner, N) of the selective scan from state h (zeros if None).

    The same numbers as `selective_scan_loop`, faster and in little memory. Shapes in the module's glossary.
    Raises TypeError or ValueError that names the argument.
    """
    return unchecked_scan(z, delta, A, B, C, D, check(z, delta, A, B, C, D, h))


def unchecked_scan(z, delta, A, B, C, D, h):
    """`selective_scan` without its checks, for training; here h is required."""
    return SelectiveScan.apply(z, delta, A, B, C, D, h)


class Buffer(NamedTuple):
    """A block of the scan to write on, (T, b, N, d_inner), and the views of it that the loops use."""

    whole: Tensor
    steps: tuple[Tensor, ...]  # T of (b, N, d_inner)
    states: tuple[Tensor, ...]  # N of (T, b, d_inner)


class SelectiveScan(torch.autograd.Function):
    """The scan with its gradients by hand, a few sequences at a time, so that a block of states stays in the cache.

    States are time-major (T, b, N, d_inner): each step updates one contiguous slice in place. They are not kept for the
    backward pass, which computes a block of them again: cheaper than memory, and memory no longer grows with N.
    With g_t = ∂L/∂h_t, the backward pass is the same recurrence run from the end: g_t = C_t u_t + exp(Δ_{t+1} A) g_{t+1}.
    """

    @staticmethod
    def forward(ctx, z, delta, A, B, C, D, h):
        z = z.contiguous()  # what is made like z has its channels side by side, which the loops need for speed
        ctx.save_for_backward(z, delta, A, B, C, D, h)
        drive, y, last = delta * z, D * z, torch.empty_like(h.mT, memory_format=torch.contiguous_format)
        for rows, (decay, states) in blocks(z, A, 2):
            d_t, B_t, C_t, x_t, y_t = (v[rows].transpose(0, 1) for v in (delta, B, C, drive, y))
            fill_states(decay, states, d_t, A, B_t, x_t, h[rows].mT)
            add_weighted(y_t, C_t[..., None].unbind(2), states)
            last[rows] = states.steps[-1]
        return y, last.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, u, u_last):
        z, delta, A, B, C, D, h = ctx.saved_tensors
        drive, rates = delta * z, A.mT.contiguous()  # rates (N, d_inner)
        g_drive, g_delta, g_A = torch.zeros_like(z), torch.zeros_like(z), torch.zeros_like(rates)
        g_B, g_C = (torch.empty_like(v, memory_format=torch.contiguous_format) for v in (B, C))
        g_h = torch.empty_like(h.mT, memory_format=torch.contiguous_format)
        for rows, (decay, states, g, product) in blocks(z, A, 4):
            time_major = (v[rows].transpose(0, 1) for v in (delta, B, C, u, drive, g_drive, g_delta, g_B, g_C))
            d_t, B_t, C_t, u_t, x_t, gx_t, gd_t, gB_t, gC_t = time_major
            before = h[rows].mT
            fill_states(decay, states, d_t, A, B_t, x_t, before)
            torch.mul(C_t[..., None], u_t[:, :, None], out=g.whole)
            g.steps[-1].add_(u_last[rows].mT)
            for t in reversed(range(len(g.steps) - 1)):
                g.steps[t].addcmul_(decay.steps[t + 1], g.steps[t + 1])
            torch.sum(torch.mul(states.whole, u_t[:, :, None], out=product.whole), -1, out=gC_t)
            torch.sum(torch.mul(g.whole, x_t[:, :, None], out=product.whole), -1, out=gB_t)
            add_weighted(gx_t, B_t[..., None].unbind(2), g)
            decay.whole.mul_(g.whole)  # the share of ∂L/∂h_{t-1} that comes through h_t
            g_h[rows] = decay.steps[0]
            decay.steps[0].mul_(before)
            decay.whole[1:].mul_(states.whole[:-1])  # now ∂L/∂(Δ_t A)
            add_weighted(gd_t, rates.unbind(), decay)
            g_A += torch.mul(decay.whole, d_t[:, :, None], out=product.whole).flatten(0, 1).sum(0)
        return D * u + g_drive * delta, g_delta + g_drive * z, g_A.mT, g_B, g_C, (u * z).sum((0, 1)), g_h.mT


def blocks(z: Tensor, A: Tensor, buffers: int):
    """Slices of the batch, each with `buffers` Buffers, the same ones for all slices of one length."""
    (batch, T, d), N = z.shape, A.shape[1]
    size = min(batch, max(1, ENTRIES.get(z.device.type, ENTRIES_ELSEWHERE) // (T * N * d)))
    memory, made = z.new_empty(buffers, T * size * N * d), {}
    for first in range(0, batch, size):
        b = min(size, batch - first)
        if b not in made:
            wholes = [m[: T * b * N * d].view(T, b, N, d) for m in memory]
            made[b] = [Buffer(whole, whole.unbind(0), whole.unbind(2)) for whole in wholes]
        yield slice(first, first + b), made[b]


def fill_states(decay: Buffer, states: Buffer, delta: Tensor, A: Tensor, B: Tensor, drive: Tensor, h: Tensor) -> None:
    """Fill decay with exp(Δ A) and states with h_t; h (b, N, d_inner) stands before t = 0, the rest is time-major."""
    powers = (A.mT * math.log2(math.e)).contiguous()
    torch.mul(delta[:, :, None], powers, out=decay.whole).exp2_()  # on a CPU more than twice as fast as exp_
    torch.mul(B[..., None], drive[:, :, None], out=states.whole)
    for decay_t, h_t in zip(decay.steps, states.steps, strict=True):
        h_t.addcmul_(decay_t, h)
        h = h_t


def add_weighted(total: Tensor, weights: tuple[Tensor, ...], values: Buffer) -> None:
    """total (T, b, d_inner) += sum over n of weights[n] values[:, :, n], without a tensor of the products."""
    for weight, value in zip(weights, values.states, strict=True):
        total.addcmul_(weight, value)


def mamba_routing(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Mamba's routing weights (B, T, T, d_inner): y_t = sum_s w_ts z_s from h_0 = 0, one channel at a time.

    w_ts = sum_n C_t[n] exp(A_n sum_{r=s+1..t} Δ_r) Δ_s B_s[n], plus D at s = t; 0 at s > t.
    Shapes in the module's glossary. Raises TypeError or ValueError that names the argument.
    """
    check(delta, delta, A, B, C, D, None)
    unseen = ~head.visible(delta.shape[1], True, delta.device)[..., None]  # (T, T, 1)
    total = delta.cumsum(1)
    elapsed = (total[:, :, None] - total[:, None]).masked_fill(unseen, 0.0)  # (B, T, T, d_inner); else exp overflows
    routing = torch.zeros_like(elapsed)
    for rate, write, read in zip(A.unbind(1), B.unbind(2), C.unbind(2), strict=True):
        routing = routing + read[:, :, None, None] * torch.exp(elapsed * rate) * write[:, None, :, None]
    routing = (routing * delta[:, None]).masked_fill(unseen, 0.0)
    return routing + torch.eye(delta.shape[1], dtype=D.dtype, device=D.device)[..., None] * D
