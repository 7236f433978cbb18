"""Speed and memory of networks and their data as ratios against stated references, in one run: make bench.

References: for the selective scan, the plain Python loop over time in autograd as the public pure-PyTorch
implementations write it (discretised tensors of all positions first, then one step after another; its backward pass fills
a gradient of all positions at each), and beside it a leaner loop, our own definition `scan.selective_scan_loop` (the
tensors of one position at a time); for a Mamba step, the same model with either loop; for hidden Markov batches, a NumPy
double loop over time and states, one sequence at a time; for data, the training step that it feeds, of an LSTM. What is wanted is
against the first.

Each is timed in a process of its own, on one thread, in CPU seconds: the median of as many steps as take MEASURED seconds,
after WARM seconds of warming up (not where one step takes longer than MEASURED). References and ours follow each other in
each of ROUNDS rounds, so that a slower minute of the machine meets all; a ratio is the median of the rounds' ratios, given
with the least and the largest.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np
import torch

from bayesattn_core import models, networks, scan, tunnels

ROUNDS = 3
WARM, MEASURED = 0.5, 2.0  # CPU seconds


def plain_scan(z, delta, A, B, C, D, h):
    """The reference scan: (y, last state), as `scan.selective_scan`."""
    decay = torch.exp(delta[..., None] * A)  # (B, T, d_inner, N)
    driven = delta[..., None] * B[:, :, None] * z[..., None]
    outputs = []
    for t in range(z.shape[1]):
        h = decay[:, t] * h + driven[:, t]
        outputs.append((h @ C[:, t, :, None])[..., 0])
    return torch.stack(outputs, 1) + D * z, h


LOOPS = {"plain": plain_scan, "lean": scan.selective_scan_loop}


def scan_step(kind: str):
    """Selective scan, forward and backward, batch 128, length 38, inner width 384, state 16, float32."""
    draw = torch.Generator().manual_seed(0)
    b, T, d, N = 128, 38, 384, 16
    shapes = {
        "z": (b, T, d),
        "delta": (b, T, d),
        "A": (d, N),
        "B": (b, T, N),
        "C": (b, T, N),
        "D": (d,),
        "h": (b, d, N),
    }
    inputs = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
    inputs["delta"], inputs["A"] = inputs["delta"].exp() / 10, -inputs["A"].exp()
    leaves = [value.requires_grad_() for value in inputs.values()]
    function = LOOPS.get(kind, scan.unchecked_scan)

    def step():
        y, _ = function(*leaves)
        torch.autograd.grad(y.square().sum(), leaves)

    return step


def mamba_step(kind: str):
    """A training step of a six-layer Mamba of width 192 on 64 sequences of 38 tokens."""
    scan.unchecked_scan = LOOPS.get(kind, scan.unchecked_scan)
    model = models.build(
        models.Config("mamba", 20, vocabulary=40, width=192, layers=6), torch.Generator().manual_seed(0)
    )
    optimiser = torch.optim.AdamW(model.parameters())
    batch = tunnels.Bijection().draw(torch.Generator().manual_seed(0), 64, dtype=torch.float32)

    def step():
        optimiser.zero_grad()
        networks.mean_loss(model(batch.inputs), batch).backward()
        optimiser.step()

    return step


def loop_filter(transition, emission, observations):
    """The reference filter of one sequence, over time and states: (K, S)."""
    K, S = len(observations), len(transition)
    filtered = np.zeros((K, S))
    for t in range(K):
        for s in range(S):
            before = 1 / S if t == 0 else sum(filtered[t - 1, r] * transition[r, s] for r in range(S))
            filtered[t, s] = before * emission[s, observations[t]]
        filtered[t] /= filtered[t].sum()
    return filtered


def hmm_step(kind: str):
    """1000 hidden Markov sequences with exact posteriors, S = O = 5, K = 20."""
    tunnel = tunnels.HeaderHMM()
    # A larger batch first, as every process that trains has seen one. Without it malloc gives the memory of each batch back
    # to the system in about half of all processes, and takes it anew for the next: 8 ms instead of 5, by luck alone.
    tunnel.draw(torch.Generator().manual_seed(0), 4000)
    if kind == "ours":
        return lambda: tunnel.draw(torch.Generator().manual_seed(0), 1000)
    batch = tunnel.draw(torch.Generator().manual_seed(0), 1000)
    known = {name: value.numpy() for name, value in batch.extra.items()}

    def step():
        rng = np.random.default_rng(0)
        for k in range(1000):
            rng.dirichlet(np.ones(5), 10)  # parameters, and a path through them
            state = 0
            for _ in range(20):
                state = rng.choice(5, p=known["transition"][k][state])
                rng.choice(5, p=known["emission"][k][state])
            loop_filter(known["transition"][k], known["emission"][k], known["observations"][k])

    return step


def data_step(kind: str, task: str):
    """Drawing a batch of the quick profile ("ours"), and the training step that it feeds ("plain")."""
    settings = networks.settings(task, "lstm")  # the cheapest architecture that can mix
    if kind == "ours":
        return lambda: networks.draw(settings, 0)
    model, batch = networks.build(settings), networks.draw(settings, 0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate)

    def step():
        optimiser.zero_grad()
        networks.mean_loss(model(batch.inputs), batch, settings.soft).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()

    return step


# name: (what is timed, {kind of reference: what it is}, how much faster than the first reference ours must be, largest
# share of its memory)
LOOP = {"plain": "plain loop, as public code writes it", "lean": "leaner loop, selective_scan_loop"}
PARTS = {
    "scan": (scan_step, LOOP, 4, 0.5),
    "mamba": (mamba_step, LOOP, 3, None),
    "hmm": (hmm_step, {"plain": "NumPy loop over time and states"}, 100, None),
    **{
        f"data {task}": (partial(data_step, task=task), {"plain": "training step that it feeds"}, 20, None)
        for task in networks.TASKS
    },
}


def measure(part: str, kind: str) -> dict:
    """CPU seconds of one step, the median of many, and peak memory above what was there before, in megabytes."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = PARTS[part][0](kind)

    def timed() -> float:
        start = time.process_time()
        step()
        return time.process_time() - start

    seconds = [timed()]
    if seconds[0] < MEASURED:
        while sum(seconds) < WARM:
            seconds.append(timed())
        seconds = []
    while sum(seconds) < MEASURED:
        seconds.append(timed())
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": statistics.median(seconds), "megabytes": peak}


def in_own_process(part: str, kind: str) -> dict:
    command = [sys.executable, "-m", "tests.bench_networks", part, kind]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    met = True
    for part, (what, references, wanted, share) in PARTS.items():
        rounds = [{kind: in_own_process(part, kind) for kind in (*references, "ours")} for _ in range(ROUNDS)]
        print(f"{part}: {getattr(what, 'func', what).__doc__.splitlines()[0]}")
        for kind, name in {**references, "ours": "ours"}.items():
            seconds, megabytes = ([one[kind][key] for one in rounds] for key in ("seconds", "megabytes"))
            line = f"  {name:36} {1000 * statistics.median(seconds):9.1f} ms {statistics.median(megabytes):6.0f} MB"
            if kind != "ours":
                faster = [slow / one["ours"]["seconds"] for slow, one in zip(seconds, rounds, strict=True)]
                memory = statistics.median(one["ours"]["megabytes"] for one in rounds) / statistics.median(megabytes)
                ratio = statistics.median(faster)
                line += f"   ours {ratio:.1f} times faster ({min(faster):.1f} to {max(faster):.1f}), {memory:.2f} of the memory"
            if kind == "plain":
                enough = ratio >= wanted and (share is None or memory <= share)
            print(line)
        met &= enough
        also = "" if share is None else f", at most {share} of the memory"
        print(
            f"  {'met    ' if enough else 'NOT MET'} at least {wanted} times faster than the {references['plain']}{also}"
        )
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        sys.exit(main())
