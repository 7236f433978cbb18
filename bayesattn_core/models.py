"""Four sequence models behind one interface: Transformer, Mamba, LSTM, and the MLP that cannot mix positions.

Tokens (B, T) or vectors (B, T, d_x) in, logits (B, T, C) out, always causal. All four share the input map, the positions,
pre-norm residual blocks x + part(LayerNorm(x)), the last LayerNorm and the linear head; they differ in the parts of a
block alone: attention then MLP (Transformer), or one Mamba layer, one LSTM layer, one MLP. There is no dropout.

    code          maths   shape               meaning
    width         d       ()                  the residual stream's width
    d_inner               ()                  Mamba's inner width, expand x width
    hidden                ()                  hidden size of an MLP or an LSTM
    x                     (B, T, width)       the residual stream; what a part is given is its LayerNorm
    q, k, v       q, k, v (B, heads, T, width / heads)    queries, keys, values
    attention     α       (B, heads, T, T)    softmax of causal scaled dot products (see MIXINGS for the other two)
    z, delta, A, B, C, D, h, y                Mamba's scan: see scan.py

Where this differs from the papers: LayerNorm in every model (Mamba's paper: RMSNorm), so that they differ in the mixing
alone; the LSTM layer is followed by a linear map back to the width, and its forget gates start open (bias 1).
Transformer: Vaswani et al. 2017, pre-norm; rotary positions: Su et al. 2021; Mamba: Gu and Dao 2023; LSTM: torch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import attention as head
from . import checks, scan

ARCHITECTURES = ("transformer", "mamba", "lstm", "mlp")
POSITIONS = ("none", "learned", "sinusoidal", "rotary")
# What a row α_t of a Transformer's layer is made of; values, and all the rest, are the same:
#   softmax   of the scores q_t·k_s: by content, and competing
#   linear    φ(q_t)·φ(k_s) / Σ_r φ(q_t)·φ(k_r), φ = elu + 1 (Katharopoulos et al. 2020): by content, no exponential
#   fixed     softmax of a learned table over (t, s): the same for every sequence, no content
MIXINGS = ("softmax", "linear", "fixed")


@dataclass(frozen=True)
class Config:
    """What to build; checked when made (TypeError or ValueError that names the field)."""

    architecture: str  # one of ARCHITECTURES
    C: int  # classes out
    vocabulary: int | None = None  # tokens in: how many there are; exactly one of this and d_x
    d_x: int | None = None  # vectors in: their width
    width: int = 64
    layers: int = 2  # blocks
    heads: int = 4  # transformer
    mixing: str = "softmax"  # transformer: one of MIXINGS
    positions: str = "none"  # one of POSITIONS; rotary for the transformer alone
    max_T: int = 256  # learned positions, fixed mixing: the longest sequence
    state: int = 16  # mamba: N, the states of a channel
    expand: int = 2  # mamba: d_inner / width
    conv: int = 4  # mamba: length of the short convolution
    dt_rank: int | None = None  # mamba: rank of the map to Δ; ceil(width / 16) if None
    mlp_ratio: int = 4  # transformer and mlp: hidden size / width
    hidden: int | None = None  # hidden size; if None, mlp_ratio width (transformer, mlp) or width (lstm)

    def __post_init__(self):
        checks.choice("architecture", self.architecture, ARCHITECTURES)
        checks.choice("positions", self.positions, POSITIONS)
        checks.choice("mixing", self.mixing, MIXINGS)
        if (self.vocabulary is None) == (self.d_x is None):
            raise ValueError(
                f"exactly one of vocabulary and d_x must be given, got vocabulary {self.vocabulary} and d_x {self.d_x}"
            )
        for name in ("C", "width", "layers", "heads", "max_T", "state", "expand", "conv", "mlp_ratio"):
            checks.integer(name, getattr(self, name), least=1)
        for name in ("vocabulary", "d_x", "dt_rank", "hidden"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), least=1)
        if self.positions == "rotary" and self.architecture != "transformer":
            raise ValueError(f"positions must be rotary for the transformer only, got architecture {self.architecture}")
        if self.mixing != "softmax" and (self.architecture != "transformer" or self.positions == "rotary"):
            raise ValueError(
                f"mixing must be softmax but for a transformer without rotary positions, got {self.mixing} for architecture"
                f" {self.architecture} with positions {self.positions}"
            )
        if self.hidden is not None and self.architecture == "mamba":
            raise ValueError(f"hidden must be None for mamba, whose inner width is expand x width, got {self.hidden}")
        unit = self.heads if self.architecture == "transformer" else 1
        unit *= 2 if self.positions == "rotary" else 1
        unit = math.lcm(unit, 2) if self.positions == "sinusoidal" else unit
        if self.width % unit:
            raise ValueError(f"width must be a multiple of {unit} for this architecture's heads and positions, got {self.width}")  # fmt: skip

    @property
    def inner(self) -> int:
        """Mamba's inner width d_inner."""
        return self.expand * self.width

    @property
    def rank(self) -> int:
        """The rank of Mamba's map to Δ."""
        return -(-self.width // 16) if self.dt_rank is None else self.dt_rank

    @property
    def hidden_size(self) -> int:
        """The hidden size of an MLP or an LSTM."""
        default = self.width if self.architecture == "lstm" else self.mlp_ratio * self.width
        return default if self.hidden is None else self.hidden


class Carried(NamedTuple):
    """What a model carries from the past: the number of positions seen, and the tensors of each part in order."""

    seen: int
    states: list[tuple[Tensor, ...]]


def angles(first: int, T: int, pairs: int, like: Tensor) -> Tensor:
    """Positions first .. first + T - 1 times the frequencies 10000^(-i / pairs): (T, pairs)."""
    frequencies = 10000 ** (-torch.arange(pairs, dtype=like.dtype, device=like.device) / pairs)
    return torch.arange(first, first + T, dtype=like.dtype, device=like.device)[:, None] * frequencies


def rotate(x: Tensor, first: int = 0) -> Tensor:
    """Rotary positions of queries or keys x (..., T, 2 pairs): pair (i, i + pairs) turns by position times frequency i.

    Raises ValueError for a last dimension of an odd size."""
    if x.shape[-1] % 2:
        raise ValueError(f"x must have an even size in its last dimension, got shape {tuple(x.shape)}")
    left, right = x.chunk(2, -1)
    turn = angles(first, x.shape[-2], left.shape[-1], x)
    return torch.cat([left * turn.cos() - right * turn.sin(), left * turn.sin() + right * turn.cos()], -1)


class Attention(nn.Module):
    """Causal multi-head self-attention; carries keys and values. Records queries, keys, values, attention, contexts."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.rotary = config.heads, config.positions == "rotary"
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = split_heads(self.qkv(x), 3, self.heads)
        first = past[0].shape[-2] if past else 0
        if self.rotary:
            q, k = rotate(q, first), rotate(k, first)
        if past:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        seen = head.visible(first + x.shape[1], True, x.device)[first:]  # (T, first + T)
        if record is None:
            contexts = F.scaled_dot_product_attention(q, k, v, attn_mask=seen if first else None, is_causal=not first)
        else:
            rows = head.scores(q, k).masked_fill(~seen, -math.inf).softmax(-1)  # (B, heads, T, first + T)
            contexts = rows @ v
            record |= {"queries": q, "keys": k, "values": v, "attention": rows, "contexts": contexts}
        return self.out(merge_heads(contexts)), (k, v)


class LinearAttention(nn.Module):
    """As Attention with mixing `linear`; carries Σ φ(k) v and Σ φ(k). Records queries, keys, values, attention, contexts.

    The recorded attention lists the positions of this call alone.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = split_heads(self.qkv(x), 3, self.heads)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        bound, mass = past or (
            q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]),
            q.new_zeros(*q.shape[:2], q.shape[-1]),
        )
        weights = (q @ k.mT).masked_fill(~head.visible(x.shape[1], True, x.device), 0.0)  # (B, heads, T, T)
        total = weights.sum(-1, keepdim=True) + q @ mass[..., None]
        contexts = (weights @ v + q @ bound) / total
        if record is not None:
            record |= {"queries": q, "keys": k, "values": v, "attention": weights / total, "contexts": contexts}
        return self.out(merge_heads(contexts)), (bound + k.mT @ v, mass + k.sum(-2))


class FixedMixing(nn.Module):
    """As Attention with mixing `fixed`: no queries, no keys; carries values. Records values, attention, contexts."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.value = nn.Linear(config.width, config.width)
        self.table = nn.Parameter(torch.empty(config.heads, config.max_T, config.max_T))
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple[Tensor]]:
        (v,) = split_heads(self.value(x), 1, self.heads)
        first = past[0].shape[-2] if past else 0
        if past:
            v = torch.cat([past[0], v], -2)
        last = v.shape[-2]
        if last > self.table.shape[-1]:
            raise ValueError(f"inputs must have at most max_T = {self.table.shape[-1]} positions in all, got {last}")
        seen = head.visible(last, True, x.device)[first:]
        rows = self.table[:, first:last, :last].masked_fill(~seen, -math.inf).softmax(-1)  # (heads, T, first + T)
        contexts = rows @ v
        if record is not None:
            record |= {"values": v, "attention": rows.expand(len(x), -1, -1, -1), "contexts": contexts}
        return self.out(merge_heads(contexts)), (v,)


def split_heads(x: Tensor, parts: int, heads: int) -> Tensor:
    """(B, T, parts d) as (parts, B, heads, T, d / heads)."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, d / heads) as (B, T, d)."""
    return x.transpose(1, 2).flatten(2)


class Mamba(nn.Module):
    """The selective state-space layer; carries the convolution's last inputs and h. Records z, gate, delta, A, B, C, D, y."""

    def __init__(self, config: Config):
        super().__init__()
        self.sizes = [config.rank, config.state, config.state]
        self.into = nn.Linear(config.width, 2 * config.inner, bias=False)  # to z and the gate
        self.conv = nn.Conv1d(config.inner, config.inner, config.conv, groups=config.inner)
        self.select = nn.Linear(config.inner, sum(self.sizes), bias=False)  # to Δ's low rank, B and C
        self.delta = nn.Linear(config.rank, config.inner)
        self.A_log = nn.Parameter(torch.empty(config.inner, config.state))
        self.D = nn.Parameter(torch.empty(config.inner))
        self.out = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        z, gate = self.into(x).chunk(2, -1)  # (B, T, d_inner)
        taps = self.conv.weight[:, 0].unbind(1)
        tail, h = past or (z.new_zeros(len(z), len(taps) - 1, z.shape[-1]), z.new_zeros(len(z), *self.A_log.shape))
        padded = torch.cat([tail, z], 1)  # (B, conv - 1 + T, d_inner)
        z = self.conv.bias
        for k, tap in enumerate(taps):  # on a CPU faster than conv1d, and no axes change place
            z = torch.addcmul(z, tap, padded[:, k : k + x.shape[1]])
        z = F.silu(z)
        low, B, C = self.select(z).split(self.sizes, -1)
        delta, A = F.softplus(self.delta(low)), -torch.exp(self.A_log)
        y, h = scan.unchecked_scan(z, delta, A, B, C, self.D, h)
        if record is not None:
            record |= {"z": z, "gate": gate, "delta": delta, "A": A, "B": B, "C": C, "D": self.D, "y": y}
        return self.out(y * F.silu(gate)), (padded[:, x.shape[1] :], h)


class LSTM(nn.Module):
    """torch's LSTM, one layer, and a map back to the width; carries hidden state and cell. Records the hidden states."""

    def __init__(self, config: Config):
        super().__init__()
        self.lstm = nn.LSTM(config.width, config.hidden_size, batch_first=True)
        self.out = nn.Linear(config.hidden_size, config.width)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, past = self.lstm(x, past or None)
        if record is not None:
            record["hidden"] = hidden
        return self.out(hidden), past


class MLP(nn.Module):
    """Position-wise, one hidden layer of GELU; carries nothing. Records its hidden activations as `activations`."""

    def __init__(self, config: Config):
        super().__init__()
        self.into = nn.Linear(config.width, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.width)

    def forward(self, x: Tensor, past: tuple = (), record: dict | None = None) -> tuple[Tensor, tuple]:
        activations = F.gelu(self.into(x))
        if record is not None:
            record["activations"] = activations
        return self.out(activations), ()


PARTS = {"transformer": (Attention, MLP), "mamba": (Mamba,), "lstm": (LSTM,), "mlp": (MLP,)}
MIXERS = {"softmax": Attention, "linear": LinearAttention, "fixed": FixedMixing}


def block_parts(config: Config) -> tuple[type[nn.Module], ...]:
    """The kinds of the parts of a block, in order."""
    return tuple(MIXERS[config.mixing] if part is Attention else part for part in PARTS[config.architecture])


class Block(nn.Module):
    """Pre-norm residual parts: x + part(norm(x)), one after another."""

    def __init__(self, config: Config):
        super().__init__()
        self.parts = nn.ModuleList(part(config) for part in block_parts(config))
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in self.parts)

    def forward(self, x: Tensor, states, record: dict | None = None) -> tuple[Tensor, list[tuple]]:
        after = []
        for norm, part in zip(self.norms, self.parts, strict=True):
            out, state = part(norm(x), next(states), record)
            x = x + out
            after.append(state)
        return x, after


class Model(nn.Module):
    """A sequence model; made by `build`. model(inputs) gives logits (B, T, C)."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        tokens = config.vocabulary is not None
        self.embed = nn.Embedding(config.vocabulary, config.width) if tokens else nn.Linear(config.d_x, config.width)
        self.positions = nn.Embedding(config.max_T, config.width) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.C)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, T, C) of tokens (B, T) or vectors (B, T, d_x); raises TypeError or ValueError about inputs."""
        return self.carry(inputs)[0]

    def record(self, inputs: Tensor) -> list[dict[str, Tensor]]:
        """For each block, what its parts record (see there), and `residual` (B, T, width), the stream after the block.

        Attention rows (B, heads, T, T) are computed explicitly here, not by the fast kernel that training uses.
        """
        records: list[dict[str, Tensor]] = []
        self.carry(inputs, records=records)
        return records

    def carry(
        self, inputs: Tensor, carried: Carried | None = None, records: list | None = None
    ) -> tuple[Tensor, Carried]:
        """Logits of the next positions, given what was carried from those before them, and what to carry on.

        Raises TypeError or ValueError for inputs that the model does not take, and for what another model carried or one
        that read other sequences."""
        config, parts = self.config, PARTS[self.config.architecture]
        self.check(inputs)
        if carried is not None:
            self.check_carried(carried, len(inputs))
        first, states = carried or (0, [()] * (config.layers * len(parts)))
        x = self.embedded(inputs, first)
        last = first + x.shape[1]
        before, after = iter(states), []
        for block in self.blocks:
            record = None if records is None else {}
            x, new = block(x, before, record)
            after += new
            if record is not None:
                records.append(record | {"residual": x})
        return self.head(self.norm(x)), Carried(last, after)

    def check_carried(self, carried: Carried, B: int) -> None:
        """Raise TypeError or ValueError for what this model does not carry of B sequences."""
        if not isinstance(carried, Carried):
            raise TypeError(f"carried must be a Carried, as carry returns it, got {type(carried).__name__}")
        blocks = self.config.layers * len(PARTS[self.config.architecture])
        others = [tuple(state.shape) for states in carried.states for state in states if B not in state.shape[:2]]
        if len(carried.states) != blocks or others:
            raise ValueError(
                f"carried must hold {blocks} states of {B} sequences, got {len(carried.states)}, of shapes {others}"
            )

    def embedded(self, inputs: Tensor, first: int = 0) -> Tensor:
        """What the first block is given, (B, T, width), of inputs that stand at positions from `first` on."""
        config, x = self.config, self.embed(inputs)
        last = first + x.shape[1]
        if config.positions == "learned":
            if last > config.max_T:
                raise ValueError(f"inputs must have at most max_T = {config.max_T} positions in all, got {last}")
            return x + self.positions.weight[first:last]
        if config.positions == "sinusoidal":
            turn = angles(first, x.shape[1], config.width // 2, x)
            return x + torch.cat([turn.sin(), turn.cos()], -1)
        return x

    def check(self, inputs: Tensor) -> None:
        """Raise TypeError or ValueError if inputs are not what the model takes."""
        if self.config.vocabulary is None:
            checks.tensor("inputs", inputs, last=(None, None, self.config.d_x))
            dims, dtype = 3, self.embed.weight.dtype
        else:
            checks.tensor("inputs", inputs, dims=2, floating=False)
            dims, dtype = 2, torch.int64
        if inputs.dtype != dtype:
            raise TypeError(f"inputs must have dtype {dtype}, got {inputs.dtype}")
        if inputs.dim() != dims:
            raise ValueError(f"inputs must have {dims} dimensions, got shape {tuple(inputs.shape)}")
        if dims == 2 and (inputs.min() < 0 or inputs.max() >= self.config.vocabulary):
            raise ValueError(
                f"inputs must be tokens from 0 to {self.config.vocabulary - 1}, got {inputs.min().item()} to {inputs.max().item()}"
            )

    def state_size(self, T: int) -> int:
        """How many numbers are carried from T past positions to the next, for one sequence."""
        checks.integer("T", T)
        config = self.config
        per_layer = {
            "transformer": {
                "softmax": 2 * config.width * T,
                "linear": config.width * (config.width // config.heads + 1),
                "fixed": config.width * T,
            }[config.mixing],
            "mamba": config.inner * (config.state + config.conv - 1),
            "lstm": 2 * config.hidden_size,
            "mlp": 0,
        }
        return config.layers * per_layer[config.architecture]


def build(config: Config, generator: torch.Generator) -> Model:
    """The model of `config` on the CPU, every weight drawn from `generator` alone; move it with `.to(device)`.

    Matrices are uniform within ±1/sqrt(fan-in), those back to the residual stream divided by sqrt(number of parts);
    embeddings are standard normal; biases and a fixed mixing's table 0, but 1 for the LSTM's forget gates, and Mamba's Δ starts log-uniform in
    [0.001, 0.1], A at -1 .. -N, D at 1. Raises TypeError or ValueError for what is not a Config or a CPU generator.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config must be a Config, got {type(config).__name__}")
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, got {generator.device}")
    with torch.device("meta"):  # shapes only: no weight is drawn here, from any generator
        model = Model(config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for module in model.modules():
            initialise(module, generator)
        parts = [part for block in model.blocks for part in block.parts]
        for part in parts:
            part.out.weight /= math.sqrt(len(parts))
            if isinstance(part, FixedMixing):
                part.table.zero_()
            if isinstance(part, Mamba):
                start = torch.rand(len(part.D), generator=generator) * math.log(100) + math.log(0.001)
                part.delta.bias.copy_(start.exp().expm1().log())  # the inverse of softplus
                part.A_log.copy_(torch.arange(1, part.A_log.shape[1] + 1).log().expand_as(part.A_log))
                part.D.fill_(1.0)
    return model


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights that `module` itself holds, as `build` says."""
    if isinstance(module, nn.Embedding):
        module.weight.normal_(generator=generator)
    elif isinstance(module, nn.LayerNorm):
        module.weight.fill_(1.0)
        module.bias.zero_()
    elif isinstance(module, (nn.Linear, nn.Conv1d, nn.LSTM)):
        for name, weight in module.named_parameters():
            if "bias" in name:
                weight.zero_()
            else:
                bound = weight[0].numel() ** -0.5
                weight.uniform_(-bound, bound, generator=generator)
        if isinstance(module, nn.LSTM):
            module.bias_ih_l0[module.hidden_size : 2 * module.hidden_size] = 1.0


def parameters(model: nn.Module) -> int:
    """How many trainable numbers the model has."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def match_parameters(config: Config, target: int) -> Config:
    """`config` with the width whose parameter count is nearest `target`; if `hidden` is set, that is changed instead, and
    if no width comes near enough, `hidden` at the width below.

    A Transformer's width stays a multiple of 2 heads. Raises ValueError if no size comes within 5 %.
    """
    checks.integer("target", target, least=1)
    field = "width" if config.hidden is None else "hidden"
    units = {"hidden": 1, "width": 2 * config.heads if config.architecture == "transformer" else 1}
    unit = math.lcm(units[field], 2) if config.positions == "sinusoidal" and field == "width" else units[field]

    def sized(k: int) -> Config:
        return replace(config, **{field: k * unit})

    def count(k: int) -> int:
        with torch.device("meta"):
            return parameters(Model(sized(k)))

    most = 1
    while count(most) < target:
        most *= 2
    least = most // 2  # count(least) < target <= count(most)
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if count(middle) < target else (least, middle)
    best = min((k for k in (least, most) if k), key=lambda k: abs(count(k) - target))
    if abs(count(best) - target) > 0.05 * target:
        if (
            field == "width" and least and config.architecture != "mamba"
        ):  # widths are too far apart: widen the hidden layer
            return match_parameters(replace(sized(least), hidden=1), target)
        raise ValueError(
            f"target must be within 5 % of a parameter count that {field} can give, got {target}: nearest is {count(best)}, at {field} {best * unit}"
        )
    return sized(best)
