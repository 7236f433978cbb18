"""The ledger is what the chapters recorded: re-derived here, and every drift of a number names its claim."""

import json
import math
import re

import pytest
import torch

from bayesattn_core import attention, claims, experiments, ledger, records, results, tasks

OWN = results.read("ledger")


@pytest.fixture(scope="module")
def printed():
    """The table as the committed notebook shows it, by claim."""
    notebook = json.loads((records.BOOK / "ledger.ipynb").read_text())
    shown = [
        "".join(output["data"]["text/markdown"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "text/markdown" in output.get("data", {})
    ]
    (table,) = shown
    rows = [[part.strip() for part in line.strip("|").split(" | ")] for line in table.splitlines()]
    return rows[0], {row[0]: row for row in rows[2:]}


def test_every_claim_has_its_row(printed):
    assert list(printed[1]) == list(ledger.LEDGER) == [f"C{k}" for k in range(1, 19)]


@pytest.mark.parametrize("number", ledger.LEDGER)
def test_a_row_is_what_the_chapters_recorded(number, printed):
    columns, rows = printed
    derived = ledger.row(number)
    assert rows[number] == [derived[name] for name in columns], (
        f"{number}: run `make execute CHAPTERS=book/ledger.ipynb`"
    )
    assert ledger.drift(number, OWN) == []


NUMBERS = [(number, reference) for number, claim in ledger.LEDGER.items() for reference in claim.evidence.values()]


@pytest.mark.parametrize(("number", "reference"), NUMBERS)
def test_a_number_that_moves_by_more_than_its_tolerance_names_its_claim(number, reference, monkeypatch):
    chapter, _, name = reference.partition(":")
    honest = results.read

    def moved(asked, *rest):
        found = honest(asked, *rest)
        if asked == chapter:
            by = max(1.01 * found[name]["tolerance"], 1e-12)
            found[name] = found[name] | {"value": found[name]["value"] + by}
        return found

    monkeypatch.setattr(results, "read", moved)
    (told,) = ledger.drift(number, OWN)
    assert told.startswith(f"{number}: {reference} has value")


def test_a_verdict_that_changes_is_seen(monkeypatch):
    honest = results.read

    def moved(asked, *rest):
        found = honest(asked, *rest)
        if asked == "architectures":
            found["C14"] = found["C14"] | {"value": "holds"}
        return found

    assert ledger.row("C14")["verdict here"] == f"**{OWN['C14 architectures:C14']['value']}**"
    monkeypatch.setattr(results, "read", moved)
    assert ledger.row("C14")["verdict here"] == "**holds**"
    assert [told.split(":")[0] for told in ledger.drift("C14", OWN)] == ["C14"]


def test_a_verdict_in_one_setting_alone_names_it():
    assert ledger.row("C18")["verdict here"] == f"**{OWN['C18 architectures:C18']['value']}** (for binding)"
    assert ledger.row("C4")["see"].startswith("[em-against-sgd](em-against-sgd.ipynb): {numref}`fig-authors-curves`, ")


def test_settings_that_differ_hold_in_part():
    yes, part, no = claims.VERDICTS
    assert ledger.together({"a": no, "b": no}) == no
    assert ledger.together({"a": yes, "b": no}) == ledger.together({"a": part, "b": no}) == part
    with pytest.raises(ValueError, match="verdicts must not be empty"):
        ledger.together({})
    with pytest.raises(ValueError, match="verdict must be one of"):
        ledger.together({"a": "perhaps"})
    with pytest.raises(ValueError, match="number must be one of C1, "):
        ledger.row("C19")
    with pytest.raises(ValueError, match="reference must be one of"):
        ledger.quoted("architectures:nothing")
    with pytest.raises(ValueError, match="copy must be one of"):
        ledger.drift("C4", {})


def test_every_figure_and_page_that_is_named_is_there():
    for number, claim in ledger.LEDGER.items():
        for reference in claim.figures:
            chapter, figure_id = reference.split(":")
            notebook = json.loads((records.BOOK / f"{chapter}.ipynb").read_text())
            names = [cell["metadata"].get("mystnb", {}).get("figure", {}).get("name") for cell in notebook["cells"]]
            assert figure_id in names, f"{number}: {reference}"
        assert all(math.isfinite(ledger.quoted(reference)["value"]) for reference in claim.evidence.values())
        assert ledger.scope(claim)


def paragraphs():
    """What the notebook says of each claim in bold, by claim."""
    notebook = json.loads((records.BOOK / "ledger.ipynb").read_text())
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    return {
        number: bold for heads, bold in re.findall(r"^### (C[^:]*):.*\n\n\*\*([^*]*)\*\*", text, re.M) for number in heads.split(" and ")
    }  # fmt: skip


@pytest.mark.parametrize("number", ledger.LEDGER)
def test_a_paragraph_opens_with_its_verdict(number):
    verdict = ledger.together(ledger.verdicts(number))
    opening = paragraphs()[number].removeprefix(f"{number} ").replace(f"C1 {verdict}, C2 ", "")
    rest = opening.lower().removeprefix(verdict)
    assert rest != opening.lower(), f"{number}: {verdict}, but the paragraph opens with {opening!r}"
    assert rest[:1] in ".,:", f"{number}: {verdict}, but the paragraph opens with {opening!r}"


def nearness(a, b):
    """Mean squared cosine of the principal angles between spans, from their projectors."""
    p, q = (basis @ basis.mT for basis in (torch.linalg.qr(a)[0], torch.linalg.qr(b)[0]))
    return (p * q).sum((-2, -1)) / 2


def plane(points):
    return torch.linalg.svd(points - points.mean(-2, keepdim=True), full_matrices=False)[2].mT[..., :2]


def test_the_alignments_of_c8_follow_from_the_records():
    """Those without random draws, of SGD, written out by hand."""
    record, untaught = records.read("sticky-fair-authors"), records.read("sticky-shuffled")
    chain, _ = experiments.setting(tasks.author_draws, record.config["seeds"])
    shuffled, _ = experiments.setting(experiments.shuffled_draws, record.config["seeds"])
    X, C, found = chain.inputs.double(), chain.transition.shape[-1], {}

    def at(of, step):
        return {name: of.weights[f"{name}@{step}"][:, 0].double() for name in attention.WEIGHTS}

    first = at(record, 0)
    for step in experiments.SNAPSHOT_STEPS[1:]:
        for name, of, targets in (("errors", record, chain.targets), ("untaught", untaught, shuffled.targets)):
            W = at(of, step)
            log_p = attention.blockwise(X, W, targets, attention.uniform_weights(X))[1]
            u = (log_p.exp() - torch.nn.functional.one_hot(targets, C)) @ W["W_O"].mT
            found.setdefault(name, []).append(nearness(plane(X @ (W["W_V"] - first["W_V"])), plane(u)))
        W = at(record, step)
        for name, W_O in (("strongest", W["W_O"]), ("start", first["W_O"])):
            strongest = torch.linalg.svd(W_O - W_O.mean(-1, keepdim=True))[0][..., :2]
            found.setdefault(name, []).append(nearness(plane(X @ (W["W_V"] - first["W_V"])), strongest))
    quoted = results.read("manifolds")
    for name, of in found.items():
        assert quoted[f"aligned_{name}_sgd"]["value"] == pytest.approx(torch.stack(of).mean().item(), abs=1e-3)
    told = {name: torch.stack(of).mean(0) for name, of in found.items() if name in ("errors", "strongest")}
    assert not claims.clear_above(told["errors"] - told["strongest"])  # so C8 cannot hold
    assert claims.clear_above(told["errors"] - 2 / W["W_V"].shape[-1])  # and is not falsified
    assert quoted["C8"]["value"] == claims.VERDICTS[1]


def test_verdicts_on_manifolds_follow_from_the_records():
    ranks, networks = records.read("manifold-rank"), records.read("manifold-networks")
    arms = [ranks.config["arms"].index(arm) for arm in ("learned", "shuffled-labels")]
    moved = ranks.metrics["effective_rank_moved"]
    told = {"C7": claims.c7(*(moved[..., arm] for arm in arms), ranks.config["classes"])}
    for task in ledger.TASKS:
        c = networks.config["cells"].index(f"{task}-transformer")
        for points in ledger.POINTS:
            name = "correlation" if points == "read" else points
            fixed, shuffled = (networks.metrics[f"{name}_{kind}"][c] for kind in ("fixed", "shuffled"))
            told[f"C9_{points}_{task}"] = claims.c9(fixed[:, 0], fixed[:, 1], shuffled[:, 0])
        keys = networks.metrics["keys"][c]
        told[f"C10_{task}"] = claims.c10(keys[:, 0], keys[:, 1], networks.metrics["keys_random"][c, :, 0])
    found = results.read("manifolds")
    for name, verdict in told.items():
        assert (found[name]["value"], found[f"{name}_because"]["value"]) == (verdict.verdict, verdict.because)
