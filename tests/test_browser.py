"""The built pages in a real browser, with no network: equations rendered, nothing missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bayesattn_core import records
from tests import pages

ROOT = records.BOOK.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book")
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        str(ROOT),
        "--path-output",
        str(folder),
        "-W",
        "-n",
    ]
    done = subprocess.run([*command, "--keep-going"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "_build" / "html"


@pytest.mark.browser
@pytest.mark.parametrize(
    "page", ["index", "book/gradients", "book/feedback", "book/em-against-sgd", "book/manifolds", "book/notation"]
)
def test_page_in_a_browser_without_network(built, page, tmp_path):
    assert pages.problems(built) == []
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}", "--virtual-time-budget=15000"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{built}/{page}.html"], capture_output=True, text=True, check=True
    )
    formulas = (built / f"{page}.html").read_text().count('class="math notranslate')
    assert done.stdout.count("<mjx-container") >= formulas
    assert "<mjx-merror" not in done.stdout
    if page.startswith("book/"):
        assert formulas > (5 if page == "book/manifolds" else 15)
        assert not re.search(r"\\\(|\\\[", re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL))
    if page == "book/feedback":  # the stepper has drawn its first frame
        assert re.search(r"<output>step 0, loss \d\.\d\d nats</output>", done.stdout)
        assert done.stdout.count("<rect", done.stdout.index('class="stepper"')) > 25
    if page == "book/manifolds":
        assert "<output>step 0: attention has 100 % of its way to go, values 100 %</output>" in done.stdout
        assert done.stdout.count("<circle", done.stdout.index('class="stepper"')) >= 240
