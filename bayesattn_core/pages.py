"""What the built pages add, as a Sphinx extension: results in prose, and each figure's files beside it.

    {result}`name` or {result}`chapter:name`    a recorded result, with its spread, as `results.text` formats it

Every figure named fig-* is shown as the SVG drawn from its committed numbers, with links to SVG, PDF, PNG and numbers.
Figures in STEPPED can also be stepped through, by book/assets/stepper.js over the same numbers, put into the page
because a page opened from a file may not read another.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from . import figures, records, results

OFFERED = {"svg": "SVG", "pdf": "PDF", "png": "PNG, 300 dpi", "json": "numbers, JSON"}
STEPPED = ("fig-free-values", "fig-sculpting")


class ResultRole(SphinxRole):
    """{result}`chapter:name`; without a chapter, of the page's own."""

    def run(self):
        chapter, _, name = self.text.rpartition(":")
        chapter = chapter or PurePosixPath(self.env.docname).name
        self.env.note_dependency(str(records.BOOK / "results" / f"{chapter}.json"))
        try:
            result = results.read(chapter)[name]
        except (ValueError, KeyError) as error:
            message = self.inliner.reporter.error(f"no recorded result {chapter}:{name} ({error})", line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        return [nodes.inline(self.rawtext, results.text(result), classes=["result"])], []


def offer_files(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Show each registered figure as its SVG, with links to its files below the caption (HTML builders only)."""
    if app.builder.format != "html":
        return
    root = "" if app.builder.name == "singlehtml" else "../" * docname.count("/")
    known = set(figures.committed())
    for figure in list(doctree.findall(nodes.figure)):
        for figure_id in known.intersection(figure["names"]):
            for image in figure.findall(nodes.image):
                image["uri"] = f"{root}figures/{figure_id}.svg"
            links = " · ".join(
                f'<a href="{root}figures/{figure_id}.{ending}" download>{label}</a>'
                for ending, label in OFFERED.items()
            )
            figure += nodes.legend(
                "", nodes.raw("", f'<p class="figure-files">{figure_id}: {links}</p>', format="html")
            )
            if figure_id in STEPPED:
                numbers = json.dumps(figures.read(figure_id)["numbers"], separators=(",", ":"))
                widget = f'<div class="stepper" data-figure="{figure_id}"></div>'
                widget += f'<script type="application/json" id="numbers-{figure_id}">{numbers}</script>'
                figure.parent.insert(figure.parent.index(figure) + 1, nodes.raw("", widget, format="html"))


def draw_files(app: Sphinx, exception: Exception | None) -> None:
    """Draw the files that the pages offer into the built book."""
    if exception is None and app.builder.format == "html":
        figures.publish(Path(app.outdir) / "figures")


def setup(app: Sphinx) -> dict:
    app.add_role("result", ResultRole())
    app.connect("doctree-resolved", offer_files)
    app.connect("build-finished", draw_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
