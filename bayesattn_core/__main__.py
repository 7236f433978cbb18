"""The commands: python -m bayesattn_core gradcheck | sticky | record | train | figures. Bad input: one line, exit code 2."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from . import checks, experiments, figures, gradcheck, models, networks, recorded, records, training


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")


def whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {value!r}") from None


def real(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {value!r}") from None


def run_gradcheck(options) -> int:
    report = gradcheck.check_closed_forms(seed=options.seed, device=checks.device(options.device))
    passed = sum(row.passed for row in report.rows)
    print(
        f"{report}\n{passed} of {len(report.rows)} checks passed (worst case of each tensor over random shapes, masks and target kinds, float64)"
    )
    return 0 if report.passed else 1


def run_sticky(options) -> int:
    arm = checks.choice("--arm", options.arm, experiments.ARMS)
    threshold = None if options.threshold is None else checks.number("--threshold", options.threshold)
    seed, steps = (
        checks.integer("--seed", options.seed),
        checks.integer("--steps", options.steps, most=training.MOST_STEPS),
    )
    run = experiments.descend_authors([seed], [arm], steps, checks.device(options.device), label=f"{arm} {seed}")
    loss = run.loss[:, 0, 0]
    result = {"arm": arm, "seed": seed, "steps": steps} | {
        name: getattr(run, name)[-1, 0, 0].item() for name in ("loss", "accuracy", "entropy")
    }
    result["threshold_step"] = None if threshold is None else training.threshold_step(loss, threshold)
    if options.json:
        print(json.dumps(result))
        return 0
    reached = (
        "no threshold given"
        if threshold is None
        else "never below the threshold"
        if result["threshold_step"] is None
        else result["threshold_step"]
    )
    print(
        f"{arm}, seed {seed}, after {steps} updates: loss {result['loss']:.4f} nats, accuracy {result['accuracy']:.4f}, entropy {result['entropy']:.4f} nats"
    )
    print(f"threshold_step: {reached}")
    return 0


def writable(name: str, given: str) -> Path:
    """The folder `given`, made if need be; ValueError if it cannot be: before long work, not after it."""
    if not given:
        raise ValueError(f"{name} must name a folder, got an empty text")
    try:
        Path(given).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=given):
            pass
    except OSError as error:
        raise ValueError(f"{name} must be a folder that can be written to, got {given} ({error.strerror})") from None
    return Path(given)


def run_record(options) -> int:
    names = [checks.choice("NAME", name, recorded.RECORDED) for name in options.names]
    device, profile = checks.device(options.device), checks.choice("--profile", options.profile, networks.PROFILES)
    minutes = math.inf if options.minutes is None else checks.number("--minutes", options.minutes, above=0)
    given = {} if profile == "quick" and minutes == math.inf else {"profile": profile}
    plain = [name for name in names if name not in recorded.CELLS]
    if given and plain:
        raise ValueError(f"--profile and --minutes are for cells (TASK-ARCH), got {plain[0]}")
    if given:
        given["until"] = time.perf_counter() + 60 * minutes
    for name in names:
        folder = writable("--out", options.out) / (name if profile == "quick" else f"{profile}-{name}")
        if folder.exists():
            print(f"{folder} is already recorded: remove it to record again")
            continue
        try:
            records.write(folder, recorded.RECORDED[name](device, **given))
        except networks.Unfinished as unfinished:
            print(f"{folder.name}: time is over at {unfinished}; run again to go on")
            return 3
        print(folder)
    return 0


def run_train(options) -> int:
    changes = {name: getattr(options, name) for name in ("seed", "steps", "rate") if getattr(options, name) is not None}
    chosen = networks.settings(options.task, options.architecture, options.profile, **changes)
    out, device = Path(options.out), checks.device(options.device)
    if not out.name:
        raise ValueError(f"--out must name a folder, got {options.out!r}")
    writable("--out", str(out.parent))
    print(networks.train(chosen, out, device, resume=options.resume))
    return 0


def run_figures(options) -> int:
    print(f"{len(figures.publish(writable('--out', options.out)))} files in {options.out}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 a check failed, 2 bad input, 3 the time given is over, run again."""
    parser = Parser(prog="python -m bayesattn_core", description="What the book computes with.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    command = commands.add_parser(
        "gradcheck", help="check every closed-form gradient against finite differences and autograd"
    )
    command.add_argument("--seed", type=whole, default=0, help="of the random heads (default 0)")
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto (default cpu)")
    command.set_defaults(run=run_gradcheck)

    command = commands.add_parser("sticky", help="train one arm on the sticky chain in the authors' setting")
    command.add_argument("--arm", required=True, help=f"one of {', '.join(experiments.ARMS)}")
    command.add_argument(
        "--seed",
        type=whole,
        required=True,
        help="of the chain, the noise and the weights; the authors' are 42, 2024, 1337, 7777, 9999",
    )
    command.add_argument("--steps", type=whole, default=1000, help="updates (default 1000)")
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto (default cpu)")
    command.add_argument(
        "--threshold", type=real, help="loss in nats; prints the first step whose loss, before its update, is below it"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run_sticky)

    command = commands.add_parser("record", help="make recorded runs that chapters read")
    command.add_argument("names", metavar="NAME", nargs="+", help=f"one of {', '.join(recorded.RECORDED)}")
    command.add_argument(
        "--profile", default="quick", help="of cells: quick (default) or paper, recorded as paper-NAME"
    )
    command.add_argument(
        "--minutes", type=real, help="of cells: stop after so long, with exit code 3; run again to go on"
    )
    command.add_argument(
        "--out", default=str(records.BOOK / "records"), help="folder of the records (default: the committed ones)"
    )
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto (default cpu)")
    command.set_defaults(run=run_record)

    command = commands.add_parser("train", help="train one network on a wind tunnel and record it")
    command.add_argument("task", metavar="TASK", help=f"one of {', '.join(networks.TASKS)}")
    command.add_argument("architecture", metavar="ARCH", help=f"one of {', '.join(models.ARCHITECTURES)}")
    command.add_argument("--profile", default="quick", help="quick (default) or paper")
    command.add_argument("--seed", type=whole, help="of the weights and the sequences (default 0)")
    command.add_argument("--steps", type=whole, help="optimiser steps (default: the profile's)")
    command.add_argument("--rate", type=real, help="peak learning rate (default: the profile's)")
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto (default cpu)")
    command.add_argument("--out", required=True, help="folder of the record, written when the run is over")
    command.add_argument("--resume", action="store_true", help="go on from the checkpoint beside OUT, if there is one")
    command.set_defaults(run=run_train)

    command = commands.add_parser("figures", help="draw every figure from its committed numbers as SVG, PDF and PNG")
    command.add_argument("--out", required=True, help="folder to write to")
    command.set_defaults(run=run_figures)

    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, TypeError, OSError) as error:
        message = str(error).replace("\n", " ")
        print(f"{parser.prog} {options.command}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
