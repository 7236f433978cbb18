"""Checks the built pages, as `make book` runs it: python -m tests.pages [FOLDER].

Internal links and anchors resolve, every image exists and has alt text, no error output, no raw TeX and no unresolved
reference is left, every figure offers its files, and nothing but links leads to the network.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bayesattn_core import figures, results

HTML = Path(__file__).resolve().parent.parent / "_build" / "html"
LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src", "link": "href"}
THEME_LINKS = {"search.html", "genindex.html"}
LEFTOVERS = (
    "(???)",
    "eq-None",
    "{result}",
    ":result:",
    "{eq}",
    "{cite}",
    "{numref}",
    "Traceback (most recent call last)",
    "system-message",
)


class Page(HTMLParser):
    """What the checks need of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.loads, self.images, self.ids, self.text, self.inside = [], [], [], set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(given[key] for key in ("id", "name") if given.get(key))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if (
            tag in LOADED
            and given.get(LOADED[tag])
            and given.get("rel") not in ("canonical", "index", "search", "next", "prev")
        ):
            self.loads.append(given[LOADED[tag]])
        if tag == "img":
            self.images.append((given.get("src"), given.get("alt")))
        if tag in ("script", "style", "pre", "code"):
            self.inside.append(tag)
        if "math" in (given.get("class") or "").split():
            self.inside.append("math")
            self.math_tag = tag

    def handle_endtag(self, tag):
        if self.inside and (self.inside[-1] == tag or (self.inside[-1] == "math" and tag == self.math_tag)):
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text.append(data)


def problems(folder: Path) -> list[str]:
    """Every problem found in the built pages, one line each."""
    paths = sorted(p for p in folder.rglob("*.html") if "_static" not in p.parts)
    pages = {path: Page(path) for path in paths}
    found = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto", "data"):
                if address in page.loads and parts.scheme.startswith("http"):
                    found.append(f"{where}: loads {address} from the network")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{where}: {address} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{where}: {address} has no such anchor")
        for source, alt in page.images:
            if not (alt or "").strip():
                found.append(f"{where}: image {source} has no alt text")
        text = " ".join(page.text)
        found += [f"{where}: {left!r} is left on the page" for left in LEFTOVERS if left in text]
        found += [f"{where}: raw TeX {raw!r}" for raw in re.findall(r"\$\$|\\(?:frac|begin|alpha|mathbb)\b", text)[:1]]
    for figure_id in figures.committed(folder / "figures"):
        chapter = figures.read(figure_id)["chapter"]
        links = pages[folder / "book" / f"{chapter}.html"].links
        for kind in (*figures.FILES, "json"):
            if f"../figures/{figure_id}.{kind}" not in links:
                found.append(f"{figure_id}: its {kind} is not offered on the page of {chapter}")
    missing = set(figures.committed()) - set(figures.committed(folder / "figures"))
    found += [f"{figure_id}: not drawn" for figure_id in sorted(missing)]
    for path in (folder / "book").glob("*.html"):
        if path.with_suffix(".ipynb").name in {p.name for p in figures.ROOT.parent.glob("*.ipynb")}:
            seconds = results.text(results.read(path.stem)["seconds"])
            if f'<span class="result">{seconds}</span>' not in path.read_text():
                found.append(f"{path.relative_to(folder)}: the recorded running time is not on the page")
    return found


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]) if len(sys.argv) > 1 else HTML)
    print("\n".join(found) or "pages: no problems")
    sys.exit(bool(found))
