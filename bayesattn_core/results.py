"""What a chapter records and quotes: named results, and figures with the numbers behind them.

A chapter opens a `Chapter`, records results and shows figures as it goes, and saves at its end. Device, profile and
place come from the environment:

    BAYESATTN_DEVICE    cpu (default), cuda, cuda:N or auto
    BAYESATTN_PROFILE   quick (default) or paper
    BAYESATTN_OUT       where to write; by default the committed places under book/

Anywhere but in the committed places, a `quick` run is compared with what is committed, result by result and array by
array, within the committed tolerances: this is how the tests see that the book still says what its code computes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np
import torch

from . import checks, figures, records

PROFILES = ("quick", "paper")
ANY_DURATION = 1e6  # seconds: a chapter's running time is reported, never compared


class Mismatch(AssertionError):
    """What a chapter computed is not what is committed; the message names the chapter, the result and both values."""


def read(chapter: str, root: Path = records.BOOK) -> dict[str, dict]:
    """The committed results of a chapter by name. ValueError if there are none or they cannot be read."""
    path = Path(root) / "results" / f"{chapter}.json"
    try:
        return json.loads(path.read_text())["results"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"chapter must have readable results, got {chapter!r} ({type(error).__name__}: {error}): run `make execute`"
        ) from None


def text(result: dict) -> str:
    """A result as prose quotes it: the value in its own format, with ± its spread if it has one."""
    if isinstance(result["value"], str):
        return result["value"]
    shown = format(result["value"], "z" + result["format"])  # z: no minus before a zero
    return shown if result["spread"] is None else f"{shown} ± {format(result['spread'], result['format'])}"


def agree(given, expected, tolerance: float) -> bool:
    """Whether two recorded numbers (or texts, or None) agree within an absolute tolerance."""
    if isinstance(given, str) or isinstance(expected, str) or given is None or expected is None:
        return given == expected
    return abs(given - expected) <= tolerance


def digest(chapter: str, figure_ids: Iterable[str], root: Path = records.BOOK) -> str:
    """SHA-256 of a chapter's results and figures' numbers as they lie under `root`: printed by `save` into the notebook,
    so that a committed file cannot change without its notebook, not even within a tolerance."""
    paths = [root / "results" / f"{chapter}.json", *(root / "figures" / f"{name}.json" for name in sorted(figure_ids))]
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


class Chapter:
    """One run of a chapter; `name` is the notebook's file name without its ending.

    device, profile: what the environment asks for (ValueError if it is not to be had); `out`: where results go.
    """

    def __init__(self, name: str):
        self.name = name
        self.device = checks.device(os.environ.get("BAYESATTN_DEVICE", "cpu"))
        self.profile = checks.choice("BAYESATTN_PROFILE", os.environ.get("BAYESATTN_PROFILE", "quick"), PROFILES)
        self.out = Path(os.environ.get("BAYESATTN_OUT") or records.BOOK).resolve()
        self.in_place = self.out == records.BOOK
        if self.in_place and (self.profile != "quick" or self.device.type != "cpu"):
            raise ValueError(
                f"BAYESATTN_OUT must name another folder unless a chapter runs in profile quick on cpu, got {self.profile} on {self.device}"
            )
        self.compared = not self.in_place and self.profile == "quick"
        self.committed = records.BOOK
        self.started = time.perf_counter()
        self.results: dict[str, dict] = {}
        self.figures: dict[str, bytes] = {}

    def provenance(self) -> str:
        """Versions, device and profile of this run, in one line: the only output of a chapter that may vary."""
        return f"Python {platform.python_version()}, torch {torch.__version__}, matplotlib {matplotlib.__version__}, device {self.device}, profile {self.profile}"

    def record(
        self, name: str, value, *, unit: str, tolerance: float,
        spread: float | None = None, seeds: list[int] | None = None, form: str = ".4f",
    ) -> None:  # fmt: skip
        """Record a result under a new name: a finite number, a text (a verdict), or a tensor (seeds,) of numbers, which
        is recorded as its mean and, of more than one, population standard deviation.

        unit: "nats", "bits", "steps", ..., or "1" for a pure number; tolerance: absolute, of a re-run; spread: given
        with a number only; seeds: what the value was measured on; form: the format in which prose quotes it.
        """
        if name in self.results:
            raise ValueError(f"name must be new in chapter {self.name}, got {name!r} twice")
        if isinstance(value, torch.Tensor) and value.dim() == 1:
            several = value.numel() > 1
            value, spread = mean_and_spread(value)
            spread = spread if several else None
        if not isinstance(value, str):
            value = checks.number("value", value.item() if hasattr(value, "item") else value)
            format(value, "z" + form)  # ValueError now rather than when a page quotes it
        if spread is not None:
            spread = checks.number("spread", spread.item() if hasattr(spread, "item") else spread, least=0)
        tolerance = checks.number("tolerance", tolerance, least=0)
        self.results[name] = {
            "value": value, "spread": spread, "unit": unit, "seeds": seeds, "tolerance": tolerance, "format": form,
        }  # fmt: skip

    def figure(self, figure_id: str, *, tolerance: float | dict[str, float] = 1e-3, **numbers):
        """Show a figure drawn from `numbers` (arrays, lists, text); keep the numbers to be saved.

        `tolerance`: of a re-run, relative to an array's largest entry; one for all arrays or one per array.
        """
        from IPython.display import Image  # of the kernel that shows the chapter; the package needs it nowhere else

        numbers = figures.clean(numbers)
        tolerances = {
            array: checks.number("tolerance", tolerance[array] if isinstance(tolerance, dict) else tolerance, least=0)
            for array in numbers
        }
        self.figures[figure_id] = figures.encode(self.name, figure_id, tolerances, numbers)
        if self.compared:
            self.compare_figure(figure_id, numbers, tolerances)
        return Image(figures.render(self.name, figure_id, numbers, "png", **figures.EMBEDDED))

    def compare_figure(self, figure_id: str, numbers: dict, tolerances: dict[str, float]) -> None:
        """Raise Mismatch if `numbers` are not the committed ones of this figure, within tolerances that must be the same."""
        committed = figures.read(figure_id, self.committed / "figures")
        about = figures.drawing(self.name, figure_id).__doc__
        for key, given in {"chapter": self.name, "tolerance": tolerances, "about": about}.items():
            if given != committed[key]:
                raise Mismatch(f"{self.name}, {figure_id}: {key} is {given!r}, committed {committed[key]!r}")
        if set(numbers) != set(committed["numbers"]):
            raise Mismatch(
                f"{self.name}, {figure_id}: the arrays are {sorted(numbers)}, committed are {sorted(committed['numbers'])}"
            )
        for array, expected in committed["numbers"].items():
            where, given = f"{self.name}, {figure_id}, {array}", numbers[array]
            if figures.has_text(expected) or isinstance(expected, (str, bool)):
                if given != expected:
                    raise Mismatch(f"{where}: computed {given!r}, committed {expected!r}")
                continue
            given, expected = np.array(given, dtype=float), np.array(expected, dtype=float)
            if given.shape != expected.shape or (np.isnan(given) != np.isnan(expected)).any():
                raise Mismatch(f"{where}: computed shape {given.shape} or its gaps, committed shape {expected.shape}")
            off = np.nan_to_num(np.abs(given - expected))
            allowed = committed["tolerance"][array] * np.nanmax(np.abs(expected), initial=0)
            if off.max(initial=0) > allowed:
                index = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
                values = f"computed {given[index]}, committed {expected[index]}, tolerance {allowed:.1e}"
                raise Mismatch(f"{where}{list(index)}: {values}")

    def compare_results(self) -> None:
        """Raise Mismatch if the results are not the committed ones, within the committed tolerances."""
        committed = read(self.name, self.committed)
        if set(self.results) != set(committed):
            raise Mismatch(
                f"{self.name}: results {sorted(set(self.results) ^ set(committed))} are only computed or only committed"
            )
        for name, expected in committed.items():
            given = self.results[name]
            for key in ("value", "spread"):
                if not agree(given[key], expected[key], expected["tolerance"]):
                    raise Mismatch(
                        f"{self.name}, {name}: computed {key} {given[key]}, committed {expected[key]}, tolerance {expected['tolerance']}"
                    )
            for key in ("unit", "seeds", "tolerance", "format"):
                if given[key] != expected[key]:
                    raise Mismatch(f"{self.name}, {name}: computed {key} {given[key]!r}, committed {expected[key]!r}")

    def save(self) -> str:
        """Write results and figures' numbers to `out`, each file whole; elsewhere than in place, compare them first."""
        self.record("seconds", time.perf_counter() - self.started, unit="s", tolerance=ANY_DURATION, form=".0f")
        if self.compared:
            self.compare_results()
        for figure_id, content in self.figures.items():
            checks.write_whole(self.out / "figures" / f"{figure_id}.json", content)
        body = {"chapter": self.name, "profile": self.profile, "results": self.results}
        content = (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()
        checks.write_whole(self.out / "results" / f"{self.name}.json", content)
        seal = digest(self.name, self.figures, self.out)
        return f"{len(self.results)} results and {len(self.figures)} figures recorded: {seal}"


def mean_and_spread(values: torch.Tensor) -> tuple[float, float]:
    """Mean and population standard deviation of a tensor (seeds,), as the paper reports them."""
    values = checks.tensor("values", values, dims=1).double()
    return values.mean().item(), values.std(correction=0).item()
