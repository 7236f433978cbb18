"""The register of figures: every figure is drawn from committed numbers, the same each time, and can be cited."""

import math

import numpy as np
import pytest
import torch

from bayesattn_core import figures, records

IDS = figures.committed()


def test_there_are_figures():
    assert len(IDS) >= 11


@pytest.mark.parametrize("figure_id", IDS)
def test_figure_is_drawn_from_its_numbers_alone(figure_id):
    content = figures.read(figure_id)
    arguments = content["chapter"], figure_id, content["numbers"]
    svg = figures.render(*arguments, "svg")
    assert svg == figures.render(*arguments, "svg")
    assert b"<svg" in svg
    assert figures.render(*arguments, "pdf").startswith(b"%PDF")
    assert figures.render(*arguments, "png", **figures.EMBEDDED).startswith(b"\x89PNG")
    about = figures.drawing(content["chapter"], figure_id).__doc__
    assert content["about"] == about
    for array in content["numbers"]:  # the docstring describes each array
        assert array in about or array.split("_")[0] in about, f"{figure_id}: {array} is not described"


def test_the_picture_depends_on_the_numbers():
    content = figures.read("fig-first-order")
    before = figures.render(content["chapter"], "fig-first-order", content["numbers"], "svg")
    content["numbers"]["change_scores"][0][0] += 1
    assert before != figures.render(content["chapter"], "fig-first-order", content["numbers"], "svg")


def test_publish_offers_every_file(tmp_path):
    paths = figures.publish(tmp_path)
    assert {path.name for path in paths} == {f"{i}.{kind}" for i in IDS for kind in ("svg", "pdf", "png", "json")}
    assert all(path.stat().st_size > 200 for path in paths)
    readme = records.BOOK / "assets" / "advantage-law.png"
    assert (tmp_path / "fig-advantage-law.png").read_bytes() == readme.read_bytes()  # `make execute` refreshes it


def test_numbers_are_cleaned():
    cleaned = figures.clean({"a": torch.tensor([1.0, math.nan]), "b": np.float64(1 / 3), "c": ["x"], "d": 7, "e": 2.0})
    assert cleaned == {"a": [1, None], "b": 0.333333, "c": ["x"], "d": 7, "e": 2}
    with pytest.raises(ValueError, match="numbers must be finite or NaN, got inf"):
        figures.clean({"a": [math.inf]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.read("fig-nothing"), "figure must have readable numbers, got 'fig-nothing'"),
        (lambda: figures.read("../fig"), "figure_id must look like fig-some-name, got '../fig'"),
        (lambda: figures.drawing("gradients", "fig-nothing"), "must have a drawing function fig_nothing"),
        (lambda: figures.drawing("nowhere", "fig-compass"), "in book/figures/nowhere.py"),
        (lambda: figures.render("gradients", "fig-compass", {}, "gif"), "kind must be one of svg, pdf, png, got 'gif'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
        call()
    assert message in str(raised.value)
