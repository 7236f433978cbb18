"""Routing weights reproduce each layer's output, and say what a query can and cannot re-weight."""

import pytest
import torch

from bayesattn_core import gradcheck, models, routing, scan


def seeded():
    return torch.Generator().manual_seed(0)


def built(architecture, **changes):
    config = models.Config(architecture, 3, vocabulary=7, width=8, layers=2, heads=2, state=3, **changes)
    return models.build(config, seeded()).double()


def tokens(T=9):
    return torch.randint(7, (2, T), generator=torch.Generator().manual_seed(1))


def test_lstm_gates_and_routing_are_torchs_lstm():
    lstm = torch.nn.LSTM(5, 4, batch_first=True, dtype=torch.float64)
    for weight in lstm.parameters():
        weight.data.normal_(generator=seeded())
    x = torch.randn(2, 8, 5, generator=seeded(), dtype=torch.float64)
    gates = routing.lstm_gates(lstm, x)
    hidden, (_, cell) = lstm(x)
    assert torch.allclose(gates["output"] * gates["cells"].tanh(), hidden, atol=1e-12)
    assert torch.allclose(gates["cells"][:, -1], cell[0], atol=1e-12)
    w = routing.lstm_routing(gates)
    assert torch.allclose((w * gates["candidates"][:, None]).sum(2), gates["cells"], atol=1e-12)


def test_routing_of_each_block_reproduces_what_it_mixes():
    inputs = tokens()
    model = built("transformer")
    for w, block in zip(routing.routing_weights(model, inputs), model.record(inputs), strict=True):
        mixed = torch.einsum("btsh,bhsd->bhtd", w, block["values"])
        assert torch.allclose(mixed, block["contexts"], atol=1e-12)
    model = built("mamba")
    for w, block in zip(routing.routing_weights(model, inputs), model.record(inputs), strict=True):
        assert torch.allclose((w * block["z"][:, None]).sum(2), block["y"], atol=1e-12)
    model = built("lstm", positions="sinusoidal")
    before = [model.embedded(inputs), model.record(inputs)[0]["residual"]]
    for k, w in enumerate(routing.routing_weights(model, inputs)):
        block = model.blocks[k]
        gates = routing.lstm_gates(block.parts[0].lstm, block.norms[0](before[k]))
        assert torch.allclose((w * gates["candidates"][:, None]).sum(2), gates["cells"], atol=1e-12)
        hidden = gates["output"] * gates["cells"].tanh()
        assert torch.allclose(hidden, model.record(inputs)[k]["hidden"], atol=1e-12)
    (w, _) = routing.routing_weights(built("mlp"), inputs)
    assert torch.equal(w[0, ..., 0], torch.eye(9, dtype=torch.float64))


def test_only_an_lstms_query_cannot_reweight_what_is_stored():
    one, other = tokens(), tokens()
    other[:, -1] = (other[:, -1] + 1) % 7
    depends = {}
    for architecture in ("transformer", "mamba", "lstm"):
        model = built(architecture)
        first, second = (routing.routing_weights(model, inputs)[0] for inputs in (one, other))
        depends[architecture] = routing.query_dependence(first, second)
    assert depends["lstm"].max() < 1e-12
    assert depends["transformer"].min() > 1e-4
    assert depends["mamba"].median() > 1e-6


def test_a_mamba_of_one_state_cannot_reweight_either():
    draw = seeded()
    delta = torch.rand(1, 6, 4, generator=draw, dtype=torch.float64)
    A = -torch.rand(4, 1, generator=draw, dtype=torch.float64)
    B, C = (torch.rand(1, 6, 1, generator=draw, dtype=torch.float64) + 0.1 for _ in range(2))
    changed = [v.clone() for v in (delta, B, C)]
    for v in changed:
        v[:, -1] += 0.5
    one = scan.mamba_routing(delta, A, B, C, torch.zeros(4, dtype=torch.float64))
    other = scan.mamba_routing(changed[0], A, changed[1], changed[2], torch.zeros(4, dtype=torch.float64))
    assert routing.query_dependence(one, other).max() < 1e-12


def test_query_dependence_is_the_sine_of_an_angle():
    one, other = torch.zeros(2, 1, 4, 4, 4, dtype=torch.float64)
    rows = {
        0: ([1, 0, 0], [1, 1, 0]),
        1: ([1, 2, 3], [-2, -4, -6]),
        2: ([0, 0, 0], [0, 0, 0]),
        3: ([0, 1, 0], [0, 0, -5]),
    }
    for channel, (first, second) in rows.items():
        one[0, -1, :3, channel], other[0, -1, :3, channel] = (torch.tensor(row).double() for row in (first, second))
    one[0, -1, 3], other[0, -1, 3] = 5, 9  # the weight of the present position does not count
    expected = torch.tensor([[0.5**0.5, 0, 0, 1]], dtype=torch.float64)
    assert torch.allclose(routing.query_dependence(one, other), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: routing.lstm_gates(torch.nn.GRU(2, 2), torch.ones(1, 2, 2)),
            TypeError,
            "must be a torch.nn.LSTM, got GRU",
        ),
        (lambda: routing.lstm_gates(torch.nn.LSTM(2, 2), torch.ones(1, 2, 2)), ValueError, "batch first"),
        (lambda: routing.routing_weights(torch.nn.Linear(2, 2), torch.ones(1, 2)), TypeError, "must be a models.Model"),
        (
            lambda: routing.query_dependence(torch.ones(1, 4, 4, 1), torch.ones(1, 3, 3, 1)),
            ValueError,
            "other must have size 4",
        ),
        (
            lambda: routing.query_dependence(torch.ones(1, 2, 2, 1), torch.ones(1, 2, 2, 1)),
            ValueError,
            "at least 3 positions",
        ),
        (
            lambda: routing.lstm_routing({"input": torch.ones(1, 3, 2)}),
            ValueError,
            "name must be one of input, got 'forget'",
        ),
        (
            lambda: routing.lstm_routing({"input": torch.ones(1, 3, 2), "forget": torch.zeros(1, 3, 2)}),
            ValueError,
            "must be above 0, got 0",
        ),
        (
            lambda: routing.lstm_gates(torch.nn.LSTM(2, 2, bias=False, batch_first=True), torch.ones(1, 2, 2)),
            ValueError,
            "biases and no projection",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def scan_inputs():
    generator = seeded()

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    z, u = normal(2, 6, 3), normal(2, 6, 3)
    return {"z": z, "delta": normal(2, 6, 3).exp(), "A": -normal(3, 4).exp(), "B": normal(2, 6, 4), "C": normal(2, 6, 4), "D": normal(3)}, u  # fmt: skip


def test_gradients_of_mambas_routing_are_right():
    inputs, u = scan_inputs()
    closed = routing.mamba_gradients(**inputs, u=u)

    def loss(named):  # the definition, one position after another
        return (scan.selective_scan_loop(**named)[0] * u).sum()

    assert gradcheck.gradcheck(loss, inputs, {name: closed[name] for name in inputs}).passed
    by_autograd = gradcheck.autograd(loss, inputs, inputs)
    for name, gradient in by_autograd.items():
        assert torch.allclose(closed[name], gradient, rtol=1e-12, atol=1e-12)
    w = scan.mamba_routing(*(inputs[name] for name in ("delta", "A", "B", "C", "D")))
    (by_w,) = gradcheck.autograd(lambda w: ((w["w"] * inputs["z"][:, None]).sum(2) * u).sum(), {"w": w}, ["w"]).values()
    past = torch.ones(6, 6, dtype=torch.bool).tril()[..., None]
    assert torch.allclose(closed["routing"], by_w * past, atol=1e-12)
    with pytest.raises(ValueError, match="u must have size 6"):
        routing.mamba_gradients(**inputs, u=u[:, 1:])
