"""Input checks shared by every room: each error names the argument, what was given and what is allowed."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from pathlib import Path

import torch
from torch import Tensor


def tensor(
    name: str,
    value: object,
    *,
    dims: int | None = None,
    last: tuple[int | None, ...] = (),
    floating: bool = True,
    exact: bool = False,
) -> Tensor:
    """Return `value` if it is a finite tensor with at least (exact: just) `dims` dimensions, its last sizes `last` (None: any).

    Raises TypeError for what is not a tensor or has the wrong kind of dtype, ValueError for a wrong shape,
    an empty tensor, or an entry that is not finite.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if floating and not value.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {value.dtype}")
    dims = len(last) if dims is None else dims
    if value.dim() < dims:
        raise ValueError(f"{name} must have at least {dims} dimensions, got shape {tuple(value.shape)}")
    if exact and value.dim() > dims:
        raise ValueError(f"{name} must have {dims} dimensions and no more, got shape {tuple(value.shape)}")
    for axis, size in zip(range(-len(last), 0), last, strict=True):
        if size is not None and value.shape[axis] != size:
            raise ValueError(f"{name} must have size {size} in dimension {axis}, got shape {tuple(value.shape)}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(value.shape)}")
    if floating and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} must be finite, got {int((~torch.isfinite(value)).sum())} entries that are not")
    return value


def filled(name: str, given):
    """Return a collection if there is something in it; ValueError if not."""
    if not given:
        raise ValueError(f"{name} must not be empty, got none")
    return given


def probabilities(name: str, value: object, within: float, **shape) -> Tensor:
    """Return `value` if its rows (..., n) are not negative and sum to 1 within `within`; ValueError if not. `shape`: what
    `tensor` is to check besides."""
    tensor(name, value, **(shape or {"dims": 1}))
    least, off = value.min().item(), (value.sum(-1) - 1).abs().max().item()
    if least < 0 or off > within:
        raise ValueError(
            f"{name} must be probabilities that sum to 1 in each row, got a least entry of {least:g} and a sum off by {off:g}"
        )
    return value


def indices(name: str, value: object, below: int, what: str = "whole numbers", **shape) -> Tensor:
    """Return `value` if its entries are int64 from 0 to `below` - 1 (TypeError or ValueError if not). `what` they are called;
    `shape`: what `tensor` is to check besides."""
    tensor(name, value, floating=False, **shape)
    if value.dtype != torch.int64:
        raise TypeError(f"{name} must be {what} (int64), got {value.dtype}")
    if value.min() < 0 or value.max() >= below:
        raise ValueError(
            f"{name} must be {what} from 0 to {below - 1}, got {value.min().item()} to {value.max().item()}"
        )
    return value


def members(name: str, labels: object, n: int) -> Tensor:
    """One-hot rows (..., n, classes) int64 of labels (..., n) int64; TypeError or ValueError if they are not whole numbers from 0."""
    tensor(name, labels, last=(n,), floating=False)
    if labels.dtype != torch.int64 or labels.min() < 0:
        least = labels.min().item()
        raise ValueError(f"{name} must be int64 and not negative, got {labels.dtype} and a least entry of {least}")
    return torch.nn.functional.one_hot(labels)


def integer(name: str, value: object, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return `value` if it is a whole number from `least` to `most`; TypeError or ValueError if not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")
    return int(value)


def number(
    name: str, value: object, *, least: float = -math.inf, most: float = math.inf, above: float = -math.inf
) -> float:
    """Return `value` if it is a finite number within the bounds; TypeError or ValueError if not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and least <= value <= most and value > above):
        bounds = (
            [f"at least {least}"] * (least > -math.inf)
            + [f"above {above}"] * (above > -math.inf)
            + [f"at most {most}"] * (most < math.inf)
        )
        raise ValueError(f"{name} must be {' and '.join(['finite', *bounds])}, got {value}")
    return float(value)


def choice(name: str, value: object, allowed) -> object:
    """Return `value` if it is one of `allowed`; ValueError that lists them if not."""
    if value not in list(allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
    return value


def device(name: str) -> torch.device:
    """The torch device called `name`: cpu, cuda, cuda:N, or auto (cuda where there is one).

    A device that is asked for and absent is a ValueError, never a silent fallback.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = str(name).partition(":")
    numbered = index.isascii() and index.isdecimal() and len(index) < 4
    if kind not in ("cpu", "cuda") or (":" in str(name) and (kind == "cpu" or not numbered)):
        raise ValueError(f"device must be cpu, cuda, cuda:N or auto, got {name!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device must be present on this machine, got {name!r}: {torch.cuda.device_count()} CUDA devices found (use cpu or auto)"
        )
    return torch.device(name)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path` whole or not at all: a temporary file beside it, then an atomic rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
