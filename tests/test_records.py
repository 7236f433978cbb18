"""Recorded runs: written whole, read back the same, and refused when changed."""

import json

import pytest
import torch

from bayesattn_core import checks, records


@pytest.fixture
def record():
    metrics = {"loss": torch.linspace(2, 1, 5)[:, None].expand(5, 3)}
    return records.Record({"steps": 4}, metrics, {"W": torch.eye(2)}, records.provenance("cpu", 1.23))


def test_round_trip(tmp_path, record):
    records.write(tmp_path / "run", record)
    again = records.read("run", tmp_path)
    assert again.config == record.config
    assert torch.equal(again.metrics["loss"], record.metrics["loss"])
    assert torch.equal(again.weights["W"], record.weights["W"])
    assert {"python", "torch", "device", "threads", "commit", "wall_seconds"} == set(again.provenance)
    assert json.loads((tmp_path / "run" / "record.json").read_text())["final"] == {"loss": [1.0, 1.0, 1.0]}
    with pytest.raises(ValueError, match="folder must not exist yet"):
        records.write(tmp_path / "run", record)


@pytest.mark.parametrize("part", ["record.json", "metrics.safetensors", "weights.safetensors"])
def test_any_change_is_seen(tmp_path, record, part):
    records.write(tmp_path / "run", record)
    path = tmp_path / "run" / part
    content = bytearray(path.read_bytes())
    if part == "record.json":
        content = content.replace(b'"steps": 4', b'"steps": 5')
    else:
        content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must match its digest"):
        records.read("run", tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"remove its folder$"):
        records.read("run", tmp_path)


@pytest.mark.parametrize(
    ("name", "how"), [("none", "none`"), ("paper-bijection-lstm", "bijection-lstm --profile paper`")]
)
def test_a_record_that_the_book_lacks_says_how_it_is_made(name, how):
    with pytest.raises(ValueError, match=f"remove its folder and run `python -m bayesattn_core record {how}"):
        records.read(name)


def test_nothing_half_written_is_left(tmp_path, record, monkeypatch):
    def fail(path, content):
        raise OSError("disk full")

    monkeypatch.setattr(checks, "write_whole", fail)
    with pytest.raises(OSError, match="disk full"):
        records.write(tmp_path / "run", record)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "file"
    checks.write_whole(path, b"one")
    with pytest.raises(TypeError):
        checks.write_whole(path, "text")
    assert path.read_bytes() == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
