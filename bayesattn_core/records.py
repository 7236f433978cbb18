"""Recorded runs: what a training run was asked for, what it measured, and where it ran, kept so that it can be replayed.

A record is a folder with record.json (configuration, final metrics, versions, commit, device, wall time, digest),
metrics.safetensors (metrics per step) and weights.safetensors (final weights). Only the command `record` writes
the committed ones, under book/records/. The digest covers everything, so a changed record is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from . import checks

BOOK = Path(__file__).resolve().parent.parent / "book"


class Record(NamedTuple):
    """config: what was asked; metrics {name: (steps + 1, ...)}; weights {name: tensor}; provenance: where it ran."""

    config: dict
    metrics: dict[str, Tensor]
    weights: dict[str, Tensor]
    provenance: dict


def provenance(device: torch.device | str, wall_seconds: float) -> dict:
    """Versions, commit, device and wall time of a run. The commit ends in "+changes" if the work tree had any."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=BOOK.parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    return {
        "python": platform.python_version(), "torch": torch.__version__, "device": f"{device.type} ({name})", "threads": torch.get_num_threads(),
        "commit": commit + ("+changes" if commit and git("status", "--porcelain", "--untracked-files=no") else "") or None, "wall_seconds": round(wall_seconds, 1),
    }  # fmt: skip


def digest(description: dict, metrics: bytes, weights: bytes) -> str:
    """SHA-256 over a record's description (less its digest), its metrics and its weights."""
    text = json.dumps({key: value for key, value in description.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(
        text.encode() + b"\0" + hashlib.sha256(metrics).digest() + hashlib.sha256(weights).digest()
    ).hexdigest()


def write(folder: Path, record: Record) -> None:
    """Write a record to `folder`, whole or not at all. ValueError if the folder exists."""
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"folder must not exist yet, got {folder}: remove it to record again")
    metrics, weights = (
        save_tensors({k: v.detach().cpu().contiguous() for k, v in part.items()})
        for part in (record.metrics, record.weights)
    )
    final = {name: curve[-1].double().cpu().tolist() for name, curve in record.metrics.items()}
    description = {"config": record.config, "final": final, "provenance": record.provenance}
    description["digest"] = digest(description, metrics, weights)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        checks.write_whole(partial / "metrics.safetensors", metrics)
        checks.write_whole(partial / "weights.safetensors", weights)
        checks.write_whole(partial / "record.json", (json.dumps(description, indent=1) + "\n").encode())
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read(name: str, root: Path = BOOK / "records") -> Record:
    """The committed record `name`. ValueError, which says how to make it, if it is missing, incomplete or changed."""
    folder = Path(root) / name
    try:
        description = json.loads((folder / "record.json").read_text())
        metrics, weights = ((folder / f"{part}.safetensors").read_bytes() for part in ("metrics", "weights"))
    except (OSError, ValueError) as error:
        again = name.removeprefix("paper-") + " --profile paper" * name.startswith("paper-")
        how = f" and run `python -m bayesattn_core record {again}`" if Path(root) == BOOK / "records" else ""
        raise ValueError(f"record must be readable, got {name!r} ({error}): remove its folder{how}") from None
    if digest(description, metrics, weights) != description.get("digest"):
        raise ValueError(
            f"record must match its digest, got {name!r} with changed content: restore it or record it again"
        )
    return Record(description["config"], load_tensors(metrics), load_tensors(weights), description["provenance"])
