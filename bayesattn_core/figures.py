"""The register of figures: one style, and every drawing a function of the numbers that its chapter committed.

A figure `fig-NAME` of the chapter CHAPTER has its numbers in book/figures/fig-NAME.json, written when the chapter
runs, and its drawing in book/figures/CHAPTER.py, a function `fig_NAME(numbers)` whose docstring describes each array.
Both the picture in the chapter and the files that can be cited come from `render` here, so they are one drawing.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import seaborn
from matplotlib.figure import Figure

from . import checks, records

ROOT = records.BOOK / "figures"
WIDTH = 7.0  # inches: the page's text column
FILES = {"svg": {"metadata": {"Date": None}}, "pdf": {"metadata": {"CreationDate": None}}, "png": {"dpi": 300}}
EMBEDDED = {"dpi": 80}  # of the picture inside a notebook, which must stay small
SIGNIFICANT = 6  # digits kept of every number behind a figure

COLORS = seaborn.color_palette("colorblind")
LINES = ("-", "--", "-.", ":")  # colour is never the only channel
DIVERGING, SEQUENTIAL = "RdBu_r", "Greys"


def style() -> dict:
    """The rc parameters of every figure: seaborn's ticks on an opaque white ground, no title in the picture."""
    return {
        **seaborn.axes_style("ticks"), **seaborn.plotting_context("paper", font_scale=1.05), "font.family": "DejaVu Sans", "figure.facecolor": "white", "savefig.facecolor": "white",
        "figure.constrained_layout.use": True, "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.6, "legend.frameon": False,
        "svg.hashsalt": "bayesattn", "svg.fonttype": "path", "pdf.fonttype": 42,
    }  # fmt: skip


def check_id(figure_id: str) -> str:
    """Return figure_id if it is of the form fig-lower-case-words; ValueError if not."""
    if not isinstance(figure_id, str) or not re.fullmatch(r"fig(-[a-z0-9]+)+", figure_id):
        raise ValueError(f"figure_id must look like fig-some-name, got {figure_id!r}")
    return figure_id


def clean(numbers: dict[str, object]) -> dict[str, object]:
    """Numbers as they are committed: nested lists of numbers rounded to 6 significant digits (NaN as null), or text.

    Raises ValueError for infinite numbers.
    """

    def rounded(value):
        if isinstance(value, (str, bool)) or value is None:
            return value
        if isinstance(value, dict):
            return {str(key): rounded(item) for key, item in value.items()}
        if hasattr(value, "tolist"):  # tensors, arrays and their scalars
            return rounded(value.tolist())
        if isinstance(value, (list, tuple)):
            return [rounded(item) for item in value]
        if np.isinf(value):
            raise ValueError(f"numbers must be finite or NaN, got {value}")
        if np.isnan(value):
            return None
        return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(f"{value:.{SIGNIFICANT}g}")

    return {name: rounded(value) for name, value in numbers.items()}


def encode(chapter: str, figure_id: str, tolerance: dict[str, float], numbers: dict[str, object]) -> bytes:
    """The JSON file of a figure: identifier, chapter, what each array is, tolerances for a re-run, and the numbers."""
    body = {
        "figure": figure_id,
        "chapter": chapter,
        "about": drawing(chapter, figure_id).__doc__,
        "tolerance": tolerance,
        "numbers": numbers,
    }
    head = json.dumps({key: value for key, value in body.items() if key != "numbers"}, indent=1, ensure_ascii=False)
    arrays = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in numbers.items()
    )
    return f'{head[:-2]},\n "numbers": {{\n{arrays}\n }}\n}}\n'.encode()


def read(figure_id: str, root: Path = ROOT) -> dict:
    """The committed file of a figure as a dict. ValueError if it is missing or unreadable."""
    path = Path(root) / f"{check_id(figure_id)}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"figure must have readable numbers, got {figure_id!r} ({error}): run `make execute`"
        ) from None


def committed(root: Path = ROOT) -> list[str]:
    """The identifiers of all committed figures, sorted."""
    return sorted(path.stem for path in Path(root).glob("fig-*.json"))


def drawing(chapter: str, figure_id: str) -> Callable[[dict], Figure]:
    """The drawing function of a figure: fig_NAME in book/figures/CHAPTER.py. ValueError if there is none."""
    path = ROOT / f"{chapter}.py"
    name = check_id(figure_id).replace("-", "_")
    if path.is_file():
        spec = importlib.util.spec_from_file_location(f"figures_of_{chapter.replace('-', '_')}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, name):
            return getattr(module, name)
    raise ValueError(f"figure must have a drawing function {name} in book/figures/{chapter}.py, got {figure_id!r}")


def render(chapter: str, figure_id: str, numbers: dict, kind: str, **options) -> bytes:
    """Draw a figure from its (clean) numbers and return it as a file of `kind` svg, pdf or png. Without a display."""
    checks.choice("kind", kind, FILES)
    function = drawing(chapter, figure_id)
    arrays = {
        name: np.array(value, dtype=float) if isinstance(value, list) and not has_text(value) else value
        for name, value in numbers.items()
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style(), "backend": "agg"}):
        figure = function(arrays)
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, **{**FILES[kind], **options})
    return stream.getvalue()


def has_text(value) -> bool:
    """Whether a nested list holds any text."""
    return any(has_text(item) for item in value) if isinstance(value, list) else isinstance(value, str)


def canvas(rows: int = 1, columns: int = 1, *, height: float = 2.6, **options) -> tuple[Figure, np.ndarray]:
    """A figure of the book's width and `height` inches with a grid of axes (rows, columns): Figure and array of axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def seed_dots(axis, values: np.ndarray, places: np.ndarray) -> None:
    """One row of dots per place from values (places, seeds): small, one per seed; large, their mean."""
    axis.plot(values, places[:, None] + np.zeros_like(values), "o", color="0.5", markersize=4, alpha=0.7)
    axis.scatter(values.mean(1), places, s=70, color=COLORS[0], edgecolor="0.1", zorder=4)


def band(axis, x: np.ndarray, lines: np.ndarray, look: int, label: str, **style) -> None:
    """The mean of lines (points, seeds) over x, in the look's colour and line, with a band from the lowest to the highest."""
    color = COLORS[look]
    axis.fill_between(x, lines.min(1), lines.max(1), color=color, alpha=0.2, linewidth=0)
    axis.plot(x, lines.mean(1), color=color, linestyle=LINES[look % len(LINES)], label=label, **style)


def publish(folder: Path, root: Path = ROOT) -> list[Path]:
    """Draw every committed figure as SVG, PDF and 300-dpi PNG into `folder`, with its numbers beside it; the paths."""
    paths = []
    for figure_id in committed(root):
        content = read(figure_id, root)
        for kind in FILES:
            paths.append(Path(folder) / f"{figure_id}.{kind}")
            checks.write_whole(paths[-1], render(content["chapter"], figure_id, content["numbers"], kind))
        paths.append(Path(folder) / f"{figure_id}.json")
        checks.write_whole(paths[-1], (Path(root) / f"{figure_id}.json").read_bytes())
    return paths
