"""The judges themselves, on functions whose gradients are known."""

import math

import pytest
import torch

from bayesattn_core import attention as head
from bayesattn_core import gradcheck


def quartic(tensors):
    return (tensors["x"] ** 4).sum() + (tensors["x"].sum() * tensors["y"]).sum()


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(2, 3, generator=generator, dtype=torch.float64),
        "y": torch.randn(4, generator=generator, dtype=torch.float64),
    }


def right(tensors):
    return {
        "x": 4 * tensors["x"] ** 3 + tensors["y"].sum(),
        "y": tensors["x"].sum().expand(4).clone(),
    }


def test_a_right_gradient_passes_and_is_reported(tensors):
    report = gradcheck.gradcheck(quartic, tensors, right(tensors))
    assert report.passed
    assert [(row.name, row.shape) for row in report.rows] == [("x", (2, 3)), ("y", (4,))]
    for word in ("x", "(2, 3)", "finite difference", "ok"):
        assert word in str(report)
    assert "<= 1e-07: True" in report.verdicts()


def test_a_wrong_entry_is_named(tensors):
    wrong = right(tensors)
    wrong["x"][1, 2] += 0.01
    with pytest.raises(gradcheck.GradientMismatch) as raised:
        gradcheck.gradcheck(quartic, tensors, wrong)
    message = str(raised.value)
    assert "gradient of x" in message
    assert "index (1, 2)" in message
    assert repr(wrong["x"][1, 2].item()) in message


def test_a_gradient_that_is_not_a_number_fails(tensors):
    wrong = right(tensors)
    wrong["y"][2] = math.nan
    with pytest.raises(gradcheck.GradientMismatch, match=r"index \(2,\)"):
        gradcheck.gradcheck(quartic, tensors, wrong)


def test_the_error_is_the_one_the_book_defines():
    given, expected = torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 2.5]).double()
    assert gradcheck.compare("x", given, expected, 0.0, "", 0).error == pytest.approx(0.5 / 2.5)
    tiny = torch.tensor([1e-9, 0.0]).double()
    assert gradcheck.compare("x", tiny, 0 * tiny, 0.0, "", 0).error == pytest.approx(1e-9 / 0.01)
    assert gradcheck.compare("x", tiny, 0 * tiny, -50.0, "", 0).error == pytest.approx(1e-9 / 0.5)


def test_differences_divide_by_the_step_that_was_made():
    """At x = 1000 in float32 a step of 1e-4 is really 1.2e-4: dividing by the nominal one would be off by a fifth."""
    tensors = {"x": torch.tensor([1000.0])}
    given = gradcheck.finite_difference(lambda t: t["x"].sum(), tensors, "x", step=1e-4)
    assert given.item() == pytest.approx(1.0, abs=1e-6)


def test_the_random_heads_are_as_varied_as_promised():
    cases = list(gradcheck.random_cases())
    assert {case.causal for case in cases} == {True, False}
    assert {case.targets.is_floating_point() for case in cases} == {True, False}
    assert any(case.X.shape[-2] == 1 for case in cases)
    assert any((case.position_weights == 0).any() for case in cases)
    assert any(case.X.dim() > 3 for case in cases)


def test_exact_zeros_are_seen_to_be_missing():
    case = next(c for c in gradcheck.random_cases() if c.causal and c.X.shape[-2] > 2)

    def leaky(*case):
        given = head.gradients(*case)
        scores = given[1].scores.clone()
        scores[..., 0, -1] += 1e-30
        return given[0], given[1]._replace(scores=scores)

    failed = [row for row in gradcheck.check_head(case, leaky, differences=False).rows if not row.passed]
    assert [(row.name, row.judge) for row in failed] == [("scores", "exact zeros")]


def test_the_sweep_is_a_v(tensors):
    errors = gradcheck.step_sweep(quartic, tensors, {"x": right(tensors)["x"]}, [1e-2, 1e-3, 1e-5, 1e-9])["x"]
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.05)  # truncation, h squared
    assert errors[2] < errors[1]
    assert errors[3] > errors[2]  # rounding, 1/h


def test_differences_agree_with_autograd(tensors):
    judge = gradcheck.autograd(quartic, tensors, ["x", "y"])
    for name, gradient in judge.items():
        assert torch.allclose(gradcheck.finite_difference(quartic, tensors, name), gradient, atol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: gradcheck.finite_difference(quartic, t, "x", step=0.0), "step must be finite and above 0, got 0.0"),
        (lambda t: gradcheck.finite_difference(quartic, t, "x", step=1e-20), "step must change every entry of x"),
        (lambda t: gradcheck.finite_difference(quartic, t, "z"), "name must be one of x, y, got 'z'"),
        (lambda t: gradcheck.finite_difference(lambda t: t["x"], t, "x"), "function must return a tensor with one"),
        (lambda t: gradcheck.finite_difference(lambda t: 3.0, t, "x"), "function must return a tensor with one"),
        (lambda t: gradcheck.gradcheck(quartic, t, {"x": t["y"]}), "gradient of x must have shape (2, 3), got (4,)"),
        (lambda t: gradcheck.gradcheck(lambda t: t["x"].sum() * math.inf, t, {}), "function must return a finite"),
    ],
)
def test_bad_input_is_named(tensors, call, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
        call(tensors)
    assert message in str(raised.value)
