"""The head and its closed forms against their judges, and what the head refuses."""

import math

import pytest
import torch

from bayesattn_core import attention, gradcheck

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def small_case(**changes):
    """Arguments of attention.gradients for a small valid head, some replaced."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"W_Q": (4, 3), "W_K": (4, 3), "W_V": (4, 2), "W_O": (2, 5)}
    case = {
        "X": torch.randn(6, 4, generator=generator, dtype=torch.float64),
        "weights": {n: torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()},
        "targets": torch.randint(5, (6,), generator=generator),
    }
    return case | changes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
def test_closed_forms_against_both_judges(seed, device):
    report = gradcheck.check_closed_forms(seed=seed, device=device)
    assert {row.judge for row in report.rows} >= {"finite difference", "autograd", "autograd at ±1e4", "exact zeros"}
    assert len({row.name for row in report.rows}) == len(attention.Gradients._fields)
    report.require()


@pytest.mark.parametrize("causal", [True, False])
def test_large_scores_give_finite_gradients(causal):
    case = small_case()
    case["weights"]["W_Q"] = case["weights"]["W_Q"] * 1e4
    head, gradients = attention.gradients(**case, causal=causal)
    assert head.scores[head.scores.isfinite()].abs().max() > 1e4
    assert all(torch.isfinite(g).all() for g in gradients)


def test_identities():
    head, gradients = attention.gradients(**small_case())
    assert gradients.scores.sum(-1).abs().max() < 1e-15  # attention is a fixed budget
    assert (gradients.scores[0] == 0).all()  # one position to see: nothing to decide
    hidden = ~attention.visible(6, True)
    assert (gradients.scores[hidden] == 0).all()
    advantage = attention.advantage(head.attention, gradients.attention)
    descent = -gradients.scores[~hidden]
    assert torch.allclose(descent, (head.attention * advantage)[~hidden], rtol=0, atol=1e-16)
    assert (descent[descent != 0].sign() == advantage[~hidden][descent != 0].sign()).all()


def test_unsupervised_positions_send_nothing():
    w = torch.tensor([0.5, 0, 0, 0.5, 0, 0], dtype=torch.float64)
    _, gradients = attention.gradients(**small_case(position_weights=w))
    assert (gradients.contexts[w == 0] == 0).all()
    assert (gradients.scores[w == 0] == 0).all()


def test_batch_entries_are_heads_of_their_own():
    case = next(c for c in gradcheck.random_cases() if c.X.dim() > 3 and c.causal)
    head, gradients = attention.gradients(*case)
    X, targets = case.X.expand(2, 3, -1, -1), case.targets.expand(2, 3, *case.targets.shape[2:])
    w = case.position_weights.expand(2, 3, -1)
    for index in ((0, 0), (1, 2)):
        weights = {name: W[index] for name, W in case.weights.items()}
        one, alone = attention.gradients(X[index], weights, targets[index], w[index])
        assert torch.allclose(head.loss[index], one.loss, rtol=1e-14)
        for name in attention.Gradients._fields:
            assert torch.allclose(getattr(gradients, name)[index], getattr(alone, name), rtol=0, atol=1e-14)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [1, 3, 4, 128])
def test_blocks_give_the_plain_numbers(block, device):
    for case in gradcheck.random_cases(device=device):
        head, gradients = attention.gradients(*case)
        loss, log_p, blocked = attention.blockwise(*case, block=block)
        assert torch.allclose(loss, head.loss, rtol=1e-13)
        assert torch.allclose(log_p, head.logits.log_softmax(-1), rtol=0, atol=1e-13)
        for name in attention.WEIGHTS:
            assert torch.allclose(blocked[name], getattr(gradients, name), rtol=0, atol=1e-14), name


def test_float32_stays_float32():
    case = small_case()
    case["X"] = case["X"].float()
    case["weights"] = {name: W.float() for name, W in case["weights"].items()}
    head, gradients = attention.gradients(**case)
    assert {t.dtype for t in (*head, *gradients)} == {torch.float32}
    double = attention.gradients(**small_case())[1]
    assert torch.allclose(gradients.W_Q.double(), double.W_Q, atol=1e-6)


def nan_at(tensor):
    return tensor.clone().index_fill_(0, torch.tensor([1]), math.nan)


good = small_case()
W = good["weights"]
soft = torch.full((6, 5), 0.2, dtype=torch.float64)
BAD = {
    "X is a list": ({"X": [[1.0]]}, TypeError, "X must be a torch.Tensor, got list"),
    "X of integers": ({"X": torch.ones(6, 4, dtype=torch.int64)}, TypeError, "X must have a floating-point dtype"),
    "X of one dimension": ({"X": torch.ones(4).double()}, ValueError, "X must have at least 2 dimensions"),
    "X empty": ({"X": torch.ones(0, 4).double()}, ValueError, "X must not be empty"),
    "an empty batch": ({"X": torch.ones(0, 6, 4).double()}, ValueError, "X must not be empty"),
    "X not finite": ({"X": nan_at(good["X"])}, ValueError, "X must be finite, got 4 entries that are not"),
    "a weight missing": ({"weights": {n: W[n] for n in ("W_Q", "W_K", "W_V")}}, ValueError, "weights must be a dict"),
    "W_Q of wrong height": ({"weights": W | {"W_Q": torch.ones(3, 3).double()}}, ValueError, "W_Q must have size 4"),
    "W_K of wrong width": ({"weights": W | {"W_K": torch.ones(4, 2).double()}}, ValueError, "W_K must have size 3"),
    "W_O of wrong height": ({"weights": W | {"W_O": torch.ones(3, 5).double()}}, ValueError, "W_O must have size 2"),
    "W_V not finite": ({"weights": W | {"W_V": nan_at(W["W_V"])}}, ValueError, "W_V must be finite"),
    "dtypes mixed": ({"weights": W | {"W_V": W["W_V"].float()}}, TypeError, "W_V must have X's dtype torch.float64"),
    "targets of wrong length": ({"targets": torch.zeros(5, dtype=torch.int64)}, ValueError, "targets must have size 6"),
    "targets too large": ({"targets": torch.full((6,), 5)}, ValueError, "class indices from 0 to 4, got 5 to 5"),
    "targets negative": ({"targets": torch.full((6,), -1)}, ValueError, "class indices from 0 to 4, got -1"),
    "targets int32": ({"targets": torch.zeros(6, dtype=torch.int32)}, TypeError, "targets must be class indices"),
    "soft targets off": ({"targets": soft * 1.01}, ValueError, "sum to 1 in each row"),
    "soft targets negative": ({"targets": soft - torch.eye(6, 5) + torch.eye(6, 5).roll(1, 1)}, ValueError, "sum to 1"),
    "weights negative": ({"position_weights": -torch.ones(6).double()}, ValueError, "position_weights must not be neg"),
    "weights of wrong length": ({"position_weights": torch.ones(5).double()}, ValueError, "position_weights must have"),
    "weights not finite": (
        {"position_weights": nan_at(torch.ones(6).double())},
        ValueError,
        "position_weights must be",
    ),
    "another device": (
        {"targets": good["targets"].to("meta")},
        ValueError,
        "targets must be on X's device cpu, got meta",
    ),
    "batches that clash": (
        {"X": torch.ones(2, 6, 4).double(), "weights": W | {"W_Q": torch.ones(3, 4, 3).double()}},
        ValueError,
        "must broadcast",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    changes, error, message = BAD[name]
    for function in (attention.forward, attention.gradients):
        with pytest.raises(error) as raised:
            function(**small_case(**changes))
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
