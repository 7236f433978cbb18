"""Speed and memory of networks and their data as ratios against stated references, in one run: make bench.

References: for the selective scan, the plain Python loop over time in autograd as the public pure-PyTorch
implementations write it (discretised tensors of all positions first, then one step after another); for a Mamba step, the
same model with that loop; for hidden Markov batches, a NumPy double loop over time and states, one sequence at a time;
for data, the training step that it feeds. Each part runs in a process of its own, on one thread: CPU seconds, the
smallest of several rounds.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from bayesattn_core import models, networks, scan, tunnels

ROUNDS = 3


def plain_scan(z, delta, A, B, C, D, h):
    """The reference scan: (y, last state), as `scan.selective_scan`."""
    decay = torch.exp(delta[..., None] * A)  # (B, T, d_inner, N)
    driven = delta[..., None] * B[:, :, None] * z[..., None]
    outputs = []
    for t in range(z.shape[1]):
        h = decay[:, t] * h + driven[:, t]
        outputs.append((h @ C[:, t, :, None])[..., 0])
    return torch.stack(outputs, 1) + D * z, h


def scan_step(kind: str):
    """Forward and backward of the scan at batch 128, length 38, inner width 384, state 16, float32."""
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
    function = plain_scan if kind == "plain" else scan.unchecked_scan

    def step():
        y, _ = function(*leaves)
        torch.autograd.grad(y.square().sum(), leaves)

    return step


def mamba_step(kind: str):
    """A training step of a six-layer Mamba of width 192 on 64 sequences of 38 tokens."""
    if kind == "plain":
        scan.unchecked_scan = plain_scan
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


def data_step(kind: str):
    """Drawing the batch of every task of the quick profile ("ours"), and the training steps that they feed ("plain")."""
    chosen = [networks.settings(task, "lstm") for task in networks.TASKS]  # the cheapest architecture that can mix
    if kind == "ours":
        return lambda: [networks.draw(settings, 0) for settings in chosen]
    built = [(settings, networks.build(settings), networks.draw(settings, 0)) for settings in chosen]

    def step():
        for settings, model, batch in built:
            networks.mean_loss(model(batch.inputs), batch, settings.soft).backward()

    return step


# name: (what is timed, how much faster than the reference it must be, largest share of the reference's memory, repeats)
PARTS = {
    "scan": (scan_step, 4, 0.5, 3),
    "mamba": (mamba_step, 3, None, 2),
    "hmm": (hmm_step, 100, None, 1),
    "data": (data_step, 20, None, 3),
}


def measure(part: str, kind: str) -> dict:
    """CPU seconds of one step, the smallest of several, and peak memory above what was there before, in megabytes."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step, repeats = PARTS[part][0](kind), PARTS[part][3]
    if kind == "ours" or part == "data":
        step()  # warm
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": min(seconds), "megabytes": peak}


def in_own_process(part: str, kind: str) -> dict:
    command = [sys.executable, "-m", "tests.bench_networks", part, kind]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    met = True
    for part, (what, wanted, share, _) in PARTS.items():
        rounds = [(in_own_process(part, "plain"), in_own_process(part, "ours")) for _ in range(ROUNDS)]
        plain, ours = (min(kinds, key=lambda one: one["seconds"]) for kinds in zip(*rounds, strict=True))
        faster, memory = plain["seconds"] / ours["seconds"], ours["megabytes"] / plain["megabytes"]
        enough = faster >= wanted and (share is None or memory <= share)
        met &= enough
        print(what.__doc__.splitlines()[0])
        print(f"  reference {1000 * plain['seconds']:9.1f} ms {plain['megabytes']:6.0f} MB")
        print(f"  ours      {1000 * ours['seconds']:9.1f} ms {ours['megabytes']:6.0f} MB")
        also = "" if share is None else f", at most {share} of the memory"
        print(f"  {faster:.1f} times faster, {memory:.2f} of the memory")
        print(f"  {'met    ' if enough else 'NOT MET'} at least {wanted} times faster{also}")
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        sys.exit(main())
