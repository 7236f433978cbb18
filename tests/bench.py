"""Speed and memory as ratios against a stated reference, in one run: make bench.

The reference for the descent is a plain autograd loop: one seed at a time, the full score matrix with masking,
`loss.backward()`. Each part runs in a process of its own, on one thread, so that CPU time and peak memory are its own.
Times are CPU seconds per step of one run, the smallest of several rounds.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time

import torch

from bayesattn_core import experiments, tasks, training

ROUNDS = 3
STEPS = int(os.environ.get("BENCH_STEPS", "20"))  # 1000 is the whole experiment, a quarter of an hour


def plain_loop(chain: tasks.Chain, weights: dict, arm: str, steps: int) -> list[float]:
    """The reference: losses before each update and after the last."""
    leaves = {name: W.clone().requires_grad_() for name, W in weights.items()}
    hidden = torch.ones(len(chain.inputs), len(chain.inputs), dtype=torch.bool).triu(1)
    losses = []
    for step in range(steps + 1):
        Q, K, V = (chain.inputs @ leaves[name] for name in ("W_Q", "W_K", "W_V"))
        A = (Q @ K.T / math.sqrt(Q.shape[-1])).masked_fill(hidden, -math.inf).softmax(-1)
        loss = torch.nn.functional.cross_entropy(A @ V @ leaves["W_O"], chain.targets)
        losses.append(loss.item())
        loss.backward()  # after the last step too, as the closed form does: every step counts the same
        with torch.no_grad():
            for name, W in leaves.items():
                W -= (step < steps) * experiments.ARMS[arm][name] * W.grad
                W.grad = None
    return losses


def measure(part: str) -> dict:
    """Losses, CPU seconds per step of one run, and peak memory, of one part."""
    torch.set_num_threads(1)
    seeds, arms = list(tasks.AUTHOR_SEEDS), ["sgd", "em"]
    draws = [tasks.author_draws(seed) for seed in seeds]
    many, initial = experiments.setting(tasks.author_draws, seeds)
    initial = {name: W[:, None] for name, W in initial.items()}

    def run(steps: int) -> list:
        if part == "plain":
            return [[plain_loop(*draw, arm, steps) for draw in draws] for arm in arms]
        rates = experiments.stack_rates(arms)
        done = training.descend(many.inputs[:, None], initial, many.targets[:, None], rates, steps)
        return done.loss.permute(2, 1, 0).tolist()

    run(1)  # what a process does once, as loading kernels, is no part of a step
    start = time.process_time()
    losses = run(STEPS)
    seconds = (time.process_time() - start) / (len(seeds) * len(arms) * (STEPS + 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"losses": losses, "seconds": seconds, "megabytes": peak}


def in_own_process(part: str) -> dict:
    done = subprocess.run([sys.executable, "-m", "tests.bench", part], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    parts = {"plain": [], "ours": []}
    for _ in range(ROUNDS):  # by turns, so that a slower minute of the machine meets both
        for part, measured in parts.items():
            measured.append(in_own_process(part))
    plain, ours = (min(measured, key=lambda one: one["seconds"]) for measured in parts.values())
    off = (torch.tensor(plain["losses"]) - torch.tensor(ours["losses"])).abs().max().item()
    faster = plain["seconds"] / ours["seconds"]
    print(
        f"sticky chain, T = {1999}, float32, 5 seeds x 2 arms, {STEPS} steps, 1 thread; reference: plain autograd loop"
    )
    print(
        f"  plain autograd loop   {1000 * plain['seconds']:7.1f} ms CPU a step of a run   {plain['megabytes']:6.0f} MB peak"
    )
    print(
        f"  closed form, blocks   {1000 * ours['seconds']:7.1f} ms CPU a step of a run   {ours['megabytes']:6.0f} MB peak"
    )
    print(
        f"  {faster:.1f} times faster, {ours['megabytes'] / plain['megabytes']:.2f} of the memory, losses within {off:.0e}"
    )
    wanted = [(faster >= 6, "at least 6 times faster"), (ours["megabytes"] <= 750, "at most 750 MB")]
    wanted += [(ours["megabytes"] <= plain["megabytes"], "no more memory"), (off < 1e-4, "losses agree to 1e-4")]
    for met, what in wanted:
        print(f"  {'met    ' if met else 'NOT MET'} {what}")
    return 0 if all(met for met, _ in wanted) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        sys.exit(main())
