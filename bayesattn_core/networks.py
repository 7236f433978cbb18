"""Training networks on wind tunnels: one loop for every architecture, on CPU and CUDA, resumable after any interruption.

A run is decided by its Settings alone: initial weights come from the seed, the batch of step k from (seed, k). So a run
that was stopped goes on from its last checkpoint as if nothing had happened, on the CPU to the same bits. Networks learn
from sampled labels (or, as a labelled option, from soft posterior targets); the exact posterior only judges. Divergences
are in bits, training losses in nats. float32 without TF32; no mixed precision and no compilation, since neither has been
measured to pay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from tqdm import tqdm

from . import checks, models, records, training, tunnels

PROFILES = ("quick", "paper")
EVALUATION_SEED = 10**14  # added to a seed to draw what is evaluated, never trained on
STICKY = (0.7, 0.95)

# Every task by name, at the size of each profile
TASKS = {
    "bijection": {"quick": tunnels.Bijection(V=8, L=8), "paper": tunnels.Bijection(V=20, L=19)},
    "bijection-replacement": {
        "quick": tunnels.Bijection(V=8, L=12, replacement=True),
        "paper": tunnels.Bijection(V=20, L=30, replacement=True),
    },
    "hmm-fixed": {"quick": tunnels.FixedHMM(S=3, O=3, K=30), "paper": tunnels.FixedHMM(S=5, O=5, K=50)},
    "hmm-fixed-sticky": {
        "quick": tunnels.FixedHMM(S=3, O=3, K=30, sticky=STICKY),
        "paper": tunnels.FixedHMM(S=5, O=5, K=50, sticky=STICKY),
    },
    "hmm-header": {
        "quick": tunnels.HeaderHMM(S=3, O=3, K=20, quantum=50),
        "paper": tunnels.HeaderHMM(S=5, O=5, K=20),
    },
    "hmm-header-sticky": {
        "quick": tunnels.HeaderHMM(S=3, O=3, K=20, sticky=STICKY, quantum=50),
        "paper": tunnels.HeaderHMM(S=5, O=5, K=20, sticky=STICKY),
    },
    **{
        f"recall-{N}": {
            "quick": tunnels.Recall(N=N, keys=2 * N, values=16, queries=8),
            "paper": tunnels.Recall(N=16 * N, keys=32 * N, values=256, queries=16),
        }
        for N in (4, 8, 16, 32)
    },
}
HELD = {"routing": slice(0, 2), "values": slice(2, 3)}  # of queries, keys, values: the rows of Attention.qkv
POSITIONS = {"transformer": "rotary", "mamba": "none", "lstm": "none", "mlp": "learned"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides a run; checked when made (TypeError or ValueError that names the field)."""

    task: str  # one of TASKS
    architecture: str  # one of models.ARCHITECTURES
    profile: str = "quick"
    seed: int = 0
    rate: float = 3e-3  # peak learning rate of AdamW
    steps: int = 4000
    batch: int = 64  # sequences per step
    warmup: int = 200  # steps of linear warm-up; then a cosine down to a tenth
    decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # largest norm of the gradient
    soft: bool = False  # train on the exact posterior instead of sampled labels
    layers: int = 2
    parameters: int = 48_000  # of the network, within 5 %: its width follows (models.match_parameters)
    positions: str | None = None  # by default those of POSITIONS
    mixing: str = "softmax"  # of a transformer: one of models.MIXINGS
    evaluations: int = 24  # how often the network is judged, at log-spaced steps
    sequences: int = 1000  # that it is judged on
    snapshots: int = 0  # how often what a probe batch does inside is kept, at log-spaced steps
    matrices: int | None = None  # seed of a fixed hidden Markov model's matrices, by default its own
    held: str | None = None  # what of a transformer's softmax attention is held (one of HELD), from step held_from on
    held_from: int = 0

    def __post_init__(self):
        checks.choice("task", self.task, TASKS)
        checks.choice("architecture", self.architecture, models.ARCHITECTURES)
        checks.choice("profile", self.profile, PROFILES)
        checks.integer("seed", self.seed, most=999_999)
        checks.integer("steps", self.steps, least=1, most=9_999_999)
        checks.integer("warmup", self.warmup)
        checks.integer("snapshots", self.snapshots)
        checks.integer("evaluations", self.evaluations, least=2)
        for name in ("batch", "layers", "parameters", "sequences"):
            checks.integer(name, getattr(self, name), least=1)
        for name, above in (("rate", 0.0), ("clip", 0.0)):
            checks.number(name, getattr(self, name), above=above)
        checks.number("decay", self.decay, least=0)
        checks.integer("held_from", self.held_from, most=self.steps - 1)
        if not isinstance(self.soft, bool):
            raise TypeError(f"soft must be True or False, got {self.soft!r}")
        if self.positions is not None:
            checks.choice("positions", self.positions, models.POSITIONS)
        checks.choice("mixing", self.mixing, models.MIXINGS)
        if self.held is None and self.held_from:
            raise ValueError(f"held_from must be 0 where nothing is held, got {self.held_from}")
        if self.matrices is not None:
            checks.integer("matrices", self.matrices)
            if not self.task.startswith("hmm-fixed"):
                raise ValueError(f"matrices must be None but for hmm-fixed and hmm-fixed-sticky, got {self.matrices}")
        if self.held is not None:
            checks.choice("held", self.held, HELD)
            if self.architecture != "transformer" or self.mixing != "softmax":
                raise ValueError(f"held must be None but for a transformer with softmax mixing, got {self.held}")
        self.config  # noqa: B018 (what no network can be is refused)

    @property
    def tunnel(self) -> tunnels.Tunnel:
        """The task itself, at the profile's size."""
        tunnel = TASKS[self.task][self.profile]
        return tunnel if self.matrices is None else dataclasses.replace(tunnel, seed=self.matrices)

    @property
    def config(self) -> models.Config:
        """What is built, before its width is matched to `parameters`."""
        tunnel = self.tunnel
        return models.Config(
            self.architecture, C=tunnel.C, vocabulary=tunnel.vocabulary, d_x=tunnel.d_x, layers=self.layers,
            positions=self.positions or POSITIONS[self.architecture], mixing=self.mixing, max_T=tunnel.T,
        )  # fmt: skip


STEPS = {"hmm-fixed": 2000, "hmm-fixed-sticky": 2000, "hmm-header": 2000}  # in profile quick, if not Settings' own
PAPER = {
    "layers": 6,
    "parameters": 2_700_000,
    "steps": 100_000,
    "warmup": 1000,
    "rate": 1e-3,
}  # as the papers: width 192


def settings(task: str, architecture: str, profile: str = "quick", **changes) -> Settings:
    """The settings of a profile, with changes by name."""
    checks.choice("task", task, TASKS)
    checks.choice("profile", profile, PROFILES)
    quick = {"steps": STEPS[task]} if task in STEPS else {}
    if task.startswith("hmm-header"):
        quick |= {"parameters": 150_000, "layers": 3}
    return Settings(task, architecture, profile, **((PAPER if profile == "paper" else quick) | changes))


def build(settings: Settings) -> models.Model:
    """The network of a run, initialised from its seed, on the CPU, in float32."""
    config = models.match_parameters(settings.config, settings.parameters)
    return models.build(config, torch.Generator().manual_seed(settings.seed))


LONGER = 2.5  # how much longer than in training the sequences of `longer` are, as in the paper (20 and 50)


def longer(tunnel: tunnels.Tunnel) -> tunnels.Tunnel | None:
    """The same task with LONGER times as many observations or pairs; None where a task has no longer form."""
    if isinstance(tunnel, (tunnels.FixedHMM, tunnels.HeaderHMM)):
        return dataclasses.replace(tunnel, K=int(LONGER * tunnel.K))
    if isinstance(tunnel, tunnels.Bijection) and tunnel.replacement:
        return dataclasses.replace(tunnel, L=int(LONGER * tunnel.L))
    return None


def draw(
    settings: Settings, step: int | None, device: torch.device | str = "cpu", tunnel: tunnels.Tunnel | None = None
) -> tunnels.Batch:
    """The batch that `step` stands on; None: the sequences for evaluation, the same for every architecture. `tunnel`:
    another than that of the settings, such as its `longer` form."""
    if step is not None:
        seed, sequences = 10_000_000 * settings.seed + checks.integer("step", step, most=9_999_999), settings.batch
    else:
        seed, sequences = EVALUATION_SEED + settings.seed, settings.sequences
    tunnel = tunnel or settings.tunnel
    return tunnel.draw(torch.Generator().manual_seed(seed), sequences, dtype=torch.float32).to(device)


def restored(settings: Settings, weights: dict[str, Tensor]) -> models.Model:
    """The network of a run with recorded weights (probe snapshots among them are passed over). ValueError for another's."""
    model = build(settings)
    try:
        model.load_state_dict({name: W for name, W in weights.items() if not name.startswith("probe@")})
    except RuntimeError as error:
        raise ValueError(f"weights must be those of the settings' network, got others: {error}") from None
    return model


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up to the peak, then a cosine down to a tenth of it. (A run that is shorter than its warm-up ends in it.)
    ValueError for a step below 0."""
    checks.integer("step", step)
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    part = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * min(part, 1.0))))


def held_rows(model: models.Model, held: str | None) -> list[tuple[Tensor, Tensor]]:
    """The rows of queries and keys or of values in every attention layer's map: (a view of them, what they are now). (Their
    gradients still count where the norm of all gradients is clipped.)"""
    if held is not None:
        checks.choice("held", held, HELD)
    qkv = [p for name, p in model.named_parameters() if held and ".qkv." in name]  # weights and biases
    if held and not qkv:
        raise ValueError(f"model must have maps to queries, keys and values, got a {type(model).__name__} without any")
    rows = [p.detach().unflatten(0, (3, -1))[HELD[held]] for p in qkv]
    return [(view, view.clone()) for view in rows]


def mean_loss(logits: Tensor, batch: tunnels.Batch, soft: bool = False) -> Tensor:
    """Cross-entropy with the sampled labels (soft: the exact posterior), mean over supervised positions, nats.

    Raises ValueError for logits that do not have the posterior's shape (B, T, C)."""
    if logits.shape != batch.posterior.shape:
        raise ValueError(f"logits must have shape {tuple(batch.posterior.shape)}, got {tuple(logits.shape)}")
    log_p = logits.log_softmax(-1)
    each = (batch.posterior * log_p).sum(-1) if soft else log_p.gather(-1, batch.targets[..., None])[..., 0]
    return -each[batch.supervised].mean()


@torch.no_grad()
def evaluate(model: torch.nn.Module, batch: tunnels.Batch, chunk: int = 250) -> dict[str, Tensor]:
    """kl and entropy_error in bits, and accuracy, by position, (T,): means over sequences, NaN where unsupervised.

    `chunk` sequences at a time. Raises training.Diverged if the network's predictions are not numbers."""
    chunks = batch.inputs.split(checks.integer("chunk", chunk, least=1))
    log_p = torch.cat([model(inputs).log_softmax(-1) for inputs in chunks])
    if bool(log_p.isnan().any()):
        raise training.Diverged("model must predict probabilities, got NaN")
    return judge(batch, log_p)


def judge(batch: tunnels.Batch, log_p: Tensor) -> dict[str, Tensor]:
    """The three scores by position, (T,) float64, of log-probabilities (B, T, C) in nats."""
    return {
        "kl": tunnels.kl(batch.posterior, log_p, batch.supervised).per_position,
        "entropy_error": tunnels.entropy_error(batch.posterior, log_p, batch.supervised).per_position,
        "accuracy": tunnels.accuracy(batch.targets, log_p, batch.supervised).per_position,
    }


def log_spaced(steps: int, count: int) -> list[int]:
    """At most `count` log-spaced steps from 0 to `steps`, both among them; none if count is 0."""
    checks.integer("steps", steps, least=1)
    if checks.integer("count", count) == 0:
        return []
    inner = torch.logspace(math.log10(steps), 0, max(count - 1, 0), dtype=torch.float64)  # the last first
    return sorted({steps, *inner.round().int().tolist(), *([0] if count > 1 else [])})


PROBED = ("attention", "keys", "values", "hidden", "y", "activations")  # what parts record that is kept of a probe
PROBES = 4  # sequences of the evaluation batch that are probed


@torch.no_grad()
def probe(model: models.Model, batch: tunnels.Batch) -> dict[str, Tensor]:
    """What goes on inside on the first PROBES sequences, by block: {"0/keys": ..., "0/residual": ...}, in half precision."""
    inside = model.record(batch.inputs[:PROBES])
    names = (*PROBED, "residual")
    return {
        f"{k}/{name}": block[name].half().cpu() for k, block in enumerate(inside) for name in names if name in block
    }


class Unfinished(Exception):
    """The time given to a run is over; its checkpoint is kept. The message says how far it came; `step`: steps done."""

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


def checkpoint_path(out: Path) -> Path:
    """Where a run that will be recorded in the folder `out` keeps its checkpoint: a hidden file beside it."""
    return Path(out).with_name(f".{Path(out).name}.checkpoint.safetensors")


def digest(tensors: dict[str, Tensor]) -> str:
    """A digest of the names, shapes and entries of tensors on the CPU."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def save(
    path: Path, settings: Settings, step: int, seconds: float, model, optimiser, curves: dict[str, Tensor]
) -> None:
    """Write a checkpoint before `step`, whole or not at all."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for k, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{k}/{name}": value for name, value in state.items()}
    tensors |= {f"curves/{name}": value for name, value in curves.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {"settings": json.dumps(dataclasses.asdict(settings)), "step": str(step), "seconds": str(seconds)}
    content = save_tensors(tensors, about | {"digest": digest(tensors)})
    checks.write_whole(path, content)


def restore(path: Path, settings: Settings, model, optimiser) -> tuple[int, float, dict[str, Tensor]]:
    """Put a checkpoint back in place: (step, seconds spent before it, curves). ValueError if it is not of this run."""
    try:
        content = Path(path).read_bytes()
        size = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors, given = load_tensors(content), dict(json.loads(about["settings"]))
        step, seconds = int(about["step"]), checks.number("seconds", float(about["seconds"]), least=0)
        whole = digest(tensors) == about["digest"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"checkpoint must be readable, got {path} ({error}): remove it to start again") from None
    if not whole or not 0 <= step <= settings.steps:
        why = f"step {step} of {settings.steps}" if whole else "its entries are not those that were written"
        raise ValueError(f"checkpoint must be readable, got {path} ({why}): remove it to start again")
    asked = dataclasses.asdict(settings)
    if given != asked:
        other = {key: given.get(key) for key in asked if given.get(key) != asked[key]}
        raise ValueError(f"checkpoint must be of the same settings, got {path} with {other}: remove it to start again")
    parts: dict[str, dict] = {"model": {}, "optimiser": {}, "curves": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    model.load_state_dict(parts["model"])
    whole = optimiser.state_dict()
    for name, value in parts["optimiser"].items():
        k, _, entry = name.partition("/")
        whole["state"].setdefault(int(k), {})[entry] = value
    optimiser.load_state_dict(whole)
    return step, seconds, parts["curves"]


def train(
    settings: Settings, out: Path, device: torch.device | str = "cpu", *, resume: bool = False, seconds_between: float = 20.0,
    until: float = math.inf,
) -> Path:  # fmt: skip
    """Train one network and record it in the folder `out`, which is written whole when the run is over.

    Until then a checkpoint lies beside it, replaced whole every `seconds_between` seconds; `resume` goes on from it, if
    there is one. At the moment `until` of time.perf_counter, but not before it has gone on by a step, it writes a
    checkpoint and raises Unfinished. Raises ValueError if `out` exists, if there is a checkpoint and resume is False, or
    if the checkpoint is of other settings or unreadable; training.Diverged, which names the step and the checkpoint that
    is kept, if the loss is not finite.
    """
    out, device, started = Path(out), checks.device(str(device)), time.perf_counter()
    if out.name in ("", ".."):
        raise ValueError(f"out must name a folder to be made, got {str(out)!r}")
    path = checkpoint_path(out)
    if out.exists():
        raise ValueError(f"out must not exist yet, got {out}: it is there already")
    if path.exists() and not resume:
        raise ValueError(f"resume must be asked for, or {path} removed: an interrupted run of {out.name} is there")
    model = build(settings).to(device)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": settings.decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.95))
    judged, when = draw(settings, None, device), log_spaced(settings.steps, settings.evaluations)
    probed = log_spaced(settings.steps, settings.snapshots)
    curves = {
        name: torch.full((len(when), settings.tunnel.T), torch.nan) for name in ("kl", "entropy_error", "accuracy")
    }
    curves["loss"] = torch.full((settings.steps,), torch.nan)
    first, spent, kept = 0, 0.0, []
    if path.exists():
        first, spent, curves = restore(path, settings, model, optimiser)
    saved = looping = time.perf_counter()
    label = f"{settings.task} {settings.architecture} {settings.seed}"

    def lost(step: int, what: str) -> training.Diverged:
        left = f"the last good checkpoint is {path}" if path.exists() else "no checkpoint had been written yet"
        return training.Diverged(f"training must keep a finite loss, got {what} at step {step}: {left}")

    steps = tqdm(range(first, settings.steps + 1), desc=label, unit="step", disable=not training.watched())
    for step in steps:
        now = time.perf_counter()
        over = now > until and step > first  # however short the time, a run goes on by a step
        if over or now - saved > seconds_between:
            if not all(bool(p.isfinite().all()) for p in model.parameters()):
                raise lost(step, "weights that are not finite")
            save(path, settings, step, spent + now - started, model, optimiser, curves)
            saved = now
        if over:
            pace = 1000 * (now - looping) / (step - first)  # of this piece alone, evaluations and checkpoints included
            raise Unfinished(f"{out.name}, {step} of {settings.steps} steps, {pace:.1f} ms a step", step)
        if step in when:
            try:
                scores = evaluate(model, judged)
            except training.Diverged:
                raise lost(step, "predictions that are NaN") from None
            for name, value in scores.items():
                curves[name][when.index(step)] = value.cpu()
        if step in probed:
            curves |= {f"probe@{step}/{name}": value for name, value in probe(model, judged).items()}
        if step == settings.steps:
            break
        if step == max(first, settings.held_from):
            kept = held_rows(model, settings.held)
        batch = draw(settings, step, device)
        loss = mean_loss(model(batch.inputs), batch, settings.soft)
        curves["loss"][step] = loss.detach().cpu()
        if not math.isfinite(curves["loss"][step].item()):
            raise lost(step, str(loss.item()))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimiser.step()
        for view, value in kept:
            view.copy_(value)
    seconds = spent + time.perf_counter() - started
    about = {"evaluated": when, "size": models.parameters(model), "state": model.state_size(settings.tunnel.T)}
    baselines = {
        f"predictor/{name}": judge(judged, p.log())["kl"].float()[None]
        for name, p in settings.tunnel.predictors(judged).items()
    }
    weights = model.state_dict() | {name: curves.pop(name) for name in list(curves) if name.startswith("probe@")}
    config = dataclasses.asdict(settings) | about
    records.write(out, records.Record(config, curves | baselines, weights, records.provenance(device, seconds)))
    path.unlink(missing_ok=True)
    return out
