"""The commands as a person types them: output, exit codes, one-line errors."""

import itertools
import json
import os
import subprocess
import sys

import pytest

from bayesattn_core import __main__ as commands
from bayesattn_core import attention, figures, gradcheck, models, recorded, records


def test_gradcheck_prints_and_fails(capsys, monkeypatch):
    assert commands.main(["gradcheck"]) == 0
    printed = capsys.readouterr().out
    for name in attention.Gradients._fields:
        assert printed.count(f"\n{name} ") >= 3
    assert "36 of 36 checks passed" in printed

    honest = gradcheck.check_closed_forms

    def broken(**options):
        def gradients(*case):
            head, given = attention.gradients(*case)
            return head, given._replace(keys=-given.keys)

        return honest(gradients, **options)

    monkeypatch.setattr(gradcheck, "check_closed_forms", broken)
    assert commands.main(["gradcheck"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_sticky(capsys):
    assert commands.main("sticky --arm em --seed 42 --steps 3 --threshold 2.0779 --json".split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result) == ["arm", "seed", "steps", "loss", "accuracy", "entropy", "threshold_step"]
    assert (result["arm"], result["seed"], result["steps"], result["threshold_step"]) == ("em", 42, 3, 1)
    assert 2.07 < result["loss"] < 2.0779
    assert commands.main("sticky --arm sgd --seed 42 --steps 0".split()) == 0
    printed = capsys.readouterr().out
    assert "loss 2.0779 nats" in printed
    assert "threshold_step: no threshold given" in printed
    assert commands.main("sticky --arm sgd --seed 42 --steps 1 --threshold 1 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["threshold_step"] is None


def test_figures(tmp_path, capsys):
    assert commands.main(["figures", "--out", str(tmp_path / "new")]) == 0
    assert len(list((tmp_path / "new").iterdir())) == 4 * len(figures.committed())


def test_record_refuses_to_overwrite(capsys):
    assert commands.main(["record", "sticky-authors"]) == 0
    assert "already recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["record sticky-authors --out {}/file/under", "figures --out {}/file", "record sticky-authors --out="]
)
def test_out_is_looked_at_before_long_work(words, tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert commands.main(words.format(tmp_path).split()) == 2
    assert "--out must" in capsys.readouterr().err


BAD = {
    "": "required: COMMAND",
    "dance": "invalid choice: 'dance'",
    "sticky --seed 1": "required: --arm",
    "sticky --arm sgd": "required: --seed",
    "sticky --arm adam --seed 1": "--arm must be one of sgd, em, all-x10, o-x10, qk-x10, vo-x10, em-frozen-qk, got 'adam'",
    "sticky --arm sgd --seed x": "--seed: must be a whole number, got 'x'",
    "sticky --arm sgd --seed -1": "--seed must be at least 0, got -1",
    "sticky --arm sgd --seed 99999999999999999999": "--seed must be at most",
    "sticky --arm sgd --seed 1 --steps -1": "--steps must be at least 0, got -1",
    "sticky --arm sgd --seed 1 --steps 1e3": "--steps: must be a whole number, got '1e3'",
    "sticky --arm sgd --seed 1 --steps 100000000000": "--steps must be at most 10000000",
    "sticky --arm sgd --seed 1 --device cuda:²": "device must be cpu, cuda, cuda:N or auto, got 'cuda:²'",
    "sticky --arm sgd --seed 1 --device cuda:": "device must be cpu, cuda, cuda:N or auto, got 'cuda:'",
    "sticky --arm sgd --seed 1 --threshold nan": "--threshold must be finite, got nan",
    "sticky --arm sgd --seed 1 --device tpu": "device must be cpu, cuda, cuda:N or auto, got 'tpu'",
    "gradcheck --seed -5": "seed must be at least 0, got -5",
    "record everything": "NAME must be one of sticky-authors, ",
    "record sticky-authors --minutes 5": "--profile and --minutes are for cells (TASK-ARCH), got sticky-authors",
    "record bijection-lstm sticky-authors --profile paper": "are for cells (TASK-ARCH), got sticky-authors",
    "record bijection-lstm --profile big": "--profile must be one of quick, paper, got 'big'",
    "record bijection-lstm --minutes 0": "--minutes must be finite and above 0, got 0.0",
    "record bijection-lstm --profile paper --minutes -1": "--minutes must be finite and above 0, got -1.0",
    "record bijection-lstm --minutes soon": "--minutes: must be a number, got 'soon'",
    "record bijection-lstm --minutes inf": "--minutes must be finite and above 0, got inf",
    "record sticky-authors --device cuda:77": "device must be present on this machine, got 'cuda:77'",
    "figures": "required: --out",
    "figures --out /dev/null/x": "/dev/null/x",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_exit_code_2(line, capsys):
    try:
        code = commands.main(line.split())
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2
    assert BAD[line] in error
    assert error.count("\n") == 1


def make_paper(*words):
    kept_out = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "DEVICE", "MINUTES")
    environment = {name: value for name, value in os.environ.items() if name not in kept_out}
    command = ["make", "--no-print-directory", "-C", str(records.BOOK.parent), "paper", "READY=", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_make_paper_asks_for_cells_of_four_tasks():
    words = make_paper("-n").stdout.split("|| ")[0].replace("\\\n", " ").split()
    names = words[words.index("record") + 1 : words.index("--profile")]
    tasks = ("bijection", "hmm-header", "hmm-header-sticky", "recall-4")
    cells = [f"{task}-{net}" for task, net in itertools.product(tasks, models.ARCHITECTURES)]
    assert names == [name for name in cells if name in recorded.CELLS]
    assert words[words.index("--profile") :] == ["--profile", "paper", "--device", "cuda", "--minutes", "9"]


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 2), (2, 2), (3, 0)])  # make's own code for an error is 2
def test_for_make_paper_time_that_is_over_is_no_error(code, expected):
    done = make_paper(f"PY=sh -c 'exit {code}' --")
    assert done.returncode == expected
    assert done.stdout == "Not all is recorded yet: make paper goes on from here\n" * (code == 3)


def test_as_a_person_types_it():
    done = subprocess.run(
        [sys.executable, "-m", "bayesattn_core", "sticky", "--arm", "sgd", "--seed", "1", "--steps", "-3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python -m bayesattn_core sticky: error: --steps must be at least 0, got -3\n"


def test_a_folder_that_nothing_can_be_written_to_is_found_before_any_work(monkeypatch, capsys):
    """Of a kind that may be there, and be made again, but takes no file."""
    monkeypatch.setattr(commands.recorded, "RECORDED", {"sticky-authors": lambda device: pytest.fail("work was begun")})
    assert commands.main(["record", "sticky-authors", "--out", "/proc"]) == 2
    assert "--out must be a folder that can be written to, got /proc" in capsys.readouterr().err
