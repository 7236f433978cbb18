"""Every notebook is committed fully executed, in order, small, with captions, alt text and numbers for its figures."""

import base64
import json
import os
import re
import subprocess
import sys

import pytest

from bayesattn_core import figures, records, results

NOTEBOOKS = sorted(records.BOOK.glob("*.ipynb"))
LARGEST = 1_000_000  # bytes


def cells(path, kind="code"):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def test_every_notebook_is_in_the_table_of_contents():
    toc = (records.BOOK.parent / "_toc.yml").read_text()
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert f"file: book/{path.stem}\n" in toc


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_fully_executed_in_order(path):
    assert path.stat().st_size < LARGEST
    code = cells(path)
    assert all(source(cell).strip() for cell in code)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert f'Chapter("{path.stem}")' in "".join(map(source, code))
    assert source(code[-1]).strip() == "chapter.save()"
    for tag in ("raises-exception", "skip-execution", "nbval-skip"):
        assert not [cell for cell in code if tag in cell["metadata"].get("tags", [])]
    varying = [source(cell) for cell in code if "nbval-ignore-output" in cell["metadata"].get("tags", [])]
    assert varying == ["print(chapter.provenance())", "chapter.save()"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_figure_has_caption_alt_text_and_numbers(path):
    shown = {}
    for cell in cells(path):
        pictures = [o for o in cell["outputs"] if "image/png" in o.get("data", {})]
        called = re.findall(r'chapter\.figure\(\s*"([^"]+)"', source(cell))
        assert len(pictures) == len(called) <= 1, source(cell)
        if called:
            meta = cell["metadata"]["mystnb"]
            assert meta["figure"]["name"] == called[0]
            assert len(meta["figure"]["caption"]) > 60
            assert len(meta["image"]["alt"]) > 60
            shown[called[0]] = cell
    assert set(shown) == {i for i in figures.committed() if figures.read(i)["chapter"] == path.stem}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_results_and_figures_are_those_of_the_committed_run(path):
    """Not one digit of a result, of a number behind a figure or of a picture has changed since the notebook ran."""
    ids = [i for i in figures.committed() if figures.read(i)["chapter"] == path.stem]
    printed = cells(path)[-1]["outputs"][0]["data"]["text/plain"]
    assert results.digest(path.stem, ids) in "".join(printed), "run `make execute`"
    for cell in cells(path):
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                figure_id = cell["metadata"]["mystnb"]["figure"]["name"]
                drawn = figures.render(
                    path.stem, figure_id, figures.read(figure_id)["numbers"], "png", **figures.EMBEDDED
                )
                assert base64.b64decode("".join(output["data"]["image/png"])) == drawn, (
                    f"{figure_id}: run `make execute`"
                )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_prose_quotes_results_that_exist(path):
    quoted = re.findall(r"\{result\}`([^`]+)`", "\n".join(map(source, cells(path, "markdown"))))
    assert quoted
    assert "seconds" in quoted
    for quote in quoted:
        chapter, _, name = quote.rpartition(":")
        assert name in results.read(chapter or path.stem), quote


def test_a_changed_output_fails(tmp_path):
    """nbval, as `make test` runs it, sees one changed digit in what a chapter printed."""
    root = records.BOOK.parent
    notebook = json.loads((records.BOOK / "gradients.ipynb").read_text())
    kept = []
    for cell in notebook["cells"]:
        kept.append(cell)
        if cell["cell_type"] == "code" and any("loss 1.3930" in "".join(o.get("text", "")) for o in cell["outputs"]):
            for output in cell["outputs"]:
                output["text"] = [line.replace("loss 1.3930", "loss 1.3931") for line in output["text"]]
            break
    else:
        pytest.fail("the cell that prints the loss is gone")
    notebook["cells"] = kept
    (tmp_path / "gradients.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-c", str(root / "pyproject.toml")]
    command += ["--rootdir", str(root), "-p", "conftest", str(tmp_path / "gradients.ipynb")]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "1.3931" in done.stdout
