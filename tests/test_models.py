"""The four architectures against independent implementations, and what they refuse."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from bayesattn_core import attention, gradcheck, models, scan

double = torch.float64
TRANSFORMER_POSITIONS = [("transformer", positions) for positions in models.POSITIONS]
OTHER_POSITIONS = [(a, p) for a in ("mamba", "lstm", "mlp") for p in ("none", "learned", "sinusoidal")]
EVERY = TRANSFORMER_POSITIONS + OTHER_POSITIONS


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def config(architecture="transformer", **changes):
    """A small configuration that takes tokens, some fields replaced."""
    small = {"C": 5, "vocabulary": 7, "width": 8, "heads": 2, "layers": 2, "max_T": 16, "state": 3}
    return models.Config(architecture, **(small | changes))


def small(architecture, seed=0, dtype=double, **changes):
    return models.build(config(architecture, **changes), seeded(seed)).to(dtype)


def tokens(*shape, seed=1):
    return torch.randint(7, shape, generator=seeded(seed))


def close(a, b, atol=1e-12):
    return torch.allclose(a, b, rtol=0, atol=atol)


def scan_inputs(batch=3, T=6, d=4, N=3, seed=0, dtype=double):
    """z, delta, A, B, C, D, h of random scans."""
    generator = seeded(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    delta, A = normal(batch, T, d).exp(), -normal(d, N).exp()
    return [normal(batch, T, d), delta, A, normal(batch, T, N), normal(batch, T, N), normal(d), normal(batch, d, N)]


def test_transformer_block_is_torchs_encoder_layer():
    model = small("transformer", hidden=12)
    block = model.blocks[0]
    judge = torch.nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=double
    )
    mine, mlp = block.parts
    pairs = [(judge.self_attn.out_proj, mine.out), (judge.linear1, mlp.into), (judge.linear2, mlp.out)]
    pairs += [(judge.norm1, block.norms[0]), (judge.norm2, block.norms[1])]
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(p.numel()), dtype=double))  # biases and norms too
        judge.self_attn.in_proj_weight.copy_(mine.qkv.weight)
        judge.self_attn.in_proj_bias.copy_(mine.qkv.bias)
        for theirs, ours in pairs:
            theirs.weight.copy_(ours.weight)
            theirs.bias.copy_(ours.bias)
    x = torch.randn(3, 9, 8, generator=seeded(), dtype=double)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(9, dtype=double)
    assert close(block(x, iter([(), ()]))[0], judge(x, src_mask=mask, is_causal=True))


@pytest.mark.parametrize(("batch", "T", "entries"), [(3, 6, None), (5, 7, 2 * 7 * 12), (2, 1, 1)])
def test_scan_is_the_loop(batch, T, entries, monkeypatch):
    if entries:  # several blocks, the last one smaller
        monkeypatch.setitem(scan.ENTRIES, "cpu", entries)
    inputs = [v.requires_grad_() for v in scan_inputs(batch, T)]
    found = []
    for function in (scan.selective_scan, scan.selective_scan_loop):
        y, last = function(*inputs)
        loss = y.sin().sum() + (last**2).sum()  # both outputs send gradients back
        found.append((y, last, *torch.autograd.grad(loss, inputs)))
    for name, mine, judge in zip(("y", "last", "z", "delta", "A", "B", "C", "D", "h"), *found, strict=True):
        assert mine.shape == judge.shape, name
        assert close(mine, judge, 1e-10), name
        assert judge.abs().max() > 1e-3, name


def test_scan_passes_gradcheck():
    inputs = [v.requires_grad_() for v in scan_inputs(2, 3, 2, 2)]
    assert torch.autograd.gradcheck(scan.selective_scan, inputs)


def test_scan_takes_inputs_in_any_memory_order():
    inputs = scan_inputs()
    strided = [v.mT.contiguous().mT if v.dim() > 1 else v for v in inputs]
    assert not strided[0].is_contiguous()
    found = []
    for given in (inputs, strided):
        leaves = [v.detach().requires_grad_() for v in given]
        y, last = scan.selective_scan(*leaves)
        found.append([y, last, *torch.autograd.grad(y.sin().sum() + last.sin().sum(), leaves)])
    assert all(close(a, b) for a, b in zip(*found, strict=True))


def test_scan_in_chunks_and_step_by_step_is_the_whole():
    z, delta, A, B, C, D, h = scan_inputs(T=7)
    whole, last = scan.selective_scan(z, delta, A, B, C, D, h)
    for sizes in ([3, 4], [1] * 7):
        state, outputs = h, []
        for z_c, d_c, B_c, C_c in zip(*(v.split(sizes, 1) for v in (z, delta, B, C)), strict=True):
            y, state = scan.selective_scan(z_c, d_c, A, B_c, C_c, D, state)
            outputs.append(y)
        assert close(torch.cat(outputs, 1), whole)
        assert close(state, last)


def test_scan_with_constant_parameters_is_a_convolution():
    z, delta, A, B, C, D, _ = scan_inputs(T=6)
    delta, B, C = (v[:1, :1].expand_as(v).contiguous() for v in (delta, B, C))
    lags = torch.arange(6, dtype=double)[:, None, None]
    kernel = (C[0, 0] * torch.exp(A * delta[0, 0, :, None] * lags) * B[0, 0]).sum(-1) * delta[0, 0]  # (T, d)
    kernel[0] += D
    expected = F.conv1d(F.pad(z.mT, (5, 0)), kernel.flip(0).T[:, None], groups=z.shape[-1]).mT
    assert close(scan.selective_scan(z, delta, A, B, C, D)[0], expected)


def test_routing_weights_give_the_scan():
    z, delta, A, B, C, D, _ = scan_inputs(T=8)
    routing = scan.mamba_routing(delta, A, B, C, D)
    y, _ = scan.selective_scan(z, delta, A, B, C, D)
    assert close(torch.einsum("btsd,bsd->btd", routing, z), y)
    upper = ~attention.visible(8, True)
    assert (routing[:, upper] == 0).all()
    n_sum = (C[1, 5] * torch.exp(A[2] * delta[1, 3:6, 2].sum()) * B[1, 2]).sum() * delta[1, 2, 2]
    assert close(routing[1, 5, 2, 2], n_sum)  # the formula, for one pair of one channel
    steps = (delta * 1e4).requires_grad_()  # exp of what may not be seen would overflow
    far = scan.mamba_routing(steps, A, B, C, D)
    assert far.isfinite().all()
    assert torch.autograd.grad(far.sum(), steps)[0].isfinite().all()


def test_routing_of_a_model():
    model = small("mamba")
    for record in model.record(tokens(2, 6)):
        routing = scan.mamba_routing(*(record[name] for name in ("delta", "A", "B", "C", "D")))
        assert close(torch.einsum("btsd,bsd->btd", routing, record["z"]), record["y"])
        gated = record["y"] * F.silu(record["gate"])
        assert gated.abs().max() > 1e-3


def test_mamba_is_the_public_one():
    mambapy = pytest.importorskip("mambapy.mamba", reason="needs mambapy: runs again where it is installed")
    judge = mambapy.MambaBlock(mambapy.MambaConfig(d_model=24, n_layers=1, d_state=5, pscan=False))
    model = small("mamba", dtype=torch.float32, width=24, state=5)
    mine = model.blocks[0].parts[0]
    pairs = {"in_proj": mine.into, "conv1d": mine.conv, "x_proj": mine.select, "dt_proj": mine.delta}
    with torch.no_grad():
        for p in mine.parameters():
            p.add_(torch.randn(p.shape, generator=seeded(p.numel())), alpha=0.1)
        for name, ours in (pairs | {"out_proj": mine.out}).items():
            getattr(judge, name).load_state_dict(ours.state_dict())
        judge.A_log.copy_(mine.A_log)
        judge.D.copy_(mine.D)
    x = torch.randn(3, 11, 24, generator=seeded())
    expected = judge(x)
    assert expected.abs().max() > 0.01
    assert close(mine(x)[0], expected, 1e-5)


def test_lstm_is_its_gates():
    model = small("lstm", hidden=6, layers=1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=seeded(p.numel()), dtype=double), alpha=0.3)
    part, inputs = model.blocks[0].parts[0], tokens(3, 7)
    weights = part.lstm
    embedded = model.embed(inputs)
    x = F.layer_norm(embedded, (8,), model.blocks[0].norms[0].weight, model.blocks[0].norms[0].bias)
    h, c, hidden = torch.zeros(3, 6, dtype=double), torch.zeros(3, 6, dtype=double), []
    for t in range(7):
        gates = x[:, t] @ weights.weight_ih_l0.T + weights.bias_ih_l0 + h @ weights.weight_hh_l0.T + weights.bias_hh_l0
        write, forget, content, read = gates.chunk(4, -1)
        c = forget.sigmoid() * c + write.sigmoid() * content.tanh()
        h = read.sigmoid() * c.tanh()
        hidden.append(h)
    hidden = torch.stack(hidden, 1)
    record = model.record(inputs)[0]
    assert close(record["hidden"], hidden)
    assert close(record["residual"], embedded + hidden @ part.out.weight.T + part.out.bias)


def test_forget_gates_start_open():
    model = small("lstm", hidden=3, width=4)
    bias = model.blocks[0].parts[0].lstm.bias_ih_l0
    assert bias.tolist() == [0] * 3 + [1] * 3 + [0] * 6


def test_mamba_starts_as_published():
    layer = small("mamba", width=64, state=4).blocks[1].parts[0]
    steps = F.softplus(layer.delta.bias)
    assert steps.min() > 0.000999
    assert steps.max() < 0.1001
    assert 0.3 < (steps < 0.01).double().mean() < 0.7  # log-uniform: half below the geometric middle
    assert close(layer.A_log.exp(), torch.arange(1, 5, dtype=double).expand(128, 4), 1e-6)
    assert (layer.D == 1).all()


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
@pytest.mark.parametrize("changed", [0, 3, 7])
def test_positions_see_the_past_alone(architecture, changed):
    model, inputs = small(architecture), tokens(4, 8)
    other = inputs.clone()
    other[:, changed] = (other[:, changed] + 1) % 7
    moved = (model(inputs) - model(other)).abs().amax((0, 2))  # (T,)
    assert (moved[:changed] < 1e-13).all()
    assert moved[changed] > 1e-3
    if architecture == "mlp":
        assert (moved[changed + 1 :] == 0).all()
    else:
        assert (moved[changed + 1 :] > 1e-9).all()


def assert_carried(model, inputs):
    """What is carried from chunk to chunk gives the whole, and is as large as state_size says."""
    whole = model(inputs)
    for sizes in ([1] * 9, [2, 1, 6]):
        carried, logits = None, []
        for chunk in inputs.split(sizes, 1):
            out, carried = model.carry(chunk, carried)
            logits.append(out)
            assert sum(t.numel() for state in carried.states for t in state) == 2 * model.state_size(carried.seen)
        assert carried.seen == 9
        assert close(torch.cat(logits, 1), whole)


@pytest.mark.parametrize(("architecture", "positions"), EVERY)
def test_carrying_the_past_is_seeing_it(architecture, positions):
    assert_carried(small(architecture, positions=positions), tokens(2, 9))


def test_state_sizes():
    sizes = {a: [small(a, width=8, hidden=None).state_size(T) for T in (0, 1, 10)] for a in models.ARCHITECTURES}
    assert sizes["transformer"] == [0, 2 * 2 * 8, 2 * 2 * 8 * 10]
    assert sizes["mamba"] == [2 * (16 * 3 + 16 * 3)] * 3
    assert sizes["lstm"] == [2 * 2 * 8] * 3
    assert sizes["mlp"] == [0] * 3
    assert small("lstm", hidden=5).state_size(4) == 2 * 2 * 5


def shuffle_tables(model):
    """Draw the tables of fixed mixing, which start at 0."""
    for name, W in model.named_parameters():
        if name.endswith("table"):
            W.data.normal_(generator=seeded(3))


MIXED = [(m, p) for m in ("linear", "fixed") for p in ("none", "learned", "sinusoidal")]


@pytest.mark.parametrize(("mixing", "positions"), MIXED)
def test_mixings_carry_the_past_and_see_nothing_else(mixing, positions):
    model, inputs = small("transformer", mixing=mixing, positions=positions), tokens(2, 9)
    shuffle_tables(model)
    assert_carried(model, inputs)
    whole = model(inputs)
    changed = inputs.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 7
    moved = (model(changed) - whole).abs().amax((0, 2))
    assert moved[:5].max() == 0
    assert moved[5:].min() > 0


@pytest.mark.parametrize("mixing", ["linear", "fixed"])
def test_mixings_are_what_they_say(mixing):
    """Against loops over positions."""
    model = small("transformer", mixing=mixing)
    shuffle_tables(model)
    x = torch.randn(2, 9, 8, generator=seeded(4), dtype=double)
    part, kept = model.blocks[0].parts[0], {}
    out, _ = part(x, (), kept)
    v, rows = kept["values"], torch.zeros(2, 2, 9, 9, dtype=double)
    for t in range(9):
        for s in range(t + 1):
            if mixing == "fixed":
                rows[:, :, t, s] = part.table[:, t, s].exp()
            else:
                q, k, _ = part.qkv(x).view(2, 9, 3, 2, 4).unbind(2)
                phi = [torch.where(y > 0, y + 1, y.exp()) for y in (q[:, t], k[:, s])]
                rows[:, :, t, s] = (phi[0] * phi[1]).sum(-1)
        rows[:, :, t] /= rows[:, :, t].sum(-1, keepdim=True)
    assert close(kept["attention"], rows)
    assert close(out, part.out((rows @ v).transpose(1, 2).reshape(2, 9, 8)))


@pytest.mark.parametrize("positions", models.POSITIONS)
def test_explicit_attention_is_the_fast_path(positions):
    model, inputs = small("transformer", positions=positions), tokens(3, 10)
    records = []
    logits, _ = model.carry(inputs, records=records)
    assert close(logits, model(inputs))
    assert len(records) == 2
    for record in records:
        rows = record["attention"]
        assert rows.shape == (3, 2, 10, 10)
        assert close(rows.sum(-1), torch.ones(3, 2, 10, dtype=double))
        assert (rows[..., ~attention.visible(10, True)] == 0).all()
        assert close(rows, attention.attend(attention.scores(record["queries"], record["keys"])))
        assert close(rows @ record["values"], record["contexts"])
    assert close(model.head(model.norm(records[-1]["residual"])), logits)


def test_rotary_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 8, generator=seeded(), dtype=double).expand(2, 9, 8)  # one content at every position
    scores = attention.scores(models.rotate(q), models.rotate(k))
    assert all(close(scores.diagonal(o), scores.diagonal(o)[:1].expand(9 - abs(o))) for o in range(-8, 9))
    assert scores[8].std() > 0.01
    assert close(attention.scores(models.rotate(q, 5), models.rotate(k, 5)), scores, 1e-11)
    assert close(scores.diagonal(), attention.scores(q, k).diagonal())  # at distance 0, nothing turns
    assert close(models.rotate(q).norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize(("architecture", "positions"), EVERY)
def test_positions_are_what_they_say(architecture, positions):
    model = small(architecture, positions=positions, layers=1)
    same = torch.full((1, 6), 3)
    spread = (model(same) - model(same)[:, :1]).abs().max()
    expected = positions in ("learned", "sinusoidal") or architecture in ("mamba", "lstm")
    assert (spread > 1e-6) == expected  # one token repeated: attention's average is the same everywhere


@pytest.mark.parametrize("inputs_are", ["tokens", "vectors"])
@pytest.mark.parametrize(
    ("architecture", "mixing"),
    [*((a, "softmax") for a in models.ARCHITECTURES), ("transformer", "linear"), ("transformer", "fixed")],
)
def test_gradients_against_finite_differences(architecture, mixing, inputs_are):
    changes = {"vocabulary": 3} if inputs_are == "tokens" else {"vocabulary": None, "d_x": 2}
    shape = {"width": 4, "state": 2, "conv": 2, "hidden": None if architecture == "mamba" else 3, "layers": 1, "C": 2}
    model = small(architecture, positions="learned", mixing=mixing, max_T=4, **shape, **changes)
    inputs = torch.randint(3, (2, 4), generator=seeded())
    inputs = inputs if inputs_are == "tokens" else torch.randn(2, 4, 2, generator=seeded(), dtype=double)
    targets = torch.randint(2, (2, 4), generator=seeded(2))
    tensors = {name: p.detach() for name, p in model.named_parameters()}

    def loss(named):
        logits = torch.func.functional_call(model, named, (inputs,))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    gradients = gradcheck.autograd(loss, tensors, tensors)
    assert all(g.abs().max() > 1e-9 for name, g in gradients.items() if "qkv.bias" not in name)
    assert gradcheck.gradcheck(loss, tensors, gradients).passed


@pytest.mark.parametrize(("architecture", "positions"), EVERY)
def test_dtypes_stay(architecture, positions):
    for kind in ({"vocabulary": 7}, {"vocabulary": None, "d_x": 3}):
        model = small(architecture, dtype=torch.float32, positions=positions, **kind)
        inputs = tokens(2, 6) if kind["vocabulary"] else torch.randn(2, 6, 3, generator=seeded())
        single = model(inputs)
        exact = model.double()(inputs.double() if inputs.is_floating_point() else inputs)
        assert (single.dtype, exact.dtype) == (torch.float32, double)
        assert single.shape == (2, 6, 5)
        assert close(single.double(), exact, 1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(("architecture", "positions"), EVERY)
def test_cuda_agrees(architecture, positions):
    model, inputs = small(architecture, positions=positions), tokens(3, 9)
    found = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        logits = model(inputs.to(device))
        logits.logsumexp(-1).sum().backward()
        found.append([logits.detach().cpu(), *(p.grad.cpu().clone() for p in model.parameters())])
    assert all(close(a, b, 1e-10) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_weights_come_from_the_generator_alone(architecture):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = models.build(config(architecture, positions="learned"), seeded(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, other = (models.build(config(architecture, positions="learned"), seeded(s)) for s in (3, 4))
    for (name, p), q, r in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert p.isfinite().all(), name
        drawn = p.dim() > 1 and "A_log" not in name
        assert torch.equal(p, r) != (drawn or name.endswith("delta.bias")), name


def test_residual_parts_start_smaller_with_depth():
    spread = [small("transformer", layers=n, width=64).blocks[0].parts[1].out.weight.std().item() for n in (1, 4)]
    assert spread[0] / spread[1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("target", [85_000, 2_800_000])
@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_parameters_match(architecture, target):
    start = config(architecture, positions="sinusoidal", layers=3, heads=3, width=12)
    matched = models.match_parameters(start, target)
    assert dataclasses.replace(matched, width=12) == start
    counts = []
    unit = 6 if architecture == "transformer" else 2
    for width in (matched.width - unit, matched.width, matched.width + unit):
        with torch.device("meta"):
            counts.append(models.parameters(models.Model(dataclasses.replace(start, width=width))))
    errors = [abs(count - target) for count in counts]
    assert errors[1] == min(errors)
    assert errors[1] <= 0.05 * target
    assert matched.width % unit == 0


@pytest.mark.parametrize("architecture", ["transformer", "lstm", "mlp"])
def test_parameters_match_by_hidden_size(architecture):
    start = config(architecture, width=32, hidden=8)
    matched = models.match_parameters(start, 50_000)
    assert matched.width == 32
    assert abs(models.parameters(models.build(matched, seeded())) - 50_000) <= 2500


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
@pytest.mark.parametrize("target", [6_000, 48_000, 150_000])
def test_every_target_of_the_book_can_be_matched(architecture, target):
    """Where widths are too far apart, the hidden layer makes up the difference."""
    wanted = models.Config(architecture, 8, vocabulary=16)
    matched = models.match_parameters(wanted, target)
    count = models.parameters(models.build(matched, torch.Generator().manual_seed(0)))
    assert abs(count - target) <= 0.05 * target
    assert matched.width >= 8


def test_parameters_are_the_trainable_ones():
    model = small("mlp")
    every = models.parameters(model)
    assert every == 7 * 8 + 2 * (2 * 8 + 8 * 32 + 32 + 32 * 8 + 8) + 2 * 8 + 8 * 5 + 5
    model.head.weight.requires_grad_(False)
    assert models.parameters(model) == every - 40


def call(architecture, inputs, **changes):
    return lambda: small(architecture, **changes)(inputs)


def scanned(**changes):
    names = ("z", "delta", "A", "B", "C", "D", "h")
    return lambda: scan.selective_scan(**(dict(zip(names, scan_inputs(), strict=True)) | changes))


BAD = {
    "an unknown architecture": (lambda: config("rnn"), ValueError, "architecture must be one of transformer, mamba"),
    "unknown positions": (lambda: config(positions="alibi"), ValueError, "positions must be one of none, learned"),
    "rotary elsewhere": (lambda: config("lstm", positions="rotary"), ValueError, "rotary for the transformer only"),
    "two inputs": (lambda: config(d_x=3), ValueError, "exactly one of vocabulary and d_x must be given, got vocabulary 7"),
    "no input": (lambda: config(vocabulary=None), ValueError, "exactly one of vocabulary and d_x must be given"),
    "no class": (lambda: config(C=0), ValueError, "C must be at least 1, got 0"),
    "a broken width": (lambda: config(width=8.0), TypeError, "width must be a whole number, got 8.0"),
    "no layer": (lambda: config(layers=0), ValueError, "layers must be at least 1, got 0"),
    "heads that do not divide": (lambda: config(heads=3), ValueError, "width must be a multiple of 3"),
    "an odd head": (lambda: config(width=6, positions="rotary"), ValueError, "width must be a multiple of 4"),
    "an odd width": (lambda: config("mlp", width=5, positions="sinusoidal"), ValueError, "width must be a multiple of 2"),
    "a hidden size for mamba": (lambda: config("mamba", hidden=9), ValueError, "hidden must be None for mamba"),
    "a negative rank": (lambda: config("mamba", dt_rank=-1), ValueError, "dt_rank must be at least 1, got -1"),
    "no config": (lambda: models.build({}, seeded()), TypeError, "config must be a Config, got dict"),
    "a seed for a generator": (lambda: models.build(config(), 3), TypeError, "generator must be a torch.Generator, got int"),
    "tokens too large": (call("mlp", tokens(2, 3) + 7), ValueError, "inputs must be tokens from 0 to 6, got"),
    "tokens negative": (call("lstm", tokens(2, 3) - 7), ValueError, "inputs must be tokens from 0 to 6, got"),
    "tokens int32": (call("mlp", tokens(2, 3).int()), TypeError, "inputs must have dtype torch.int64, got torch.int32"),
    "one sequence": (call("mlp", tokens(3)), ValueError, "inputs must have at least 2 dimensions, got shape (3,)"),
    "vectors for tokens": (call("mlp", torch.ones(2, 3, 4)), TypeError, "inputs must have dtype torch.int64"),
    "tokens in three dimensions": (call("mlp", tokens(2, 3, 4)), ValueError, "inputs must have 2 dimensions"),
    "no position": (call("mlp", tokens(2, 0)), ValueError, "inputs must not be empty"),
    "tokens for vectors": (
        call("mamba", tokens(2, 3, 4), vocabulary=None, d_x=4),
        TypeError,
        "inputs must have a floating-point dtype, got torch.int64",
    ),
    "narrow vectors": (
        call("mamba", torch.ones(2, 3, 3).double(), vocabulary=None, d_x=4),
        ValueError,
        "inputs must have size 4 in dimension -1",
    ),
    "vectors of another dtype": (
        call("mamba", torch.ones(2, 3, 4), vocabulary=None, d_x=4),
        TypeError,
        "inputs must have dtype torch.float64, got torch.float32",
    ),
    "vectors not finite": (
        call("mamba", torch.full((2, 3, 4), math.nan).double(), vocabulary=None, d_x=4),
        ValueError,
        "inputs must be finite",
    ),
    "too long": (
        call("mlp", tokens(2, 17), positions="learned"),
        ValueError,
        "inputs must have at most max_T = 16 positions in all, got 17",
    ),
    "linear mixing in an LSTM": (
        lambda: small("lstm", mixing="linear"),
        ValueError,
        "mixing must be softmax but for a transformer without rotary positions, got linear for architecture lstm",
    ),
    "fixed mixing with rotary positions": (
        lambda: small("transformer", mixing="fixed", positions="rotary"),
        ValueError,
        "mixing must be softmax but for a transformer without rotary positions, got fixed",
    ),
    "too long for fixed mixing": (
        lambda: small("transformer", mixing="fixed", max_T=3)(tokens(1, 4)),
        ValueError,
        "inputs must have at most max_T = 3 positions in all, got 4",
    ),
    "a negative T": (lambda: small("mlp").state_size(-1), ValueError, "T must be at least 0, got -1"),
    "a target too small": (
        lambda: models.match_parameters(config(), 20),
        ValueError,
        "target must be within 5 % of a parameter count that width can give, got 20: nearest is",
    ),
    "no target": (lambda: models.match_parameters(config(), 0), ValueError, "target must be at least 1, got 0"),
    "an odd pair": (lambda: models.rotate(torch.ones(2, 3)), ValueError, "x must have an even size in its last dimension"),
    "carried as a tuple": (lambda: small("lstm").carry(tokens(2, 3), (3, [])), TypeError, "carried must be a Carried"),
    "carried of other sequences": (
        lambda: small("lstm").carry(tokens(2, 3), small("lstm").carry(tokens(1, 3))[1]),
        ValueError,
        "states of 2 sequences, got",
    ),
    "carried by another": (
        lambda: small("lstm").carry(tokens(2, 3), small("transformer").carry(tokens(2, 3))[1]),
        ValueError,
        "carried must hold",
    ),
    "a scan of one sequence": (scanned(z=torch.ones(6, 4)), ValueError, "z must have at least 3 dimensions"),
    "a scan in four dimensions": (scanned(z=torch.ones(1, 3, 6, 4)), ValueError, "z must have shape (3, 6, 4)"),
    "C of other length": (scanned(C=torch.ones(3, 5, 3).double()), ValueError, "C must have shape (3, 6, 3), got (3, 5, 3)"),
    "D in float32": (scanned(D=torch.ones(4)), TypeError, "D must be torch.float64 on cpu as z is, got torch.float32"),
    "delta not finite": (scanned(delta=torch.full((3, 6, 4), math.inf).double()), ValueError, "delta must be finite"),
    "h of another batch": (scanned(h=torch.ones(2, 4, 3).double()), ValueError, "h must have shape (3, 4, 3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    function, error, message = BAD[name]
    with pytest.raises(error) as raised:
        function()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
