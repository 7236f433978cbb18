"""Results and figures: what is committed is compared with what is computed, and a change is named."""

import json

import pytest
import torch

from bayesattn_core import figures, records, results


@pytest.fixture
def chapter():
    return results.Chapter("gradients")


def test_environment_decides(chapter, monkeypatch, tmp_path):
    assert chapter.compared
    assert not chapter.in_place
    assert str(chapter.device) == "cpu"
    monkeypatch.delenv("BAYESATTN_OUT")
    assert results.Chapter("x").in_place
    assert not results.Chapter("x").compared
    monkeypatch.setenv("BAYESATTN_PROFILE", "paper")
    with pytest.raises(ValueError, match="BAYESATTN_OUT must name another folder"):
        results.Chapter("x")
    monkeypatch.setenv("BAYESATTN_OUT", str(tmp_path))
    assert not results.Chapter("x").compared
    monkeypatch.setenv("BAYESATTN_PROFILE", "huge")
    with pytest.raises(ValueError, match="BAYESATTN_PROFILE must be one of quick, paper, got 'huge'"):
        results.Chapter("x")
    monkeypatch.setenv("BAYESATTN_PROFILE", "quick")
    monkeypatch.setenv("BAYESATTN_DEVICE", "tpu")
    with pytest.raises(ValueError, match="device must be cpu, cuda"):
        results.Chapter("x")


def test_an_absent_device_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("BAYESATTN_DEVICE", "cuda")
    with pytest.raises(ValueError, match="device must be present on this machine, got 'cuda'"):
        results.Chapter("x")


def test_one_seed_has_no_spread(chapter):
    chapter.record("one", torch.tensor([3.0]), unit="nats", tolerance=1e-3, seeds=[1], form=".1f")
    assert results.text(chapter.results["one"]) == "3.0"


def test_a_zero_has_no_minus_and_a_format_is_tried_at_once(chapter):
    chapter.record("nearly", -1e-9, unit="bits", tolerance=1e-6, form=".4f")
    assert results.text(chapter.results["nearly"]) == "0.0000"
    with pytest.raises(ValueError, match="Invalid format specifier"):
        chapter.record("signed", 1.0, unit="bits", tolerance=0, form="+.3f")


def test_records_of_a_chapter(chapter, tmp_path, monkeypatch):
    chapter.record("a", 1.23456, unit="nats", tolerance=1e-3)
    chapter.record("b", torch.tensor([1.0, 3.0]), unit="nats", tolerance=1e-3, seeds=[1, 2], form=".1f")
    chapter.record("c", "holds", unit="1", tolerance=0)
    assert results.text(chapter.results["a"]) == "1.2346"
    assert results.text(chapter.results["b"]) == "2.0 ± 1.0"
    assert results.text(chapter.results["c"]) == "holds"
    for arguments, error, message in [
        ({"name": "a", "value": 1}, ValueError, "name must be new"),
        ({"name": "d", "value": float("nan")}, ValueError, "value must be finite"),
        ({"name": "d", "value": [1]}, TypeError, "value must be a number"),
        ({"name": "d", "value": 1, "tolerance": -1}, ValueError, "tolerance must be finite and at least 0"),
        ({"name": "d", "value": 1, "form": "d"}, ValueError, "format code"),
    ]:
        with pytest.raises(error, match=message):
            chapter.record(**({"unit": "1", "tolerance": 0} | arguments))
    monkeypatch.setattr(chapter, "compared", False)
    monkeypatch.setattr(chapter, "out", tmp_path)
    assert chapter.save().startswith("4 results and 0 figures recorded: ")
    written = results.read("gradients", tmp_path)
    assert written["b"] == {
        "value": 2.0, "spread": 1.0, "unit": "nats", "seeds": [1, 2], "tolerance": 1e-3, "format": ".1f",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"chapter must have readable results, got 'nowhere'"):
        results.read("nowhere", tmp_path)


CHAPTERS = sorted(path.stem for path in (records.BOOK / "results").glob("*.json"))


def committed_copy(tmp_path, chapter, name, **changes):
    content = json.loads((records.BOOK / "results" / f"{chapter}.json").read_text())
    content["results"][name] |= changes
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / f"{chapter}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_changed_result_is_named(name, tmp_path):
    """A chapter that computes what is committed passes; each committed value changed beyond its tolerance is named."""
    chapter = results.Chapter(name)
    chapter.results = results.read(name)
    assert len(chapter.results) > 3
    chapter.compare_results()
    for k, (key, result) in enumerate(chapter.results.items()):
        tampered = tmp_path / str(k)
        tampered.mkdir()
        value = result["value"]
        changed = "x" if isinstance(value, str) else value + 2 * result["tolerance"] + 1e-6
        committed_copy(tampered, name, key, value=changed)
        chapter.committed = tampered
        with pytest.raises(results.Mismatch, match=f"{name}, {key}: computed value"):
            chapter.compare_results()
    chapter.committed = records.BOOK
    chapter.results = {key: result for key, result in chapter.results.items() if key != "seconds"}
    with pytest.raises(results.Mismatch, match="only computed or only committed"):
        chapter.compare_results()


def test_showing_and_saving_compare(chapter, tmp_path):
    """The two calls that a chapter makes see a change in what is committed."""
    content = figures.read("fig-compass")
    numbers, tolerance = content["numbers"], content["tolerance"]
    chapter.figure("fig-compass", tolerance=tolerance, **numbers)
    with pytest.raises(results.Mismatch, match="fig-compass, context"):
        chapter.figure("fig-compass", tolerance=tolerance, **numbers | {"context": [1.0, 2.0]})
    with pytest.raises(results.Mismatch, match="tolerance is"):
        chapter.figure("fig-compass", tolerance=0.5, **numbers)
    chapter.results = {key: result for key, result in results.read("gradients").items() if key != "seconds"}
    chapter.out = tmp_path
    assert "recorded: " in chapter.save()
    chapter.results["heads"]["value"] += 1
    chapter.results.pop("seconds")
    with pytest.raises(results.Mismatch, match="gradients, heads"):
        chapter.save()


def first_number(nested, path=()):
    """The path to the first number in nested lists that is its array's largest in size, so that tolerances bind."""
    if isinstance(nested, list):
        candidates = [found for k, item in enumerate(nested) if (found := first_number(item, (*path, k)))]
        return max(candidates, key=lambda found: found[0], default=None)
    return (abs(nested), path) if isinstance(nested, (int, float)) else None


@pytest.mark.parametrize("figure_id", figures.committed())
def test_every_changed_number_behind_a_figure_is_named(figure_id, tmp_path):
    content = figures.read(figure_id)
    chapter = results.Chapter(content["chapter"])
    chapter.compare_figure(figure_id, content["numbers"], content["tolerance"])
    chapter.committed = tmp_path
    (tmp_path / "figures").mkdir()
    for array, numbers in content["numbers"].items():
        changed = json.loads(json.dumps(content))
        found = first_number(numbers) if isinstance(numbers, list) else None
        if not isinstance(numbers, list):
            changed["numbers"][array] = (
                "x" if isinstance(numbers, str) else numbers * (1 + 3 * content["tolerance"][array]) + 1e-9
            )
        elif found:
            inner = changed["numbers"][array]
            for k in found[1][:-1]:
                inner = inner[k]
            inner[found[1][-1]] += 3 * content["tolerance"][array] * found[0] + 1e-6
        else:
            changed["numbers"][array][0] = "x"
        (tmp_path / "figures" / f"{figure_id}.json").write_text(json.dumps(changed))
        with pytest.raises(results.Mismatch, match=figure_id):
            chapter.compare_figure(figure_id, content["numbers"], content["tolerance"])
    chapter.committed = records.BOOK
    fewer = dict(list(content["numbers"].items())[1:])
    with pytest.raises(results.Mismatch, match="the arrays are"):
        chapter.compare_figure(figure_id, fewer, content["tolerance"])


def test_mean_and_spread_are_the_papers():
    assert results.mean_and_spread(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx((2.0, (2 / 3) ** 0.5))
