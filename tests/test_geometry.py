"""Diagnostics on data whose answer is known, and bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from scipy.spatial.distance import jensenshannon
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from bayesattn_core import geometry


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(0)


def test_jensen_shannon_is_scipys_and_a_metric(draw):
    p, q, r = torch.rand(3, 50, 7, generator=draw, dtype=torch.float64)
    p[:, 0] = 0  # zero entries
    p, q, r = (t / t.sum(-1, keepdim=True) for t in (p, q, r))
    expected = jensenshannon(p.numpy(), q.numpy(), axis=-1)
    assert torch.allclose(geometry.jensen_shannon(p, q), torch.from_numpy(expected), atol=1e-12)
    assert (geometry.jensen_shannon(p, r) <= geometry.jensen_shannon(p, q) + geometry.jensen_shannon(q, r)).all()
    assert geometry.jensen_shannon(p, p).max() == 0
    apart = geometry.jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    assert apart.item() == pytest.approx(math.sqrt(math.log(2)))


def test_cka_sees_neither_rotation_nor_scale_nor_shift(draw):
    a = torch.randn(30, 5, generator=draw, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=torch.float64))
    assert geometry.cka(a, 3 * a @ turn + 7).item() == pytest.approx(1, abs=1e-12)
    other = torch.randn(30, 4, generator=draw, dtype=torch.float64)
    # the definition, by the kernels
    centre = torch.eye(30, dtype=torch.float64) - 1 / 30
    K, L = centre @ a @ a.T @ centre, centre @ other @ other.T @ centre
    assert geometry.cka(a, other).item() == pytest.approx(((K * L).sum() / (K.norm() * L.norm())).item(), abs=1e-12)


def test_relative_distance(draw):
    a = torch.randn(2, 6, 3, generator=draw, dtype=torch.float64)
    assert torch.allclose(geometry.relative_distance(3 * a, a), torch.full((2,), 2.0, dtype=torch.float64))


def test_principal_axes_find_a_planted_plane(draw):
    plane, _ = torch.linalg.qr(torch.randn(8, 2, generator=draw, dtype=torch.float64))
    points = torch.randn(500, 2, generator=draw, dtype=torch.float64) * torch.tensor([5.0, 2.0]) @ plane.T + 100
    axes, shares = geometry.principal_axes(points)
    assert torch.allclose((axes @ axes.T), plane @ plane.T, atol=1e-10)
    assert shares.sum().item() == pytest.approx(1)
    judge = PCA(2).fit(points.numpy())
    assert np.allclose(shares, judge.explained_variance_ratio_)
    assert np.allclose(np.abs(judge.components_ @ axes.numpy()), np.eye(2))
    assert (axes.gather(0, axes.abs().argmax(0, keepdim=True)) > 0).all()
    with pytest.raises(ValueError, match="count must be at most 8, got 9"):
        geometry.principal_axes(points, 9)


def test_paths_of_a_square_walk():
    walk = torch.tensor([[0.0, 0], [3, 0], [3, 4], [0, 4]])[:, None] + 7  # snapshots, one run, two dimensions
    assert geometry.path_length(walk)[:, 0].tolist() == [0, 3, 7, 10]
    assert geometry.straightness(walk).item() == pytest.approx(0.4)
    assert geometry.straightness(walk[:2]).item() == 1


def test_settled_is_linear_between_snapshots_and_waits_for_relapses():
    steps = torch.tensor([0.0, 10, 20, 30])
    distance = torch.tensor([[1.0, 0.5, 0.0, 0.0], [1.0, 0.05, 0.6, 0.0], [1.0, 0.9, 0.8, 0.0]]).T
    found = geometry.settled(distance, steps, 0.9)
    assert found.tolist() == pytest.approx([18.0, 20 + 10 * 5 / 6, 20 + 10 * 7 / 8])
    with pytest.raises(ValueError, match="distance must end at 0"):
        geometry.settled(distance[:3], steps[:3])
    with pytest.raises(ValueError, match="share must be"):
        geometry.settled(distance, steps, 0.0)
    with pytest.raises(ValueError, match="nothing moves"):
        geometry.settled(0 * distance, steps)
    with pytest.raises(ValueError, match="rising steps"):
        geometry.settled(distance, steps.flip(0))
    with pytest.raises(ValueError, match="at least two rising steps"):
        geometry.settled(distance[-1:], steps[-1:])


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="q must have size 3"):
        geometry.jensen_shannon(torch.ones(3) / 3, torch.ones(2) / 2)
    with pytest.raises(ValueError, match="b must have size 4"):
        geometry.cka(torch.ones(4, 2), torch.ones(5, 2))
    with pytest.raises(TypeError, match=r"points must be a torch\.Tensor"):
        geometry.path_length([1, 2])


def test_settling_of_a_planted_path(draw):
    """Values on a straight line, attention that moves once and then rests."""
    end = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    one, two = torch.tensor([[1.0, 0.0]] * 5).double(), torch.tensor([[0.0, 1.0]] * 5).double()
    states = [(one, 0.25 * end), (two, 0.5 * end), (two, end)]
    found = geometry.settling(iter(states), states[-1])
    gap = math.sqrt(math.log(2))
    assert found["attention_path"].tolist() == pytest.approx([0, gap, gap])
    assert found["attention_left"].tolist() == pytest.approx([gap, 0, 0])
    assert found["values_path"].tolist() == pytest.approx([0, 0.25, 0.75])
    assert found["values_left"].tolist() == pytest.approx([0.75, 0.5, 0])
    assert found["values_cka"].tolist() == pytest.approx([1, 1, 1])


def test_what_has_no_answer_is_refused():
    still, rows = torch.ones(3, 1, 2), torch.tensor([[-0.5, 1.5]])
    with pytest.raises(ValueError, match="points must move"):
        geometry.straightness(still)
    with pytest.raises(ValueError, match="p must be probabilities"):
        geometry.jensen_shannon(rows, rows.abs() / 2)
    with pytest.raises(ValueError, match="q must be probabilities"):
        geometry.jensen_shannon(rows.abs() / 2, rows)
    with pytest.raises(ValueError, match="b must not be all zero"):
        geometry.relative_distance(still[0].expand(2, 2), torch.zeros(2, 2))


def test_a_planted_rank_is_found(draw):
    plane, _ = torch.linalg.qr(torch.randn(8, 8, generator=draw, dtype=torch.float64))
    circle = torch.arange(60, dtype=torch.float64) * math.tau / 60
    points = torch.stack([circle.cos(), circle.sin()], -1) @ plane[:2] + 5
    for measure in (geometry.participation_ratio, geometry.effective_rank):
        assert measure(points).item() == pytest.approx(2)
        assert measure(torch.stack([points, points])).shape == (2,)
    lines = torch.cat([torch.eye(5), -torch.eye(5)]).double() * torch.tensor([1, 1, 1, 0.1, 0.1]).double()
    assert 3 < geometry.participation_ratio(lines).item() < geometry.effective_rank(lines).item() < 5
    judge = PCA().fit(points.numpy()).explained_variance_ratio_
    assert np.allclose(geometry.spectrum(points), judge)


def test_principal_angles_are_scipys(draw):
    a, b = torch.randn(2, 9, 3, generator=draw, dtype=torch.float64)
    expected = subspace_angles(a.numpy(), b[:, :2].numpy())[::-1].copy()
    assert torch.allclose(geometry.principal_angles(a, b[:, :2]), torch.from_numpy(expected), atol=1e-7)
    assert geometry.principal_angles(a, a @ torch.randn(3, 3, generator=draw).double()).max() < 1e-6
    planted = torch.eye(4).double()[:, :1], torch.tensor([[1.0], [1], [0], [0]]).double()
    assert geometry.principal_angles(*planted).item() == pytest.approx(math.pi / 4)


def test_explained_is_a_regression_on_the_classes(draw):
    labels = torch.randint(0, 4, (2, 300), generator=draw)
    means = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    points = means[labels] + 0.5 * torch.randn(2, 300, 5, generator=draw, dtype=torch.float64)
    for one, of, share in zip(points, labels, geometry.explained(points, labels), strict=True):
        indicators = torch.nn.functional.one_hot(of).double().numpy()
        told = LinearRegression().fit(indicators, one.numpy()).predict(indicators)
        expected = r2_score(one.numpy(), told, multioutput="variance_weighted")
        assert share.item() == pytest.approx(expected, rel=1e-9)
    assert geometry.explained(means[labels], labels).min() > 1 - 1e-12
    silent = torch.stack([geometry.explained(points[0], labels[0, torch.randperm(300, generator=draw)]) for _ in range(200)])  # fmt: skip
    assert silent.mean().item() == pytest.approx(3 / 299, rel=0.2)


def test_key_cosine(draw):
    assert geometry.key_cosine(3 * torch.eye(6)).item() == 0
    assert geometry.key_cosine(torch.tensor([[1.0, 0], [-2, 0]])).item() == pytest.approx(1)  # absolute, not signed
    keys = torch.randn(400, 50, generator=draw, dtype=torch.float64)
    assert geometry.key_cosine(keys).item() == pytest.approx(math.sqrt(2 / (math.pi * 50)), rel=0.02)
    twice = torch.eye(3).repeat(2, 1)  # equal keys are not different ones
    assert geometry.key_cosine(twice).item() == pytest.approx(6 / 30)
    assert geometry.key_cosine(twice, torch.arange(3).repeat(2)).item() == 0
    assert geometry.key_cosine(twice.expand(4, 2, 6, 3), torch.arange(6).expand(4, 1, 6)).shape == (4, 2)


def test_spearman_is_scipys(draw):
    a, b = torch.randint(6, (2, 4, 30), generator=draw).double()  # many ties
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert np.allclose(geometry.spearman(a, b), expected)
    x = torch.randn(20, generator=draw, dtype=torch.float64)
    assert geometry.spearman(x, -x.exp()).item() == pytest.approx(-1)


def test_no_numbers_without_ties_rank_better_than_the_ceiling(draw):
    tied = torch.randint(0, 4, (3, 50), generator=draw).double()
    ceiling = geometry.rank_ceiling(tied)
    told = tied + 0.1 * torch.rand(3, 50, generator=draw, dtype=torch.float64)  # ranks what differs without fault
    assert torch.allclose(geometry.spearman(told, tied), ceiling)
    assert bool((ceiling < 0.99).all())
    assert torch.allclose(geometry.rank_ceiling(told), torch.ones(3).double())
    swapped = told.clone()  # one pair out of order, and it is below
    low, high = tied.argmin(-1, keepdim=True), tied.argmax(-1, keepdim=True)
    swapped.scatter_(-1, low, told.gather(-1, high)).scatter_(-1, high, told.gather(-1, low))
    assert bool((geometry.spearman(swapped, tied) < ceiling - 1e-3).all())


def test_without_an_axis_nothing_varies_along_it(draw):
    points, axes = (
        torch.randn(40, 6, generator=draw, dtype=torch.float64) + 3,
        torch.randn(6, 2, generator=draw).double(),
    )
    left = geometry.without(points, axes)
    assert ((left - left.mean(0)) @ axes).abs().max() < 1e-12
    assert torch.allclose(left.mean(0), points.mean(0))
    other = torch.linalg.qr(axes, mode="complete")[0][:, 2:]
    assert torch.allclose(left @ other, points @ other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: geometry.spectrum(torch.ones(3, 2)), "points must not all be the same"),
        (lambda: geometry.principal_angles(torch.ones(2, 3), torch.ones(2, 1)), "at most 2 columns, got 3 and 1"),
        (lambda: geometry.key_cosine(torch.ones(1, 3)), "keys must be at least 2, got 1"),
        (lambda: geometry.key_cosine(torch.zeros(2, 3)), "keys must not be 0"),
        (lambda: geometry.key_cosine(torch.ones(2, 3), torch.ones(2).long()), "labels must differ somewhere"),
        (lambda: geometry.without(torch.rand(4, 3), torch.zeros(3, 1)), "axes must have independent columns"),
        (lambda: geometry.without(torch.rand(4, 3), torch.ones(3, 2)), "axes must have independent columns"),
        (lambda: geometry.rank_ceiling(torch.ones(3)), "x must have entries that differ"),
        (lambda: geometry.principal_axes(torch.ones(3, 2), 1), "points must not all be the same"),
        (lambda: geometry.cka(torch.eye(3), torch.ones(3, 2)), "b must not all be the same"),
        (lambda: geometry.principal_angles(torch.ones(3, 2), torch.eye(3)), "a must have independent columns"),
        (lambda: geometry.explained(torch.eye(3), torch.tensor([0, -1, 1])), "labels must be int64 and not negative"),
        (lambda: geometry.spearman(torch.ones(4), torch.arange(4.0)), "entries that are all equal"),
    ],
)
def test_shapes_that_have_no_answer(call, message):
    with pytest.raises(ValueError, match=message):
        call()
